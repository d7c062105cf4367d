"""Option groups of ``convert`` and ``check``, and the :class:`ProgramConfig` made from them."""

from __future__ import annotations

import dataclasses
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from ortboost.cli.command import Options, option
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
    "NetworkOptions",
    "PrecisionOptions",
    "TrainedOptions",
    "UpdateOptions",
    "merge_config",
    "read_program_config",
]

_Texts: TypeAlias = list[str] | None
Engine = Annotated[str | None, typer.Option(help="auto (default), portable or native.")]


@dataclass(frozen=True)
class LossOptions(Options):
    """Fields of a :class:`~ortboost.transforms.attach_loss.LossConfig`."""

    name: str | None = option(
        "softmax-cross-entropy (default), mse, bce-with-logits, l1, huber; output if the model "
        "computes its loss itself; or an ONNX file with your own loss(scores, labels).",
        "--loss",
    )
    output: str | None = option("Output that the loss is computed from.", "--output")
    class_axis: int | None = option(
        "Class axis of the output: 1, or -1 for [batch, sequence, classes]."
    )
    shift_labels: bool | None = option(
        "Causal language model: compare each position with the next label.", "--shift-labels"
    )


@dataclass(frozen=True)
class LabelOptions(Options):
    """Further fields of a :class:`~ortboost.transforms.attach_loss.LossConfig`."""

    reduction: str | None = option(
        "mean (default), sum or none; of a sum, the losses shown are those of batches."
    )
    sparse: bool | None = option(
        "Labels are class probabilities, not class indices.",
        "--dense-labels",
        read=operator.not_,
    )
    labels: str | None = option("Name of the new label input.")
    ignore_index: int | None = option("Label to ignore, such as PyTorch's -100.")
    label_smoothing: float | None = option(
        "Share of each label that is spread over all classes, such as 0.1."
    )
    weight: str | None = option(
        "Weights of the classes in the loss, in their order.",
        "--class-weights",
        metavar="NUMBER,...|FILE.npy",
        read="cli.parse.parse_class_weights",
    )


@dataclass(frozen=True)
class UpdateOptions(Options):
    """Fields of a configuration: how parameters are updated."""

    optimizer: str | None = option(
        "momentum (default), sgd, adam, adamw, lars or thor; with hyper-parameters, such as "
        "thor:frequency=100,damping=0.03.",
        metavar="NAME:KEY=VALUE",
    )
    optimizer_arg: _Texts = option(
        "Hyper-parameter of the optimizer (repeatable).", metavar="KEY=VALUE", hidden=True
    )
    learning_rate: str | None = option(
        "Learning rate, default 0.01: 0.05, cosine:0.1,warmup=50, linear:0.1, "
        "step:0.1,every=500,...",
        "--lr",
    )
    weight_decay: float | None = option("Weight decay, default 0.", min=0)
    decay: str | None = option("Parameters to decay: no-norm (default), weights or all.")
    groups: _Texts = option(
        "Parameters with their own learning rate or weight decay.",
        "--group",
        metavar="NAME:PATTERN:lr=X",
        read="cli.parse.parse_groups",
    )
    loss_scale: str | None = option(
        "dynamic (default, initially 65536), dynamic:init=4096,window=1000,hysteresis=2, "
        "fixed:1024, grouped:4096,groups=4 or off.",
        read="cli.parse.parse_loss_scale",
    )
    clip: str | None = option(
        "value:C, norm:C (each tensor) or global-norm:C.", read="cli.parse.parse_clip"
    )
    accumulate: int | None = option("Micro-batches per update (gradient accumulation).", min=1)

    def given(self) -> dict[str, Any]:
        """The fields, and the boosts that are part of an optimizer."""
        from ortboost.cli.grammar import parse_pairs
        from ortboost.cli.parse import parse_optimizer

        found = super().given()
        further = parse_pairs(found.pop("optimizer_arg", None), "--optimizer-arg")
        if "optimizer" in found or further:
            name = found.get("optimizer", "momentum")
            found["optimizer"], found["boosts"] = parse_optimizer(name, further)
        return found


@dataclass(frozen=True)
class PrecisionOptions(Options):
    """Fields of a :class:`~ortboost.transforms.precision.PrecisionConfig`."""

    precision: str | None = option(
        "fp32 (default), fp16 or bf16 for computation; parameters stay in float32. "
        "fp16:policy=all for all operators except losses and normalizations.",
        read="cli.parse.parse_precision",
    )
    keep_fp32: _Texts = option(
        "Keep nodes in float32, by node, output, weight or operator; re:REGEX (repeatable).",
        metavar="PATTERN",
    )
    force_low: _Texts = option(
        "Force nodes to compute in fp16 or bf16 (repeatable).", metavar="PATTERN"
    )
    emulate: bool | None = option(
        "Emulate the rounding of fp16 or bf16 in float32, on any device.", "--emulate"
    )

    def given(self) -> dict[str, Any]:
        """The fields; ``--precision`` sets several."""
        found = super().given()
        return {**found.pop("precision", {}), **found}


@dataclass(frozen=True)
class TrainedOptions(Options):
    """Fields of a configuration: which parameters are trained."""

    freeze: _Texts = option("Parameters to freeze (repeatable).", metavar="PATTERN")
    trainable: _Texts = option("Train only these parameters (repeatable).", metavar="PATTERN")
    parameters: Path | None = option(
        "List of trained parameters: one name, or 'name true|false', per line.",
        metavar="FILE",
        read="program.parameter_list.read_parameters",
    )


@dataclass(frozen=True)
class NetworkOptions(Options):
    """Fields of a configuration: the head, the normalizations, and the engine."""

    padding_idx: _Texts = option(
        "Padding row of an embedding table, which gets no gradient (repeatable); default: as "
        "recorded in the file.",
        metavar="NAME=ROW|none",
        read="cli.parse.parse_padding",
    )
    new_head: int | None = option("Replace the last layer with a new one of N outputs.", min=1)
    frozen_norm: _Texts = option(
        "Keep these BatchNormalizations in inference mode.", "--frozen-bn", metavar="PATTERN"
    )
    running_variance: str | None = option(
        "unbiased (default, as in PyTorch and MindSpore) or onnx."
    )
    engine: Engine = None
    seed: int | None = option("Seed of the initialization of a new head.", min=0)


@dataclass(frozen=True)
class BoostOptions:
    """The boosts and their settings."""

    boost: _Texts = option(
        "A boost with its settings, such as grad-freeze:p=0.4,by=cost (see 'ortboost list'), or a "
        "level O0, O1 or O2, which is a set of boosts (repeatable).",
        metavar="NAME:KEY=VALUE|LEVEL",
    )
    boost_config: Path | None = option("JSON file with boost settings.")
    settings: _Texts = option(
        "A setting of a level's boost, named as in MindSpore, or of the configuration "
        "(repeatable).",
        "--set",
        metavar="SECTION.KEY=VALUE",
    )

    def apply(
        self, config: ProgramConfig, base: ProgramConfig | None
    ) -> tuple[ProgramConfig, BoostConfig | None]:
        """Apply these options to a configuration; also returns the requested level, if any.

        All other options are applied in ``config``, and none in ``base``. A boost must not conflict
        with them.
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
    """Reject a boost that would silently replace another option."""
    from ortboost.program.config import ProgramConfig

    before = (base or ProgramConfig()).boosts
    for boost in chosen:
        # with_boosts replaces a boost of the same name, and a loss scale by another.
        replaced = set(config.boosts) - set(config.with_boosts(boost).boosts)
        set_by_option = [other for other in replaced if other not in before]
        if set_by_option and boost not in set_by_option:
            raise UsageError(
                f"The boost '{boost.name}' contradicts another option, which sets "
                f"'{set_by_option[0].name}'.",
                where="--boost, and --precision, --loss-scale, --clip or --accumulate",
                fix="Give only one of them.",
            )


def _split_boosts(texts: Sequence[str]) -> tuple[str | None, list[Boost]]:
    """Split the arguments into the level, if given, and the boosts."""
    from ortboost.cli.parse import parse_boost

    levels = [text for text in texts if re.fullmatch(r"[oO]\d*", text)]
    if len(levels) > 1:
        raise UsageError(
            f"{len(levels)} boost levels were given.", where="--boost", fix="Give only one of them."
        )
    chosen = [parse_boost(text) for text in texts if text not in levels]
    return (levels[0] if levels else None), chosen


def read_program_config(path: Path | None) -> ProgramConfig | None:
    """Read a configuration from a JSON file; a whole ``program.json`` is accepted too."""
    from ortboost.core.config_file import without_version
    from ortboost.core.files import read_json
    from ortboost.program.config import ProgramConfig

    if path is None:
        return None
    data = read_json(path)
    if isinstance(data, dict) and isinstance(data.get("config"), dict):
        data = data["config"]
    return ProgramConfig.from_dict(without_version(data, path))


def merge_config(
    base: ProgramConfig | None,
    inputs: InputOptions,
    loss: Mapping[str, Any],
    precision: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> ProgramConfig:
    """Merge the configuration: defaults, then the file, ``base``, then the given fields.

    Settings of inputs are added to those of the file.
    """
    from ortboost.program.config import ProgramConfig

    config = base or ProgramConfig()
    added = inputs.config()
    merged = {
        item.name: {**getattr(config.inputs, item.name), **getattr(added, item.name)}
        for item in dataclasses.fields(added)
    }
    config = config.with_boosts(*fields.get("boosts", ()))
    config = dataclasses.replace(
        config,
        inputs=dataclasses.replace(config.inputs, **merged),
        loss=dataclasses.replace(config.loss, **loss),
        precision=dataclasses.replace(config.precision, **precision),
        **{name: value for name, value in fields.items() if name != "boosts"},
    )
    # A file chooses the metrics itself.
    if config.loss.name == "softmax-cross-entropy" and config.loss.sparse and base is None:
        config = dataclasses.replace(config, metrics=("accuracy",))
    return config
