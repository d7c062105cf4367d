"""Classic machine-learning models (domain ``ai.onnx.ml``), as written by scikit-learn's converter.

By default its classifiers end in a ZipMap, which turns the probabilities into a sequence of maps,
and output class names, which may be strings. Training needs the probabilities and cannot use
strings. Trees, support vector machines and linear models are single operators that store their
parameters in attributes, so they cannot be trained.
"""

from __future__ import annotations

from typing import Final

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.query import known_shape
from ortboost.graph.source import source_name
from ortboost.graph.unused import remove_unused_nodes

__all__ = ["cut_maps", "infer_elementwise", "require_network", "standard_norms"]

_DOMAIN: Final = "ai.onnx.ml"
_MODELS: Final = (
    *("LinearClassifier", "LinearRegressor", "SVMClassifier", "SVMRegressor"),
    *("TreeEnsemble", "TreeEnsembleClassifier", "TreeEnsembleRegressor"),
)
_ELEMENTWISE: Final = ("Binarizer", "Imputer", "Normalizer", "Scaler")
_WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul", "RNN")


def cut_maps(model: ir.Model) -> Report:
    """Replace map outputs by the tensors they are built from, and drop string outputs, in place.

    Nothing is dropped if all outputs are strings.
    """
    report = Report("cut_maps")
    outputs = list(model.graph.outputs)
    for place, value in enumerate(outputs):
        node = value.producer()
        if node is not None and node.op_type == "ZipMap" and node.inputs[0] is not None:
            report.changed[value.name or ""] = f"taken from '{node.inputs[0].name}' (before ZipMap)"
            outputs[place] = node.inputs[0]
    numbers = [value for value in outputs if value.dtype is not ir.DataType.STRING]
    if numbers:
        for value in outputs:
            if value.dtype is ir.DataType.STRING:
                report.changed[value.name or ""] = "strings: dropped"
        outputs = list(dict.fromkeys(numbers))
    if report.changed:
        model.graph.outputs[:] = outputs
        remove_unused_nodes(model)
    return report


def require_network(model: ir.Model) -> None:
    """Raise a ModelError for a model with a classic machine-learning operator and no layers."""
    nodes = list(model.graph.all_nodes())
    classic = next((n for n in nodes if n.domain == _DOMAIN and n.op_type in _MODELS), None)
    if classic is None or any(node.op_type in _WEIGHTED for node in nodes):
        return
    raise ModelError(
        f"{classic.op_type} cannot be trained: its parameters are stored in attributes.",
        where=f"{source_name(model)}: node '{classic.name}', {_DOMAIN}",
        fix="Fit it in its own library. 'ortboost export' accepts it; networks (scikit-learn: "
        "MLPClassifier, MLPRegressor) can be trained.",
    )


def standard_norms(model: ir.Model) -> bool:
    """Write each Normalizer with the Euclidean norm as LpNormalization, in place; True if any was.

    If the kernel of Normalizer runs in place (its input is computed and of a known shape), it
    overwrites the numbers before it reads their signs (onnxruntime 1.19 and 1.32).
    """
    found = False
    for node in model.graph.all_nodes():
        source = node.inputs[0] if _is_euclidean(node) else None
        rank = len(known_shape(source) or ())
        if source is not None and source.dtype is ir.DataType.FLOAT and rank in (1, 2):
            node.domain, node.op_type = "", "LpNormalization"  # over the last axis, p = 2
            node.attributes.clear()
            found = True
    return found


def _is_euclidean(node: ir.Node) -> bool:
    norm = node.attributes.get_string("norm", "MAX")
    return node.domain == _DOMAIN and node.op_type == "Normalizer" and norm == "L2"


def infer_elementwise(model: ir.Model) -> bool:
    """Infer shapes of elementwise ``ai.onnx.ml`` operators, which ONNX lacks; True if any was."""
    found = False
    for node in model.graph.all_nodes():
        # A Normalizer of unknown shape is right, see `standard_norms`.
        if node.domain != _DOMAIN or node.op_type not in _ELEMENTWISE or _is_euclidean(node):
            continue
        source, out = node.inputs[0], node.outputs[0]
        if source is None or source.shape is None or out.shape is not None:
            continue
        floats = node.op_type in ("Scaler", "Normalizer")  # whatever the type of their input
        out.shape = ir.Shape(source.shape)
        out.type = ir.TensorType(ir.DataType.FLOAT) if floats else source.type
        found = True
    return found
