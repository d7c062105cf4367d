"""What a run does, for TensorBoard: event files, written by tensorboardX while the run goes on."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ortboost.core.errors import DependencyError, FileError
from ortboost.training.callbacks import Callback, RunView
from ortboost.training.protocols import StepResult

__all__ = ["TensorBoard"]


class TensorBoard(Callback):
    """Writes what the log of a run has as scalars, and what the run is as hyper-parameters.

    The tags are ``step/loss``, ``step/learning_rate``, ``step/loss_scale``, ``step/skipped`` (steps
    so far), ``step/accuracy``, ``epoch/loss``, ``validation/loss``, ``validation/accuracy`` and
    their kind. A resumed run goes on in a new file; from TensorBoard's view it takes back what came
    after the checkpoint.

    Args:
        folder: Where the event files go; TensorBoard takes the name of the folder for the run's.

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
        """Open a file; what older ones hold of later steps does not count any more."""
        from tensorboardX.summary import hparams

        try:
            self._writer = self._make(
                str(self.folder),
                purge_step=run.step + 1,
                filename_suffix=f".{time.time_ns()}",  # its own names have seconds only
            )
        except OSError as error:
            raise FileError(
                "The files for TensorBoard cannot be written.",
                where=f"{self.folder}: {error.strerror or error}",
                fix="Choose another folder.",
            ) from error
        told = {k: v for k, v in run.about.items() if isinstance(v, (str, int, float))}
        for summary in hparams(told, {"validation/loss": 0.0, "validation/accuracy": 0.0}):
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
