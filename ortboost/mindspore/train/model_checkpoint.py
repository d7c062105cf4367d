"""``ModelCheckpoint``: save the weights during training."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from ortboost import training
from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentValueError, CountOrZero
from ortboost.mindspore.core.serialization import save_checkpoint
from ortboost.mindspore.train.callback import Callback, CallbackParam, RunContext

__all__ = ["CheckpointConfig", "ModelCheckpoint"]


class CheckpointConfig:
    """When :class:`ModelCheckpoint` saves, and how many files it keeps.

    Args:
        save_checkpoint_steps: Save every this many steps; 0 to go by seconds.
        save_checkpoint_seconds: Save every this many seconds, if above 0 and steps are 0.
        keep_checkpoint_max: Remove the oldest files beyond this number; 0 keeps all.

    Example:
        >>> CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=2).keep_checkpoint_max
        2
    """

    @checked
    def __init__(
        self,
        save_checkpoint_steps: CountOrZero = 1,
        save_checkpoint_seconds: CountOrZero = 0,
        keep_checkpoint_max: CountOrZero = 5,
    ) -> None:
        self.save_checkpoint_steps = save_checkpoint_steps
        self.save_checkpoint_seconds = save_checkpoint_seconds
        self.keep_checkpoint_max = keep_checkpoint_max


class ModelCheckpoint(Callback):
    """Save the weights as ``<directory>/<prefix>-<epoch>_<step>.safetensors``.

    Args:
        prefix: Start of the names. If the folder already has checkpoints of it, a number is added
            (``prefix_1``), as in MindSpore, so that those of an earlier run are kept.
        directory: Folder, created if missing; the current one if not given.
        config: When to save.

    Raises:
        ArgumentValueError: ``prefix`` is not a non-empty string, or contains a '/'.

    Example:
        >>> config = CheckpointConfig(save_checkpoint_steps=100)
        >>> callback = ModelCheckpoint("mlp", "checkpoints", config)
        >>> model.train(2, batches, callbacks=callback)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self,
        prefix: Any = "CKP",
        directory: str | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        if not isinstance(prefix, str) or "/" in prefix or not prefix:
            raise ArgumentValueError(
                f"'prefix' is {prefix!r}.", where="ModelCheckpoint", fix="Give a short string."
            )
        self._directory = Path(directory or ".")
        self._prefix = _unused(prefix, self._directory)
        self._config = config or CheckpointConfig()
        self._last_step, self._last_time = 0, 0.0
        self._files: list[Path] = []

    def to_trainer(self) -> training.Callback:
        """Not supported: :func:`ortboost.train` has its own checkpoints.

        Raises:
            ArgumentValueError: Always.
        """
        raise ArgumentValueError(
            "ModelCheckpoint is for Model; the trainer of a program has its own checkpoints.",
            where="callbacks",
            fix="Leave it out, and give train(..., keep=3, checkpoint_every=100).",
        )

    @property
    def latest_ckpt_file_name(self) -> str:
        """Path of the newest file; empty before the first."""
        return str(self._files[-1]) if self._files else ""

    def on_train_begin(self, run_context: RunContext) -> None:
        """Create the folder."""
        self._directory.mkdir(parents=True, exist_ok=True)
        self._last_step = run_context.original_args().cur_step_num
        self._last_time = time.monotonic()

    def on_train_step_end(self, run_context: RunContext) -> None:
        """Save if it is time."""
        args, config = run_context.original_args(), self._config
        if config.save_checkpoint_steps:
            due = args.cur_step_num - self._last_step >= config.save_checkpoint_steps
        else:
            passed = time.monotonic() - self._last_time
            due = 0 < config.save_checkpoint_seconds <= passed
        if due:
            self._save(args)

    def on_train_end(self, run_context: RunContext) -> None:
        """Save the last state, unless it has just been saved."""
        args = run_context.original_args()
        if args.cur_step_num != self._last_step:
            self._save(args)

    def _save(self, args: CallbackParam) -> None:
        name = f"{self._prefix}-{args.cur_epoch_num}_{args.cur_step_in_epoch}"
        path = save_checkpoint(args.network, self._directory / f"{name}.safetensors")
        self._last_step, self._last_time = args.cur_step_num, time.monotonic()
        self._files = [file for file in self._files if file != path] + [path]
        keep = self._config.keep_checkpoint_max
        while keep and len(self._files) > keep:
            self._files.pop(0).unlink(missing_ok=True)


def _unused(prefix: str, folder: Path) -> str:
    """The prefix, with a number if the folder has checkpoints of it."""
    name = re.compile(re.escape(prefix) + r"(?:_(\d+))?-\d+_\d+\.safetensors")
    matches = (name.fullmatch(file.name) for file in folder.glob("*.safetensors"))
    numbers = [int(found[1] or 0) for found in matches if found]
    return f"{prefix}_{max(numbers) + 1}" if numbers else prefix
