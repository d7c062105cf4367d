"""Groups of options of ``convert`` and ``check``, and what they come to: a :class:`ProgramConfig`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ortboost.cli.command import option
from ortboost.cli.options import InputOptions
from ortboost.core.errors import UsageError

if TYPE_CHECKING:
    from ortboost.boosts.base import Boost
    from ortboost.program.boost_config import BoostConfig
    from ortboost.program.config import ProgramConfig

__all__ = [
    "BoostOptions",
    "Engine",
    "LabelOptions",
    "LossOptions",
    "PrecisionOptions",
    "Trained",
    "TrainedOptions",
    "UpdateOptions",
    "read_program_config",
    "settle",
]

_Texts: TypeAlias = list[str] | None
Engine = Annotated[str | None, typer.Option(help="auto (default), portable or native.")]


@dataclass(frozen=True)
class LossOptions:
    """The loss, and the output that it is taken of."""

    loss: str | None = option(
        "softmax-cross-entropy (default), mse, bce-with-logits, l1; output: the model computes its "
        "own; "
        "or an ONNX file with a loss of yours, loss(scores, labels)."
    )
    output: str | None = option("Output that the loss is computed from.", "--output")
    class_axis: int | None = option(
        "Axis of the output that counts the classes: 1, or -1 for [batch, sequence, classes]."
    )
    shift_labels: bool | None = option(
        "Causal language model: compare each position with the next label.", "--shift-labels"
    )

    def changes(self) -> dict[str, Any]:
        """The fields of a :class:`~ortboost.transforms.attach_loss.LossConfig` that were given."""
        return _given(
            name=self.loss,
            output=self.output,
            class_axis=self.class_axis,
            shift_labels=self.shift_labels,
        )


@dataclass(frozen=True)
class LabelOptions:
    """What the loss compares with."""

    reduction: str | None = option("mean (default), sum or none.")
    dense_labels: bool | None = option(
        "Cross entropy against rows of probabilities.", "--dense-labels"
    )
    labels: str | None = option("Name of the new label input.")
    ignore_index: int | None = option("Label that does not count, as -100 in PyTorch.")

    def changes(self) -> dict[str, Any]:
        """The fields of a :class:`~ortboost.transforms.attach_loss.LossConfig` that were given."""
        return _given(
            reduction=self.reduction,
            sparse=None if self.dense_labels is None else not self.dense_labels,
            labels=self.labels,
            ignore_index=self.ignore_index,
        )


@dataclass(frozen=True)
class UpdateOptions:
    """How parameters are updated."""

    optimizer: str | None = option(
        "momentum (default), sgd, adam, adamw, lars or thor; with hyper-parameters, as "
        "thor:frequency=100,damping=0.03.",
        metavar="NAME:KEY=VALUE",
    )
    optimizer_arg: _Texts = option(
        "Hyper-parameter of the optimizer (repeatable).", metavar="KEY=VALUE"
    )
    lr: str | None = option(
        "Learning rate, 0.01 if not given: 0.05, cosine:0.1,warmup=50, step:0.1,every=500,...",
        "--lr",
    )
    weight_decay: float | None = option("Weight decay, 0 if not given.", min=0)
    decay: str | None = option("What decays: no-norm (default), weights or all.")
    group: _Texts = option(
        "Parameters with a rate or decay of their own.", metavar="NAME:PATTERN:lr=X"
    )
    loss_scale: str | None = option(
        "dynamic (from 65536, if not given), dynamic:init=4096,window=1000,hysteresis=2, "
        "fixed:1024, "
        "grouped:4096,groups=4 or off."
    )
    clip: str | None = option("value:C, norm:C (each tensor) or global-norm:C.")
    accumulate: int | None = option("Micro-batches an update (gradient accumulation).", min=1)

    def changes(self) -> dict[str, Any]:
        """The fields of a configuration that were given."""
        from ortboost.cli.parse import (
            parse_clip,
            parse_group,
            parse_loss_scale,
            parse_optimizer,
            parse_pairs,
        )

        rule, boosts = None, None
        if self.optimizer is not None or self.optimizer_arg:
            pairs = parse_pairs(self.optimizer_arg, "--optimizer-arg")
            rule, boosts = parse_optimizer(self.optimizer or "momentum", pairs)
        return _given(
            optimizer=rule,
            boosts=boosts,
            learning_rate=self.lr,
            weight_decay=self.weight_decay,
            decay=self.decay,
            groups=None if self.group is None else tuple(map(parse_group, self.group)),
            loss_scale=None if self.loss_scale is None else parse_loss_scale(self.loss_scale),
            clip=None if self.clip is None else parse_clip(self.clip),
            accumulate=self.accumulate,
        )


@dataclass(frozen=True)
class PrecisionOptions:
    """In which number format the network computes."""

    precision: str | None = option(
        "fp32 (default), fp16 or bf16: how the network computes; parameters stay in float32. "
        "fp16:policy=all for all operators but losses and normalizations."
    )
    keep_fp32: _Texts = option(
        "Leave these nodes in float32: node, output, weight or operator; re:REGEX (repeatable).",
        metavar="PATTERN",
    )
    force_low: _Texts = option("Compute these in fp16 or bf16 (repeatable).", metavar="PATTERN")
    emulate: bool | None = option(
        "Write a float32 step that rounds as fp16 or bf16 would, for any device.", "--emulate"
    )

    def changes(self) -> dict[str, Any]:
        """The fields of a :class:`~ortboost.transforms.precision.PrecisionConfig` that were given."""
        from ortboost.cli.parse import parse_precision

        return {
            **(parse_precision(self.precision) if self.precision is not None else {}),
            **_given(keep_fp32=self.keep_fp32, force_low=self.force_low, emulate=self.emulate),
        }


@dataclass(frozen=True)
class Trained:
    """What is trained."""

    freeze: _Texts = option("Do not train these (repeatable).", metavar="PATTERN")
    trainable: _Texts = option("Train only these (repeatable).", metavar="PATTERN")
    parameters: Path | None = option(
        "List of what is trained: a name, or 'name true|false', on each line.", metavar="FILE"
    )

    def changes(self) -> dict[str, Any]:
        """The fields of a configuration that were given."""
        from ortboost.program.parameter_list import read_parameters

        listed = None if self.parameters is None else read_parameters(self.parameters)
        return _given(freeze=self.freeze, trainable=self.trainable, parameters=listed)


@dataclass(frozen=True)
class TrainedOptions:
    """The head, normalizations, and the engine."""

    padding_idx: _Texts = option(
        "Row of an embedding table that looking it up does not train (repeatable); without "
        "it what the file tells.",
        metavar="NAME=ROW|none",
    )
    new_head: int | None = option("Fresh last layer with so many outputs.", min=1)
    frozen_bn: _Texts = option(
        "Leave these BatchNormalizations in inference mode.", metavar="PATTERN"
    )
    running_variance: str | None = option("unbiased (default, as PyTorch and MindSpore) or onnx.")
    engine: Engine = None
    seed: int | None = option("Seed of a new head.", min=0)

    def changes(self) -> dict[str, Any]:
        """The fields of a configuration that were given."""
        return _given(
            padding_idx=_padding(self.padding_idx),
            new_head=self.new_head,
            frozen_norm=self.frozen_bn,
            running_variance=self.running_variance,
            engine=self.engine,
            seed=self.seed,
        )


def _padding(texts: Sequence[str] | None) -> dict[str, Any] | None:
    from ortboost.cli.parse import parse_pairs

    if texts is None:
        return None
    return {} if list(texts) == ["none"] else parse_pairs(texts, "--padding-idx")


@dataclass(frozen=True)
class BoostOptions:
    """Which boosts."""

    boost: _Texts = option(
        "A boost with its settings, as grad-freeze:p=0.4,by=cost (see 'ortboost list'), or a "
        "level, O0, O1 or O2: a set of them (repeatable).",
        metavar="NAME:KEY=VALUE|LEVEL",
    )
    boost_config: Path | None = option("JSON file with settings of the boosts.")
    settings: _Texts = option(
        "One setting of a level's boost, by MindSpore's names, or of the configuration "
        "(repeatable).",
        "--set",
        metavar="SECTION.KEY=VALUE",
    )

    def apply(
        self, config: ProgramConfig, base: ProgramConfig | None
    ) -> tuple[ProgramConfig, BoostConfig | None]:
        """The configuration with its own settings, and the boosts that are asked for, if any are.

        Args:
            config: With all other options.
            base: Before them.

        Raises:
            UsageError: A boost is asked for that another option has set, too.
        """
        from ortboost.cli.parse import parse_settings
        from ortboost.program.boost_config import resolve_boost
        from ortboost.program.boosted import split_settings, with_settings

        boost_sets, own_sets = split_settings(parse_settings(self.settings or []))
        level, chosen = _split_boosts(self.boost or [])
        _refuse_twice(chosen, config, base)
        config = with_settings(config, own_sets).with_boosts(*chosen)
        if level is None and self.boost_config is None and not boost_sets:
            return config, None
        return config, resolve_boost(level or "O0", self.boost_config, boost_sets)


def _refuse_twice(
    chosen: Sequence[Boost], config: ProgramConfig, base: ProgramConfig | None
) -> None:
    """Refuse a boost that would silently replace what another option says."""
    from ortboost.program.config import ProgramConfig

    before = (base or ProgramConfig()).boosts
    for boost in chosen:
        replaced = set(config.boosts) - set(config.with_boosts(boost).boosts)
        set_by_option = [other for other in replaced if other not in before]
        if set_by_option and boost not in set_by_option:
            raise UsageError(
                f"The boost '{boost.name}' contradicts another option, which sets "
                f"'{set_by_option[0].name}'.",
                where="--boost, and --precision, --loss-scale, --clip or --accumulate",
                fix="Give one of them.",
            )


def _split_boosts(texts: Sequence[str]) -> tuple[str | None, list[Boost]]:
    """The level, if one is given, and the boosts."""
    from ortboost.cli.parse import parse_boost

    levels = [text for text in texts if re.fullmatch(r"[oO]\d*", text)]
    if len(levels) > 1:
        raise UsageError(
            f"There are {len(levels)} boost levels.", where="--boost", fix="Give one of them."
        )
    chosen = [parse_boost(text) for text in texts if text not in levels]
    return (levels[0] if levels else None), chosen


def read_program_config(path: Path | None) -> ProgramConfig | None:
    """The configuration in a JSON file: as in the ``config`` of a program.json, or such a file itself.

    Raises:
        FileError: It cannot be read.
        ConfigError: It holds something else, or has a version that is not known.
    """
    from ortboost.core.config_file import without_version
    from ortboost.core.files import read_json
    from ortboost.program.config import ProgramConfig

    if path is None:
        return None
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        data = data["config"]
    return ProgramConfig.from_dict(without_version(data, path))


def settle(
    base: ProgramConfig | None,
    inputs: InputOptions,
    loss: Mapping[str, Any],
    precision: Mapping[str, Any],
    *changes: Mapping[str, Any],
) -> ProgramConfig:
    """The configuration: defaults, then the file, then the options that were given.

    Args:
        base: What the file says, if there is one.
        inputs: Added to what the file says of the inputs.
        loss: Fields of its loss.
        precision: Fields of its precision.
        changes: Further fields.
    """
    from ortboost.program.config import ProgramConfig

    config = base or ProgramConfig()
    said = inputs.config()
    merged = {
        item.name: {**getattr(config.inputs, item.name), **getattr(said, item.name)}
        for item in dataclasses.fields(said)
    }
    fields = {key: value for part in changes for key, value in part.items()}
    config = config.with_boosts(*fields.pop("boosts", ()))
    config = dataclasses.replace(
        config,
        inputs=dataclasses.replace(config.inputs, **merged),
        loss=dataclasses.replace(config.loss, **loss),
        precision=dataclasses.replace(config.precision, **precision),
        **fields,
    )
    if config.loss.name == "softmax-cross-entropy" and config.loss.sparse and base is None:
        config = dataclasses.replace(config, metrics=("accuracy",))
    return config


def _given(**options: Any) -> dict[str, Any]:
    """Options that were given; lists as tuples."""
    return {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        if value is not None
    }
