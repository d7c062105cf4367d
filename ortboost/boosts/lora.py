r"""LoRA: frozen layers with small trained corrections.

Each layer keeps its weight `W`, which is not trained, and gets a second path of `rank` features:

    y = x W + b + (alpha / rank) (dropout(x) A) B        A: [in, rank],  B: [rank, out]

`A` starts with random numbers and `B` at zero, so nothing changes before the first update. Only `A`
and `B` have gradients and optimizer states, and no gradient of `W` is computed: a training step
takes less memory and time, and the update touches few numbers. A convolution gets a convolution of
the same form with `rank` outputs, followed by one with kernel size 1.

An export merges both paths, ``W + (alpha / rank) A B``
(:mod:`ortboost.deploy.rewrites.merge_low_rank`): the file has the operators of the original model.

Sources: Hu et al., "LoRA: Low-Rank Adaptation of Large Language Models", 2021, section 4.1; the
initial values, the forms of the layers and the names are those of PEFT's ``LoraConfig``.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Stage
from ortboost.boosts.grad_centralization import HEAD_MARK
from ortboost.core.errors import ConfigError, ModelError
from ortboost.core.field_types import Range
from ortboost.core.report import Report
from ortboost.graph.build import Builder, insert_after
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.query import (
    input_at,
    is_standard,
    label,
    match_names,
    permutation,
    producer_of,
    static_shape,
)
from ortboost.graph.reach import ancestors, descendants
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name
from ortboost.graph.weights.origins import original_name
from ortboost.graph.weights.parameters import find_parameters

__all__ = ["Lora"]

_ADAPTER = "lora_"  # in names of PEFT and of this boost
_ON_INTEGERS = ("Integer", "QLinear", "NBits", "QGemm")
_OTHERS = {
    "ConvTranspose": "a transposed convolution",
    "GRU": "a recurrent layer",
    "LSTM": "a recurrent layer",
    "RNN": "a recurrent layer",
}


@dataclass(frozen=True)
class Lora(Boost):
    """Low-rank adaptation; see the module docstring.

    It trains the adapters, a new head (``new_head``), and what the user selects by ``trainable`` or
    ``parameters``. Everything else is frozen.

    Args:
        rank: Inner size of the adapters.
        alpha: Numerator of their scale, ``alpha / rank``.
        dropout: Share of the inputs that an adapter does not see in a training step.
        layers: Shell-style patterns of names of weights, as in the file or as in torch; ``None``
            for all linear layers and convolutions of the main graph, apart from a new head.
        seed: Seed of the initial values.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> import ortboost as ob
        >>> config = ob.ProgramConfig(boosts=(Lora(rank=4, layers=("fc*",)),))
        >>> program = ob.build_program("models/lenet5.onnx", config)
        >>> [name for name in program.initial if "lora" in name][:2]
        ['fc1.lora_A', 'fc1.lora_B']
    """

    rank: Annotated[int, Range(1)] = 8
    alpha: Annotated[float, Range(above=0)] = 8.0
    dropout: Annotated[float, Range(0, below=1)] = 0.0
    layers: tuple[str, ...] | None = None
    seed: Annotated[int, Range(0)] = 0

    name: ClassVar[str] = "lora"
    stage: ClassVar[Stage] = "forward"
    card: ClassVar[str] = "lora"
    freezes_network: ClassVar[bool] = True

    def rewrite_network(self, graph: GraphContext) -> Report:
        """Add the adapters."""
        report = Report(self.name)
        model = graph.model
        found = list(_layers(model))
        chosen = self._chosen(found, model)
        constants = {n: p.reason for n, p in find_parameters(model).items() if not p.trainable}
        # One adapter for each matrix, also if several nodes read it.
        adapters: dict[tuple[ir.Value, bool], tuple[ir.Value, ir.Value]] = {}
        generator = np.random.default_rng(self.seed)
        b = Builder(model.graph, f"ortboost/{self.name}")
        for layer in found:
            reason = layer.reason
            if layer.name in graph.new_weights:
                reason = "it is new, and trained as a whole"
            elif layer not in chosen:
                reason = "not among the layers"
            elif _ADAPTER in layer.original.lower():
                reason = "part of an adapter of the file, which stays as it is"
            elif layer.name in constants and layer.name not in (self.layers or ()):
                reason = f"a constant: {constants[layer.name]}"
            elif not reason and self.rank * (layer.fan_in + layer.outputs) >= layer.size:
                reason = f"adapters of rank {self.rank} would be no smaller than the weight"
            # Several layers may read parts of one weight.
            many = layer.name in report.changed or layer.name in report.kept
            known_as = f"{layer.name} ({label(layer.node)})" if many else layer.name
            if reason:
                report.kept[known_as] = reason
                continue
            key = (layer.matrix, layer.turned)
            if key not in adapters:
                adapters[key] = self._adapter(layer, b, generator)
                numbers = sum(math.prod(static_shape(v) or ()) for v in adapters[key])
                renamed = "" if layer.original == layer.name else f", '{layer.original}' in torch"
                report.changed[known_as] = (
                    f"adapter of {numbers:,} numbers beside {layer.size:,}{renamed}"
                )
            self._add_path(layer, *adapters[key], b)
        if not report.changed:
            raise ModelError(
                "LoRA finds no layer to adapt.",
                where=f"{source_name(model)}: {_first(report, model)}",
                fix="Choose a smaller rank or other layers, or leave the boost out. Quantized "
                "weights need a DequantizeLinear (the format QDQ).",
            )
        infer_shapes(model)
        return report

    def _chosen(self, found: list[_Layer], model: ir.Model) -> list[_Layer]:
        if self.layers is None:
            return found
        names = {name for layer in found for name in (layer.name, layer.original)}
        chosen, unmatched = match_names(names, self.layers)
        if unmatched:
            examples = dict.fromkeys(layer.original for layer in found if not layer.reason)
            raise ConfigError(
                f"The pattern '{unmatched[0]}' matches no linear layer or convolution.",
                where=f"boost '{self.name}', layers: {source_name(model)}",
                fix=f"Examples of weights: {', '.join(list(examples)[:4])}.",
            )
        return [layer for layer in found if chosen & {layer.name, layer.original}]

    def _adapter(
        self, layer: _Layer, b: Builder, generator: np.random.Generator
    ) -> tuple[ir.Value, ir.Value]:
        """The two new weights: `A` uniform in `[-1/sqrt(fan_in), 1/sqrt(fan_in)]`, `B` zero."""
        if layer.node.op_type == "Conv":
            first = (self.rank, layer.inputs, *layer.kernel)
            second = (layer.outputs, self.rank, *(1 for _ in layer.kernel))
        else:
            first, second = (layer.inputs, self.rank), (self.rank, layer.outputs)
        bound = 1 / math.sqrt(layer.fan_in)
        drawn = generator.uniform(-bound, bound, first)
        stem = layer.original.removesuffix(".weight")
        # In the type of the layer: a network in float16 becomes float32, as for other parameters.
        x = layer.node.inputs[0]
        kind = (x.dtype if x is not None else None) or ir.DataType.FLOAT
        return (
            add_initializer(b.graph, b.unique(f"{stem}.lora_A"), drawn.astype(kind.numpy())),
            add_initializer(b.graph, b.unique(f"{stem}.lora_B"), np.zeros(second, kind.numpy())),
        )

    def _add_path(self, layer: _Layer, first: ir.Value, second: ir.Value, b: Builder) -> None:
        """Let the readers of a layer read its output plus the adapter's."""
        node, x, output = layer.node, layer.node.inputs[0], layer.node.outputs[0]
        if self.dropout and x is not None:
            x = b.op("Dropout", x, b.const(self.dropout), shape=x.shape)
        if node.op_type == "Conv":
            form: dict[str, Any] = dict(node.attributes)  # strides, pads, ...
            path = b.op("Conv", b.op("Conv", x, first, **form), second)
        else:
            path = b.op("MatMul", b.op("MatMul", x, first), second)
        scaled = b.op(
            "Mul", path, b.const(self.alpha / self.rank, first.dtype or ir.DataType.FLOAT)
        )
        added = b.op("Add", output, scaled, shape=output.shape)
        insert_after(output, added, b, suffix="replaced" if output.is_graph_output() else None)


@dataclass(frozen=True)
class _Layer:
    """A linear layer or a convolution.

    Args:
        node: MatMul, Gemm or Conv; another operator if it cannot be adapted.
        name: Name of its weight.
        original: Name of the weight in torch, if the exporter renamed it.
        matrix: The tensor that it multiplies by: its weight, apart from an exchange of axes, or
            what nodes compute from it.
        inputs: Input features or channels.
        outputs: Output features or channels.
        kernel: Kernel of a convolution.
        turned: Whether the node reads the matrix with its axes exchanged.
        reason: Why it cannot be adapted; empty if it can.
    """

    node: ir.Node
    name: str
    original: str
    matrix: ir.Value
    inputs: int = 0
    outputs: int = 0
    kernel: tuple[int, ...] = ()
    turned: bool = False
    reason: str = ""

    @property
    def fan_in(self) -> int:
        return self.inputs * math.prod(self.kernel)

    @property
    def size(self) -> int:
        return self.fan_in * self.outputs


def _layers(model: ir.Model) -> Iterator[_Layer]:
    """The layers of the main graph, in its order, also those that cannot be adapted."""
    inputs = (v for v in model.graph.inputs if not v.is_initializer())
    data = descendants(model.graph, inputs)
    for node in model.graph:
        if not is_standard(node, "MatMul", "Gemm", "Conv", *_OTHERS):
            continue
        x, operand = node.inputs[0], input_at(node, 1)
        reason = _OTHERS.get(node.op_type, "")
        if node.op_type == "MatMul" and _stored(operand, data) is None:
            x, operand, reason = operand, x, "its weight is the first operand"
        weight = _stored(operand, data)
        shape = static_shape(operand) if operand is not None else None
        if operand is None or weight is None or shape is None or len(shape) < 2:
            continue
        if HEAD_MARK in weight.metadata_props:
            reason = "of a full-normalization head, which stays normalized"
        if not reason and _stored(x, data) is not None:
            reason = "both operands are stored"
        original = original_name(weight, node)
        layer = _Layer(node, weight.name or "", original, operand, reason=reason)
        yield layer if reason else _with_form(layer, shape)


def _with_form(layer: _Layer, shape: tuple[int, ...]) -> _Layer:
    """The layer with its lengths, or the reason why it cannot be adapted."""
    node = layer.node
    if node.op_type == "Conv":
        groups = node.attributes.get_int("group", 1)
        reason = f"a convolution of {groups} groups" if groups > 1 else ""
        outputs, inputs, *kernel = shape
        return replace(layer, inputs=inputs, outputs=outputs, kernel=tuple(kernel), reason=reason)
    if len(shape) != 2:
        return replace(layer, reason=f"a stack of matrices {list(shape)}")
    if node.attributes.get_int("transA", 0):
        return replace(layer, reason="its input is transposed")
    turned = bool(node.attributes.get_int("transB", 0))
    inputs, outputs = reversed(shape) if turned else shape
    matrix, exchanged = _before_transposes(layer.matrix)
    turned ^= exchanged
    return replace(layer, matrix=matrix, inputs=inputs, outputs=outputs, turned=turned)


def _before_transposes(value: ir.Value) -> tuple[ir.Value, bool]:
    """The value before a chain of Transposes, and whether these exchange its two axes."""
    exchanged = False
    while (node := producer_of(value, "Transpose", "Identity")) is not None:
        source = node.inputs[0]
        if source is None:
            break
        exchanged ^= permutation(node) == [1, 0]
        value = source
    return value, exchanged


def _stored(value: ir.Value | None, data: set[ir.Node]) -> ir.Value | None:
    """The largest stored tensor that determines a value; ``None`` if data do, too."""
    if value is None or value.is_initializer():
        return value
    node = value.producer()
    if node is None or node in data:  # an input of the model, or computed from one
        return None
    read = [v for n in ancestors([value]) for v in n.inputs if v is not None and v.is_initializer()]
    # Of equal size the first by name: the order of a set differs between processes.
    return min(read, key=lambda v: (-math.prod(static_shape(v) or ()), v.name or ""), default=value)


def _first(report: Report, model: ir.Model) -> str:
    """The first reason why a layer was not adapted."""
    integers = (n for n in model.graph if any(word in n.op_type for word in _ON_INTEGERS))
    reasons = [f"'{name}': {why}" for name, why in report.kept.items()]
    reasons += [f"{n.op_type} '{label(n)}' computes with quantized weights" for n in integers]
    return next(iter(reasons), "no layer")
