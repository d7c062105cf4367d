"""Compare two models, before and after: operators, weights, bytes, work."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx_ir as ir

from ortboost.api.descriptions import ValueDescription
from ortboost.api.inspect_model import op_name
from ortboost.core.arguments import checked
from ortboost.core.errors import require_known
from ortboost.core.field_types import Range, write_config
from ortboost.core.shown import Shown
from ortboost.deploy.bench import model_bytes
from ortboost.deploy.strip import inference_model
from ortboost.graph.cost import count_cost
from ortboost.graph.io import load_model
from ortboost.graph.query import all_tensors, known_shape
from ortboost.graph.weights.parameters import find_parameters
from ortboost.program.program import Program

__all__ = ["Change", "ModelSize", "PairDescription", "inspect_pair"]

_NUMBERS = (
    "bytes",
    "weight_bytes",
    "weight_elements",
    "trainable_elements",
    "tensors",
    "nodes",
    "macs",
    "flops",
)


@dataclass(frozen=True)
class ModelSize:
    """One of the two models.

    Args:
        path: ONNX file or program folder.
        kind: ``model`` or ``program``.
        bytes: Size of the file with its external data; ``None`` for a program.
        weight_bytes: Bytes of all stored tensors.
        weight_elements: Number of elements in them.
        weight_types: Element type to number of tensors.
        trainable_elements: Number of trainable parameters.
        tensors: Number of stored tensors.
        nodes: Number of nodes.
        macs: Multiply-accumulates; ``None`` if none could be counted.
        flops: Floating-point operations, twice the multiply-accumulates.
        macs_by_op: Multiply-accumulates by operator.
        uncounted: Nodes whose work could not be counted, with reasons.
        counted_for: Input to the shape used for counting.
        opset: Version of the standard opset.
        ir_version: Version of the format.
        inputs: Inputs other than weights.
        outputs: Outputs.
        ops: Operator to its number of nodes.
    """

    path: str
    kind: str
    bytes: int | None
    weight_bytes: int
    weight_elements: int
    weight_types: Mapping[str, int]
    trainable_elements: int
    tensors: int
    nodes: int
    macs: int | None
    flops: int
    macs_by_op: Mapping[str, int]
    uncounted: Mapping[str, str]
    counted_for: Mapping[str, tuple[int | str | None, ...]]
    opset: int | None
    ir_version: int
    inputs: tuple[ValueDescription, ...]
    outputs: tuple[ValueDescription, ...]
    ops: Mapping[str, int]


@dataclass(frozen=True)
class Change:
    """A number before and after, the difference, and the ratio if defined."""

    before: int | None
    after: int | None
    difference: int | None
    ratio: float | None = None

    @classmethod
    def of(cls, before: int | None, after: int | None) -> Change:
        """Compute it from the two numbers."""
        if before is None or after is None:
            return cls(before, after, None)
        return cls(before, after, after - before, after / before if before else None)


@dataclass(frozen=True, repr=False)
class PairDescription(Shown):
    """Two models side by side.

    Args:
        before: The first.
        after: The second.
        difference: Name of a figure to its change.
        ops: Operator to the change of its number of nodes; the largest changes first.
        work: Operator to the change of its multiply-accumulates.
        only_before: Weights that only the first has.
        only_after: Weights that only the second has.
        interface: Changes visible to users of the model.

    Example:
        >>> import ortboost as ob
        >>> pair = ob.inspect_pair("models/mlp.onnx", "models/lenet5.onnx")
        >>> pair.before.nodes, pair.after.nodes
        (3, 12)
    """

    before: ModelSize
    after: ModelSize
    difference: Mapping[str, Change]
    ops: Mapping[str, Change]
    work: Mapping[str, Change]
    only_before: tuple[str, ...]
    only_after: tuple[str, ...]
    interface: tuple[str, ...]

    def _facts(self) -> dict[str, object]:
        sizes = {
            name: f"{size.path}, {size.nodes} nodes, {size.weight_bytes:,} bytes of weights"
            for name, size in (("before", self.before), ("after", self.after))
        }
        only = len(self.only_before), len(self.only_after)
        return {**sizes, "weights of one only": only, "interface": "; ".join(self.interface)}

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        data = write_config(self)
        for key in ("ops", "work"):
            for row in data[key].values():
                del row["ratio"]
        weights = {key: data.pop(key) for key in ("only_before", "only_after")}
        return {"kind": "comparison", **data, "weights": weights}


@checked
def inspect_pair(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    dims: Mapping[str, int] | None = None,
    batch: Annotated[int, Range(1)] = 1,
) -> PairDescription:
    """Compare two models, or a program folder with the model that was exported from it.

    A program folder is represented by its inference graph (:mod:`ortboost.deploy.strip`) before any
    optimization, which has no file size.

    Args:
        before: ONNX file or program folder.
        after: ONNX file or program folder.
        dims: Lengths of open dimensions, used for counting the work; by name, or by input and axis
            (``x:2``).
        batch: Length of an open first dimension.

    Raises:
        FileError: A file cannot be read.
        UsageError: ``dims`` does not fit.

    Example:
        >>> found = inspect_pair("raw.onnx", "opt.onnx")  # doctest: +SKIP
        >>> found.difference["nodes"].difference  # doctest: +SKIP
        -19
    """
    models = [_load(Path(before)), _load(Path(after))]
    known = [_dimensions(model) for model in models]
    for key in dims or {}:
        require_known(
            key, sorted(known[0] | known[1]), f"Neither model has a dimension '{key}'.", "--dim"
        )
    one, two = (
        _describe(model, Path(path), {k: n for k, n in (dims or {}).items() if k in keys}, batch)
        for model, path, keys in zip(models, (before, after), known, strict=True)
    )
    names = [{value.name or "" for value, _ in all_tensors(model)} for model in models]
    return PairDescription(
        one,
        two,
        {name: Change.of(getattr(one, name), getattr(two, name)) for name in _NUMBERS},
        _changes(one.ops, two.ops),
        _changes(one.macs_by_op, two.macs_by_op),
        tuple(sorted(names[0] - names[1])),
        tuple(sorted(names[1] - names[0])),
        (
            *_interface("input", one.inputs, two.inputs),
            *_interface("output", one.outputs, two.outputs),
        ),
    )


def _load(path: Path) -> ir.Model:
    if not path.is_dir():
        return load_model(path)
    program = Program.load(path)
    return inference_model(program, program.initial)[0]


def _dimensions(model: ir.Model) -> set[str]:
    """The names of the dimensions of its inputs, and each as ``INPUT:AXIS``."""
    shapes = {value.name: known_shape(value) or () for value in model.graph.inputs}
    found = {f"{name}:{axis}" for name, shape in shapes.items() for axis in range(len(shape))}
    return found | {dim for shape in shapes.values() for dim in shape if isinstance(dim, str)}


def _describe(model: ir.Model, path: Path, dims: Mapping[str, int], batch: int) -> ModelSize:
    cost = count_cost(model, dims, batch=batch)
    stored = list(all_tensors(model))
    tensors, weights = [tensor for _, tensor in stored], {value.name for value, _ in stored}
    inputs = (value for value in model.graph.inputs if value.name not in weights)
    return ModelSize(
        path=str(path),
        kind="program" if path.is_dir() else "model",
        bytes=None if path.is_dir() else model_bytes(path),
        weight_bytes=sum(tensor.nbytes for tensor in tensors),
        weight_elements=sum(int(np.prod(t.shape.numpy(), dtype=np.int64)) for t in tensors),
        weight_types=dict(Counter(str(tensor.dtype) for tensor in tensors).most_common()),
        trainable_elements=sum(p.size for p in find_parameters(model).values() if p.trainable),
        tensors=len(tensors),
        nodes=sum(1 for _ in model.graph.all_nodes()),
        macs=cost.known,
        flops=cost.flops,
        macs_by_op=dict(cost.macs),
        uncounted=dict(cost.uncounted),
        counted_for={name: tuple(shape) for name, shape in cost.shapes.items()},
        opset=model.opset_imports.get(""),
        ir_version=model.ir_version,
        inputs=tuple(map(ValueDescription.of, inputs)),
        outputs=tuple(map(ValueDescription.of, model.graph.outputs)),
        ops=dict(Counter(op_name(node) for node in model.graph.all_nodes()).most_common()),
    )


def _changes(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, Change]:
    """Changes by key, sorted by the size of the change, then by the count before."""
    pairs = {key: (before.get(key, 0), after.get(key, 0)) for key in {**before, **after}}
    keys = sorted(pairs, key=lambda key: (-abs(pairs[key][1] - pairs[key][0]), -pairs[key][0], key))
    return {key: Change.of(*pairs[key]) for key in keys}


def _interface(
    kind: str, before: Sequence[ValueDescription], after: Sequence[ValueDescription]
) -> list[str]:
    """Changes of inputs or outputs that are visible to users of the model."""
    old, new = ({value.name: value for value in side} for side in (before, after))
    found = [f"{kind} '{name}' was removed" for name in old if name not in new]
    found += [f"{kind} '{name}' is new" for name in new if name not in old]
    for name in old:
        for key in ("dtype", "shape") if name in new else ():
            one, two = (getattr(side[name], key) for side in (old, new))
            if one != two:
                found.append(f"{kind} '{name}': {key} {_shown(one)} -> {_shown(two)}")
    if [name for name in old if name in new] != [name for name in new if name in old]:
        found.append(f"the {kind}s have another order")
    return found


def _shown(value: str | tuple[int | str | None, ...] | None) -> str:
    return str(list(value) if isinstance(value, tuple) else value)
