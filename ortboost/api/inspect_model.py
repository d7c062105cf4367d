"""What is in a model file or a program folder, as data; the command line makes tables of it."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.graph.cost import count_cost
from ortboost.graph.io import load_model
from ortboost.graph.normalize import infer_shapes, normalize
from ortboost.graph.parameters import find_parameters
from ortboost.graph.query import all_tensors, known_shape
from ortboost.graph.store_weights import store_weights
from ortboost.program.catalogue import METADATA_KEY, read_catalogue
from ortboost.program.choose_trainable import refuse_unknown
from ortboost.program.program import Program
from ortboost.transforms.precision import PLACE_PRECISION

__all__ = ["inspect"]

_ANY_OPSET = range(1, 1000)  # what the file has stays
_FORMATS = {
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT: "fp32",
    ir.DataType.DOUBLE: "fp64",
}


def inspect(
    path: str | os.PathLike[str], *, parameters: Mapping[str, bool] | None = None
) -> dict[str, Any]:
    """Describe a model file, a step file or a program folder.

    Args:
        path: The file or folder.
        parameters: For a model file: which float tensors are trained, instead of what the graph says.

    Returns:
        JSON data with the key ``kind``: ``model``, ``step`` or ``program``.

    Raises:
        FileError: It cannot be read.
        UsageError: ``parameters`` names what is no float tensor of the model.
    """
    if Path(path).is_dir():
        return _program(Program.load(path), Path(path))
    model = load_model(path)
    description = _model(model, Path(path), parameters)
    if METADATA_KEY in model.metadata_props:
        description["kind"] = "step"
        description["catalogue"] = read_catalogue(model).to_dict()
    return description


def _model(model: ir.Model, path: Path, listed: Mapping[str, bool] | None) -> dict[str, Any]:
    weights = {value.name for value, _ in all_tensors(model)}
    version = model.opset_imports.get("")
    data: dict[str, Any] = {
        "kind": "model",
        "path": str(path),
        "bytes": path.stat().st_size,
        "producer": f"{model.producer_name or '?'} {model.producer_version or ''}".strip(),
        "ir_version": model.ir_version,
        "opset": version,
        "domains": {k or "ai.onnx": v for k, v in model.opset_imports.items()},
        "functions": len(model.functions),
        "metadata": {k: v for k, v in model.metadata_props.items() if k != METADATA_KEY},
        "inputs": [_value(value) for value in model.graph.inputs if value.name not in weights],
        "outputs": [_value(value) for value in model.graph.outputs],
        "weights_are_inputs": any(value.name in weights for value in model.graph.inputs),
        "nodes": sum(1 for _ in model.graph.all_nodes()),
        "weight_bytes": sum(tensor.nbytes for _, tensor in all_tensors(model)),
    }
    data["parameters"] = _parameters(model, listed)
    infer_shapes(model)
    data["ops"] = dict(Counter(_op(node) for node in model.graph.all_nodes()).most_common())
    data["trainable_elements"] = sum(p["size"] for p in data["parameters"] if p["trainable"])
    data["layers"] = [
        {
            "node": node.name,
            "op": _op(node),
            "inputs": [value.name for value in node.inputs if value is not None],
            "outputs": [_value(value) for value in node.outputs],
        }
        for node in model.graph
    ]
    data["precision"] = [
        {"node": node.name, "precision": found, "why": "as in the file"}
        for node in model.graph
        if (found := _precision(node)) is not None
    ]
    if METADATA_KEY not in model.metadata_props:  # gradient kernels are not counted: a step is not
        cost = count_cost(model)
        data["macs"], data["macs_by_op"] = cost.total, dict(cost.macs)
        data["macs_uncounted"] = dict(cost.uncounted)
        data["macs_for"] = {name: list(shape) for name, shape in cost.shapes.items()}
    return data


def _parameters(model: ir.Model, listed: Mapping[str, bool] | None) -> list[dict[str, Any]]:
    """What a conversion takes the float tensors for; of constants those that the file itself stores."""
    named = {value.name for value, _ in all_tensors(model)}
    work = model.clone()
    try:
        normalize(work, opsets=_ANY_OPSET, ir_version=model.ir_version)
        store_weights(work)
    except ModelError:  # not to be trained, and shown as it is
        work = model.clone()
    found = find_parameters(work)
    if listed is not None:
        refuse_unknown(work, found, listed)
    shown = []
    for name, parameter in found.items():
        data = parameter.to_dict()
        if listed is not None:
            data |= {"trainable": listed.get(name, False), "doubt": ""}
        if name in named or data["trainable"] or parameter.size > 1 or parameter.doubt:
            shown.append(data)
    return shown


def _program(program: Program, folder: Path) -> dict[str, Any]:
    kinds = Counter(entry.kind for entry in program.catalogue.state)
    elements: Counter[str] = Counter()
    for entry in program.catalogue.state:
        elements[entry.kind] += int(program.initial[entry.name].size)
    return {
        "kind": "program",
        "path": str(folder),
        "source": program.source,
        "engine": program.engine,
        "fingerprint": program.fingerprint,
        "config": program.config.to_dict(),
        "nodes": {
            "step.onnx": sum(1 for _ in program.step.graph.all_nodes()),
            "eval.onnx": sum(1 for _ in program.evaluation.graph.all_nodes()),
        },
        "state": {k: {"tensors": n, "elements": elements[k]} for k, n in kinds.items()},
        "catalogue": program.catalogue.to_dict(),
        "reports": [report.to_dict() for report in program.reports],
        "precision": [
            {"node": node, "precision": what.partition(": ")[0], "why": what.partition(": ")[2]}
            for report in program.reports
            if report.rewrite == PLACE_PRECISION
            for node, what in sorted({**report.changed, **report.kept}.items())
        ],
    }


def _precision(node: ir.Node) -> str | None:
    """The shortest float type that a node reads or makes; ``None`` without floats."""
    values = [value for value in (*node.outputs, *node.inputs) if value is not None]
    found = {_FORMATS[value.dtype] for value in values if value.dtype in _FORMATS}
    return min(found, key=list(_FORMATS.values()).index, default=None)


def _value(value: ir.Value) -> dict[str, Any]:
    shape = known_shape(value)
    return {
        "name": value.name,
        "dtype": None if value.dtype is None else str(value.dtype),
        "shape": None if shape is None else list(shape),
    }


def _op(node: ir.Node) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
