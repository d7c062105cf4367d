"""TensorBoard event files of a run, written by tensorboardX during the run."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortboost.core.errors import DependencyError, FileError
from ortboost.core.step_result import StepResult
from ortboost.training.callbacks import Callback, RunView

__all__ = ["TensorBoard"]


class TensorBoard(Callback):
    """Writes the numbers of the event log as scalars, and the metadata of the run as hparams.

    The tags are ``step/loss``, ``step/learning_rate``, ``step/loss_scale``, ``step/skipped``
    (skipped steps so far), ``step/accuracy``, ``epoch/loss``, ``validation/loss``,
    ``validation/accuracy`` and so on. A resumed run continues in a new file, and TensorBoard
    discards the events of the old one after the checkpoint.

    Args:
        folder: Where the event files go; TensorBoard shows the name of the folder as the name of
            the run.

    Raises:
        DependencyError: tensorboardX is not installed.

    Example:
        ``Trainer(..., callbacks=[TensorBoard("boards/run1")])``, then ``tensorboard --logdir
        boards``.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise DependencyError(
                "Writing for TensorBoard needs tensorboardX, which is not installed.",
                where=str(folder),
                fix='pip install "ortboost[tensorboard]"',
            ) from error
        self.folder = Path(folder)
        self._make = SummaryWriter
        self._writer: Any = None

    def on_train_begin(self, run: RunView) -> None:
        """Open a file; events of later steps in older files become invalid."""
        from tensorboardX.summary import hparams

        try:
            self._writer = self._make(
                str(self.folder),
                purge_step=run.step + 1,
                filename_suffix=f".{time.time_ns()}",  # by default names differ by the second only
            )
        except OSError as error:
            raise FileError(
                "The files for TensorBoard cannot be written.",
                where=f"{self.folder}: {error.strerror or error}",
                fix="Choose another folder.",
            ) from error
        shown = {k: v for k, v in run.about.items() if isinstance(v, (str, int, float))}
        # The metrics are only named here: TensorBoard reads their values from the scalars.
        for summary in hparams(shown, {"validation/loss": 0.0, "validation/accuracy": 0.0}):
            self._writer.file_writer.add_summary(summary)

    def on_step_end(self, run: RunView, result: StepResult) -> None:
        """The loss, the rates and the scale of a step."""
        numbers = {"loss": result.loss, **run.learning_rates, "loss_scale": result.loss_scale}
        self._write("step", {**numbers, "skipped": result.total_skips, **result.metrics}, run.step)

    def on_validation_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """The values of a validation."""
        self._write("validation", metrics, run.step)
        self._writer.flush()

    def on_epoch_end(self, run: RunView, metrics: Mapping[str, float]) -> None:
        """The means over an epoch."""
        self._write("epoch", metrics, run.step)
        self._writer.flush()

    def on_close(self, run: RunView) -> None:
        """Close the file."""
        self._writer.close()

    def _write(self, kind: str, numbers: Mapping[str, float], step: int) -> None:
        for name, value in numbers.items():
            short = name.removeprefix("val_").removeprefix("train_")
            self._writer.add_scalar(f"{kind}/{short}", float(value), step)
