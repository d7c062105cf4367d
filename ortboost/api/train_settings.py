"""The settings of ``ortboost train``: checks, and the settings that the program determines."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ortboost.api.learning_rates import schedules
from ortboost.api.stored_batches import Data
from ortboost.core.errors import ConfigError, UsageError, require_known
from ortboost.graph.query import known_shape, label
from ortboost.program.program import Program
from ortboost.runtime.process_group import ProcessGroup
from ortboost.runtime.update_bn import momenta
from ortboost.training import BestModel, Callback, EarlyStopping, Goal, Source, TrainConfig
from ortboost.training.data import ArraySource
from ortboost.training.metrics import Metric, get_metric
from ortboost.training.schedules import LinearWarmup
from ortboost.transforms.loss_config import LossConfig
from ortboost.transforms.trainable_norm import batch_norms

__all__ = [
    "best_callbacks",
    "check_perplexity",
    "check_shared",
    "check_validation",
    "settle",
    "warn_of_single_samples",
    "with_settings",
]

_log = logging.getLogger(__name__)

_OF_PROGRAM: Final = ("learning_rate", "labels", "output", "loss_scale")


def with_settings(
    config: TrainConfig | None, settings: Mapping[str, Any], resume: bool, arguments: Sequence[str]
) -> TrainConfig:
    """The trainer's configuration with single settings; ``arguments`` are those of ``train``."""
    fields = [f.name for f in dataclasses.fields(TrainConfig) if f.name not in _OF_PROGRAM]
    for name in settings:
        what = f"Unknown argument '{name}'."
        require_known(name, [*arguments, *fields], what, "train", ConfigError)
    base = (config or TrainConfig()).with_settings(settings)
    if resume and base.overwrite:
        raise UsageError(
            "A run cannot be resumed and restarted at the same time.",
            where="--resume and --overwrite",
            fix="Give --resume to continue, or --overwrite to remove the existing checkpoints.",
        )
    return base


def settle(
    base: TrainConfig,
    program: Program,
    steps: int | None,
    learning_rate: str | float | None,
    settings: Mapping[str, Any],
) -> TrainConfig:
    """Add the settings that the program determines; ``steps`` are those of an epoch, if known."""
    loss, chosen = program.config.loss, tuple(base.metrics)
    if "metrics" not in settings and chosen == TrainConfig().metrics:  # nothing was asked for
        chosen = ()
    check_perplexity(chosen, loss)
    for metric in map(get_metric, chosen):
        if metric.labels == "classes" and not loss.has_classes:
            raise UsageError(
                f"The metric '{metric.name}' needs classes, but the loss of this program has none.",
                where=f"loss '{loss.name}'",
                fix="Use mae or mse, or no metric: the loss itself is reported.",
            )
        if metric.labels == "scores" and loss.name == "softmax-cross-entropy":
            raise UsageError(
                f"The metric '{metric.name}' needs a label for each score, but the labels of this "
                "program are classes.",
                where=f"loss '{loss.name}'",
                fix="Use accuracy, topK or f1.",
            )
        counts = [spec.classes for spec in program.catalogue.batch if spec.classes is not None]
        if metric.name == "auc" and any(count > 2 for count in counts):
            raise UsageError(
                "The area under the ROC curve needs two classes.",
                where=f"metric 'auc', {max(counts)} classes",
                fix="Use accuracy or f1.",
            )
    total = None if steps is None else _updates(steps, base, program.config.accumulate)
    rates = base.learning_rate
    if learning_rate is not None or rates is None:
        rates = schedules(program.config, learning_rate, total)
    for schedule in rates.values() if isinstance(rates, Mapping) else [rates]:
        if isinstance(schedule, LinearWarmup) and total is not None and schedule.steps >= total:
            _log.warning(
                "the warm-up of %d updates does not end in this run of %d: the learning rate stays "
                "below %g",
                schedule.steps,
                total,
                schedule.after(0),
            )
    return dataclasses.replace(
        base,
        learning_rate=rates,
        labels=program.counted_labels or base.labels,
        output=program.prediction if program.labels else None,
        metrics=base.metrics if loss.name == "softmax-cross-entropy" else chosen,
        loss_scale=program.config.loss_scale,
    )


def check_perplexity(metrics: Sequence[str | Metric], loss: LossConfig) -> None:
    """Refuse the perplexity where the loss is not a mean of logarithms of probabilities."""
    wrong = loss.reduction == "sum" or loss.name in ("mse", "l1", "huber")
    if wrong and any(get_metric(metric).name == "perplexity" for metric in metrics):
        raise UsageError(
            "The perplexity is the exponential of a mean cross entropy, which is not the loss of "
            "this program.",
            where=f"metric 'perplexity', loss '{loss.name}', reduction '{loss.reduction}'",
            fix="Leave the metric out: the loss itself is reported.",
        )


def warn_of_single_samples(program: Program, source: Source, processes: int = 1) -> None:
    """Warn of batches of one sample, where a BatchNormalization has one value per channel.

    Each of several processes normalizes its part of a batch, unless they are synchronized.

    It makes 0 of each, so that nothing before it is trained, and its running variance shrinks.
    """
    synchronized = any(boost.name == "sync-bn" for boost in program.config.enabled_boosts)
    parts = 1 if synchronized else processes
    if not isinstance(source, ArraySource) or source.smallest_batch // parts > 1:
        return
    updated = momenta(program)
    for node in batch_norms(program.evaluation):
        data, mean = node.inputs[0], node.inputs[3]
        if mean is not None and mean.name in updated and len(known_shape(data) or ()) == 2:
            every = source.batch_size // parts <= 1
            _log.warning(
                "%s has one sample%s, which trains nothing before the BatchNormalization '%s' and "
                "shrinks its running variance (an error in torch): choose another batch size",
                "Each batch" if every else "The last batch of each epoch",
                "" if parts == 1 else " in one of the processes",
                label(node),
            )
            return


def _updates(steps: int, config: TrainConfig, window: int) -> int:
    """Number of updates of a run with ``steps`` steps per epoch, which schedules count."""
    if config.flush:  # an incomplete window also counts, once per epoch
        return -(-steps // window) * config.epochs
    return max(1, steps * config.epochs // window)


def best_callbacks(
    config: TrainConfig, held_out: Source | None, early_stop: int | None
) -> list[Callback]:
    """The callbacks that keep the best model and stop early, by the validation data."""
    goal = Goal("val_loss")
    if config.metrics:
        first = get_metric(config.metrics[0])
        goal = Goal(f"val_{first.name}", "max" if first.rising else "min")
    found: list[Callback] = [BestModel(goal)] if held_out is not None else []
    return found if early_stop is None else [*found, EarlyStopping(goal, patience=early_stop)]


def check_validation(
    validation: Data | None,
    val_split: float | None,
    early_stop: int | None,
    settings: Mapping[str, Any],
) -> None:
    """Refuse validation data from two sources, and settings of a validation without any."""
    needs = {
        "--early-stop": early_stop,
        "--metric": settings.get("metrics"),
        "--validate-every": settings.get("validate_every"),
    }
    if validation is None and val_split is None and any(needs.values()):
        option = next(name for name, value in needs.items() if value)
        raise UsageError(
            f"{option} needs validation data.",
            where=option,
            fix=f"Give --val DATA or --val-split 0.1, or leave {option} out.",
        )
    if validation is not None and val_split is not None:
        raise UsageError(
            "Validation data are given, but a part of the training data would be held out, too.",
            where="--val and --val-split",
            fix="Give either --val or --val-split.",
        )


def check_shared(
    group: ProcessGroup | None,
    settings: Mapping[str, object],
    batch_axes: Mapping[str, int | None] | None,
) -> None:
    """Refuse settings that do not apply to one process, or to several."""
    for name, value in settings.items():
        if group is None and value not in ("float32", 0, None):
            raise UsageError(
                f"{name} is for several processes.",
                where=f"{name} {value}, one process",
                fix="Leave it out, or start several: --processes 2, or torchrun.",
            )
    if group is not None and batch_axes:
        raise UsageError(
            "With several processes the batch axes are those of the program.",
            where=f"--batch-axis of train: {', '.join(batch_axes)}",
            fix="Set them when the model is converted: ortboost convert --batch-axis.",
        )
