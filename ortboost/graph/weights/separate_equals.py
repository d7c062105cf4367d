"""Store again the parameters that torch's exporters merged or left out, being equal or 0.

In a layer that is not trained yet, scales are 1, biases are 0, and the layers of a
``nn.TransformerEncoder`` are copies of one. The exporters store equal tensors once. Trained as one,
they would stay equal.

TorchScript puts an Identity with the name of the other parameter in its place. Parameters that
torch itself shares are one tensor in the file, without an Identity. The dynamo exporter only tells
in the metadata of a node which parameters its call in torch reads; those that torch shares have one
name there. It also leaves out biases that are 0.

Sources: ``deduplicate_initializers.cpp`` of PyTorch; ``DeduplicateInitializersPass`` of onnx_ir.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

import numpy as np
import onnx_ir as ir

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.query import FLOAT_TYPES, input_at, is_standard, static_shape
from ortboost.graph.weights.origins import (
    CALL_KEY,
    Origin,
    names_a_parameter,
    placeholders,
    stamp_origin,
    stamp_restored,
)

__all__ = ["separate_equals"]

_OPERAND = re.compile(r"%(\w+)")


def separate_equals(model: ir.Model) -> Report:
    """Give each parameter that an exporter merged or left out a tensor again, in place.

    Constants of the model are initializers. The rewrite is idempotent.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, producer_name: "pytorch",
        ... opset_import: ["" : 18]> net (float[N,2] x) => (float[N,2] y)
        ... <float[2] norm1_weight = {1, 1}> { norm2_weight = Identity(norm1_weight)
        ...   h = Mul(x, norm1_weight)  y = Mul(h, norm2_weight) }''')
        >>> separate_equals(model).changed
        {'norm2_weight': "equal to 'norm1_weight' when exported"}
    """
    report = Report("separate_equals")
    for node in list(model.graph):
        source, output = node.inputs[0] if node.inputs else None, node.outputs[0]
        if source is None or not is_standard(node, "Identity") or output.is_graph_output():
            continue
        tensor, name = source.const_value, output.name or ""
        if not source.is_initializer() or source.is_graph_input() or tensor is None:
            continue
        # Identities in the code of a module have no parameter's name, and are left alone.
        if source.dtype not in FLOAT_TYPES or not names_a_parameter(model, name):
            continue
        output.name = f"{name}/merged"
        copy = add_initializer(model.graph, name, tensor.numpy())
        stamp_origin(copy, Origin("module"))
        ir.convenience.replace_all_uses_with(output, copy)
        model.graph.remove(node, safe=True)
        report.changed[name] = f"equal to '{source.name}' when exported"
    _separate_by_calls(model, report)
    merged = len(report.changed)
    _restore_zero_biases(model, report)
    if added := len(report.changed) - merged:
        report.notes.append(
            f"{count_of(added, 'bias', 'biases')} of 0 that the exporter left out: added again and "
            "trained, as in torch"
        )
    if merged:
        first = next(iter(report.changed))
        report.notes.append(
            f"{count_of(merged, 'tensor')} of the torch module, first '{first}', "
            "equal to others when exported and merged by the exporter: trained separately"
        )
    return report


def _separate_by_calls(model: ir.Model, report: Report) -> None:
    """Separate what the dynamo exporter merged, by the calls in torch that nodes belong to."""
    named, stored = placeholders(model), model.graph.initializers
    in_file = _in_file(model)
    for name in sorted(set(stored).intersection(named.values())):
        value = stored[name]
        tensor = value.const_value
        if tensor is None or value.is_graph_input() or value.dtype not in FLOAT_TYPES:
            continue
        uses = list(value.uses())
        meant = [_parameter_of_call(usage.node, name, named, in_file) for usage in uses]
        if len(set(meant)) < 2:  # one parameter: what is folded may have the call of another
            continue
        for usage, other in zip(uses, meant, strict=True):
            if other is None:
                continue
            if other not in stored:
                stamp_restored(model, add_initializer(model.graph, other, tensor.numpy()))
                report.changed[other] = f"equal to '{name}' when exported"
            usage.node.replace_input_with(usage.idx, stored[other])


def _restore_zero_biases(model: ir.Model, report: Report) -> None:
    """Add biases again that the dynamo exporter left out, as they were 0 in a fresh layer."""
    named, in_file = placeholders(model), _in_file(model)
    for node in list(model.graph):
        weight, size = input_at(node, 1), _bias_size(node)
        if weight is None or size is None or input_at(node, 2) is not None:
            continue
        read = _read_by_call(node, named)
        absent = [name for name in read if name not in in_file]
        if weight.name not in read or len(absent) != 1:
            continue
        (name,) = absent
        dtype = weight.dtype or ir.DataType.FLOAT
        bias = add_initializer(model.graph, name, np.zeros(size, dtype.numpy()))
        stamp_restored(model, bias)
        in_file.add(name)
        node.resize_inputs(3)
        node.replace_input_with(2, bias)
        report.changed[name] = "0 when exported, and left out"


def _in_file(model: ir.Model) -> set[str]:
    """Names of the stored tensors, and of the inputs, which may be parameters of a layer, too."""
    return {*model.graph.initializers, *(value.name or "" for value in model.graph.inputs)}


def _bias_size(node: ir.Node) -> int | None:
    """The length of the bias that a layer has or may have; ``None`` if it is not known."""
    shape = static_shape(input_at(node, 1))
    if shape is None:
        return None
    if is_standard(node, "Gemm"):
        return shape[0] if node.attributes.get_int("transB", 0) else shape[1]
    if is_standard(node, "Conv"):
        return shape[0]
    if is_standard(node, "ConvTranspose"):
        return shape[1] * node.attributes.get_int("group", 1)
    return None


def _read_by_call(node: ir.Node, named: Mapping[str, str]) -> list[str]:
    """Stored tensors that the call of a node in torch reads, each once."""
    call = node.metadata_props.get(CALL_KEY, "").partition("](")[2]
    return list(dict.fromkeys(named[name] for name in _OPERAND.findall(call) if name in named))


def _parameter_of_call(
    node: ir.Node, name: str, named: Mapping[str, str], in_file: Collection[str]
) -> str | None:
    """The parameter that the call of a node reads where the file has another one, if it is sure."""
    read = _read_by_call(node, named)
    absent = [other for other in read if other not in in_file]
    if name in read:
        return None
    if len(absent) > 1:  # some may be folded into other tensors
        absent = [other for other in absent if _leaf(other) == _leaf(name)]
    return absent[0] if len(absent) == 1 else None


def _leaf(name: str) -> str:
    return name.rpartition(".")[2]
