"""Replace BatchNormalization without running statistics by arithmetic.

Weight standardization (BiT, NFNets) normalizes a weight by its own mean and variance with a
BatchNormalization operator; ``BatchNorm2d(track_running_stats=False)`` does the same with its
input, also in evaluation. Exporters write them in two equivalent forms:

- in training mode, with computed running statistics and unused updated statistics;
- in inference form, with statistics that the graph computes from the same input.

Source: Qiao et al., *Micro-Batch Training with Batch-Channel Normalization and Weight
Standardization*, https://arxiv.org/abs/1903.10520, equation 11.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.build import Builder, replace_node
from ortboost.graph.query import is_read, known_shape, label
from ortboost.graph.reach import ancestors
from ortboost.transforms.trainable_norm import batch_norms, is_training, running_statistics

__all__ = ["WRITTEN_OUT_KEY", "write_out_batch_statistics"]

WRITTEN_OUT_KEY = "ortboost.batch_statistics"
"""Metadata key of the last node of the arithmetic: the name of the BatchNormalization."""


def write_out_batch_statistics(model: ir.Model) -> Report:
    r"""Replace BatchNormalization without stored statistics by arithmetic, in place.

        y = scale (x - mean) / sqrt(var + epsilon) + bias

    with the mean and the biased variance over all axes but the second, or with those that the graph
    computes. The gradient goes through both. Nodes with stored statistics, and nodes of neither
    form, are kept unchanged.
    """
    report = Report("write_out_batch_statistics")
    for node in batch_norms(model):
        x = node.inputs[0]
        shape = known_shape(x)
        if x is None or shape is None or running_statistics(node) is not None:
            continue
        if is_training(node):  # it normalizes by the batch, whatever its inputs 3 and 4
            # The arithmetic does not compute updated statistics.
            if any(map(is_read, node.outputs[1:])):
                continue
            what = "the statistics of its input"
        elif all(any(x in n.inputs for n in ancestors([given])) for given in node.inputs[3:5]):
            what = "computed statistics"
        else:
            continue
        report.changed[label(node)] = f"written out with {what}"
        _write_out(model, node, x, len(shape))
    return report


def _write_out(model: ir.Model, node: ir.Node, x: ir.Value, rank: int) -> None:
    b = Builder(model.graph, "ortboost/batch_statistics")

    def column(value: ir.Value | None) -> ir.Value | None:
        """``[C] -> [1, C, 1, ...]``, where broadcasting does not do it."""
        return value if rank == 2 else b.op("Reshape", value, b.ints(1, -1, *[1] * (rank - 2)))

    var: ir.Value | None
    if is_training(node):
        axes = b.ints(0, *range(2, rank))
        # Not mean(x^2) - mean(x)^2: the difference of two large numbers loses all digits.
        centered = b.op("Sub", x, b.op("ReduceMean", x, axes, keepdims=1))
        var = b.op("ReduceMean", b.op("Mul", centered, centered), axes, keepdims=1)
    else:
        centered = b.op("Sub", x, column(node.inputs[3]))
        var = column(node.inputs[4])
    epsilon = b.const(node.attributes.get_float("epsilon", 1e-5), x.dtype or ir.DataType.FLOAT)
    deviation = b.op("Sqrt", b.op("Add", var, epsilon))
    scaled = b.op("Mul", b.op("Div", centered, deviation), column(node.inputs[1]))
    result = b.op("Add", scaled, column(node.inputs[2]), shape=x.shape)
    b.nodes[-1].metadata_props[WRITTEN_OUT_KEY] = node.name or ""
    node.resize_outputs(1)
    replace_node(node, [result], b)
