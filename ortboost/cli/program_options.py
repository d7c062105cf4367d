"""Groups of options of ``convert`` and ``check``, and what they come to: a :class:`ProgramConfig`."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ortboost.cli.options import InputOptions

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

    loss: Annotated[
        str | None,
        typer.Option(
            help="softmax-cross-entropy (default), mse, bce-with-logits, l1, or output: the model "
            "computes its own loss."
        ),
    ] = None
    output: Annotated[
        str | None, typer.Option("--output", help="Output that the loss is computed from.")
    ] = None
    class_axis: Annotated[
        int | None,
        typer.Option(
            help="Axis of the output that counts the classes: 1, or -1 for [batch, sequence, classes]."
        ),
    ] = None
    shift_labels: Annotated[
        bool | None,
        typer.Option(
            "--shift-labels",
            help="Causal language model: compare each position with the next label.",
        ),
    ] = None

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

    reduction: Annotated[str | None, typer.Option(help="mean (default), sum or none.")] = None
    dense_labels: Annotated[
        bool | None,
        typer.Option("--dense-labels", help="Cross entropy against rows of probabilities."),
    ] = None
    labels: Annotated[str | None, typer.Option(help="Name of the new label input.")] = None
    ignore_index: Annotated[
        int | None, typer.Option(help="Label that does not count, as -100 in PyTorch.")
    ] = None

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

    optimizer: Annotated[
        str | None,
        typer.Option(
            metavar="NAME:KEY=VALUE",
            help="momentum (default), sgd, adam, adamw, lars or thor; with hyper-parameters, as "
            "thor:frequency=100,damping=0.03.",
        ),
    ] = None
    optimizer_arg: Annotated[
        _Texts,
        typer.Option(metavar="KEY=VALUE", help="Hyper-parameter of the optimizer (repeatable)."),
    ] = None
    lr: Annotated[
        str | None,
        typer.Option(
            "--lr",
            help="Learning rate, 0.01 if not given: 0.05, cosine:0.1,warmup=50, step:0.1,every=500,...",
        ),
    ] = None
    weight_decay: Annotated[
        float | None, typer.Option(min=0, help="Weight decay, 0 if not given.")
    ] = None
    decay: Annotated[
        str | None, typer.Option(help="What decays: no-norm (default), weights or all.")
    ] = None
    group: Annotated[
        _Texts,
        typer.Option(
            metavar="NAME:PATTERN:lr=X", help="Parameters with a rate or decay of their own."
        ),
    ] = None
    loss_scale: Annotated[
        str | None,
        typer.Option(
            help="dynamic (default), dynamic:init=4096,window=1000,hysteresis=2, fixed:1024, "
            "grouped:4096,groups=4 or off."
        ),
    ] = None
    clip: Annotated[
        str | None, typer.Option(help="value:C, norm:C (each tensor) or global-norm:C.")
    ] = None
    accumulate: Annotated[
        int | None, typer.Option(min=1, help="Micro-batches an update (gradient accumulation).")
    ] = None

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

    precision: Annotated[
        str | None,
        typer.Option(
            help="fp32 (default), fp16 or bf16: how the network computes; parameters stay in float32. "
            "fp16:policy=all for all operators but losses and normalizations."
        ),
    ] = None
    keep_fp32: Annotated[
        _Texts,
        typer.Option(
            metavar="PATTERN",
            help="Leave these nodes in float32: node, output, weight or operator; re:REGEX (repeatable).",
        ),
    ] = None
    force_low: Annotated[
        _Texts,
        typer.Option(metavar="PATTERN", help="Compute these in fp16 or bf16 (repeatable)."),
    ] = None
    emulate: Annotated[
        bool | None,
        typer.Option(
            "--emulate",
            help="Write a float32 step that rounds as fp16 or bf16 would, for any device.",
        ),
    ] = None

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

    freeze: Annotated[
        _Texts, typer.Option(metavar="PATTERN", help="Do not train these (repeatable).")
    ] = None
    trainable: Annotated[
        _Texts, typer.Option(metavar="PATTERN", help="Train only these (repeatable).")
    ] = None
    parameters: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="List of what is trained: a name, or 'name true|false', on each line.",
        ),
    ] = None

    def changes(self) -> dict[str, Any]:
        """The fields of a configuration that were given."""
        from ortboost.program.parameter_list import read_parameters

        listed = None if self.parameters is None else read_parameters(self.parameters)
        return _given(freeze=self.freeze, trainable=self.trainable, parameters=listed)


@dataclass(frozen=True)
class TrainedOptions:
    """The head, normalizations, and the engine."""

    padding_idx: Annotated[
        _Texts,
        typer.Option(
            metavar="NAME=ROW|none",
            help="Row of an embedding table that looking it up does not train (repeatable); without "
            "it what the file tells.",
        ),
    ] = None
    new_head: Annotated[
        int | None, typer.Option(min=1, help="Fresh last layer with so many outputs.")
    ] = None
    frozen_bn: Annotated[
        _Texts,
        typer.Option(metavar="PATTERN", help="Leave these BatchNormalizations in inference mode."),
    ] = None
    running_variance: Annotated[
        str | None, typer.Option(help="unbiased (default, as PyTorch and MindSpore) or onnx.")
    ] = None
    engine: Engine = None
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of a new head.")] = None

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

    boost: Annotated[
        _Texts,
        typer.Option(
            metavar="NAME:KEY=VALUE|LEVEL",
            help="A boost with its settings, as grad-freeze:p=0.4,by=cost (see 'ortboost list'), or a "
            "level, O0, O1 or O2: a set of them (repeatable).",
        ),
    ] = None
    boost_config: Annotated[
        Path | None, typer.Option(help="JSON file with settings of the boosts.")
    ] = None
    settings: Annotated[
        _Texts,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="One setting of a level's boost, by MindSpore's names, or of the configuration (repeatable).",
        ),
    ] = None

    def apply(self, config: ProgramConfig) -> tuple[ProgramConfig, BoostConfig | None]:
        """The configuration with its own settings, and the boosts that are asked for, if any are."""
        from ortboost.cli.parse import parse_settings
        from ortboost.program.boost_config import resolve_boost
        from ortboost.program.boosted import split_settings, with_settings

        boost_sets, own_sets = split_settings(parse_settings(self.settings or []))
        level, chosen = _split_boosts(self.boost or [])
        config = with_settings(config, own_sets).with_boosts(*chosen)
        if level is None and self.boost_config is None and not boost_sets:
            return config, None
        return config, resolve_boost(level or "O0", self.boost_config, boost_sets)


def _split_boosts(texts: Sequence[str]) -> tuple[str | None, list[Boost]]:
    """The level, if one is given, and the boosts."""
    from ortboost.cli.parse import parse_boost
    from ortboost.core.errors import UsageError

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
        ConfigError: It holds something else.
    """
    from ortboost.core.files import read_json
    from ortboost.program.config import ProgramConfig

    if path is None:
        return None
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        data = data["config"]
    return ProgramConfig.from_dict(data)


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
