"""Two networks written for any opset from 7 on, in the operators and attributes that it has."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support import weights

OPSETS = range(7, 26)
INT64, FLOAT = TensorProto.INT64, TensorProto.FLOAT


class _Writer:
    """Nodes and stored tensors; what became an input in a later opset is an attribute before it."""

    def __init__(self, opset):
        self.opset, self.nodes, self.stored = opset, [], {}

    def store(self, name, array):
        self.stored[name] = np.asarray(array)
        return name

    def node(self, op, inputs, output, **attributes):
        self.nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def moved(self, op, since, inputs, output, **moved):
        """An operator whose ``moved`` attributes are inputs from an opset on."""
        if self.opset < since:
            return self.node(op, inputs, output, **moved)
        more = [self.store(f"{output}/{k}", np.array(v, np.int64)) for k, v in moved.items()]
        return self.node(op, [*inputs, *more], output)

    def model(self, inputs, outputs):
        graph = helper.make_graph(
            self.nodes,
            "net",
            [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
            [helper.make_tensor_value_info(n, FLOAT, s) for n, s in outputs.items()],
            [numpy_helper.from_array(array, name) for name, array in self.stored.items()],
        )
        opset = helper.make_opsetid("", self.opset)
        model = helper.make_model(
            graph,
            opset_imports=[opset],
            ir_version=max(4, helper.find_min_ir_version_for([opset])),
        )
        onnx.checker.check_model(model, full_check=True)
        return model


def transformer(opset):
    """Heads of a computed shape, softmax, normalization, a decomposed Gelu; ``x [b, s, 8]``."""
    w = _Writer(opset)
    w.node("Shape", ["x"], "shape")
    sizes = []
    for axis in (0, 1):
        w.store(f"axis{axis}", np.array(axis, np.int64))
        w.node("Gather", ["shape", f"axis{axis}"], f"size{axis}", axis=0)
        sizes.append(w.moved("Unsqueeze", 13, [f"size{axis}"], f"dim{axis}", axes=[0]))
    w.store("heads", np.array([2], np.int64))
    w.store("wide", np.array([4], np.int64))
    w.node("Concat", [*sizes, "heads", "wide"], "split", axis=0)
    w.node("Concat", [*sizes, w.store("rest", np.array([-1], np.int64))], "joined", axis=0)
    for name in "qkv":
        w.node("MatMul", ["x", w.store(f"w{name}", weights(8, 8, seed=ord(name)))], f"{name}0")
        w.node("Add", [f"{name}0", w.store(f"b{name}", weights(8, seed=9))], f"{name}1")
        w.node("Reshape", [f"{name}1", "split"], f"{name}2")
        w.node("Transpose", [f"{name}2"], f"{name}3", perm=[0, 2, 1, 3])
    w.node("Transpose", ["k3"], "k4", perm=[0, 1, 3, 2])
    w.node("MatMul", ["q3", "k4"], "scores")
    w.node("Mul", ["scores", w.store("scale", np.float32(0.5))], "scaled")
    w.node("Softmax", ["scaled"], "p", axis=3)
    w.node("Dropout", ["p"], "kept")
    w.node("MatMul", ["kept", "v3"], "mixed")
    w.node("Transpose", ["mixed"], "turned", perm=[0, 2, 1, 3])
    w.node("Reshape", ["turned", "joined"], "flat")
    w.node("Identity", ["flat"], "same")
    w.node("Add", ["same", "x"], "sum")
    mean = {"axes": [-1]} if opset < 18 else {}
    axes = [] if opset < 18 else [w.store("last", np.array([-1], np.int64))]
    w.node("ReduceMean", ["sum", *axes], "mean", **mean)
    w.node("Sub", ["sum", "mean"], "d")
    w.node("Pow", ["d", w.store("two", np.float32(2))], "d2")
    w.node("ReduceMean", ["d2", *axes], "var", **mean)
    w.node("Add", ["var", w.store("eps", np.float32(1e-5))], "var1")
    w.node("Sqrt", ["var1"], "std")
    w.node("Div", ["d", "std"], "n0")
    w.node("Mul", ["n0", w.store("gamma", weights(8, seed=5))], "n1")
    w.node("Add", ["n1", w.store("beta", weights(8, seed=6))], "n2")
    last = "n2"
    if opset >= 9:  # Erf
        w.node("Div", ["n2", w.store("root", np.float32(np.sqrt(2)))], "g0")
        w.node("Erf", ["g0"], "g1")
        w.node("Add", ["g1", w.store("one", np.float32(1))], "g2")
        w.node("Mul", ["n2", "g2"], "g3")
        last = w.node("Mul", ["g3", w.store("half", np.float32(0.5))], "g4")
    w.node("Cast", [last], "double", to=TensorProto.DOUBLE)
    w.node("Cast", ["double"], "y", to=FLOAT)
    return w.model({"x": ["b", "s", 8]}, {"y": ["b", "s", 8]})


def convnet(opset):
    """A padded convolution with a normalization, views, a slice and a Gemm; ``x [b, 2, 6, 6]``."""
    w = _Writer(opset)
    pads = [0, 0, 1, 1, 0, 0, 1, 1]
    w.moved("Pad", 11, ["x"], "padded", pads=pads)
    w.node("Conv", ["padded", w.store("k", weights(4, 2, 3, 3))], "c", kernel_shape=[3, 3])
    stored = [
        w.store(n, np.abs(weights(4, seed=i)) + 0.5)
        for i, n in enumerate(("gain", "bias", "mu", "sigma"))
    ]
    w.node("BatchNormalization", ["c", *stored], "bn")
    w.node("Relu", ["bn"], "r")
    w.node("Dropout", ["r"], "dropped")
    w.node("MaxPool", ["dropped"], "pooled", kernel_shape=[2, 2], strides=[2, 2])
    w.node("Transpose", ["pooled"], "t0", perm=[0, 2, 3, 1])
    w.node("Transpose", ["t0"], "t1", perm=[0, 3, 1, 2])
    if opset < 10:
        w.node("Slice", ["t1"], "part", starts=[0], ends=[2], axes=[1])
    else:
        bounds = [w.store(n, np.array([i], np.int64)) for n, i in (("s", 0), ("e", 2), ("a", 1))]
        w.node("Slice", ["t1", *bounds], "part")
    w.moved("Unsqueeze", 13, ["part"], "u", axes=[1])
    w.moved("Squeeze", 13, ["u"], "q", axes=[1])
    w.node("Flatten", ["q"], "f", axis=1)
    w.node("MatMul", ["f", w.store("w1", weights(18, 5))], "m")
    w.node("Add", ["m", w.store("b1", weights(5))], "h")
    w.node("Gemm", ["h", w.store("w2", weights(3, 5)), w.store("b2", weights(3))], "z", transB=1)
    one = w.store("one", np.ones(3, np.float32))
    w.node("Add", [one, one], "two")  # a constant that is computed
    w.node("Mul", ["z", "two"], "logits")
    return w.model({"x": ["b", 2, 6, 6]}, {"logits": ["b", 3]})
