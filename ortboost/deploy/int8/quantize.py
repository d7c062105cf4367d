r"""Insert QuantizeLinear/DequantizeLinear pairs.

    q  = saturate(round(x / s) + z)      (round half to even)
    x' = (q - z) s

Activations have one scale. Symmetric: ``z = 0``, ``s = max|x| / 127`` in int8. Otherwise
``s = (high - low) / 255``, ``z = round(-low / s)`` in uint8, for a range that includes zero.
Weights are stored as int8 with ``z = 0`` and one scale for each output channel: ``s_c = max|w_c| /
64``, or ``/ 127`` in full range. Biases stay in FLOAT, or are int32 with the scale ``s_x s_c``.

Normalizations, softmax, and all operators that are not in ``config.ops`` stay in FLOAT. Fold
BatchNormalization first: between a convolution and its pair it prevents their fusion.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.deploy.fold_bn import fold_bn
from ortboost.deploy.int8.calibrate import Range, calibrate, select_evenly
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.int8.saturation import SAFE_WEIGHT, saturating_weights
from ortboost.deploy.int8.select import (
    find_hosts,
    is_residual,
    stored,
    takes_pairs,
    wanted_activations,
)
from ortboost.graph.build import Builder
from ortboost.graph.evaluate import add_initializer
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.query import input_at, is_read, known_shape, label, producer_of
from ortboost.graph.shapes.shape_inference import infer_shapes

__all__ = ["quantize_int8"]

_MICROSOFT: Final = "com.microsoft"
_PER_CHANNEL_OPSET: Final = 13
_PAIR: Final = ("QuantizeLinear", "DequantizeLinear")
_SMALLEST: Final = float(np.finfo(np.float32).tiny)  # a smaller scale would be subnormal or 0


def quantize_int8(
    model: ir.Model, feeds: Sequence[Mapping[str, NDArray[Any]]], config: Int8Config | None = None
) -> Report:
    """Quantize a model, in place.

    Args:
        model: An inference graph in FLOAT. BatchNormalization is folded first where it can be.
        feeds: Representative calibration batches.
        config: How to quantize; symmetric int8 with ``minmax`` ranges if not given.

    Returns:
        A report of the quantized nodes with scale and channels, and of the others with reasons.

    Raises:
        UsageError: No calibration data, or data that do not fit the model.
        ModelError: The opset is below 13 and cannot be converted.

    Example:
        ::

            report = quantize_int8(model, [{"x": images}], Int8Config.for_target("tensorrt"))
            print(report)
    """
    config = config or Int8Config()
    report = Report("quantize_int8")
    if any(node.op_type in _PAIR for node in model.graph.all_nodes()):
        report.notes.append("the model is already quantized; nothing was done")
        return report
    folded = fold_bn(model)
    report.notes += [f"{name}: {what}" for name, what in folded.changed.items()]
    opset = model.opset_imports.get("", _PER_CHANNEL_OPSET)
    if opset < _PER_CHANNEL_OPSET:
        convert_opset(model, range(_PER_CHANNEL_OPSET, _PER_CHANNEL_OPSET + 1))
    infer_shapes(model)
    hosts = find_hosts(model, config, report)
    wanted = wanted_activations(hosts, config)
    taken = select_evenly(feeds, config.samples)
    if len(taken) < len(feeds):
        report.notes.append(
            f"calibrated on {len(taken)} of {len(feeds)} batches, evenly spread, as "
            f"{config.samples} samples are enough"
        )
    names = [value.name or "" for value in wanted]
    ranges = calibrate(model, taken, names, config.calibration, percentile=config.percentile)
    _Writer(model, config, ranges, report).write(hosts, wanted)
    if any(node.domain == _MICROSOFT for node in hosts):
        model.opset_imports[_MICROSOFT] = 1
    held = model.graph.initializers
    for name in [n for n, v in held.items() if not (is_read(v) or v.is_graph_input())]:
        del held[name]  # the weights in FLOAT, which integers have replaced
    report.notes += [_left_in_float(model, report), _saturation(model, config)]
    return report


def _left_in_float(model: ir.Model, report: Report) -> str:
    left = Counter(
        node.op_type
        for node in model.graph
        if node.name not in report.changed and not node.op_type.endswith("Linear")
    )
    return "in FLOAT: " + (", ".join(f"{n} {op}" for op, n in left.items()) or "nothing")


def _saturation(model: ir.Model, config: Int8Config) -> str:
    if config.reduce_range:
        return "7-bit weights: results are the same on x86 processors with and without VNNI"
    return (
        "8-bit weights: on x86 processors without VNNI the products with "
        f"{len(saturating_weights(model))} of them can saturate, and ONNX Runtime's results are "
        "inaccurate there"
    )


class _Writer:
    """Inserts pairs into one graph."""

    def __init__(
        self, model: ir.Model, config: Int8Config, ranges: Mapping[str, Range], report: Report
    ) -> None:
        self.graph = model.graph
        self.config = config
        self.ranges = ranges
        self.report = report
        self.builder = Builder(model.graph, "ortboost/int8")
        self.pairs: dict[int, tuple[ir.Value, float]] = {}
        """By activation: the output of its pair, and the scale."""
        self.weights: dict[tuple[int, int | None], tuple[ir.Value, NDArray[np.float32]]] = {}
        """By weight and axis of the channels, as layers may share one: likewise."""

    def write(self, hosts: Sequence[ir.Node], wanted: Sequence[ir.Value]) -> None:
        """Quantize the hosts, and the activations that they and the joining operators read."""
        for value in wanted:
            self.pair(value)
        for node in hosts:
            self.host(node) if node.op_type != "LSTM" else self.recurrent(node)
        # Last, so that the pairs themselves still read the activations.
        for value in wanted:
            if id(value) in self.pairs:
                self.redirect(value, self.pairs[id(value)][0])

    def pair(self, value: ir.Value) -> None:
        """Make the pair of an activation, right after its producer."""
        name = value.name or ""
        found = self.ranges[name]
        if not found.finite:
            self.report.kept[name] = "it is not finite on the calibration data"
            return
        scale, point, dtype = _activation(found, self.config.symmetric)
        s, z = self.builder.const(np.float32(scale)), self.builder.const(point, dtype)
        q = self.builder.op("QuantizeLinear", value, s, z, dtype=dtype, shape=value.shape)
        options: dict[str, Any] = {"dtype": ir.DataType.FLOAT, "shape": value.shape}
        back = self.builder.op("DequantizeLinear", q, s, z, **options)
        self._place(value)
        self.pairs[id(value)] = (back, scale)

    def host(self, node: ir.Node) -> None:
        """Quantize the weight and the bias of a node, and report it."""
        value, weight = node.inputs[0], node.inputs[1]
        name = label(node)
        if value is None or weight is None or id(value) not in self.pairs:
            self.report.kept[name] = "its input is not finite on the calibration data"
            return
        back, scale = self.pairs[id(value)]
        axis = _axis(node, weight) if self.config.per_channel else None
        dequantized, scales = self.weight(weight, axis)
        self._place(None, node)
        node.replace_input_with(0, back)
        node.replace_input_with(1, dequantized)
        if self.config.quantize_bias:
            self.bias(node, scale, scales)
        channels = f"{scales.size} channels" if axis is not None else "one scale"
        self.report.changed[name] = f"int8, input scale {scale:.4g}, weight {channels}"

    def weight(self, weight: ir.Value, axis: int | None) -> tuple[ir.Value, NDArray[np.float32]]:
        """The DequantizeLinear output of a stored weight, and the scales of its int8 values."""
        key = (id(weight), axis)
        if key not in self.weights and weight.const_value is not None:
            array = weight.const_value.numpy()
            others = tuple(i for i in range(array.ndim) if i != axis)
            integers, scales = self.integers(array, others)
            scales = scales.reshape(() if axis is None else -1)
            back = self.store(f"{weight.name}/int8", integers, scales, weight, axis)
            self.weights[key] = (back, scales)
        return self.weights[key]

    def integers(
        self, array: NDArray[Any], axes: tuple[int, ...]
    ) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """A weight as integers, with the scales of its channels, each over these axes."""
        # By output channel the largest magnitude, which becomes the largest integer.
        largest = np.abs(array.astype(np.float32)).max(axis=axes, keepdims=True)
        most = SAFE_WEIGHT if self.config.reduce_range else 127
        # For a channel that is (nearly) zero, any scale will do.
        scales = np.where(largest > most * _SMALLEST, largest / np.float32(most), np.float32(1))
        return np.clip(np.rint(array / scales), -most, most).astype(np.int8), scales

    def recurrent(self, node: ir.Node) -> None:
        """Let an LSTM multiply with int8 weights; the runtime rounds inputs and state itself."""
        node.resize_inputs(12)
        for index, place in ((1, 8), (2, 10)):  # of the input, and of the state
            weight = node.inputs[index]
            assert weight is not None
            assert weight.const_value is not None
            array = weight.const_value.numpy().swapaxes(1, 2)  # to [directions, I or H, 4 H]
            axes = (1,) if self.config.per_channel else (1, 2)
            integers, scales = self.integers(array, axes)
            name = self.builder.unique(f"{weight.name}/int8")
            points = self.builder.const(np.zeros(scales.squeeze(axes).shape), ir.DataType.INT8)
            node.replace_input_with(index, add_initializer(self.graph, name, integers))
            node.replace_input_with(place, self.builder.const(scales.squeeze(axes)))
            node.replace_input_with(place + 1, points)
        node.attributes.pop("layout", None)  # the default, which torch's exporter writes
        node.domain, node.op_type = _MICROSOFT, "DynamicQuantizeLSTM"
        self.report.changed[node.name or "LSTM"] = "int8 weights, inputs rounded at run time"

    def bias(self, node: ir.Node, scale: float, scales: NDArray[np.float32]) -> None:
        """Store a bias as int32 with the scale of the products it is added to."""
        bias = input_at(node, 2)
        # A Gemm multiplies the products by alpha and the bias by beta: then their scales differ.
        plain = all(node.attributes.get_float(name, 1.0) == 1.0 for name in ("alpha", "beta"))
        if bias is None or not stored(bias) or bias.const_value is None or not plain:
            return
        array = bias.const_value.numpy().astype(np.float64)
        joint = (np.float64(scale) * scales.astype(np.float64)).astype(np.float32)
        if array.ndim != 1 or joint.size not in (1, array.size):
            return
        with np.errstate(divide="ignore", invalid="ignore"):  # two tiny scales: their product is 0
            integers = np.rint(array / joint)
        if not np.abs(integers).max(initial=0) < 2**31 - 1:  # also if it is NaN
            self.report.notes.append(f"{node.name}: its bias does not fit in int32 and stays FLOAT")
            return
        back = self.store(
            f"{bias.name}/int32", integers.astype(np.int32), joint, bias, 0 if joint.ndim else None
        )
        self._place(None, node)
        node.replace_input_with(2, back)

    def store(
        self,
        name: str,
        integers: NDArray[Any],
        scales: NDArray[np.float32],
        like: ir.Value,
        axis: int | None,
    ) -> ir.Value:
        """Store integers and dequantize them; the result has the shape of ``like``."""
        kept = add_initializer(self.graph, self.builder.unique(name), integers)
        scale = self.builder.const(scales)
        zeros = self.builder.const(np.zeros(scales.shape), ir.DataType.from_numpy(integers.dtype))
        options: dict[str, Any] = {} if axis is None else {"axis": axis}
        options |= {"dtype": ir.DataType.FLOAT, "shape": like.shape}
        return self.builder.op("DequantizeLinear", kept, scale, zeros, **options)

    def redirect(self, value: ir.Value, back: ir.Value) -> None:
        """Let consumers of an activation read the pair: all of them, or residual Adds only."""
        for use in list(value.uses()):
            # The pair itself, and readers in branches, keep reading the activation.
            if use.node.op_type == "QuantizeLinear" or use.node.graph is not self.graph:
                continue
            quantized = self.config.outputs and takes_pairs(use.node)
            if quantized or (self.config.residual and is_residual(use.node, value)):
                use.node.replace_input_with(use.idx, back)

    def _place(self, value: ir.Value | None, before: ir.Node | None = None) -> None:
        """Insert the new nodes before a node, else after the producer of a value, else first."""
        nodes = self.builder.take()
        producer = producer_of(value)
        if not nodes:
            return
        if before is not None:
            self.graph.insert_before(before, nodes)
        elif producer is not None:
            self.graph.insert_after(producer, nodes)
        else:
            self.graph.insert_before(self.graph[0], nodes)


def _activation(found: Range, symmetric: bool) -> tuple[float, int, ir.DataType]:
    """Scale, zero point and type of an activation."""
    if symmetric:
        magnitude = found.magnitude
        return (magnitude / 127.0 if magnitude > 127 * _SMALLEST else 1.0), 0, ir.DataType.INT8
    low, high = min(found.low, 0.0), max(found.high, 0.0)  # zero must be exact, for padding
    if high - low <= 255 * _SMALLEST:
        return 1.0, 0, ir.DataType.UINT8
    scale = (high - low) / 255.0
    return scale, int(np.clip(np.rint(-low / scale), 0, 255)), ir.DataType.UINT8


def _axis(node: ir.Node, weight: ir.Value) -> int | None:
    """The axis of the output channels of a weight; ``None`` if only one scale is possible."""
    if node.op_type == "Conv":  # [M, C/G, k...]
        return 0
    if node.op_type == "ConvTranspose":  # [C, M/G, k...]: with groups no axis has all M channels
        return 1 if node.attributes.get_int("group", 1) == 1 else None
    if node.op_type == "Gemm":
        return 0 if node.attributes.get_int("transB", 0) else 1
    return 1 if len(known_shape(weight) or ()) == 2 else None
