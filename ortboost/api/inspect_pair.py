"""Two models side by side, before and after: operators, weights, bytes, work; as data."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.core.errors import UsageError
from ortboost.deploy.bench import model_bytes
from ortboost.deploy.strip import inference_model
from ortboost.graph.cost import count_cost
from ortboost.graph.io import load_model
from ortboost.graph.parameters import find_parameters
from ortboost.graph.query import all_tensors, known_shape
from ortboost.program.program import Program

__all__ = ["compare"]

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


def compare(
    before: str | os.PathLike[str],
    after: str | os.PathLike[str],
    *,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    batch: int = 1,
) -> dict[str, Any]:
    """Compare two models, or a program folder with the model that was exported of it.

    Of a program folder, the inference graph as :mod:`ortboost.deploy.strip` takes it out of the
    program is compared, before any optimization; it has no file, so no size of one.

    Args:
        before: ONNX file or program folder.
        after: ONNX file or program folder.
        shapes: Input name to shape, for dimensions that are open; the work is counted for these.
        batch: Length of an open first dimension.

    Returns:
        JSON data: ``before``, ``after``, ``difference`` (name to before, after, difference and
        ratio), ``ops`` (operator to counts), ``work`` (operator to multiply-accumulates),
        ``weights`` (names in one of them only) and ``interface`` (what the inputs and outputs
        have changed in).

    Raises:
        FileError: One of them cannot be read.
        UsageError: ``shapes`` does not fit.

    Example:
        >>> found = compare("raw.onnx", "opt.onnx")  # doctest: +SKIP
        >>> found["difference"]["nodes"]["difference"]  # doctest: +SKIP
        -19
    """
    models = [_load(Path(before)), _load(Path(after))]
    wanted = dict(shapes or {})
    known = {value.name for model in models for value in model.graph.inputs}
    for name in wanted:
        if name not in known:
            raise UsageError(
                f"Neither model has an input '{name}'.",
                where=f"shape of '{name}'",
                fix=f"Inputs: {', '.join(sorted(name or '' for name in known))}.",
            )
    one, two = (
        _describe(model, Path(path), wanted, batch)
        for model, path in zip(models, (before, after), strict=True)
    )
    names = [{value.name or "" for value, _ in all_tensors(model)} for model in models]
    return {
        "kind": "comparison",
        "before": one,
        "after": two,
        "difference": {name: _difference(one[name], two[name]) for name in _NUMBERS},
        "ops": _counts(one["ops"], two["ops"]),
        "work": _counts(one["macs_by_op"], two["macs_by_op"]),
        "weights": {
            "only_before": sorted(names[0] - names[1]),
            "only_after": sorted(names[1] - names[0]),
        },
        "interface": [
            *_interface("input", one["inputs"], two["inputs"]),
            *_interface("output", one["outputs"], two["outputs"]),
        ],
    }


def _load(path: Path) -> ir.Model:
    if not path.is_dir():
        return load_model(path)
    program = Program.load(path)
    return inference_model(program, program.initial)[0]


def _describe(
    model: ir.Model, path: Path, shapes: Mapping[str, tuple[int, ...]], batch: int
) -> dict[str, Any]:
    names = {value.name for value in model.graph.inputs}
    cost = count_cost(model, {n: s for n, s in shapes.items() if n in names}, batch=batch)
    tensors = [tensor for _, tensor in all_tensors(model)]
    weights = {value.name for value, _ in all_tensors(model)}
    return {
        "path": str(path),
        "kind": "program" if path.is_dir() else "model",
        "bytes": None if path.is_dir() else model_bytes(path),
        "weight_bytes": sum(tensor.nbytes for tensor in tensors),
        "weight_elements": sum(int(np.prod(t.shape.numpy(), dtype=np.int64)) for t in tensors),
        "weight_types": dict(Counter(str(tensor.dtype) for tensor in tensors).most_common()),
        "trainable_elements": sum(p.size for p in find_parameters(model).values() if p.trainable),
        "tensors": len(tensors),
        "nodes": sum(1 for _ in model.graph.all_nodes()),
        "macs": cost.total,
        "flops": cost.flops,
        "macs_by_op": dict(cost.macs),
        "uncounted": dict(cost.uncounted),
        "counted_for": {name: list(shape) for name, shape in cost.shapes.items()},
        "opset": model.opset_imports.get(""),
        "ir_version": model.ir_version,
        "inputs": [_value(v) for v in model.graph.inputs if v.name not in weights],
        "outputs": [_value(value) for value in model.graph.outputs],
        "ops": dict(Counter(_op(node) for node in model.graph.all_nodes()).most_common()),
    }


def _value(value: ir.Value) -> dict[str, Any]:
    shape = known_shape(value)
    return {
        "name": value.name,
        "dtype": None if value.dtype is None else str(value.dtype),
        "shape": None if shape is None else list(shape),
    }


def _op(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"


def _difference(before: int | None, after: int | None) -> dict[str, Any]:
    both = None if before is None or after is None else after - before
    ratio = after / before if before and after is not None else None
    return {"before": before, "after": after, "difference": both, "ratio": ratio}


def _counts(before: Mapping[str, int], after: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Key to counts; what changed most comes first, then what there is most of."""
    rows = {
        key: {
            "before": before.get(key, 0),
            "after": after.get(key, 0),
            "difference": after.get(key, 0) - before.get(key, 0),
        }
        for key in {**before, **after}
    }
    return dict(
        sorted(
            rows.items(), key=lambda row: (-abs(row[1]["difference"]), -row[1]["before"], row[0])
        )
    )


def _interface(kind: str, before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[str]:
    """What a program that uses the model would notice."""
    old, new = ({value["name"]: value for value in side} for side in (before, after))
    found = [f"{kind} '{name}' is gone" for name in old if name not in new]
    found += [f"{kind} '{name}' is new" for name in new if name not in old]
    for name in old:
        for key in ("dtype", "shape") if name in new else ():
            if old[name][key] != new[name][key]:
                found.append(f"{kind} '{name}': {key} {old[name][key]} -> {new[name][key]}")
    kept = [name for name in old if name in new]
    if kept != [name for name in new if name in old]:
        found.append(f"the {kind}s have another order")
    return found
