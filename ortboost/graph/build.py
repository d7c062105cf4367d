"""A builder of nodes with unique names and deduplicated constants.

All rewrites of ortboost create nodes through :class:`Builder`, so that names never clash, every
node has a name, and constants have the element type that the caller gives.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import ArrayLike

from ortboost.core.errors import ModelError
from ortboost.graph.query import all_graphs, all_nodes, find_schema

__all__ = [
    "Builder",
    "all_names",
    "detach",
    "free_name",
    "insert_after",
    "replace_node",
    "unused_name",
]

_BOOL, _INT64 = ir.DataType.BOOL, ir.DataType.INT64


def all_names(graph: ir.Graph) -> set[str]:
    """Names of every value and node in ``graph`` and its subgraphs."""
    names: set[str | None] = set()
    for inner in all_graphs(graph):
        names.update(value.name for value in inner.inputs)
        names.update(inner.initializers)
        for node in inner:
            names.update((node.name, *(output.name for output in node.outputs)))
    return {name for name in names if name}


def unused_name(base: str, taken: set[str]) -> str:
    """``base``, or ``base_1``, ``base_2``... if it is taken; the result is taken from now on."""
    name, count = base, 0
    while name in taken:
        count += 1
        name = f"{base}_{count}"
    taken.add(name)
    return name


class Builder:
    """Creates nodes and constants for one graph.

    New nodes are collected in :attr:`nodes` until :meth:`flush` appends them to the graph, or
    :func:`replace_node` inserts them in place of another node.

    Args:
        graph: Graph whose names must not be reused, and that receives the constants.
        prefix: Prefix of the names of new nodes and values, for example ``"ortboost/clip"``.

    Example:
        >>> graph = ir.Graph([], [], nodes=[], opset_imports={"": 18})
        >>> b = Builder(graph, "demo")
        >>> two = b.const(2.0)
        >>> b.op("Mul", two, two).name
        'demo/Mul'
    """

    def __init__(self, graph: ir.Graph, prefix: str) -> None:
        self.graph = graph
        self.prefix = prefix
        self.nodes: list[ir.Node] = []
        self._names: set[str] = set()
        self._counters: dict[str, int] = {}
        self._constants: dict[
            tuple[str, tuple[int, ...], bytes], tuple[ir.Value, ir.TensorProtocol]
        ] = {}
        self._shared: dict[Hashable, ir.Value] = {}

    def unique(self, base: str) -> str:
        """Reserve ``base``, or ``base_1``, ``base_2``... if it is taken."""
        if not self._names:  # collected on demand: most rules do not create a node
            self._names = all_names(self.graph)
        name = base
        count = self._counters.get(base, 0)
        while name in self._names:
            count += 1
            name = f"{base}_{count}"
        self._counters[base] = count
        self._names.add(name)
        return name

    def op(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        name: str | None = None,
        dtype: ir.DataType | None = None,
        shape: Sequence[int | str | None] | ir.Shape | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> ir.Value:
        """Create a node with one output and return the output.

        Args:
            op_type: Operator name.
            *inputs: Input values; ``None`` omits an optional input.
            name: Name of the output; derived from the prefix and operator if not given.
            dtype: Element type of the output, by default that of the first input or of the
                branches of Where, bool for a comparison, int64 for a shape or index.
            shape: Shape of the output, if known.
            domain: Operator domain, ``""`` for standard ONNX.
            **attributes: Attributes as Python values.
        """
        return self.ops(
            op_type, *inputs, names=[name], dtype=dtype, shape=shape, domain=domain, **attributes
        )[0]

    def ops(
        self,
        op_type: str,
        *inputs: ir.Value | None,
        names: Sequence[str | None],
        dtype: ir.DataType | None = None,
        shape: Sequence[int | str | None] | ir.Shape | None = None,
        domain: str = "",
        **attributes: Any,
    ) -> tuple[ir.Value, ...]:
        """Create a node with ``len(names)`` outputs and return them; see :meth:`op`."""
        if not domain:  # a wrong name fails here, not when a runtime opens the graph
            _require_known(op_type, self.graph.opset_imports.get("", 0), tuple(attributes))
        dtype = dtype or _result_dtype(op_type, inputs, attributes)
        outputs = [
            ir.val(
                self.unique(name or f"{self.prefix}/{op_type}"),
                dtype,
                None if shape is None else ir.Shape(shape),  # of its own: shapes can be changed
            )
            for name in names
        ]
        name = self.unique(f"{outputs[0].name}/node")
        self.nodes.append(
            ir.node(op_type, inputs, attributes, domain=domain, outputs=outputs, name=name)
        )
        return tuple(outputs)

    def combined(self, op_type: str, values: Sequence[ir.Value], **options: Any) -> ir.Value:
        """Combine values by an operator of any number of inputs (Concat, Sum); one stays as it is.

        See :meth:`op` for the options.
        """
        return values[0] if len(values) == 1 else self.op(op_type, *values, **options)

    def cast(self, value: ir.Value, dtype: ir.DataType, name: str | None = None) -> ir.Value:
        """Cast a value to another element type; return the value itself if it has that type."""
        if value.dtype == dtype:
            return value
        return self.op("Cast", value, name=name, dtype=dtype, shape=value.shape, to=int(dtype))

    def const(self, value: ArrayLike, dtype: ir.DataType = ir.DataType.FLOAT) -> ir.Value:
        """Return an initializer with this number or array; equal ones share one initializer."""
        array = np.asarray(value).astype(dtype.numpy())
        # Zeros of different types or shapes may have the same bytes.
        key = (str(dtype), array.shape, array.tobytes())
        constant, tensor = self._constants.get(key, (None, None))
        if constant is None or constant.const_value is not tensor:  # a rewrite has changed it
            tensor = ir.tensor(array, dtype=dtype)
            constant = ir.val(self.unique(f"{self.prefix}/const"), const_value=tensor)
            self.graph.register_initializer(constant)
            self._constants[key] = constant, tensor
        return constant

    def filled(
        self,
        number: float,
        sizes: ir.Value,
        dtype: ir.DataType = ir.DataType.FLOAT,
        shape: Sequence[int | str | None] | ir.Shape | None = None,
    ) -> ir.Value:
        """Fill a tensor of shape ``sizes`` with a number; ``shape`` is the static shape."""
        if dtype == ir.DataType.BFLOAT16:  # a type of ConstantOfShape since opset 20
            return self.cast(self.filled(number, sizes, shape=shape), dtype)
        fill = ir.tensor(np.array([number]).astype(dtype.numpy()), dtype=dtype)
        return self.op("ConstantOfShape", sizes, dtype=dtype, shape=shape, value=fill)

    def ints(self, *values: int) -> ir.Value:
        """Return a one-dimensional int64 constant, for example for axes and shapes."""
        return self.const(np.array(values, dtype=np.int64), ir.DataType.INT64)

    def shared(self, key: Hashable, make: Callable[[], ir.Value]) -> ir.Value:
        """Return the value for ``key``; the first call since :meth:`take` creates it."""
        if key not in self._shared:
            self._shared[key] = make()
        return self._shared[key]

    def take(self) -> list[ir.Node]:
        """Return the collected nodes and clear the list."""
        taken, self.nodes = self.nodes, []
        self._shared.clear()
        return taken

    @contextlib.contextmanager
    def inner_graph(self) -> Iterator[None]:
        """Context that collects the nodes of an inner graph; :meth:`take` them before it ends.

        The nodes collected before it are there again afterwards.
        """
        outer = self.take()
        yield
        self.nodes = outer

    def flush(self) -> None:
        """Append the collected nodes to the end of the graph."""
        self.graph.extend(self.take())


# Operators by the element type of their first output, if it is not that of their first input.
_RESULTS = {
    **dict.fromkeys("Equal Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual".split(), _BOOL),
    **dict.fromkeys("ArgMax ArgMin NonZero Shape Size".split(), _INT64),
}


def _result_dtype(
    op_type: str, inputs: Sequence[ir.Value | None], attributes: Mapping[str, Any]
) -> ir.DataType | None:
    """The element type of the first output by the operator and its inputs, if known."""
    if op_type in _RESULTS:
        return _RESULTS[op_type]
    if op_type == "Cast" and isinstance(attributes["to"], int):
        return ir.DataType(attributes["to"])
    sources = inputs[1:] if op_type == "Where" else inputs[:1]
    return next((v.dtype for v in sources if v is not None and v.dtype is not None), None)


@functools.cache
def _require_known(op_type: str, opset: int, attributes: tuple[str, ...]) -> None:
    """Reject an operator or attribute that the graph's opset lacks; subgraphs have no opset."""
    if not opset or not onnx.defs.has(op_type):  # the runtime adds some to the standard domain
        return
    schema = find_schema(op_type, min(opset, onnx.defs.onnx_opset_version()))
    known = () if schema is None else schema.attributes
    missing = op_type if schema is None else next((a for a in attributes if a not in known), None)
    if missing is not None:
        raise ModelError(
            f"A rewrite of ortboost needs '{missing}', which opset {opset} does not have.",
            where=f"{op_type} with {', '.join(attributes) or 'no attributes'}",
            fix="Please report this. A model of a newer opset works.",
        )


def free_name(graph: ir.Graph, name: str, *, owner: ir.Value | None = None) -> None:
    """Make a name available for a tensor of ortboost by renaming inner values that use it.

    Its ``owner`` may keep it.

    Raises:
        ModelError: An input, weight or output has the name; those names are visible to users.
    """
    seen = [*graph.inputs, *graph.initializers.values(), *graph.outputs]
    if any(value.name == name and value is not owner for value in seen):
        raise ModelError(
            f"The model has a tensor '{name}', a name that ortboost uses itself.",
            where=f"tensor '{name}'",
            fix="Rename the input, weight or output before the export, or name the labels with "
            "--labels. If it is the model's own loss, use --loss output --output NAME.",
        )
    builder = Builder(graph, "ortboost")
    # Nothing outside the file refers to the other values: they may change their names.
    for node in all_nodes(graph):
        for output in node.outputs:
            if output.name == name and output is not owner:
                output.name = builder.unique(f"{name}/model")


def detach(node: ir.Node) -> None:
    """Disconnect the inputs of a node, so that it can be removed."""
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)


def insert_after(
    value: ir.Value, new: ir.Value, builder: Builder, *, suffix: str | None = None
) -> None:
    """Insert the collected nodes after the producer of ``value``; other readers then read ``new``.

    The collected nodes compute ``new`` from ``value``. If ``value`` is an output of the graph,
    ``new`` takes its place.

    Args:
        value: The value to replace.
        new: Its replacement.
        builder: Builder that holds the new nodes.
        suffix: If given, ``new`` takes over the name of ``value``, which gets the suffix.
    """
    producer = value.producer()
    assert producer is not None
    graph = producer.graph
    assert isinstance(graph, ir.Graph)
    own = set(builder.nodes)
    graph.insert_after(producer, builder.take())
    for node, index in list(value.uses()):
        if node not in own:
            node.replace_input_with(index, new)
    if value.is_graph_output():
        graph.outputs[:] = [new if output is value else output for output in graph.outputs]
    if suffix is not None:
        name = value.name
        value.name = builder.unique(f"{name}/{suffix}")
        new.name = name


def replace_node(
    node: ir.Node, outputs: Iterable[ir.Value | None], builder: Builder, *, remove: bool = True
) -> None:
    """Replace ``node`` by the collected nodes of ``builder``.

    The new values take over names, types, uses and graph outputs of the old ones, so that nothing
    changes downstream. The caller is responsible for all checks. A value that was not created by
    the builder is passed through an Identity.

    Args:
        node: The node to remove.
        outputs: One new value for each output of ``node``; ``None`` where the output is unused.
        builder: Builder that holds the new nodes.
        remove: Whether to remove the node. If not, it only loses its inputs, and the caller removes
            it: one call for many nodes is much faster, as each searches all outputs of the graph.
    """
    graph = node.graph
    if not isinstance(graph, ir.Graph):
        raise TypeError("The node to replace does not belong to a graph.")
    made = {id(new) for new in builder.nodes}
    # An existing value keeps its own name; an Identity of it takes over the old name.
    replacements = [
        value
        if value is None or id(value.producer()) in made
        else builder.op("Identity", value, shape=value.shape)
        for value in outputs
    ]
    for new_node in builder.take():
        graph.insert_before(node, new_node)
    for old, new in zip(node.outputs, replacements, strict=True):
        if new is None:
            continue
        name = old.name  # taken over last: the graph must never hold two values of one name
        if new.type is None:
            new.type = old.type
        if new.shape is None:
            new.shape = old.shape
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
        if name:
            old.name = f"{name}/replaced"
            new.name = name
    if remove:
        graph.remove(node, safe=True)
    else:
        detach(node)
