"""The precision plan: which nodes are low, fp32 or free, and the choice for free ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import ConfigError, UsageError
from ortboost.graph.query import constant, is_standard, matches_name, producer_of, source_before
from ortboost.graph.source import source_name
from ortboost.graph.weights.parameters import find_parameters
from ortboost.transforms.precision.min_cut import Wire, least_casts
from ortboost.transforms.precision.operators import Form, form_of
from ortboost.transforms.precision.policy import FP32_OPERATORS, Choice, PrecisionConfig, classify

__all__ = ["NodePrecision", "PrecisionPlan", "is_ours", "largest"]

_FLOAT = ir.DataType.FLOAT
_SUMS = ("Add", "Sub", "Sum")
_KEEP_ZERO = ("Expand", "Sqrt", "Reshape", "Squeeze", "Unsqueeze", "Transpose")
_LOOKUPS = ("Gather", "GatherElements", "GatherND")


@dataclass
class NodePrecision:
    """A node, its precision, and the reason for it."""

    node: ir.Node
    form: Form
    choice: Choice
    reason: str

    @property
    def end(self) -> Hashable:
        """Its entry in a :class:`~ortboost.transforms.precision.min_cut.Wire`."""
        return id(self) if self.choice == "free" else self.choice == "low"


class PrecisionPlan:
    """The precision of every node that reads or writes a float32 tensor.

    See :func:`~ortboost.transforms.precision.place.place_precision` for the arguments; ``low`` is
    the element type of the policy.
    """

    def __init__(
        self,
        model: ir.Model,
        config: PrecisionConfig,
        low: ir.DataType,
        *,
        stored: bool,
        masters: Collection[str] | None,
        ranges: Mapping[str, float],
    ) -> None:
        self.model, self.graph, self.config = model, model.graph, config
        self.low, self.ranges = low, ranges
        if masters is None:
            masters = [name for name, p in find_parameters(model).items() if p.role != "constant"]
        self.masters = frozenset() if stored else frozenset(masters)
        self.of: dict[int, NodePrecision] = {}

    def find(self, fixed: Mapping[str, str], unsupported: Mapping[str, str]) -> None:
        """Classify each node with a float32 tensor as low, fp32 or free.

        Raises:
            UsageError: A pattern matches no node, or a node cannot be forced to low precision.
        """
        opsets = dict(self.model.opset_imports)
        labels = {id(node): _labels(node) for node in self.graph}
        kept = self._matching(labels, self.config.keep_fp32, "--keep-fp32")
        forced = self._matching(labels, self.config.force_low, "--force-low")
        for node in self.graph:
            form = form_of(node, self.low, opsets)
            if not (form.reads or form.writes or form.fixed) and form.reason is None:
                continue  # no float32 tensors
            if not (form.reads or form.writes or form.reason):
                self.of[id(node)] = NodePrecision(node, form, "fp32", "")  # already low precision
                continue
            # The policy `all` is for nodes of the model; those added by ortboost are classified by
            # operator.
            policy = self.config.policy if not is_ours(node) else "autocast"
            choice, reason = classify(node.op_type, policy, self.config.keep_batchnorm)
            if choice == "free" and _is_summed_square(node):
                choice, reason = "fp32", FP32_OPERATORS["ReduceSumSquare"]
            if id(node) in forced:
                choice, reason = "low", "as requested"
            # An obstacle overrides the policy; against a request it is an error.
            obstacle = fixed.get(node.name or "") or form.reason or unsupported.get(node.op_type)
            if id(node) in forced and obstacle is not None:
                raise UsageError(
                    f"'{node.name}' cannot compute in {self.config.compute}: {obstacle}.",
                    where=f"--force-low, {node.op_type} '{node.name}'",
                    fix="Leave it out of --force-low.",
                )
            # Checked last, since it reads constants; a node in --force-low accepts such a loss.
            if obstacle is None and id(node) not in forced and choice != "fp32":
                obstacle = self._misfit(node, form)
            if id(node) in kept:
                choice, reason = "fp32", "as requested"
            elif obstacle is not None and choice != "fp32":
                choice, reason = "fp32", obstacle
            elif choice == "low" and not form.writes and id(node) not in forced:
                # No cast back is needed, so either precision costs the same.
                choice, reason = "free", "it has no float output"
            self.of[id(node)] = NodePrecision(node, form, choice, reason)

    def _matching(
        self, labels: Mapping[int, Sequence[str]], patterns: Sequence[str], where: str
    ) -> set[int]:
        found: set[int] = set()
        for pattern in patterns:
            matches = _matcher(pattern, where)
            hits = {key for key, names in labels.items() if any(map(matches, names))}
            if not hits:
                shown = [node.name or "" for node in self.graph if not is_ours(node)][:4]
                raise UsageError(
                    f"The pattern '{pattern}' matches no node of the model.",
                    where=f"{where}, {source_name(self.model)}",
                    fix=f"Examples of nodes: {', '.join(shown)}; patterns also match operators and "
                    "weights.",
                )
            found |= hits
        return found

    def _misfit(self, node: ir.Node, form: Form) -> str | None:
        """Why the constants or measured values of a node do not fit the low-precision format."""
        lost = self._lost_constant(node, form)
        if lost is not None:
            return f"its constant {lost} does not fit {self.config.compute}"
        if is_standard(node, "Div") and self._is_kept_from_zero(node.inputs[1]):
            return f"the constant that keeps its divisor from 0 is lost in {self.config.compute}"
        for name in [v.name or "" for v in (*node.inputs, *node.outputs) if v is not None]:
            if (size := self.ranges.get(name, 0.0)) > largest(self.low):
                return f"'{name}' was measured up to {size:.4g}"
        return None

    def _lost_constant(self, node: ir.Node, form: Form) -> str | None:
        """A number that a node reads and the low-precision format does not hold, as text."""
        for value in (node.inputs[index] for index in form.reads):
            array = constant(value) if value is not None and self.is_constant(value) else None
            lost = None if array is None else _lost(array, self.low)
            if lost is not None:
                return lost
        return None

    def _is_kept_from_zero(self, value: ir.Value | None) -> bool:
        """Whether only a constant that low precision loses keeps a value from 0: `x + 1e-15`."""
        producer = producer_of(source_before(value, *_KEEP_ZERO))
        entry = self.of.get(id(producer))
        return entry is not None and self._lost_constant(entry.node, entry.form) is not None

    def decide(self) -> None:
        """Choose low or fp32 for every free node, with the fewest casts."""
        free = {id(s): s for s in self.of.values() if s.choice == "free"}
        wires = [Wire(self._producer(value), self._consumers(value)) for value in self._values()]
        preferences: dict[Hashable, int] = {k: self._preference(e) for k, e in free.items()}
        low = least_casts(list(free), wires, preferences)
        for key, entry in free.items():
            entry.choice = "low" if key in low else "fp32"

    def _preference(self, entry: NodePrecision) -> int:
        """The preference of a free node for low, which breaks ties between assignments."""
        read = [entry.node.inputs[i] for i in entry.form.reads]
        data = [v for v in read if v is not None and not v.is_initializer()]
        if entry.node.op_type in _SUMS and len(data) > 1:
            return -3  # residual streams accumulate over the whole depth
        if entry.node.op_type in _LOOKUPS and not data:
            return -3  # cast the gathered rows, not the whole table
        return 1

    def _values(self) -> list[ir.Value]:
        touched = (
            v for entry in self.of.values() for v in (*entry.node.inputs, *entry.node.outputs)
        )
        # A value is on a wire once, however many nodes touch it.
        return list(dict.fromkeys(v for v in touched if v is not None and v.dtype == _FLOAT))

    def _producer(self, value: ir.Value) -> Hashable:
        if self.is_constant(value):
            return None
        node = value.producer()
        if node is None:
            # A parameter is float32; an input is only if it keeps its type.
            return value.is_graph_input() and not self.config.keep_io_types
        entry = self.of.get(id(node))
        # Computed in float32: by a node without a choice, or as an output of fixed type.
        if entry is None or value.index() not in entry.form.writes:
            return False
        return entry.end

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value is a constant that can be stored in either type without a cast."""
        return (
            value.is_initializer()
            and not value.is_graph_input()
            and value.const_value is not None
            and value.name not in self.masters
        )

    def _consumers(self, value: ir.Value) -> tuple[Hashable, ...]:
        found = [self.consumer(node, index) for node, index in value.uses()]
        if value.is_graph_output():
            found.append(not self.config.keep_io_types)
        return tuple(end for end in found if end is not None)

    def consumer(self, node: ir.Node, index: int) -> Hashable:
        """How a node reads an input: ``True`` for low, ``False`` for fp32, ``None`` for either.

        A free node (before :meth:`decide`) is named instead: see :class:`Wire`.
        """
        entry = self.of.get(id(node))
        if entry is None:  # in a subgraph, or an operator for any type (Shape)
            return None if node.graph is self.graph else False
        return entry.end if index in entry.form.reads else False


def largest(dtype: ir.DataType) -> float:
    """The largest finite number of a float type."""
    # numpy's finfo does not know bfloat16.
    return float(ml_dtypes.finfo(dtype.numpy()).max)  # type: ignore[no-untyped-call]


def _lost(array: NDArray[Any], low: ir.DataType) -> str | None:
    """An element that becomes infinite in low precision, or for a scalar zero, as text."""
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rounded = array.astype(low.numpy()).astype(np.float32)
    # A few weights that underflow are noise; a scalar that becomes 0 changes the computation.
    lost = np.isinf(rounded) & np.isfinite(array)
    if array.size <= 1:
        lost |= (rounded == 0) & (array != 0)
    return f"{array[lost].flat[0]:.4g}" if lost.any() else None


def _is_summed_square(node: ir.Node) -> bool:
    """Whether a node is the `x * x` of a sum of squares, which overflows float16 from 256 on."""
    return (
        is_standard(node, "Mul")
        and node.inputs[0] is node.inputs[1]
        and any(is_standard(n, "ReduceMean", "ReduceSum") for n, _ in node.outputs[0].uses())
    )


def is_ours(node: ir.Node) -> bool:
    """Whether a node was added by ortboost, such as the update of the running statistics."""
    return (node.name or "").startswith("ortboost/")


def _labels(node: ir.Node) -> list[str]:
    """The names that a pattern may match: node, operator, outputs and weights."""
    found = [node.name or "", node.op_type, *(v.name or "" for v in node.outputs)]
    found += [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]
    return [label for label in found if label]


def _matcher(pattern: str, where: str) -> Callable[[str], bool]:
    if not pattern.startswith("re:"):
        return lambda name: matches_name(name, pattern)
    try:
        compiled = re.compile(pattern[3:])
    except re.error as error:
        raise ConfigError(
            f"'{pattern[3:]}' is not a regular expression: {error}.",
            where=where,
            fix="Write, for example, re:layer[0-9]+/.*, or a shell-style pattern.",
        ) from error
    return lambda name: compiled.fullmatch(name) is not None
