"""Training on the host: data, schedules, checkpoints, logs, and the training loop.

The trainer drives any object that implements the protocols in
:mod:`ortboost.training.protocols`; it does not depend on graphs or runtimes.
"""

from __future__ import annotations

from ortboost.core.step_result import StepResult
from ortboost.training.callbacks import (
    Adaptable,
    BestModel,
    Callback,
    EarlyStopping,
    Goal,
    RunView,
    as_callbacks,
)
from ortboost.training.checkpoints import Checkpoint, CheckpointStore, Constants
from ortboost.training.config import TrainConfig
from ortboost.training.data import (
    ArraySource,
    IterableSource,
    Source,
    bind_arrays,
    load_arrays,
    pad_batch,
    prefetch,
)
from ortboost.training.evaluation import evaluate
from ortboost.training.history import RunHistory
from ortboost.training.logs import EventLog, read_log
from ortboost.training.metrics import Metric, get_metric
from ortboost.training.plot import plot_log
from ortboost.training.progress import Reporter, make_progress
from ortboost.training.protocols import Evaluator, InputSpec, Stepper
from ortboost.training.schedule_text import parse_schedule
from ortboost.training.schedules import Schedule
from ortboost.training.signals import Interrupted, Terminated
from ortboost.training.summary import TrainSummary
from ortboost.training.trainer import Trainer

__all__ = [
    "Adaptable",
    "ArraySource",
    "BestModel",
    "Callback",
    "Checkpoint",
    "CheckpointStore",
    "Constants",
    "EarlyStopping",
    "Evaluator",
    "EventLog",
    "Goal",
    "InputSpec",
    "Interrupted",
    "IterableSource",
    "Metric",
    "Reporter",
    "RunHistory",
    "RunView",
    "Schedule",
    "Source",
    "StepResult",
    "Stepper",
    "Terminated",
    "TrainConfig",
    "TrainSummary",
    "Trainer",
    "as_callbacks",
    "bind_arrays",
    "evaluate",
    "get_metric",
    "load_arrays",
    "make_progress",
    "pad_batch",
    "parse_schedule",
    "plot_log",
    "prefetch",
    "read_log",
]
