"""Put the casts of mixed precision into a graph.

Every node is low, wide or free by :mod:`~ortboost.transforms.precision.policy`; free ones are decided so that
there are as few casts as possible (:mod:`~ortboost.transforms.precision.spots`). Then each low node reads
shortened values: a float32 value gets one Cast that all low readers share, a parameter one Cast a step, and what a
low node makes gets one Cast back if somebody reads it in float32.

Parameters stay float32 inputs or initializers, so their gradients are float32: the gradient of the Cast is a Cast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.normalize import infer_shapes
from ortboost.transforms.precision.operators import complete_types
from ortboost.transforms.precision.policy import PrecisionConfig
from ortboost.transforms.precision.spots import Spots, is_ours

__all__ = ["PLACE_PRECISION", "place_precision"]

PLACE_PRECISION: Final = "place_precision"
"""Name of the report."""

_FLOAT = ir.DataType.FLOAT


def place_precision(
    model: ir.Model,
    config: PrecisionConfig,
    *,
    weights: Literal["master", "stored"] = "master",
    masters: Collection[str] | None = None,
    fixed: Mapping[str, str] | None = None,
    unsupported: Mapping[str, str] | None = None,
    ranges: Mapping[str, float] | None = None,
) -> Report:
    """Give the nodes of the main graph their precision, in place.

    Args:
        model: A normalized model whose types and shapes have been inferred.
        config: The policy; for ``fp32`` nothing happens.
        weights: ``master``: parameters stay float32 and are cast at each run, for training; ``stored``: they are
            converted, for deployment.
        masters: With ``master``, the initializers that are parameters; found if not given. All other
            initializers are constants and are converted.
        fixed: Name of a node to the reason why it stays in float32.
        unsupported: Operator to the reason why it stays in float32.
        ranges: Name of a tensor to the largest magnitude that was measured; what exceeds the shorter format
            stays in float32.

    Returns:
        Report: ``changed`` has the nodes that compute in the shorter format, ``kept`` those that do not, each
        with the reason; a second call changes nothing.

    Raises:
        UsageError: A pattern matches no node, or a node that is to be low cannot be.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,3] x, float[3,2] w) => (float[N,2] y) { [fc] h = MatMul(x, w) [act] y = Softmax(h) }''')
        >>> print(place_precision(model, PrecisionConfig("fp16")))
        place_precision: 1 changed, 1 kept
          fc: fp16: sums of products
          act: kept, fp32: exponentials and their sum
          3 casts to fp16 and back: 2 of inputs, 1 of other values
    """
    report = Report(PLACE_PRECISION)
    if config.low is None:
        return report
    if any(out.dtype is None for node in model.graph for out in node.outputs):
        infer_shapes(model)
        complete_types(model)  # inference knows standard operators only
    spots = Spots(model, config, stored=weights == "stored", masters=masters, ranges=ranges or {})
    spots.find(fixed or {}, unsupported or {})
    spots.decide()
    _Casts(spots).apply(report)
    return report


class _Casts:
    """Shortens what low nodes read and make."""

    def __init__(self, spots: Spots) -> None:
        self.spots, self.graph, self.config = spots, spots.graph, spots.config
        self.low, self.name = spots.low, spots.config.compute
        self.builder = Builder(self.graph, "ortboost/precision")
        self.counts: dict[str, int] = {}

    def apply(self, report: Report) -> None:
        """Shorten what low nodes read and make, and say what was done."""
        shortened: dict[int, ir.Value] = {}
        if not self.config.keep_io_types:
            self._shorten_inputs()
        for spot in self.spots.of.values():
            if spot.choice != "low":
                continue
            for index in spot.form.reads:
                value = spot.node.inputs[index]
                if value is not None and value.dtype == _FLOAT:
                    spot.node.replace_input_with(index, self._short(value, spot.node, shortened))
            for index in spot.form.writes:
                self._shorten_output(spot.node.outputs[index], spot.node)
        self._merge_pairs()
        self._drop_unused(shortened)
        for spot in self.spots.of.values():
            if is_ours(spot.node) or not spot.reason:
                continue
            into = report.changed if spot.choice == "low" else report.kept
            precision = self.name if spot.choice == "low" else "fp32"
            into[spot.node.name or spot.node.op_type] = f"{precision}: {spot.reason}"
        total = sum(self.counts.values())
        if total:
            parts = ", ".join(f"{count} of {kind}" for kind, count in self.counts.items() if count)
            report.notes.append(f"{total} casts to {self.name} and back: {parts}")

    def _cast(self, value: ir.Value, to: ir.DataType, name: str, kind: str) -> ir.Value:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.builder.op("Cast", value, name=name, dtype=to, shape=value.shape, to=int(to))

    def _short(self, value: ir.Value, reader: ir.Node, made: dict[int, ir.Value]) -> ir.Value:
        """The value in the shorter type; made before its first reader."""
        if id(value) in made:
            return made[id(value)]
        producer = value.producer()
        if self.spots.is_constant(value) and value.const_value is not None:
            array = np.asarray(value.const_value.numpy()).astype(self.low.numpy())
            short = ir.Value(
                name=self.builder.unique(f"{value.name}/{self.name}"),
                type=ir.TensorType(self.low),
                shape=ir.Shape(array.shape),
                const_value=ir.tensor(array, dtype=self.low),
            )
            self.graph.register_initializer(short)
        elif _is_cast(producer) and producer is not None and _source(producer).dtype == self.low:
            short = _source(producer)
        else:
            kind = "other values"
            if producer is None:
                kind = "weights" if value.name in self.spots.masters else "inputs"
            short = self._cast(value, self.low, f"{value.name}/{self.name}", kind)
            self.graph.insert_before(reader, self.builder.take())
        made[id(value)] = short
        return short

    def _shorten_inputs(self) -> None:
        for value in list(self.graph.inputs):
            if value.dtype == _FLOAT and not value.is_initializer():
                value.type = ir.TensorType(self.low)
                self._widen(value, None)

    def _shorten_output(self, value: ir.Value, node: ir.Node) -> None:
        value.type = ir.TensorType(self.low)
        self._widen(value, node)

    def _widen(self, value: ir.Value, node: ir.Node | None) -> None:
        """A Cast back for those who read a value in float32; as a graph output it keeps the name."""
        wide_readers = [u for u in value.uses() if self.spots.reader(u.node, u.idx) is False]
        output = value.is_graph_output() and self.config.keep_io_types
        wide_readers += [u for u in value.uses() if self._reads_wide(u.node, u.idx)]
        if not wide_readers and not output:
            return
        name = value.name or ""
        wide = self._cast(
            value, _FLOAT, f"{name}/fp32", "inputs" if node is None else "other values"
        )
        taken = self.builder.take()
        if node is None:
            first = next(iter(self.graph))
            self.graph.insert_before(first, taken)
        else:
            self.graph.insert_after(node, taken)
        for usage in wide_readers:
            usage.node.replace_input_with(usage.idx, wide)
        if output:
            self.graph.outputs[:] = [wide if v is value else v for v in self.graph.outputs]
            value.name = self.builder.unique(f"{name}/{self.name}")
            wide.name = name

    def _reads_wide(self, node: ir.Node, index: int) -> bool:
        spot = self.spots.of.get(id(node))
        return spot is not None and index in spot.form.reads and spot.choice == "wide"

    def _merge_pairs(self) -> None:
        """A Cast of the model to the shorter type, of what is short by now, does nothing."""
        for node in list(self.graph):
            if not _is_cast(node) or node.outputs[0].dtype != self.low:
                continue
            source = _source(node)
            before = source.producer()
            if _is_cast(before) and before is not None and _source(before).dtype == self.low:
                source = _source(before)
            if source.dtype == self.low and not node.outputs[0].is_graph_output():
                ir.convenience.replace_all_uses_with(node.outputs[0], source)
                self.graph.remove(node, safe=True)
        for node in reversed(list(self.graph)):
            used = node.outputs[0].uses() or node.outputs[0].is_graph_output()
            if _is_cast(node) and is_ours(node) and not used:
                self.graph.remove(node, safe=True)

    def _drop_unused(self, shortened: Mapping[int, ir.Value]) -> None:
        """A constant that everybody reads short has its own name in the shorter type."""
        for value in list(self.graph.initializers.values()):
            short = shortened.get(id(value))
            if (
                short is None
                or value.uses()
                or value.is_graph_output()
                or not short.is_initializer()
            ):
                continue
            name = value.name or ""
            self.graph.initializers.pop(name)
            self.graph.initializers.pop(short.name or "")
            short.metadata_props.update(value.metadata_props)
            short.name = name
            self.graph.register_initializer(short)


def _is_cast(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Cast" and node.domain in ("", "ai.onnx")


def _source(cast: ir.Node) -> ir.Value:
    value = cast.inputs[0]
    if value is None:
        raise TypeError("a Cast has an input")
    return value
