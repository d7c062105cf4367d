"""``ortboost inspect`` as a function: describe a model file or a program folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from ortboost.api.descriptions import (
    Layer,
    ModelDescription,
    NodePrecision,
    ParameterDescription,
    ProgramDescription,
    StateSize,
    ValueDescription,
)
from ortboost.core.arguments import checked
from ortboost.core.errors import ModelError
from ortboost.graph.cost import count_cost
from ortboost.graph.io import ModelSource, is_folder, load_model, name_of
from ortboost.graph.normalize import normalize
from ortboost.graph.query import all_tensors, label
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.weights.parameters import find_parameters
from ortboost.graph.weights.separate_equals import separate_equals
from ortboost.graph.weights.store_weights import store_weights
from ortboost.graph.weights.tie_copies import tie_copies
from ortboost.program.catalogue import METADATA_KEY, read_catalogue
from ortboost.program.choose_trainable import refuse_unknown
from ortboost.program.program import Program
from ortboost.transforms.precision import PLACE_PRECISION

__all__ = ["inspect", "op_name"]

_ANY_OPSET = range(1, 1000)  # keep the opset of the file
# From the lowest precision to the highest, see _precision.
_FORMATS = {
    ir.DataType.FLOAT16: "fp16",
    ir.DataType.BFLOAT16: "bf16",
    ir.DataType.FLOAT: "fp32",
    ir.DataType.DOUBLE: "fp64",
}


@checked
def inspect(
    path: ModelSource, *, parameters: Mapping[str, bool] | None = None
) -> ModelDescription | ProgramDescription:
    """Describe a model, a step file or a program folder.

    Args:
        path: The file or folder, or a model in memory.
        parameters: For a model file: which float tensors are trained, overriding the analysis.

    Raises:
        FileError: It cannot be read.
        UsageError: ``parameters`` contains a name that is not a float tensor of the model.

    Example:
        >>> inspect("models/mlp.onnx").kind
        'model'
    """
    if is_folder(path):
        return _program(Program.load(path), Path(path))
    return _model(load_model(path), path, parameters)


def _model(
    model: ir.Model, source: ModelSource, listed: Mapping[str, bool] | None
) -> ModelDescription:
    weights = {value.name for value, _ in all_tensors(model)}
    step = METADATA_KEY in model.metadata_props
    shared = any(value.name in weights for value in model.graph.inputs)
    inputs = [value for value in model.graph.inputs if value.name not in weights]
    # As the file declares them; shapes are inferred for the layers below.
    described = [tuple(map(ValueDescription.of, side)) for side in (inputs, model.graph.outputs)]
    parameters = _parameters(model, listed)
    infer_shapes(model)
    cost = None if step else count_cost(model)  # no rule counts gradient kernels
    return ModelDescription(
        kind="step" if step else "model",
        path=name_of(source),
        bytes=Path(source).stat().st_size if isinstance(source, str | os.PathLike) else None,
        producer=f"{model.producer_name or '?'} {model.producer_version or ''}".strip(),
        ir_version=model.ir_version,
        opset=model.opset_imports.get(""),
        domains={k or "ai.onnx": v for k, v in model.opset_imports.items()},
        functions=len(model.functions),
        metadata={k: v for k, v in model.metadata_props.items() if k != METADATA_KEY},
        inputs=described[0],
        outputs=described[1],
        weights_are_inputs=shared,
        nodes=sum(1 for _ in model.graph.all_nodes()),
        weight_bytes=sum(tensor.nbytes for _, tensor in all_tensors(model)),
        parameters=parameters,
        ops=dict(Counter(op_name(node) for node in model.graph.all_nodes()).most_common()),
        trainable_elements=sum(p.size for p in parameters if p.trainable),
        layers=tuple(
            Layer(
                label(node),
                op_name(node),
                tuple(value.name or "" for value in node.inputs if value is not None),
                tuple(map(ValueDescription.of, node.outputs)),
            )
            for node in model.graph
        ),
        precision=tuple(
            NodePrecision(label(node), found, "as in the file")
            for node in model.graph
            if (found := _precision(node)) is not None
        ),
        macs=None if cost is None else cost.known,
        macs_by_op={} if cost is None else dict(cost.macs),
        macs_uncounted={} if cost is None else dict(cost.uncounted),
        macs_for={} if cost is None else {n: tuple(s) for n, s in cost.shapes.items()},
        catalogue=read_catalogue(model) if step else None,
    )


def _parameters(
    model: ir.Model, listed: Mapping[str, bool] | None
) -> tuple[ParameterDescription, ...]:
    """How a conversion treats the float tensors; of constants only those stored in the file."""
    named = {value.name for value, _ in all_tensors(model)}
    normal = model.clone()
    try:
        normalize(normal, opsets=_ANY_OPSET, ir_version=model.ir_version)
        separate_equals(normal)
        store_weights(normal)
        tie_copies(normal, apart=listed or ())
    except ModelError:  # it cannot be trained; describe it unchanged
        normal = model.clone()
    found = find_parameters(normal)
    if listed is not None:
        refuse_unknown(normal, found, listed)
    shown = []
    for name, parameter in found.items():
        data = parameter.to_dict()
        if listed is not None:
            data |= {"trainable": listed.get(name, False), "doubt": ""}
        if name in named or data["trainable"] or parameter.size > 1 or parameter.doubt:
            shown.append(ParameterDescription(**{**data, "shape": parameter.shape}))
    return tuple(shown)


def _program(program: Program, folder: Path) -> ProgramDescription:
    kinds = Counter(entry.kind for entry in program.catalogue.state)
    elements: Counter[str] = Counter()
    for entry in program.catalogue.state:
        elements[entry.kind] += int(program.initial[entry.name].size)
    return ProgramDescription(
        path=str(folder),
        source=program.source,
        engine=program.engine,
        fingerprint=program.fingerprint,
        config=program.config,
        nodes={
            f"{name}.onnx": sum(1 for _ in model.graph.all_nodes())
            for name, model in {**program.graphs, "eval": program.evaluation}.items()
        },
        state={kind: StateSize(number, elements[kind]) for kind, number in kinds.items()},
        catalogue=program.catalogue,
        reports=tuple(program.reports),
        precision=tuple(
            NodePrecision(node, what.partition(": ")[0], what.partition(": ")[2])
            for report in program.reports
            if report.rewrite == PLACE_PRECISION
            for node, what in sorted({**report.changed, **report.kept}.items())
        ),
    )


def _precision(node: ir.Node) -> str | None:
    """The lowest float precision among inputs and outputs of a node; ``None`` without floats."""
    values = [value for value in (*node.outputs, *node.inputs) if value is not None]
    found = {_FORMATS[value.dtype] for value in values if value.dtype in _FORMATS}
    return min(found, key=list(_FORMATS.values()).index, default=None)


def op_name(node: ir.Node) -> str:
    """The operator of a node, with its domain unless that is the standard one."""
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
