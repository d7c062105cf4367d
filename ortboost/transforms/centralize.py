r"""Gradient centralization: which parameters it is for.

    g <- g - mean(g, axes 1..n)        for each output channel by itself

It keeps the rows of a weight on the hyperplane of constant sum, which regularizes and smooths the
loss. It applies to the weights of convolutions and fully connected layers, after the weight decay and
before the optimizer's own algebra (:func:`ortboost.optimizers.base.regularized`).

Sources: Yong et al., "Gradient Centralization: A New Optimization Technique for Deep Neural Networks",
ECCV 2020; which layers are left out, and the rule of 16, are those of MindSpore Boost 2.10.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.errors import ConfigError
from ortboost.graph.query import Parameter, match_names
from ortboost.report import Report

__all__ = ["HEAD_MARK", "CentralizeConfig", "centralize"]

HEAD_MARK = "ortboost.full_norm"
"""Metadata key of the weight of a full-normalization head; its gradient is not centralized."""


@dataclass(frozen=True)
class CentralizeConfig:
    """Gradient centralization.

    Args:
        patterns: Shell-style patterns of parameter names; ``None`` for all that are suited.
        multiple_of: Only weights whose axis 1 is a multiple of this (input channels of a
            convolution, inputs of a linear layer). MindSpore's optimizers have 16 there without
            saying so; 1 is every weight.

    Raises:
        ConfigError: ``multiple_of`` below 1, or one text for patterns.
    """

    patterns: tuple[str, ...] | None = None
    multiple_of: int = 16

    def __post_init__(self) -> None:
        if not isinstance(self.multiple_of, int) or self.multiple_of < 1:
            raise ConfigError(
                f"multiple_of = {self.multiple_of!r} makes no sense.",
                where="centralize, multiple_of",
                fix="Give 1 for every weight, or 16 for MindSpore's rule.",
            )
        if isinstance(self.patterns, str):
            raise ConfigError(
                f"'patterns' is one text, '{self.patterns}'; a list is needed.",
                where="centralize, patterns",
                fix=f"Write ('{self.patterns}',).",
            )
        if not all(isinstance(pattern, str) for pattern in self.patterns or ()):
            raise ConfigError(
                f"patterns = {self.patterns!r} are no texts.",
                where="centralize, patterns",
                fix="Write ('layer1.*', 'fc.weight').",
            )


def centralize(
    model: ir.Model, trained: Sequence[Parameter], config: CentralizeConfig
) -> tuple[frozenset[str], Report]:
    """Choose the parameters whose gradients are centralized.

    Args:
        model: The forward graph.
        trained: What is trained.
        config: The configuration.

    Returns:
        Their names, and the report: each parameter with the reason.
    """
    report = Report("grad_centralization")
    values = {value.name: value for value in _tensors(model)}
    asked = None
    if config.patterns is not None:
        asked, idle = match_names([p.name for p in trained], config.patterns)
        if idle:
            raise ConfigError(
                f"The pattern '{idle[0]}' matches no trained parameter.",
                where="centralize, patterns",
                fix=f"Names are like {', '.join(p.name for p in trained[:3])}.",
            )
    chosen = set()
    for parameter in trained:
        reason = _unsuited(parameter, values[parameter.name], config.multiple_of)
        if asked is not None and parameter.name not in asked:
            reason = "no pattern matches it"
        if reason is None:
            chosen.add(parameter.name)
            axes = ", ".join(str(axis) for axis in range(1, len(parameter.shape)))
            report.changed[parameter.name] = f"mean over axis {axes} is taken off its gradient"
        else:
            report.kept[parameter.name] = reason
    return frozenset(chosen), report


def _unsuited(parameter: Parameter, value: ir.Value, multiple: int) -> str | None:
    if parameter.role != "weight":
        return f"a {parameter.role}, no weight"
    if len(parameter.shape) < 2:
        return "it has one axis only"
    if HEAD_MARK in value.metadata_props:
        return "the weight of a full-normalization head"
    readers = [node for node in value.consumers() if node.op_type != "Cast"]
    for cast in (node for node in value.consumers() if node.op_type == "Cast"):
        readers += cast.outputs[0].consumers()  # the weight in mixed precision
    for node in readers:
        if node.op_type in ("Conv", "ConvTranspose") and node.attributes.get_int("group", 1) > 1:
            return f"'{node.name}' is a grouped convolution"
    if parameter.shape[1] % multiple:
        return f"its axis 1 is {parameter.shape[1]}, not a multiple of {multiple}"
    return None


def _tensors(model: ir.Model) -> Iterable[ir.Value]:
    yield from model.graph.inputs
    yield from model.graph.initializers.values()
