"""``ModelCheckpoint``: save the weights during training."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

from ortboost import training
from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentValueError, CountOrZero, refuse_given
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.serialization import save_checkpoint
from ortboost.mindspore.train.callback import Callback
from ortboost.mindspore.train.run_context import CallbackParam, RunContext

__all__ = ["CheckpointConfig", "ModelCheckpoint"]


class CheckpointConfig:
    """When :class:`ModelCheckpoint` saves, and how many files it keeps.

    Args:
        save_checkpoint_steps: Save every this many steps; 0 or ``None`` to go by seconds.
        save_checkpoint_seconds: Save every this many seconds, if above 0 and steps are 0.
        keep_checkpoint_max: Remove the oldest files beyond this number; 0 keeps all.
        keep_checkpoint_per_n_minutes: Must be 0.
        integrated_save: Accepted without effect, as for :func:`ortboost.save_checkpoint`.
        async_save: Accepted without effect.
        saved_network: The network to save; that of the model if not given.
        append_info: More values to save: ``"epoch_num"``, ``"step_num"``, and a dict of values,
            where these two names have the numbers to start from.
        enc_key: Must be ``None``.
        enc_mode: Accepted without effect.
        exception_save: Must be False.
        crc_check: Must be False.
        remove_redundancy: Must be False.
        format: Accepted without effect: files are safetensors.

    Example:
        >>> CheckpointConfig(save_checkpoint_steps=100, keep_checkpoint_max=2).keep_checkpoint_max
        2
    """

    @checked
    def __init__(
        self,
        save_checkpoint_steps: CountOrZero | None = 1,
        save_checkpoint_seconds: CountOrZero | None = 0,
        keep_checkpoint_max: CountOrZero | None = 5,
        keep_checkpoint_per_n_minutes: CountOrZero | None = 0,
        integrated_save: bool = True,
        async_save: bool | str = False,
        saved_network: Cell | None = None,
        append_info: Sequence[Literal["epoch_num", "step_num"] | dict[str, Any]] | None = None,
        enc_key: bytes | None = None,
        enc_mode: str = "AES-GCM",
        exception_save: bool = False,
        crc_check: bool = False,
        remove_redundancy: bool = False,
        format: str = "ckpt",
    ) -> None:
        refuse_given(
            "CheckpointConfig",
            keep_checkpoint_per_n_minutes=keep_checkpoint_per_n_minutes,
            enc_key=enc_key,
            exception_save=exception_save,
            crc_check=crc_check,
            remove_redundancy=remove_redundancy,
        )
        self.save_checkpoint_steps = save_checkpoint_steps or 0
        self.save_checkpoint_seconds = save_checkpoint_seconds or 0
        self.keep_checkpoint_max = keep_checkpoint_max or 0
        self.saved_network, self.append_info = saved_network, append_info


class ModelCheckpoint(Callback):
    """Save the weights as ``<directory>/<prefix>-<epoch>_<step>.safetensors``.

    Args:
        prefix: Start of the names. If the folder already has checkpoints of it, a number is added
            (``prefix_1``), as in MindSpore, so that those of an earlier run are kept. Or a function
            of the run's parameters that returns the whole name of a file, without its suffix.
        directory: Folder, created if missing; the current one if not given. Or a function of the
            run's parameters that returns it.
        config: When to save.

    Raises:
        ArgumentValueError: A prefix is not a non-empty string, or contains a '/'.

    Example:
        >>> config = CheckpointConfig(save_checkpoint_steps=100)
        >>> callback = ModelCheckpoint("mlp", "checkpoints", config)
        >>> model.train(2, batches, callbacks=callback)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self,
        prefix: Any = "CKP",
        directory: str | Callable[[CallbackParam], str] | None = None,
        config: CheckpointConfig | None = None,
    ) -> None:
        self._prefix, self._directory = prefix, directory
        if not callable(prefix):
            _check_prefix(prefix)
            if not callable(directory):
                self._prefix = _unused(prefix, Path(directory or "."))
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
        """Start to count."""
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
        if callable(self._prefix):
            name = _check_prefix(self._prefix(args))
        else:
            name = f"{self._prefix}-{args.cur_epoch_num}_{args.cur_step_in_epoch}"
        given = self._directory(args) if callable(self._directory) else self._directory
        folder = Path(given or ".")
        folder.mkdir(parents=True, exist_ok=True)
        numbers = {"epoch_num": args.cur_epoch_num, "step_num": args.cur_step_num}
        more: dict[str, Any] = {}
        for item in self._config.append_info or ():
            more |= item if isinstance(item, dict) else {item: more.get(item, 0)}
        more |= {name: more[name] + number for name, number in numbers.items() if name in more}
        network = self._config.saved_network or args.network
        path = save_checkpoint(network, folder / f"{name}.safetensors", append_dict=more)
        self._last_step, self._last_time = args.cur_step_num, time.monotonic()
        self._files = [file for file in self._files if file != path] + [path]
        keep = self._config.keep_checkpoint_max
        while keep and len(self._files) > keep:
            self._files.pop(0).unlink(missing_ok=True)


def _check_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str) or "/" in prefix or not prefix:
        raise ArgumentValueError(
            f"'prefix' is {prefix!r}.", where="ModelCheckpoint", fix="Give a short string."
        )
    return prefix


def _unused(prefix: str, folder: Path) -> str:
    """The prefix, with a number if the folder has checkpoints of it."""
    name = re.compile(re.escape(prefix) + r"(?:_(\d+))?-\d+_\d+\.safetensors")
    matches = (name.fullmatch(file.name) for file in folder.glob("*.safetensors"))
    numbers = [int(found[1] or 0) for found in matches if found]
    return f"{prefix}_{max(numbers) + 1}" if numbers else prefix
