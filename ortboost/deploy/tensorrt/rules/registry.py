"""The context that rules work with, and the registry of rules."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.deploy.findings import Finding
from ortboost.deploy.tensorrt.profiles import Profile
from ortboost.deploy.tensorrt.table import Operator, Release
from ortboost.graph.query import (
    RANDOM_OPERATORS,
    find_schema,
    has_subgraph,
    input_at,
    is_standard,
    static_shape,
)

__all__ = ["RULES", "Check", "Context", "Rule", "rule"]


@dataclass
class Context:
    """The information available to rules.

    Args:
        model: The model: functions inlined, ``Constant`` nodes lifted to initializers, shapes
            inferred. Must not be modified.
        original: The model as loaded, before any change.
        target: The version of TensorRT.
        profiles: Shape profiles; empty if none were given.
    """

    model: ir.Model
    original: ir.Model
    target: Release
    profiles: Sequence[Profile] = ()

    @property
    def nodes(self) -> Iterator[ir.Node]:
        """All nodes, including those of subgraphs."""
        return iter(self.model.graph.all_nodes())

    def standard(self, *op_types: str) -> Iterator[ir.Node]:
        """The nodes of the standard domain, optionally only those of the given operators."""
        return (node for node in self.nodes if is_standard(node, *op_types))

    def known(self) -> Iterator[tuple[ir.Node, Operator]]:
        """The nodes with an operator in the target's table, and the entries of the table."""
        for node in self.standard():
            operator = self.target.operator(node.op_type)
            if operator is not None:
                yield node, operator

    def given(self, node: ir.Node, name: str) -> ir.Value | None:
        """The input with this formal name; ``None`` if omitted, or not defined in this opset."""
        schema = self.schema(node)
        formal = [] if schema is None else [entry.name for entry in schema.inputs]
        return input_at(node, formal.index(name)) if name in formal else None

    def schema(self, node: ir.Node) -> onnx.defs.OpSchema | None:
        """The standard schema of an operator; ``None`` if this opset lacks it."""
        return find_schema(node.op_type, self.opset)

    @property
    def opset(self) -> int:
        """Version of the standard opset."""
        return self.model.opset_imports.get("", 18)

    @property
    def inputs(self) -> list[ir.Value]:
        """Inputs of the main graph that the user feeds."""
        return [value for value in self.model.graph.inputs if not value.is_initializer()]

    def constness(self, value: ir.Value | None) -> str:
        """Classify a value: it is ``stored``, ``folds`` to a constant, or is ``computed``.

        It folds if it depends only on stored values and fixed shapes.
        """
        if value is None or value.is_initializer():
            return "stored"
        return self._verdicts.get(value, "computed")

    @functools.cached_property
    def _verdicts(self) -> dict[ir.Value, str]:
        """Whether the outputs of each node fold or are computed."""
        found: dict[ir.Value, str] = {}
        for node in self.nodes:  # in graph order, each after what it reads
            sources = [v for v in node.inputs if v is not None and not v.is_initializer()]
            folds = all(found.get(value) == "folds" for value in sources)
            if is_standard(node, "Shape", "Size"):  # of a value whose lengths are fixed
                folds = folds or all(static_shape(value) is not None for value in sources)
            drawn = has_subgraph(node) or node.op_type in RANDOM_OPERATORS
            verdict = "folds" if folds and not drawn else "computed"
            found.update(dict.fromkeys(node.outputs, verdict))
        return found

    @staticmethod
    def array(value: ir.Value | None) -> NDArray[Any] | None:
        """The values of a stored tensor.

        Returns:
            ``None`` if the value is not stored, holds strings, or its external file is missing.
        """
        if value is None or value.const_value is None:
            return None
        try:
            return value.const_value.numpy()
        except (OSError, ValueError, TypeError):
            return None


Check: TypeAlias = Callable[[Context], Iterator[Finding]]


@dataclass(frozen=True)
class Rule:
    """A rule with its id (``TRT001``), and what it looks for, in a few words."""

    id: str
    title: str
    check: Check


RULES: dict[str, Rule] = {}
"""All rules by id, in the order in which they run."""


def rule(identifier: str, title: str) -> Callable[[Check], Check]:
    """Register a function in :data:`RULES`; its findings get the id.

    Raises:
        ValueError: The id is taken.
    """

    def enter(check: Check) -> Check:
        def identified(context: Context) -> Iterator[Finding]:
            return (dataclasses.replace(found, rule=identifier) for found in check(context))

        if identifier in RULES:
            raise ValueError(f"two rules have the id {identifier}")
        RULES[identifier] = Rule(identifier, title, identified)
        return check

    return enter
