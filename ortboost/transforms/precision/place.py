"""Insert the casts of mixed precision into a graph.

:mod:`~ortboost.transforms.precision.policy` classifies every node as low, fp32 or free; the
precision of the free ones is chosen to minimize the number of casts
(:mod:`~ortboost.transforms.precision.plan`). Then each low node reads low-precision values: a
float32 value gets one Cast that all its low consumers share, a parameter one Cast per step, and the
output of a low node one Cast back if a consumer reads it in float32.

Parameters remain float32 inputs or initializers, and so their gradients are float32: the gradient
of a Cast is a Cast.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, Literal

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.query import is_read, is_standard, is_unused, label
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.transforms.precision.operators import complete_types
from ortboost.transforms.precision.plan import PrecisionPlan, is_ours
from ortboost.transforms.precision.policy import PrecisionConfig

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
    """Set the precision of the nodes of the main graph, in place.

    Args:
        model: A normalized model whose types and shapes have been inferred.
        config: The policy; for ``fp32`` nothing happens.
        weights: ``master``: parameters stay float32 and are cast in each run, for training;
            ``stored``: they are converted once, for deployment.
        masters: With ``master``, the initializers that are parameters; determined if not given. All
            other initializers are constants and are converted.
        fixed: Name of a node to the reason why it stays in float32.
        unsupported: Operator to the reason why it stays in float32.
        ranges: Name of a tensor to its largest measured magnitude; nodes with tensors that exceed
            the range of the low-precision format stay in float32.

    Returns:
        The report: ``changed`` has the nodes that compute in low precision, ``kept`` the others,
        each with the reason. The rewrite is idempotent.

    Raises:
        UsageError: A pattern matches no node, or a node cannot be forced to low precision.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,3] x, float[3,2] w) => (float[N,2] y) {
        ...   [fc] h = MatMul(x, w)
        ...   [act] y = Softmax(h) }''')
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
    plan = PrecisionPlan(
        model, config, config.low, stored=weights == "stored", masters=masters, ranges=ranges or {}
    )
    plan.find(fixed or {}, unsupported or {})
    plan.decide()
    _Casts(plan).apply(report)
    return report


class _Casts:
    """Inserts the casts that a precision plan requires."""

    def __init__(self, plan: PrecisionPlan) -> None:
        self.plan, self.graph, self.config = plan, plan.graph, plan.config
        self.low, self.name = plan.low, plan.config.compute
        self.builder = Builder(self.graph, "ortboost/precision")
        self.counts: dict[str, int] = {}

    def apply(self, report: Report) -> None:
        """Cast inputs of low nodes, cast back their outputs for fp32 nodes, and report it."""
        # A value to its copy in the low precision, shared by all that read it.
        copies: dict[int, ir.Value] = {}
        for value in list(self.graph.inputs) if not self.config.keep_io_types else ():
            if value.dtype == _FLOAT and not value.is_initializer():
                self._cast_back(value, None)
        for entry in self.plan.of.values():
            if entry.choice != "low":
                continue
            for index in entry.form.reads:
                read = entry.node.inputs[index]
                # Those of a low node that was treated before are low already.
                if read is not None and read.dtype == _FLOAT:
                    entry.node.replace_input_with(index, self._to_low(read, entry.node, copies))
            for index in entry.form.writes:
                self._cast_back(entry.node.outputs[index], entry.node)
        self._merge_pairs()
        self._drop_unused(copies)  # last: a merged pair may have been the last reader
        for entry in self.plan.of.values():
            if is_ours(entry.node) or not entry.reason:
                continue
            into = report.changed if entry.choice == "low" else report.kept
            precision = self.name if entry.choice == "low" else "fp32"
            into[label(entry.node)] = f"{precision}: {entry.reason}"
        total = sum(self.counts.values())
        if total:
            parts = ", ".join(f"{count} of {kind}" for kind, count in self.counts.items() if count)
            report.notes.append(f"{total} casts to {self.name} and back: {parts}")

    def _cast(self, value: ir.Value, to: ir.DataType, name: str, kind: str) -> ir.Value:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        return self.builder.cast(value, to, name)

    def _to_low(self, value: ir.Value, consumer: ir.Node, made: dict[int, ir.Value]) -> ir.Value:
        """The value in the low-precision type; the Cast is inserted before the first consumer."""
        if id(value) in made:
            return made[id(value)]
        producer = value.producer()
        if self.plan.is_constant(value) and value.const_value is not None:
            array = value.const_value.numpy().astype(self.low.numpy())
            name = self.builder.unique(f"{value.name}/{self.name}")
            low = add_initializer(self.graph, name, array)
        elif (source := _before_cast(producer)) is not None and source.dtype == self.low:
            low = source  # it was low precision before an fp32 node wanted it
        else:
            # No cast is there to reuse.
            kind = "other values"
            if producer is None:
                kind = "weights" if value.name in self.plan.masters else "inputs"
            low = self._cast(value, self.low, f"{value.name}/{self.name}", kind)
            # Consumers come in graph order, so the first one stands before all others.
            self.graph.insert_before(consumer, self.builder.take())
        made[id(value)] = low
        return low

    def _cast_back(self, value: ir.Value, node: ir.Node | None) -> None:
        """Make a value low precision, with one Cast back for all fp32 consumers.

        A graph output keeps its name.
        """
        value.type = ir.TensorType(self.low)
        # Low consumers, and those for any type, read the value itself.
        fp32_readers = [u for u in value.uses() if self.plan.consumer(u.node, u.idx) is False]
        output = value.is_graph_output() and self.config.keep_io_types
        if not fp32_readers and not output:
            return
        name = value.name or ""
        kind = "inputs" if node is None else "other values"
        upcast = self._cast(value, _FLOAT, f"{name}/fp32", kind)
        if node is None:
            self.graph.insert_before(self.graph[0], self.builder.take())
        else:
            self.graph.insert_after(node, self.builder.take())
        for usage in fp32_readers:
            usage.node.replace_input_with(usage.idx, upcast)
        if output:
            self.graph.outputs[:] = [upcast if v is value else v for v in self.graph.outputs]
            value.name = self.builder.unique(f"{name}/{self.name}")
            upcast.name = name

    def _merge_pairs(self) -> None:
        """Remove the model's own casts to low precision whose input has become low precision."""
        for node in list(self.graph):
            # A graph output stays a value of its own.
            if node.outputs[0].dtype != self.low or node.outputs[0].is_graph_output():
                continue
            source = _before_cast(node)
            raised = None if source is None else _before_cast(source.producer())
            if raised is not None and raised.dtype == self.low:  # low -> fp32 -> low
                source = raised
            if source is not None and source.dtype == self.low:
                ir.convenience.replace_all_uses_with(node.outputs[0], source)
                self.graph.remove(node, safe=True)
        for node in reversed(list(self.graph)):
            if _before_cast(node) is not None and is_ours(node) and is_unused(node):
                self.graph.remove(node, safe=True)

    def _drop_unused(self, copies: Mapping[int, ir.Value]) -> None:
        """Replace constants that only low nodes read by their low-precision copies."""
        for value in list(self.graph.initializers.values()):
            low = copies.get(id(value))
            if low is None or is_read(value) or not low.is_initializer():
                continue
            name = value.name or ""
            self.graph.initializers.pop(name)
            # The copy takes the name over, so that the weight is found where it was.
            self.graph.initializers.pop(low.name or "")
            low.metadata_props.update(value.metadata_props)
            low.name = name
            self.graph.register_initializer(low)


def _before_cast(node: ir.Node | None) -> ir.Value | None:
    """The input of a Cast; ``None`` for any other node."""
    return node.inputs[0] if node is not None and is_standard(node, "Cast") else None
