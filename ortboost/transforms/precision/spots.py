"""What each node may be in mixed precision: low, wide or free, why, and how the free ones are decided."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import ConfigError, UsageError
from ortboost.graph.io import source_name
from ortboost.graph.parameters import find_parameters
from ortboost.transforms.precision.cut import Wire, least_casts
from ortboost.transforms.precision.operators import Form, form_of
from ortboost.transforms.precision.policy import Choice, PrecisionConfig, classify, low_type

__all__ = ["Spot", "Spots", "is_ours", "largest"]

_FLOAT = ir.DataType.FLOAT
_SUMS = ("Add", "Sub", "Sum")
_LOOKUPS = ("Gather", "GatherElements", "GatherND")


@dataclass
class Spot:
    """A node, what it may be and why."""

    node: ir.Node
    form: Form
    choice: Choice
    reason: str

    @property
    def end(self) -> Hashable:
        """What it is in a :class:`Wire`."""
        return id(self) if self.choice == "follow" else self.choice == "low"


class Spots:
    """The nodes of a graph that hold float32 tensors.

    Args:
        model: The model.
        config: The policy.
        stored: Whether parameters are converted, not cast.
        masters: Names of the parameters; found if not given.
        ranges: Name of a tensor to the largest magnitude that was measured.
    """

    def __init__(
        self,
        model: ir.Model,
        config: PrecisionConfig,
        *,
        stored: bool,
        masters: Collection[str] | None,
        ranges: Mapping[str, float],
    ) -> None:
        self.model, self.graph, self.config = model, model.graph, config
        self.low, self.ranges = low_type(config), ranges
        if masters is None:
            masters = [name for name, p in find_parameters(model).items() if p.role != "constant"]
        self.masters = frozenset() if stored else frozenset(masters)
        self.of: dict[int, Spot] = {}

    # ---- what each node may be ----------------------------------------------------------------

    def find(self, fixed: Mapping[str, str], unsupported: Mapping[str, str]) -> None:
        """A spot for each node with a float32 tensor."""
        opsets = dict(self.model.opset_imports)
        labels = {id(node): _labels(node) for node in self.graph}
        kept = self._matching(labels, self.config.keep_fp32, "keep_fp32")
        forced = self._matching(labels, self.config.force_low, "force_low")
        for node in self.graph:
            form = form_of(node, self.low, opsets)
            if not (form.reads or form.writes or form.fixed) and form.reason is None:
                continue  # no float32 in it
            if not (form.reads or form.writes or form.reason):
                self.of[id(node)] = Spot(node, form, "wide", "")  # short already
                continue
            policy = self.config.policy if not is_ours(node) else "autocast"
            choice, reason = classify(node.op_type, policy, self.config.keep_batchnorm)
            if id(node) in forced:
                choice, reason = "low", "as asked for"
            obstacle = (
                fixed.get(node.name or "") or form.reason or unsupported.get(node.op_type) or None
            )
            if id(node) in forced and obstacle is not None:
                raise UsageError(
                    f"'{node.name}' cannot compute in {self.config.compute}: {obstacle}.",
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
            self.of[id(node)] = Spot(node, form, choice, reason)

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
                return f"its constant {lost} does not fit {self.config.compute}"
        for value in (*node.inputs, *node.outputs):
            size = self.ranges.get(value.name or "", 0.0) if value is not None else 0.0
            if size > largest(self.low):
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
        free = {id(s): s for s in self.of.values() if s.choice == "follow"}
        wires = [Wire(self._maker(value), self._readers(value)) for value in self._values()]
        wishes: dict[Hashable, int] = {key: self._wish(spot) for key, spot in free.items()}
        low = least_casts(list(free), wires, wishes)
        for key, spot in free.items():
            spot.choice = "low" if key in low else "wide"

    def _wish(self, spot: Spot) -> int:
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
        for spot in self.of.values():
            for value in (*spot.node.inputs, *spot.node.outputs):
                if value is not None and value.dtype == _FLOAT:
                    found.setdefault(id(value), value)
        return list(found.values())

    def _maker(self, value: ir.Value) -> Hashable:
        if self.is_constant(value):
            return None
        node = value.producer()
        if node is None:
            return value.is_graph_input() and not self.config.keep_io_types
        spot = self.of.get(id(node))
        if spot is None or value.index() not in spot.form.writes:
            return False
        return spot.end

    def is_constant(self, value: ir.Value) -> bool:
        """Whether a value can be stored in either type: no cast is needed."""
        return (
            value.is_initializer()
            and not value.is_graph_input()
            and value.const_value is not None
            and value.name not in self.masters
        )

    def _readers(self, value: ir.Value) -> tuple[Hashable, ...]:
        found: list[Hashable] = []
        for usage in value.uses():
            end = self.reader(usage.node, usage.idx)
            if end is not None:
                found.append(end)
        if value.is_graph_output():
            found.append(not self.config.keep_io_types)
        return tuple(found)

    def reader(self, node: ir.Node, index: int) -> Hashable:
        """How a node reads an input: ``True`` for low, ``False`` for wide, ``None`` for either."""
        spot = self.of.get(id(node))
        if spot is None:  # of a subgraph, or one that does not care for the type (Shape)
            return None if node.graph is self.graph else False
        if index in spot.form.reads:
            return spot.end
        return False


def largest(dtype: ir.DataType) -> float:
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


def is_ours(node: ir.Node) -> bool:
    """Whether a node is of a rewrite, such as the next running statistics."""
    return (node.name or "").startswith("ortboost/")


def _labels(node: ir.Node) -> list[str]:
    """What a pattern may match: node, operator, outputs, weights."""
    found = [node.name or "", node.op_type, *(v.name or "" for v in node.outputs)]
    found += [v.name or "" for v in node.inputs if v is not None and v.is_initializer()]
    return [label for label in found if label]


def _matcher(pattern: str, where: str) -> Callable[[str], bool]:
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
