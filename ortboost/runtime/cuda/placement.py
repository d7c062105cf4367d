"""Predict where ONNX Runtime's CUDA provider runs each node of a graph, and what is copied.

The rules are those of the runtime's source (releases 1.19 and 1.25; the comments name the
functions):

1. A node goes to CUDA if there is a kernel for its types
   (``CUDAExecutionProvider::GetCapability``), except for some forms of ConvTranspose, ArgMax,
   ArgMin, Cast, LSTM, GRU and RNN.
2. Of these, nodes that compute only with values in host memory, usually shapes, stay on the host
   (``GetCpuPreferredNodes``). **Inputs of the graph count as such values**: a node that divides a
   weight that is an input by the batch size runs on the CPU, and the weight is copied.
3. The rest goes to the CPU provider; float16 is cast to float32 around a node without another
   kernel.
4. A value with readers or writers on both sides is copied (``TransformerMemcpyImpl``). Operands
   that a kernel needs in host memory belong to the host side.

Subgraphs are placed separately; outer values are copied when the containing node starts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any, Final, Literal, TypeAlias

import onnx
import onnx_ir as ir

from ortboost.graph.query import (
    SHORT_FLOATS,
    find_schema,
    has_subgraph,
    input_at,
    is_random,
    is_standard,
    static_shape,
    subgraphs,
)
from ortboost.runtime.cuda.kernels import Kernel, Kernels

__all__ = ["Copy", "Placed", "Side", "place"]

Side: TypeAlias = Literal["cuda", "cpu", "none"]

_SMALL: Final = 100  # elements of an initializer that GetCpuPreferredNodes treats as a host value
_RNN: Final = {
    "LSTM": ("sigmoid", "tanh", "tanh") * 2,
    "GRU": ("sigmoid", "tanh") * 2,
    "RNN": ("tanh",) * 2,
}


@dataclass(frozen=True)
class Placed:
    """Where a node runs.

    Args:
        node: The node.
        side: ``cuda``, ``cpu``, or ``none`` if no provider has a kernel.
        reason: Why it does not run on CUDA; empty on CUDA, and for shape computations that the
            runtime prefers to keep on the host.
        shape_work: Whether it could run on CUDA but stays on the host because of its inputs.
    """

    node: ir.Node
    side: Side
    reason: str = ""
    shape_work: bool = False


@dataclass(frozen=True)
class Copy:
    """A value that is copied between host and device in each run.

    Args:
        value: The value.
        to_host: The direction; a copy to the host waits until the device has computed the value.
        kind: ``input`` of the graph, ``inner``, or ``captured`` by a subgraph.
    """

    value: ir.Value
    to_host: bool
    kind: Literal["input", "inner", "captured"]


@dataclass
class _Uses:
    """The values of one graph that each side reads and writes."""

    read: dict[Side, set[ir.Value]] = field(default_factory=lambda: {"cuda": set(), "cpu": set()})
    written: dict[Side, set[ir.Value]] = field(
        default_factory=lambda: {"cuda": set(), "cpu": set()}
    )


def place(
    model: ir.Model, kernels: Kernels, *, folds: bool = True
) -> tuple[list[Placed], list[Copy]]:
    """Place the nodes of a model with inferred types; the nodes in graph order, and the copies.

    With ``folds``, nodes that the runtime folds when it opens the session are left out.
    """
    placer = _Placer(model, kernels, _constants(model) if folds else set())
    placer.place(model.graph)
    return placer.placed, placer.copies


def _constants(model: ir.Model) -> set[ir.Value]:
    """Values computed only from initializers."""
    found: set[ir.Value] = set()
    for node in model.graph:
        given = [value for value in node.inputs if value is not None]
        if (
            not is_random(node)
            and not has_subgraph(node)
            and given
            and all(value.is_initializer() or value in found for value in given)
        ):
            found.update(node.outputs)
    return found


class _Placer:
    """Places the nodes of a graph and of its subgraphs; ``fixed`` values are folded."""

    def __init__(self, model: ir.Model, kernels: Kernels, fixed: set[ir.Value]) -> None:
        self.opsets, self.kernels, self.fixed = model.opset_imports, kernels, fixed
        self.placed: list[Placed] = []
        self.copies: list[Copy] = []

    def place(self, graph: ir.Graph) -> _Uses:
        found: dict[ir.Node, Kernel] = {}  # nodes that could run on CUDA
        here: dict[ir.Node, Placed] = {}
        nodes = [node for node in graph if not node.outputs or node.outputs[0] not in self.fixed]
        # Rules 1 and 3 of the module: is there a kernel?
        for node in nodes:
            kernel = self.kernels.find("cuda", node, self.opsets)
            reason = kernel if isinstance(kernel, str) else _refused_form(node)
            if reason or isinstance(kernel, str):
                here[node] = self._on_cpu(node, reason)
            else:
                found[node] = kernel
        shapes = self._host_work(nodes, graph, found)  # rule 2
        # Rule 4: which side reads and writes each value, here and in subgraphs.
        uses = _Uses()
        inner: list[_Uses] = []
        for node in nodes:
            if node in shapes:
                here[node] = self._on_cpu(node, "", shape_work=True)
            elif node in found:
                here[node] = Placed(node, "cuda")
            self.placed.append(here[node])
            on_cuda = here[node].side != "cpu"
            # An inlined function has no kernel of its own: it counts as one without host operands.
            self._note_uses(node, found.get(node, Kernel()) if on_cuda else None, uses)
            inner += [self.place(below) for below in subgraphs(node)]
        self.copies += _copies(graph, uses)
        for below in inner:
            self.copies += _captured(below, uses, graph)
            for side in ("cuda", "cpu"):  # a subgraph may read values from further out
                uses.read[side] |= {v for v in below.read[side] if v.graph is not graph}
        return uses

    def _on_cpu(self, node: ir.Node, reason: str, shape_work: bool = False) -> Placed:
        # The runtime inserts the casts.
        cpu = self.kernels.find("cpu", node, self.opsets, as_float=("float16",))
        if not isinstance(cpu, str):
            return Placed(node, "cpu", reason, shape_work)
        opset = self.opsets.get("", 18)
        schema = find_schema(node.op_type, opset) if is_standard(node) else None
        if schema is not None and _inlines(schema, opset):
            return Placed(node, "cuda")  # its definition in other operators is inlined
        return Placed(node, "none", f"CUDA: {reason}; CPU: {cpu}")

    def _host_work(
        self, nodes: Sequence[ir.Node], graph: ir.Graph, kernels: Mapping[ir.Node, Kernel]
    ) -> set[ir.Node]:
        """Nodes that compute only with host values (GetCpuPreferredNodes)."""
        # Nodes are visited in graph order, as in the runtime: what feeds a node is decided before.
        order = {node: place for place, node in enumerate(nodes)}
        waiting: list[int] = []
        host: set[ir.Value] = set()

        def leaves(values: Iterable[ir.Value]) -> None:
            for value in values:
                host.add(value)
                for reader in value.consumers():
                    if reader in order:
                        heappush(waiting, order[reader])

        for node, kernel in kernels.items():
            leaves(node.outputs[i] for i in kernel.host_outputs if i < len(node.outputs))
        seen: set[ir.Node] = set()
        kept: set[ir.Node] = set()
        while waiting:
            node = nodes[heappop(waiting)]
            if node in seen:
                continue
            seen.add(node)
            wanted = kernels.get(node)
            # All inputs are host values. One that the CUDA kernel itself reads on the host keeps
            # the node on the device, unless it is free.
            if wanted is None or all(
                value.dtype not in SHORT_FLOATS
                and (self._free(value, graph) or (value in host and i not in wanted.host_inputs))
                for i, value in enumerate(node.inputs)
                if value is not None
            ):
                if wanted is not None:
                    kept.add(node)
                leaves(node.outputs)
        return kept

    def _free(self, value: ir.Value, graph: ir.Graph) -> bool:
        """Whether a value is a small initializer, or an input of the graph."""
        if value in self.fixed:
            shape = static_shape(value)
            return shape is not None and math.prod(shape) <= _SMALL
        if value.is_initializer():
            tensor = value.const_value
            return tensor is not None and tensor.size <= _SMALL
        return value.is_graph_input() and value.graph is graph

    def _note_uses(self, node: ir.Node, kernel: Kernel | None, uses: _Uses) -> None:
        for position, value in enumerate(node.inputs):
            if value is not None and not value.is_initializer() and value not in self.fixed:
                on_host = kernel is None or position in kernel.host_inputs
                uses.read["cpu" if on_host else "cuda"].add(value)
        for position, value in enumerate(node.outputs):
            on_host = kernel is None or position in kernel.host_outputs
            uses.written["cpu" if on_host else "cuda"].add(value)


def _inlines(schema: Any, opset: int) -> bool:  # the type stubs of onnx lack functions
    """Whether the runtime can inline the definition of an operator.

    It cannot if an operator of the definition has another version in this opset.
    """
    if schema.has_context_dependent_function:
        return True
    if not schema.has_function:
        return False
    written = [v for v in schema.function_opset_versions if v <= opset]
    if not written:
        return False
    body = onnx.FunctionProto.FromString(schema.get_function_with_opset_version(written[-1]))
    names = {node.op_type for node in body.node if not node.domain}
    pairs = [(find_schema(name, written[-1]), find_schema(name, opset)) for name in names]
    return all(a and b and a.since_version == b.since_version for a, b in pairs)


def _refused_form(node: ir.Node) -> str:
    """Why GetCapability leaves a node with a kernel to the CPU; empty if it does not."""
    attributes = node.attributes
    if not is_standard(node):
        return ""
    if node.op_type == "ConvTranspose":
        pads = attributes.get_ints("pads", []) or []
        half = len(pads) // 2
        if list(pads[:half]) != list(pads[half:]) or "SAME" in (
            attributes.get_string("auto_pad", "NOTSET") or ""
        ):
            return "cuDNN's transposed convolution supports only symmetric padding"
    if node.op_type in ("ArgMax", "ArgMin") and attributes.get_int("select_last_index"):
        return "its kernel cannot select the last index"
    if node.op_type == "Cast" and attributes.get_int("to", 1) == ir.DataType.STRING:
        return "it does not support strings"
    if node.op_type in _RNN:
        names = [name.lower() for name in attributes.get_strings("activations", []) or []]
        if (
            any(name in attributes for name in ("activation_alpha", "activation_beta", "clip"))
            or any(a != b for a, b in zip(names, _RNN[node.op_type], strict=False))
            or (node.op_type == "LSTM" and attributes.get_int("input_forget"))
            or (node.op_type == "GRU" and attributes.get_int("linear_before_reset", 1) != 1)
            or (node.op_type == "LSTM" and input_at(node, 7) is not None)
        ):
            return f"cuDNN's {node.op_type} does not support this form"
    return ""


def _copies(graph: ir.Graph, uses: _Uses) -> Iterator[Copy]:
    """The copies that TransformerMemcpyImpl inserts, and those of inputs in each run."""
    for value in _by_name(uses.written["cpu"] & uses.read["cuda"]):
        yield Copy(value, False, "inner")
    for value in _by_name(uses.written["cuda"] & uses.read["cpu"]):
        yield Copy(value, True, "inner")
    for value in graph.inputs:
        if value in uses.read["cuda"] and value in uses.read["cpu"]:
            yield Copy(value, True, "input")


def _captured(below: _Uses, uses: _Uses, graph: ir.Graph) -> Iterator[Copy]:
    """The values that a subgraph reads from the other side of the outer graph."""
    for value in _by_name(below.read["cpu"]):
        if value in uses.written["cuda"]:
            yield Copy(value, True, "captured")
        elif value.graph is graph and value.is_graph_input() and value not in uses.read["cpu"]:
            yield Copy(value, True, "input")
    for value in _by_name(below.read["cuda"]):
        if value in uses.written["cpu"]:
            yield Copy(value, False, "captured")


def _by_name(values: set[ir.Value]) -> list[ir.Value]:
    """Sort values, to make reports reproducible."""
    return sorted(values, key=lambda value: value.name or "")
