"""Put the casts of mixed precision into a graph.

Every node is low, wide or free by :mod:`~ortboost.transforms.precision.policy`; free ones are decided so that
there are as few casts as possible (:mod:`~ortboost.transforms.precision.cut`). Then each low node reads
shortened values: a float32 value gets one Cast that all low readers share, a parameter one Cast a step, and what a
low node makes gets one Cast back if somebody reads it in float32.

Parameters stay float32 inputs or initializers, so their gradients are float32: the gradient of the Cast is a Cast.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.errors import ConfigError, UsageError
from ortboost.graph.build import Builder
from ortboost.graph.io import source_name
from ortboost.graph.normalize import infer_shapes
from ortboost.graph.query import find_parameters
from ortboost.report import Report
from ortboost.transforms.precision.cut import Wire, least_casts
from ortboost.transforms.precision.operators import Form, form_of
from ortboost.transforms.precision.policy import Choice, PrecisionConfig, classify, low_type

__all__ = ["PLACE_PRECISION", "place_precision"]

PLACE_PRECISION: Final = "place_precision"
"""Name of the report."""

_FLOAT = ir.DataType.FLOAT
_SUMS = ("Add", "Sub", "Sum")
_LOOKUPS = ("Gather", "GatherElements", "GatherND")


@dataclass
class _Spot:
    """A node, what it may be and why."""

    node: ir.Node
    form: Form
    choice: Choice
    reason: str

    @property
    def end(self) -> Hashable:
        """What it is in a :class:`Wire`."""
        return id(self) if self.choice == "follow" else self.choice == "low"


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
    placing = _Placing(model, config, weights == "stored", masters, ranges or {})
    placing.find_spots(fixed or {}, unsupported or {})
    placing.decide()
    placing.apply(report)
    return report


class _Placing:
    def __init__(
        self,
        model: ir.Model,
        config: PrecisionConfig,
        stored: bool,
        masters: Collection[str] | None,
        ranges: Mapping[str, float],
    ) -> None:
        self.model, self.graph, self.config = model, model.graph, config
        self.low, self.stored, self.ranges = low_type(config), stored, ranges
        self.name = config.compute
        self.largest = float(ir_largest(self.low))
        if masters is None:
            masters = [name for name, p in find_parameters(model).items() if p.role != "constant"]
        self.masters = frozenset() if stored else frozenset(masters)
        self.spots: dict[int, _Spot] = {}
        self.builder = Builder(self.graph, "ortboost/precision")
        self.casts: dict[str, int] = {}

    # ---- what each node may be ----------------------------------------------------------------

    def find_spots(self, fixed: Mapping[str, str], unsupported: Mapping[str, str]) -> None:
        """A spot for each node with a float32 tensor."""
        opsets = dict(self.model.opset_imports)
        labels = {id(node): _labels(node) for node in self.graph}
        kept = self._matching(labels, self.config.keep_fp32, "keep_fp32")
        forced = self._matching(labels, self.config.force_low, "force_low")
        for node in self.graph:
            form = form_of(node, self.low, opsets)
            if not (form.reads or form.writes or form.fixed) and form.reason is None:
                continue  # no float32 in it
            policy = self.config.policy if not _is_ours(node) else "autocast"
            choice, reason = classify(node.op_type, policy, self.config.keep_batchnorm)
            if id(node) in forced:
                choice, reason = "low", "as asked for"
            obstacle = (
                fixed.get(node.name or "") or form.reason or unsupported.get(node.op_type) or None
            )
            if id(node) in forced and obstacle is not None:
                raise UsageError(
                    f"'{node.name}' cannot compute in {self.name}: {obstacle}.",
                    where=f"force_low, {node.op_type} '{node.name}'",
                    fix="Leave it out.",
                )
            if obstacle is None and id(node) not in forced and choice != "wide":
                obstacle = self._misfit(node, form)
            if id(node) in kept:
                choice, reason = "wide", "as asked for"
            elif obstacle is not None and choice != "wide":
                choice, reason = "wide", obstacle
            elif choice == "low" and not form.writes and id(node) not in forced:
                choice, reason = "follow", "it gives out no float"
            self.spots[id(node)] = _Spot(node, form, choice, reason)

    def _matching(
        self, labels: Mapping[int, Sequence[str]], patterns: Sequence[str], where: str
    ) -> set[int]:
        found: set[int] = set()
        for pattern in patterns:
            matches = _matcher(pattern, where)
            hits = {key for key, names in labels.items() if any(map(matches, names))}
            if not hits:
                shown = [node.name or "" for node in self.graph if not _is_ours(node)][:4]
                raise UsageError(
                    f"The pattern '{pattern}' matches no node of the model.",
                    where=f"{where}, {source_name(self.model)}",
                    fix=f"Nodes are like {', '.join(shown)}; operators and weights match too.",
                )
            found |= hits
        return found

    def _misfit(self, node: ir.Node, form: Form) -> str | None:
        """Why the numbers of a node do not fit the shorter format."""
        for index in form.reads:
            value = node.inputs[index]
            array = None if value is None else self._constant(value)
            if value is None or array is None:
                continue
            lost = _lost(array, self.low, is_weight=array.size > 1)
            if lost is not None:
                return f"its constant {lost} does not fit {self.name}"
        for value in (*node.inputs, *node.outputs):
            size = self.ranges.get(value.name or "", 0.0) if value is not None else 0.0
            if size > self.largest:
                return f"'{value.name if value else ''}' was measured up to {size:.4g}"
        return None

    def _constant(self, value: ir.Value) -> NDArray[Any] | None:
        if value.const_value is None or value.is_graph_input() or value.name in self.masters:
            return None
        if not value.is_initializer():
            return None
        return np.asarray(value.const_value.numpy())

    # ---- the least number of casts ------------------------------------------------------------

    def decide(self) -> None:
        """Make every free node low or wide."""
        free = {id(s): s for s in self.spots.values() if s.choice == "follow"}
        wires = [Wire(self._maker(value), self._readers(value)) for value in self._values()]
        wishes: dict[Hashable, int] = {key: self._wish(spot) for key, spot in free.items()}
        low = least_casts(list(free), wires, wishes)
        for key, spot in free.items():
            spot.choice = "low" if key in low else "wide"

    def _wish(self, spot: _Spot) -> int:
        """How much a free node would rather be low, where the number of casts is the same."""
        read = [spot.node.inputs[i] for i in spot.form.reads]
        data = [v for v in read if v is not None and not v.is_initializer()]
        if spot.node.op_type in _SUMS and len(data) > 1:
            return -3  # residual streams add up over the whole depth
        if spot.node.op_type in _LOOKUPS and not data:
            return -3  # a cast of the rows that were looked up, not of the whole table
        return 1

    def _values(self) -> list[ir.Value]:
        found: dict[int, ir.Value] = {}
        for spot in self.spots.values():
            for value in (*spot.node.inputs, *spot.node.outputs):
                if value is not None and value.dtype == _FLOAT:
                    found.setdefault(id(value), value)
        return list(found.values())

    def _maker(self, value: ir.Value) -> Hashable:
        if self._free_of_cost(value):
            return None
        node = value.producer()
        if node is None:
            return value.is_graph_input() and not self.config.keep_io_types
        spot = self.spots.get(id(node))
        if spot is None or value.index() not in spot.form.writes:
            return False
        return spot.end

    def _free_of_cost(self, value: ir.Value) -> bool:
        return (
            value.is_initializer()
            and not value.is_graph_input()
            and value.const_value is not None
            and value.name not in self.masters
        )

    def _readers(self, value: ir.Value) -> tuple[Hashable, ...]:
        found: list[Hashable] = []
        for usage in value.uses():
            end = self._reader(usage.node, usage.idx)
            if end is not None:
                found.append(end)
        if value.is_graph_output():
            found.append(not self.config.keep_io_types)
        return tuple(found)

    def _reader(self, node: ir.Node, index: int) -> Hashable:
        spot = self.spots.get(id(node))
        if spot is None:  # of a subgraph, or one that does not care for the type (Shape)
            return None if node.graph is self.graph else False
        if index in spot.form.reads:
            return spot.end
        return False

    # ---- the casts ----------------------------------------------------------------------------

    def apply(self, report: Report) -> None:
        """Shorten what low nodes read and make, and say what was done."""
        shortened: dict[int, ir.Value] = {}
        if not self.config.keep_io_types:
            self._shorten_inputs()
        for spot in self.spots.values():
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
        for spot in self.spots.values():
            if _is_ours(spot.node):
                continue
            into = report.changed if spot.choice == "low" else report.kept
            precision = self.name if spot.choice == "low" else "fp32"
            into[spot.node.name or spot.node.op_type] = f"{precision}: {spot.reason}"
        total = sum(self.casts.values())
        if total:
            parts = ", ".join(f"{count} of {kind}" for kind, count in self.casts.items() if count)
            report.notes.append(f"{total} casts to {self.name} and back: {parts}")

    def _cast(self, value: ir.Value, to: ir.DataType, name: str, kind: str) -> ir.Value:
        self.casts[kind] = self.casts.get(kind, 0) + 1
        return self.builder.op(
            "Cast", value, name=name, dtype=to, shape=value.shape, to=int(to)
        )

    def _short(self, value: ir.Value, reader: ir.Node, made: dict[int, ir.Value]) -> ir.Value:
        """The value in the shorter type; made before its first reader."""
        if id(value) in made:
            return made[id(value)]
        producer = value.producer()
        if self._free_of_cost(value) and value.const_value is not None:
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
                kind = "weights" if value.name in self.masters else "inputs"
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
        wide_readers = [u for u in value.uses() if self._reader(u.node, u.idx) is False]
        output = value.is_graph_output() and self.config.keep_io_types
        wide_readers += [u for u in value.uses() if self._reads_wide(u.node, u.idx)]
        if not wide_readers and not output:
            return
        name = value.name or ""
        wide = self._cast(value, _FLOAT, f"{name}/fp32", "inputs" if node is None else "other values")
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
        spot = self.spots.get(id(node))
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
            if _is_cast(node) and _is_ours(node) and not used:
                self.graph.remove(node, safe=True)

    def _drop_unused(self, shortened: Mapping[int, ir.Value]) -> None:
        """A constant that everybody reads short has its own name in the shorter type."""
        for value in list(self.graph.initializers.values()):
            short = shortened.get(id(value))
            if short is None or value.uses() or value.is_graph_output() or not short.is_initializer():
                continue
            name = value.name or ""
            self.graph.initializers.pop(name)
            self.graph.initializers.pop(short.name or "")
            short.metadata_props.update(value.metadata_props)
            short.name = name
            self.graph.register_initializer(short)


def ir_largest(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    if dtype == ir.DataType.BFLOAT16:
        return float.fromhex("0x1.fep127")
    return float(np.finfo(dtype.numpy()).max)


def _lost(array: NDArray[Any], low: ir.DataType, *, is_weight: bool) -> str | None:
    """A number of an array that becomes infinite, or (as a single number) zero."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        short = array.astype(low.numpy()).astype(np.float32)
    lost = np.isinf(short) & np.isfinite(array)
    if not is_weight:
        lost |= (short == 0) & (array != 0)
    return f"{array[lost].flat[0]:.4g}" if lost.any() else None


def _is_cast(node: ir.Node | None) -> bool:
    return node is not None and node.op_type == "Cast" and node.domain in ("", "ai.onnx")


def _source(cast: ir.Node) -> ir.Value:
    value = cast.inputs[0]
    if value is None:
        raise TypeError("a Cast has an input")
    return value


def _is_ours(node: ir.Node) -> bool:
    """Whether a node is of a rewrite, such as the next running statistics."""
    return (node.name or "").startswith("ortboost/")


def _labels(node: ir.Node) -> list[str]:
    """What a pattern may match: node, operator, outputs, weights."""
    found = [node.name or "", node.op_type, *(v.name or "" for v in node.outputs)]
    found += [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]
    return [label for label in found if label]


def _matcher(pattern: str, where: str) -> Any:
    if not pattern.startswith("re:"):
        return lambda name: fnmatch.fnmatchcase(name, pattern)
    try:
        compiled = re.compile(pattern[3:])
    except re.error as error:
        raise ConfigError(
            f"'{pattern[3:]}' is no regular expression: {error}.",
            where=where,
            fix="Write for example re:layer[0-9]+/.*, or a shell-style pattern.",
        ) from error
    return lambda name: compiled.fullmatch(name) is not None
