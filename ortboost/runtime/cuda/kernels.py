"""Look up the kernels of the CUDA and CPU providers in the table of a release."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Final

import onnx
import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.graph.query import find_schema

__all__ = ["Kernel", "Kernels", "kernels_of", "load_kernels", "operands"]

_NEWEST_OPSET: Final = {"1.19.2": 21, "1.31.1": 26}
"""Release to the newest standard opset that it supports, as its error message states."""
_FLOATS: Final = frozenset({"float16", "bfloat16", "float", "double"})


@dataclass(frozen=True)
class Kernel:
    """A kernel of a provider for a node: its inputs and outputs, by index, in host memory."""

    host_inputs: frozenset[int] = frozenset()
    host_outputs: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Kernels:
    """The kernels of one release.

    Args:
        release: ``1.19.2``, the last onnxruntime-training, or ``1.31.1``, onnxruntime-gpu.
        source: Source of the table.
        data: Provider to operator to rows: first opset, last opset, types by constraint, and the
            operands in host memory.
        types: The sets of types that the rows refer to by index.
    """

    release: str
    source: str
    data: Mapping[str, Mapping[str, list[list[Any]]]]
    types: tuple[frozenset[str], ...]

    @property
    def newest_opset(self) -> int:
        """The newest standard opset that the release supports."""
        return _NEWEST_OPSET[self.release]

    def find(
        self,
        provider: str,
        node: ir.Node,
        opsets: Mapping[str, int],
        *,
        as_float: Collection[str] = (),
    ) -> Kernel | str:
        """Find the kernel of a provider for a node, or the reason why there is none.

        The rule is ``KernelRegistry::VerifyKernelDef`` of ONNX Runtime: an open-ended kernel serves
        the opset at which it starts, but no newer definition of the operator.

        Args:
            provider: ``cuda`` or ``cpu``.
            node: The node; a value without a type matches every kernel.
            opsets: Version of each domain that the model imports.
            as_float: Types to treat as float32, as if there were casts around the node.
        """
        standard = node.domain in ("", "ai.onnx")
        name = node.op_type if standard else f"{node.domain}::{node.op_type}"
        rows = self.data[provider].get(name)
        if rows is None:
            return f"it has no kernel of {name}"
        schema = find_schema(node.op_type, opsets.get("", 18)) if standard else None
        since = opsets.get(node.domain, 1) if schema is None else schema.since_version
        if standard and schema is None:  # in the standard domain only in onnxruntime-training
            since = rows[0][0]
        rows = [  # without a last opset (None): only the definition of the first
            row
            for row in rows
            if row[0] == since or (row[1] is not None and row[0] <= since <= row[1])
        ]
        if not rows:
            return f"its kernels of {name} are for other opsets than {since}"
        refused = ""
        for _, _, constraints, *host in rows:
            for key, number in constraints.items():
                found = self._unfit(node, schema, key, self.types[number], as_float)
                if found:
                    refused = f"its kernels of {name} do not support {found}"
                    break
            else:  # all constraints hold
                return Kernel(*(frozenset(places) for places in host))
        return refused

    @staticmethod
    def _unfit(
        node: ir.Node,
        schema: onnx.defs.OpSchema | None,
        constraint: str,
        allowed: frozenset[str],
        as_float: Collection[str],
    ) -> str:
        """The type that violates a constraint; empty if there is none."""
        for value in _bound(node, schema, constraint):
            kind = _type_name(value)
            if schema is None and kind not in _FLOATS:
                continue  # the table has one set for all operands
            if kind in as_float:
                kind = "float"
            if kind and kind not in allowed:
                return kind
        return ""


def operands(
    node: ir.Node, schema: onnx.defs.OpSchema
) -> Iterator[tuple[ir.Value, onnx.defs.OpSchema.FormalParameter]]:
    """The inputs and outputs of a node, each with its description in the standard."""
    for values, formals in ((node.inputs, schema.inputs), (node.outputs, schema.outputs)):
        for position, value in enumerate(values if formals else ()):
            if value is not None:
                yield value, formals[min(position, len(formals) - 1)]


def _bound(node: ir.Node, schema: onnx.defs.OpSchema | None, constraint: str) -> Iterator[ir.Value]:
    """The operands of a type constraint, which may be named after an operand."""
    if schema is None:
        return (value for value in (*node.inputs, *node.outputs) if value is not None)
    found = operands(node, schema)
    return (value for value, formal in found if constraint in (formal.type_str, formal.name))


def _type_name(value: ir.Value) -> str:
    if value.dtype is None:
        return ""
    name = str(value.dtype).lower()
    return f"seq({name})" if isinstance(value.type, ir.SequenceType) else name


def load_kernels(target: str) -> Kernels:
    """The table for ``cuda``, ``cuda=1.31.1`` or ``cuda=1.19.2``; by default the newest.

    Raises:
        UsageError: There is no table for that release.

    Example:
        >>> load_kernels("cuda").release
        '1.31.1'
    """
    matched = re.fullmatch(r"cuda(?:=([\d.]+))?", target.strip().lower())
    wanted = matched[1] or list(_NEWEST_OPSET)[-1] if matched else ""
    found = [release for release in _NEWEST_OPSET if f"{release}.".startswith(f"{wanted}.")]
    if not wanted or not found:
        raise UsageError(
            f"There is no table of kernels for '{target}'.",
            where="target",
            fix=f"Write {' or '.join(f'cuda={release}' for release in _NEWEST_OPSET)}.",
        )
    return _load(found[-1])


def kernels_of(version: str) -> Kernels:
    """The table for a version: that of onnxruntime-training up to 1.19, else the newest."""
    older = tuple(int(part) for part in version.split(".")[:2]) < (1, 20)
    return _load(list(_NEWEST_OPSET)[0 if older else -1])


@functools.cache
def _load(release: str) -> Kernels:
    text = resources.files(__package__).joinpath(f"kernels-{release}.json").read_text("utf-8")
    data = json.loads(text)
    types = tuple(frozenset(kinds.split()) for kinds in data["types"])
    return Kernels(release, data["source"]["kernels"], data, types)
