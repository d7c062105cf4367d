"""The cases of tools/probe_gradients.py: every differentiable operator in difficult forms."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper, shape_inference


@dataclass
class Case:
    """One node, ``loss = sum(output * random)``.

    Args:
        op: Operator.
        inputs: Arrays, or shapes to fill at random; ``None`` omits an input.
        wrt: Positions to differentiate for.
        attrs: Attributes.
        note: Distinguishes the case.
        constant: Positions given as initializers (ints are always).
        outputs: How many outputs the node declares; ``loss`` uses those in ``use``.
    """

    op: str
    inputs: list[Any]
    wrt: tuple[int, ...] = (0,)
    attrs: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    outputs: int = 1
    use: tuple[int, ...] = (0,)
    constant: tuple[int, ...] = ()
    opset: int = 18
    low: float = -2.0
    high: float = 2.0
    domain: str = ""

    @property
    def name(self) -> str:
        """Operator, shapes and the note that distinguishes the case."""
        shapes = ",".join(
            "-"
            if i is None
            else str(list(i.shape) if isinstance(i, np.ndarray) else list(i)).replace(" ", "")
            for i in self.inputs
        )
        return f"{self.op}({shapes}) {self.note or self.attrs or ''} wrt{list(self.wrt)}".strip()

    def arrays(self) -> list[np.ndarray | None]:
        """The inputs; random ones are seeded with the name."""
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        return [
            i
            if i is None or isinstance(i, np.ndarray)
            else rng.uniform(self.low, self.high, size=i).astype(np.float32)
            for i in self.inputs
        ]

    def build(self) -> tuple[ir.Model, list[str], dict[str, np.ndarray]]:
        """The model, the names to differentiate with respect to, and the feeds."""
        arrays = self.arrays()
        names = [("" if a is None else f"i{k}") for k, a in enumerate(arrays)]
        graph_inputs, initializers, feeds = [], [], {}
        for k, array in enumerate(arrays):
            if array is None:
                continue
            if (array.dtype != np.float32 and k not in self.wrt) or k in self.constant:
                initializers.append(numpy_helper.from_array(array, names[k]))
            else:
                elem = helper.np_dtype_to_tensor_dtype(array.dtype)
                graph_inputs.append(helper.make_tensor_value_info(names[k], elem, array.shape))
                feeds[names[k]] = array
        outs = [f"o{k}" for k in range(self.outputs)]
        node = helper.make_node(
            self.op, names, outs, name="probed", domain=self.domain, **self.attrs
        )
        opsets = [helper.make_opsetid("", self.opset)]
        if self.domain:
            opsets.append(helper.make_opsetid(self.domain, 1))
        bare = helper.make_graph(
            [node],
            "g",
            graph_inputs,
            [helper.make_empty_tensor_value_info(o) for o in outs],
            initializers,
        )
        shapes = output_shapes(
            helper.make_model(bare, opset_imports=opsets, ir_version=10), feeds, outs
        )
        rng = np.random.default_rng(7)
        nodes, parts = [node], []
        for k in self.use:
            weights = rng.uniform(0.5, 2.0, size=shapes[k]).astype(np.float32)
            initializers.append(numpy_helper.from_array(weights, f"r{k}"))
            nodes.append(helper.make_node("Mul", [outs[k], f"r{k}"], [f"p{k}"], name=f"weigh{k}"))
            nodes.append(
                helper.make_node("ReduceSum", [f"p{k}"], [f"s{k}"], keepdims=0, name=f"sum{k}")
            )
            parts.append(f"s{k}")
        if len(parts) == 1:
            nodes[-1].output[0] = "loss"
        else:
            nodes.append(helper.make_node("Add", parts, ["loss"], name="add"))
        graph = helper.make_graph(
            nodes,
            "g",
            graph_inputs,
            [helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])],
            initializers,
        )
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        model = shape_inference.infer_shapes(model, data_prop=True)
        return ir.from_proto(model), [names[k] for k in self.wrt], feeds


def output_shapes(
    model: Any, feeds: dict[str, np.ndarray], outs: list[str]
) -> list[tuple[int, ...]]:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for o in model.graph.output:
        o.type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    inferred = shape_inference.infer_shapes(model)
    try:
        session = ort.InferenceSession(model.SerializeToString(), options)
        return [np.asarray(a).shape for a in session.run(None, feeds)]
    except Exception:
        for output in model.graph.output:
            output.ClearField("type")
        del inferred
        model2 = shape_inference.infer_shapes(model)
        try:
            session = ort.InferenceSession(model2.SerializeToString(), options)
            return [np.asarray(a).shape for a in session.run(None, feeds)]
        except Exception:
            from onnx.reference import ReferenceEvaluator

            return [np.asarray(a).shape for a in ReferenceEvaluator(model).run(None, feeds)]


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def floats(*values: float) -> np.ndarray:
    return np.array(values, dtype=np.float32)


def scalar(value: float) -> np.ndarray:
    return np.array(value, dtype=np.float32)


def cases() -> Iterator[Case]:
    yield from elementwise()
    yield from binary()
    yield from reductions()
    yield from linear()
    yield from convolutions()
    yield from pools()
    yield from norms()
    yield from shapes()
    yield from gathers()
    yield from softmaxes()
    yield from losses()
    yield from decomposed()
    yield from contributed()


def elementwise() -> Iterator[Case]:
    pos = {"low": 0.3, "high": 3.0}
    for op in ("Abs", "Neg", "Exp", "Sin", "Cos", "Tanh", "Sigmoid", "Erf", "Relu", "Identity"):
        yield Case(op, [(3, 4)])
        yield Case(op, [()], note="scalar")
    for op in ("Log", "Sqrt", "Reciprocal"):
        yield Case(op, [(3, 4)], **pos)
    yield Case("Reciprocal", [floats(-0.5, -2, 3)])
    for alpha in (0.01, 0.3, 0.0, -0.5, 2.0):
        yield Case("LeakyRelu", [(3, 4)], attrs={"alpha": alpha})
    yield (
        Case("Relu", [floats(0, 1, -1)], note="at zero")
        if False
        else Case("Relu", [floats(2, 1, -1)])
    )
    yield Case("Gelu", [(3, 4)], opset=20)
    yield Case("Gelu", [(3, 4)], attrs={"approximate": "tanh"}, opset=20)
    yield Case("Gelu", [floats(-8, -5, -3, 3, 5, 8)], attrs={"approximate": "tanh"}, opset=20)
    # Clip
    yield Case("Clip", [(3, 4), scalar(-1), scalar(1)], constant=(1, 2))
    yield Case("Clip", [(3, 4), scalar(-1), scalar(1)], note="bounds are inputs")
    yield Case("Clip", [(3, 4), scalar(-1)], note="no max", constant=(1,))
    yield Case("Clip", [(3, 4), None, scalar(1)], note="no min", constant=(2,))
    yield Case("Clip", [(3, 4)], note="no bounds")
    yield Case("Clip", [(3, 4), scalar(1), scalar(-1)], note="min>max", constant=(1, 2))
    yield Case("Cast", [(3, 4)], attrs={"to": 1})
    yield Case("Cast", [(3, 4)], attrs={"to": 1, "saturate": 0}, opset=19)
    yield Case("Dropout", [(3, 4), scalar(0.0), np.array(True)], note="ratio 0", constant=(1, 2))
    yield Case("Dropout", [(3, 4), scalar(0.5), np.array(False)], note="off", constant=(1, 2))
    yield Case("Dropout", [(3, 4)], note="default")
    yield Case(
        "Dropout",
        [(3, 4), scalar(0.5), np.array(False)],
        note="off, mask",
        constant=(1, 2),
        outputs=2,
    )


def binary() -> Iterator[Case]:
    shapes = [
        ((3, 4), (3, 4)),
        ((3, 4), (4,)),
        ((3, 4), (3, 1)),
        ((3, 1), (1, 4)),
        ((2, 3, 4), (3, 1)),
        ((), (3, 4)),
        ((3, 4), ()),
        ((1,), (3, 4)),
        ((1, 1), (1, 1)),
        ((1, 4), (3, 4)),
        ((1, 3, 4), (4,)),
        ((4,), (1, 1, 4)),
    ]
    for op in ("Add", "Sub", "Mul", "Div"):
        for a, b in shapes:
            yield Case(op, [a, b], (0, 1), low=0.5, high=3)
    for a, b in shapes:
        yield Case("Pow", [a, b], (0,), low=0.5, high=3, constant=(1,))
    for value in (0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.0, 2.5):
        yield Case(
            "Pow", [floats(0.5, 1, 2), scalar(value)], (0,), note=f"exponent {value}", constant=(1,)
        )
    for value in (1.0, 2.0, 3.0, -1.0):
        yield Case(
            "Pow",
            [floats(-0.5, -1, -2), scalar(value)],
            (0,),
            note=f"negative base, exponent {value}",
            constant=(1,),
        )
    for value in (1.0, 2.0, 3.0):
        yield Case(
            "Pow",
            [floats(0.0, 1), scalar(value)],
            (0,),
            note=f"zero base, exponent {value}",
            constant=(1,),
        )
    yield Case("Pow", [(3, 4), np.array(2, dtype=np.int64)], note="int exponent", low=0.5)
    yield Case("Pow", [(3, 4), np.array(2, dtype=np.int32)], note="int32 exponent", low=0.5)
    yield Case("Pow", [(3, 4), floats(2.0)], note="1-element exponent", low=0.5, constant=(1,))
    yield Case("Pow", [(3, 4), scalar(2.0)], (0,), note="exponent is an input", low=0.5)
    yield Case("Pow", [(3, 4), (3, 4)], (0, 1), note="exponent trained", low=0.5)
    for op in ("Min", "Max"):
        for a, b in shapes:
            yield Case(op, [a, b], (0, 1))
        yield Case(op, [(3, 4)], note="one")
        yield Case(op, [(3, 4), (3, 4), (3, 4)], (0, 1, 2))
        yield Case(op, [(3, 4), (4,), (3, 1)], (0, 1, 2))
        yield Case(op, [(3, 4), (3, 4), (3, 4), (4,)], (0, 3))
    cond = np.array([[1, 0, 1, 0], [0, 0, 1, 1], [1, 1, 1, 0]], dtype=bool)
    for c in (cond, cond[:1], cond[:, :1], cond[0], np.array(True), np.array([True])):
        for a, b in [
            ((3, 4), (3, 4)),
            ((3, 4), (4,)),
            ((3, 4), ()),
            ((3, 1), (1, 4)),
            ((), (3, 4)),
            ((1,), (3, 4)),
        ]:
            yield Case("Where", [c, a, b], (1, 2), note=f"cond{list(c.shape)}")
    yield Case("Where", [cond, (), ()], (1, 2), note="both scalars")
    yield Case("Where", [cond, (4,), (1, 4)], (1, 2), note="both broadcast")
    yield Case("Where", [cond, (4,), (3, 4)], (1,), note="one wanted")
    yield Case("Sum", [(3, 4)])
    yield Case("Sum", [(3, 4), (3, 4)], (0, 1))
    yield Case("Sum", [(3, 4), (4,), (3, 1)], (0, 1, 2))
    yield Case("Mean", [(3, 4), (4,), (3, 1)], (0, 1, 2))
    yield Case("Mean", [(3, 4)])


def reductions() -> Iterator[Case]:
    table = [
        "ReduceSum",
        "ReduceMean",
        "ReduceL2",
        "ReduceLogSumExp",
        "ReduceL1",
        "ReduceSumSquare",
        "ReduceLogSum",
        "ReduceMax",
        "ReduceMin",
        "ReduceProd",
    ]
    for op in table:
        kw = {"low": 0.3, "high": 2.0} if op == "ReduceLogSum" else {}
        for axes in (
            None,
            ints(0),
            ints(1),
            ints(-1),
            ints(0, 2),
            ints(-3, -1),
            ints(2, 0),
            ints(0, 1, 2),
        ):
            for keep in (0, 1):
                yield Case(
                    op,
                    [(2, 3, 4)] if axes is None else [(2, 3, 4), axes],
                    attrs={"keepdims": keep},
                    note=f"axes {None if axes is None else axes.tolist()} keep {keep}",
                    **kw,
                )
        yield Case(op, [(2, 3)], attrs={"noop_with_empty_axes": 1}, note="noop", **kw)
        yield Case(
            op,
            [(2, 3), np.array([], dtype=np.int64)],
            attrs={"noop_with_empty_axes": 1},
            note="noop, empty axes",
            **kw,
        )
        yield Case(
            op,
            [(2, 3), np.array([], dtype=np.int64)],
            attrs={"keepdims": 0},
            note="empty axes keep 0",
            **kw,
        )
        yield Case(
            op,
            [(2, 3), np.array([], dtype=np.int64)],
            attrs={"keepdims": 1},
            note="empty axes keep 1",
            **kw,
        )
        yield Case(op, [(1, 3, 1), ints(0)], attrs={"keepdims": 0}, note="dims of 1", **kw)
        yield Case(op, [(1, 1)], attrs={"keepdims": 0}, note="all dims 1", **kw)
        yield Case(op, [(5,), ints(0)], attrs={"keepdims": 0}, note="vector", **kw)
    yield Case("ReduceLogSumExp", [floats(1000, 1, 999.5)], attrs={"keepdims": 0}, note="large")
    yield Case(
        "ReduceLogSumExp",
        [floats(-1000, -1001, -999.5)],
        attrs={"keepdims": 0},
        note="very negative",
    )
    yield Case(
        "ReduceLogSumExp",
        [np.array([[90, 100, 110], [1, 2, 3]], np.float32), ints(1)],
        attrs={"keepdims": 0},
        note="rows",
    )
    yield Case(
        "ReduceProd",
        [np.array([[0, 2, 3], [0, 0, 1], [1, 2, 3]], np.float32), ints(1)],
        note="with zeros",
    )


def linear() -> Iterator[Case]:
    for a, b in [
        ((3, 4), (4, 5)),
        ((4,), (4, 5)),
        ((3, 4), (4,)),
        ((4,), (4,)),
        ((2, 3, 4), (4, 5)),
        ((3, 4), (2, 4, 5)),
        ((2, 3, 4), (2, 4, 5)),
        ((1, 3, 4), (2, 4, 5)),
        ((2, 3, 4), (1, 4, 5)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((2, 3, 4), (4,)),
        ((4,), (2, 4, 5)),
        ((1, 1, 3, 4), (4, 5)),
        ((2, 2, 3, 4), (4, 5)),
        ((2, 2, 1, 4), (2, 2, 4, 1)),
        ((1, 4), (4, 1)),
        ((2, 1, 3, 4), (1, 2, 4, 3)),
        ((1, 1, 4), (4, 5)),
        ((2, 3, 1), (1, 5)),
    ]:
        yield Case("MatMul", [a, b], (0, 1))
        yield Case("MatMul", [a, b], (1,))
        yield Case("MatMul", [a, b], (0,))
    for ta in (0, 1):
        for tb in (0, 1):
            for c in (None, (5,), (3, 5), (1, 5), (3, 1), (1,), (), (1, 1)):
                for alpha, beta in ((1.0, 1.0), (0.5, 2.0)):
                    a, b = ((4, 3) if ta else (3, 4)), ((5, 4) if tb else (4, 5))
                    at = {"transA": ta, "transB": tb, "alpha": alpha, "beta": beta}
                    yield Case(
                        "Gemm",
                        [a, b] if c is None else [a, b, c],
                        (0, 1) if c is None else (0, 1, 2),
                        at,
                    )
    yield Case("Gemm", [(3, 4), (4, 5), (5,)], (2,), {"beta": 0.5}, note="only C")
    yield Case("Gemm", [(3, 4), (4, 5), (5,)], (0, 1, 2), {"beta": 0.0}, note="beta 0")
    yield Case("Gemm", [(3, 4), (4, 5), (5,)], (0, 1, 2), {"alpha": 0.0}, note="alpha 0")
    yield Case("Gemm", [(1, 4), (4, 1), (1,)], (0, 1, 2), note="one row, one column")
    yield Case("Gemm", [(3, 4), (4, 1), (3, 1)], (0, 1, 2), note="one column")
    for eq, a, b in [
        ("ij,jk->ik", (3, 4), (4, 5)),
        ("ij,kj->ik", (3, 4), (5, 4)),
        ("bij,bjk->bik", (2, 3, 4), (2, 4, 5)),
        ("bhid,bhjd->bhij", (2, 2, 3, 4), (2, 2, 5, 4)),
        ("bhij,bhjd->bhid", (2, 2, 3, 5), (2, 2, 5, 4)),
        ("i,j->ij", (3,), (4,)),
        ("bij,jk->bik", (2, 3, 4), (4, 5)),
        ("ij,ij->", (3, 4), (3, 4)),
        ("ij,ij->i", (3, 4), (3, 4)),
        ("i,i->", (3,), (3,)),
        ("ij,jk", (3, 4), (4, 5)),
        ("bqhd,bkhd->bhqk", (2, 3, 2, 4), (2, 5, 2, 4)),
        ("...ij,...jk->...ik", (2, 3, 4), (2, 4, 5)),
        ("ij,k->ijk", (2, 3), (4,)),
        ("ijk,k->ij", (2, 3, 4), (4,)),
        ("ij,jk->ki", (3, 4), (4, 5)),
        ("nchw,cd->ndhw", (2, 3, 2, 2), (3, 4)),
        ("ij,jk->k", (3, 4), (4, 5)),
    ]:
        yield Case("Einsum", [a, b], (0, 1), {"equation": eq})
    for eq, a in [
        ("ij->ji", (3, 4)),
        ("ij->i", (3, 4)),
        ("ij->", (3, 4)),
        ("bij->bji", (2, 3, 4)),
        ("ii->i", (3, 3)),
        ("ij", (3, 4)),
        ("ba", (3, 4)),
    ]:
        yield Case("Einsum", [a], (0,), {"equation": eq})
    yield Case("Einsum", [(3, 4), (4, 5), (5, 2)], (0, 1, 2), {"equation": "ij,jk,kl->il"})


def convolutions() -> Iterator[Case]:
    w = (0, 1, 2)
    for nd, x, k in [
        (1, (2, 4, 7), (6, 4, 3)),
        (2, (2, 4, 5, 6), (6, 4, 3, 3)),
        (3, (1, 2, 4, 4, 4), (2, 2, 2, 2, 2)),
    ]:
        yield Case("Conv", [x, k, (k[0],)], w, note=f"{nd}d")
        yield Case("Conv", [x, k], (0, 1), note=f"{nd}d no bias")
        yield Case("Conv", [x, k, (k[0],)], (1, 2), note=f"{nd}d first layer")
        yield Case(
            "Conv",
            [x, k, (k[0],)],
            w,
            {"pads": [1] * (2 * nd), "strides": [2] * nd},
            note=f"{nd}d stride 2 pad 1",
        )
        yield Case(
            "Conv",
            [x, k, (k[0],)],
            w,
            {"pads": [1, *[0] * (nd - 1), *[2] * nd]},
            note=f"{nd}d asymmetric pads",
        )
        yield Case(
            "Conv",
            [x, k, (k[0],)],
            w,
            {"pads": [2] * (2 * nd), "dilations": [2] * nd},
            note=f"{nd}d dilation 2",
        )
        for pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
            for s in (1, 2):
                yield Case(
                    "Conv",
                    [x, k, (k[0],)],
                    w,
                    {"auto_pad": pad, "strides": [s] * nd},
                    note=f"{nd}d {pad} stride {s}",
                )
        even = (k[0], k[1], *([2] * nd))
        for pad in ("SAME_UPPER", "SAME_LOWER"):
            yield Case(
                "Conv", [x, even, (k[0],)], w, {"auto_pad": pad}, note=f"{nd}d {pad} even kernel"
            )
            yield Case(
                "Conv",
                [x, k, (k[0],)],
                w,
                {"auto_pad": pad, "dilations": [2] * nd},
                note=f"{nd}d {pad} dilated",
            )
    yield Case("Conv", [(2, 4, 5, 5), (6, 2, 3, 3), (6,)], w, {"group": 2}, note="2 groups")
    yield Case(
        "Conv",
        [(2, 4, 5, 5), (4, 1, 3, 3), (4,)],
        w,
        {"group": 4, "pads": [1] * 4},
        note="depthwise",
    )
    yield Case(
        "Conv",
        [(2, 4, 5, 5), (8, 1, 3, 3), (8,)],
        w,
        {"group": 4, "pads": [1] * 4, "strides": [2, 2]},
        note="depthwise multiplier, stride",
    )
    yield Case(
        "Conv", [(2, 4, 9), (4, 1, 3), (4,)], w, {"group": 4, "pads": [1, 1]}, note="1d depthwise"
    )
    yield Case("Conv", [(2, 4, 5, 5), (3, 4, 1, 1), (3,)], w, note="1x1")
    yield Case(
        "Conv", [(2, 4, 6, 6), (3, 4, 1, 1), (3,)], w, {"strides": [2, 2]}, note="1x1 stride 2"
    )
    yield Case(
        "Conv",
        [(2, 4, 5, 5), (3, 4, 1, 3), (3,)],
        w,
        {"pads": [0, 1, 0, 1], "strides": [1, 2]},
        note="1x3",
    )
    yield Case(
        "Conv",
        [(2, 1, 7, 8), (3, 1, 3, 3), (3,)],
        w,
        {"strides": [3, 2]},
        note="stride leaves a rest",
    )
    yield Case(
        "Conv", [(1, 2, 8, 8), (2, 2, 2, 2)], (0, 1), {"strides": [3, 3]}, note="stride > kernel"
    )
    for at in (
        {},
        {"strides": [2, 2]},
        {"strides": [2, 2], "pads": [1] * 4, "output_padding": [1, 1]},
        {"strides": [2, 2], "auto_pad": "SAME_UPPER"},
        {"strides": [2, 2], "auto_pad": "SAME_LOWER", "dilations": [2, 1]},
        {"strides": [2, 2], "output_shape": [5, 6]},
        {"strides": [2, 2], "output_shape": [8, 7]},  # longer than what the kernel covers
        {"group": 2},
    ):
        yield Case("ConvTranspose", [(1, 4, 3, 3), (4, 2, 3, 3), (2 * at.get("group", 1),)], w, at)


def pools() -> Iterator[Case]:
    for op in ("MaxPool", "AveragePool", "LpPool"):
        opset = 19
        for nd, x in [(1, (1, 2, 8)), (2, (1, 2, 6, 7)), (3, (1, 1, 4, 4, 5))]:
            if op == "MaxPool":  # far enough apart for finite differences
                x = (np.random.default_rng(3).permutation(int(np.prod(x))).reshape(x) * 0.1).astype(
                    np.float32
                )
            base = {"kernel_shape": [2] * nd}
            yield Case(op, [x], (0,), base, note=f"{nd}d stride 1", opset=opset)
            yield Case(op, [x], (0,), {**base, "strides": [2] * nd}, note=f"{nd}d", opset=opset)
            yield Case(
                op,
                [x],
                (0,),
                {"kernel_shape": [3] * nd, "strides": [2] * nd, "pads": [1] * (2 * nd)},
                note=f"{nd}d 3/2/1",
                opset=opset,
            )
            yield Case(
                op,
                [x],
                (0,),
                {"kernel_shape": [3] * nd, "strides": [2] * nd, "pads": [0] * nd + [1] * nd},
                note=f"{nd}d asymmetric",
                opset=opset,
            )
            yield Case(
                op,
                [x],
                (0,),
                {"kernel_shape": [3] * nd, "strides": [2] * nd, "ceil_mode": 1},
                note=f"{nd}d ceil",
                opset=opset,
            )
            yield Case(
                op,
                [x],
                (0,),
                {
                    "kernel_shape": [3] * nd,
                    "strides": [2] * nd,
                    "pads": [1] * (2 * nd),
                    "ceil_mode": 1,
                },
                note=f"{nd}d ceil padded",
                opset=opset,
            )
            yield Case(
                op,
                [x],
                (0,),
                {"kernel_shape": [2] * nd, "dilations": [2] * nd},
                note=f"{nd}d dilated",
                opset=opset,
            )
            for pad in ("SAME_UPPER", "SAME_LOWER", "VALID"):
                yield Case(
                    op,
                    [x],
                    (0,),
                    {"kernel_shape": [3] * nd, "strides": [2] * nd, "auto_pad": pad},
                    note=f"{nd}d {pad}",
                    opset=opset,
                )
                yield Case(
                    op,
                    [x],
                    (0,),
                    {"kernel_shape": [2] * nd, "auto_pad": pad},
                    note=f"{nd}d {pad} even",
                    opset=opset,
                )
            if op == "AveragePool":
                yield Case(
                    op,
                    [x],
                    (0,),
                    {
                        "kernel_shape": [3] * nd,
                        "strides": [2] * nd,
                        "pads": [1] * (2 * nd),
                        "count_include_pad": 1,
                    },
                    note=f"{nd}d count pad",
                    opset=opset,
                )
                yield Case(
                    op,
                    [x],
                    (0,),
                    {
                        "kernel_shape": [3] * nd,
                        "strides": [2] * nd,
                        "pads": [1] * (2 * nd),
                        "count_include_pad": 1,
                        "ceil_mode": 1,
                    },
                    note=f"{nd}d count pad ceil",
                    opset=opset,
                )
                yield Case(
                    op,
                    [x],
                    (0,),
                    {
                        "kernel_shape": [3] * nd,
                        "strides": [2] * nd,
                        "auto_pad": "SAME_UPPER",
                        "count_include_pad": 1,
                    },
                    note=f"{nd}d count pad SAME",
                    opset=opset,
                )
                yield Case(
                    op,
                    [x],
                    (0,),
                    {"kernel_shape": [3] * nd, "strides": [2] * nd, "pads": [1] * (2 * nd)},
                    note=f"{nd}d opset 18",
                    opset=18,
                )
        yield Case(op, [(2, 3, 4, 4)], (0,), {"kernel_shape": [4, 4]}, note="whole", opset=opset)
        yield Case(
            op,
            [(2, 3, 5, 5)],
            (0,),
            {"kernel_shape": [2, 2], "strides": [3, 3]},
            note="gaps",
            opset=opset,
        )
    yield Case(
        "MaxPool",
        [(1, 2, 6, 6)],
        (0,),
        {"kernel_shape": [2, 2], "strides": [2, 2]},
        note="with indices",
        outputs=2,
    )
    yield Case(
        "MaxPool",
        [(1, 2, 6, 6)],
        (0,),
        {"kernel_shape": [2, 2], "strides": [2, 2], "storage_order": 1},
        note="column major indices",
        outputs=2,
    )
    yield Case(
        "MaxPool",
        [np.arange(36, dtype=np.float32).reshape(1, 1, 6, 6) - 50],
        (0,),
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4},
        note="negative values, padded",
    )
    for x in ((2, 3, 5), (2, 3, 4, 5), (2, 3, 2, 3, 2), (2, 3, 1, 1)):
        yield Case("GlobalAveragePool", [x])
        yield Case("GlobalMaxPool", [x])
    yield Case("GlobalLpPool", [(2, 3, 4)])


def norms() -> Iterator[Case]:
    for x in ((4, 3), (4, 3, 5), (2, 3, 4, 4), (1, 3, 2, 2, 2)):
        c = [(3,), (3,), (3,), np.array([0.5, 1, 2], np.float32)]
        yield Case("BatchNormalization", [x, *c], (0, 1, 2), note="inference")
        yield Case(
            "BatchNormalization",
            [x, *c],
            (0, 1, 2),
            {"training_mode": 1, "epsilon": 1e-3},
            note="training",
            outputs=3,
        )
        yield Case("BatchNormalization", [x, *c], (1, 2), {"epsilon": 1e-2}, note="inference eps")
    yield Case(
        "BatchNormalization",
        [(4, 3, 5), (3,), (3,), (3,), np.array([0.5, 1, 2], np.float32)],
        (0,),
        {"training_mode": 1, "momentum": 0.5},
        note="training, mean used",
        outputs=3,
        use=(0, 1),
    )
    for axis, scale in ((-1, (5,)), (1, (4, 5)), (2, (5,)), (0, (3, 4, 5)), (-2, (4, 5))):
        yield Case("LayerNormalization", [(3, 4, 5), scale, scale], (0, 1, 2), {"axis": axis})
        yield Case(
            "LayerNormalization",
            [(3, 4, 5), scale, scale],
            (0, 1, 2),
            {"axis": axis, "epsilon": 0.1},
            note=f"axis {axis} 3 outputs",
            outputs=3,
        )
        yield Case(
            "LayerNormalization",
            [(3, 4, 5), scale],
            (0, 1),
            {"axis": axis},
            note=f"axis {axis} no bias",
        )
    yield Case("LayerNormalization", [(3, 4, 5), (1,), (1,)], (0, 1, 2), note="broadcast scale")
    yield Case("LayerNormalization", [(3, 4, 1), (1,), (1,)], (0, 1, 2), note="one element")
    yield Case(
        "LayerNormalization",
        [(3, 4, 5), (4, 5), (5,)],
        (0, 1, 2),
        {"axis": 1},
        note="broadcast bias",
    )
    yield Case(
        "LayerNormalization",
        [(3, 4, 5), (5,), (5,)],
        (0, 1, 2),
        {"axis": 1},
        note="axis 1, scale [5]",
    )
    yield Case(
        "LayerNormalization",
        [(3, 4), (4,), (4,)],
        (0, 1, 2),
        note="mean used",
        outputs=3,
        use=(0, 1),
    )
    yield Case(
        "LayerNormalization",
        [(3, 4), (4,), (4,)],
        (0, 1, 2),
        note="inv std used",
        outputs=3,
        use=(0, 2),
    )
    for x in ((2, 3, 5), (2, 3, 4, 4), (2, 3, 2, 2, 2)):
        yield Case("InstanceNormalization", [x, (3,), (3,)], (0, 1, 2), {"epsilon": 1e-2})
    for x in ((2, 4, 5), (2, 4, 3, 3)):
        yield Case(
            "GroupNormalization",
            [x, (2,), (2,)],
            (0, 1, 2),
            {"num_groups": 2, "epsilon": 1e-2},
            opset=18,
        )
        yield Case(
            "GroupNormalization",
            [x, (4,), (4,)],
            (0, 1, 2),
            {"num_groups": 2, "epsilon": 1e-2},
            opset=21,
            note="21",
        )
    yield Case("MeanVarianceNormalization", [(2, 3, 4, 4)])
    yield Case("MeanVarianceNormalization", [(2, 3, 4)], attrs={"axes": [0, 2]})
    yield Case("LRN", [(2, 5, 3, 3)], attrs={"size": 3, "alpha": 0.1, "beta": 0.75, "bias": 1.0})
    yield Case("LRN", [(2, 5, 3, 3)], attrs={"size": 4, "alpha": 0.1}, note="even size")
    for p in (1, 2):
        yield Case("LpNormalization", [(3, 4)], attrs={"p": p, "axis": 1})
        yield Case("LpNormalization", [(3, 4)], attrs={"p": p, "axis": 0})


def shapes() -> Iterator[Case]:
    yield Case("Reshape", [(3, 4), ints(2, 6)])
    yield Case("Reshape", [(3, 4), ints(0, -1, 2)])
    yield Case("Reshape", [(3, 4), ints(-1)])
    yield Case("Transpose", [(2, 3, 4)])
    yield Case("Transpose", [(2, 3, 4)], attrs={"perm": [2, 0, 1]})
    yield Case("Transpose", [(2, 3, 4)], attrs={"perm": [1, 2, 0]})
    yield Case("Transpose", [(2, 3, 4, 5)], attrs={"perm": [3, 0, 2, 1]})
    for axis in (0, 1, 2, -1, 3):
        yield Case("Flatten", [(2, 3, 4)], attrs={"axis": axis})
    yield Case("Squeeze", [(1, 3, 1)])
    yield Case("Squeeze", [(1, 3, 1), ints(0)])
    yield Case("Squeeze", [(1, 3, 1), ints(-1)])
    yield Case("Squeeze", [(1, 3, 1), ints(0, -1)])
    yield Case("Unsqueeze", [(3, 4), ints(0)])
    yield Case("Unsqueeze", [(3, 4), ints(-1)])
    yield Case("Unsqueeze", [(3, 4), ints(0, -1)])
    yield Case("Unsqueeze", [(3, 4), ints(3, 1)])
    for axis in (0, 1, -1, -2):
        yield Case("Concat", [(2, 3), (2, 3)], (0, 1), {"axis": axis})
    yield Case("Concat", [(2, 3), (2, 1), (2, 4)], (0, 1, 2), {"axis": 1})
    yield Case("Concat", [(2, 3), (2, 1), (2, 4)], (1,), {"axis": -1}, note="middle only")
    yield Case("Concat", [(2, 3)], (0,), {"axis": 0}, note="one")
    yield Case("Split", [(6, 4), ints(2, 2, 2)], outputs=3, use=(0, 1), note="third unused")
    yield Case("Split", [(6, 4), ints(1, 5)], outputs=2, use=(0, 1), note="uneven")
    yield Case(
        "Split",
        [(4, 6), ints(1, 2, 3)],
        attrs={"axis": 1},
        outputs=3,
        use=(0, 2),
        note="uneven axis 1",
    )
    yield Case(
        "Split",
        [(4, 6), ints(1, 2, 3)],
        attrs={"axis": -1},
        outputs=3,
        use=(1, 2),
        note="uneven axis -1",
    )
    yield Case(
        "Split", [(6, 4)], attrs={"num_outputs": 2}, outputs=2, use=(0, 1), note="num_outputs"
    )
    yield Case(
        "Split",
        [(7, 4)],
        attrs={"num_outputs": 3},
        outputs=3,
        use=(0, 2),
        note="num_outputs uneven",
    )
    yield Case("Split", [(6, 4), ints(6)], outputs=1, note="one part")
    for note, starts, ends, axes, steps in [
        ("plain", [1], [3], [0], None),
        ("steps 2", [0], [6], [0], [2]),
        ("negative step", [5], [-7], [0], [-1]),
        ("negative step 2", [-1], [-100], [0], [-2]),
        ("negative step, last axis", [-1], [-100], [1], [-2]),
        ("negative steps", [4, -1], [0, -9], [0, 1], [-1, -1]),
        ("negative axis", [1], [3], [-1], None),
        ("large end", [1], [2**62], [0], None),
        ("two axes", [1, 0], [5, 3], [0, 1], [2, 1]),
        ("negative start", [-3], [-1], [0], None),
        ("no axes", [1, 1], [4, 3], None, None),
        ("two axes, one reversed", [4, 0], [0, 4], [0, 1], [-1, 1]),
        ("axes reversed", [0, 1], [3, 5], [1, 0], None),
    ]:
        ins: list[Any] = [(6, 4), ints(*starts), ints(*ends), None if axes is None else ints(*axes)]
        if steps:
            ins.append(ints(*steps))
        elif axes is None:
            ins.pop()
        yield Case("Slice", ins, note=note)
    for shape in ((3, 4), (2, 3, 4), (1, 4), (4,), (1,), (1, 1, 1)):
        yield Case("Expand", [(1, 4), ints(*shape)])
        yield Case("Expand", [(), ints(*shape)])
    yield Case("Expand", [(3, 1), ints(4)], note="smaller rank")
    yield Case("Expand", [(3, 1), ints(2, 1, 4)])
    yield Case("Expand", [(3, 1, 2), ints(1, 4, 1)])
    yield Case("Expand", [(3, 4), ints(3, 4)], note="nothing")
    yield Case("Tile", [(2, 3), ints(2, 2)])
    yield Case("Tile", [(2, 3), ints(1, 3)])
    yield Case("Tile", [(2, 3), ints(1, 1)])
    yield Case("Tile", [(3,), ints(4)])
    yield Case("Tile", [(2, 1, 3), ints(3, 2, 1)])
    yield Case("Pad", [(3, 4), ints(1, 0, 0, 2)])
    yield Case("Pad", [(3, 4), ints(1, 0, 0, 2), scalar(1.5)], constant=(2,))
    yield Case("Pad", [(3, 4), ints(-1, 0, 0, -2)], note="negative")
    yield Case("Pad", [(3, 4), ints(-1, 1, 2, -1)], note="mixed")
    yield Case("Pad", [(3, 4), ints(1, 2), None, ints(1)], note="axes", opset=18)
    yield Case("Pad", [(3, 4), ints(1, 2), None, ints(-2)], note="axes negative", opset=18)
    yield Case(
        "Pad", [(3, 4), ints(1, 2), scalar(0.5), ints(0)], note="axes and value", constant=(2,)
    )
    for mode in ("reflect", "edge", "wrap"):
        yield Case("Pad", [(3, 4), ints(1, 2, 0, 1)], attrs={"mode": mode}, opset=19)
        yield Case(
            "Pad", [(1, 1, 4, 4), ints(0, 0, 1, 2, 0, 0, 2, 1)], attrs={"mode": mode}, opset=19
        )
    yield Case(
        "Pad", [(3, 4), ints(-1, 2, 0, -1)], attrs={"mode": "edge"}, opset=19, note="edge negative"
    )
    for upper in (0, 1):
        yield Case("Trilu", [(4, 4)], attrs={"upper": upper})
        for k in (-1, 1, 2, 5):
            yield Case(
                "Trilu",
                [(3, 4), np.array(k, np.int64)],
                attrs={"upper": upper},
                note=f"k={k} upper={upper}",
            )
        yield Case(
            "Trilu",
            [(2, 3, 3), np.array(1, np.int64)],
            attrs={"upper": upper},
            note=f"batch upper={upper}",
        )
    yield Case("DepthToSpace", [(1, 8, 2, 3)], attrs={"blocksize": 2})
    yield Case("DepthToSpace", [(1, 8, 2, 3)], attrs={"blocksize": 2, "mode": "CRD"})
    yield Case("SpaceToDepth", [(1, 2, 4, 6)], attrs={"blocksize": 2})
    for at in ({}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}):
        for ax in (0, 1, -1):
            yield Case("CumSum", [(3, 4), np.array(ax, np.int64)], attrs=at, note=f"axis {ax} {at}")
    yield from resizes()


def resizes() -> Iterator[Case]:
    """Up, down and by odd factors, by scales and by sizes, with all coordinate transformations."""
    shape = (1, 1, 2, 6)
    by_scales = [(1, 1, 2, 2), (1, 1, 0.5, 0.5), (1, 1, 1.5, 0.7), (1, 1, 1, 1 / 3), (1, 1, 2.3, 1)]
    by_sizes = [(1, 1, 4, 12), (1, 1, 1, 3), (1, 1, 5, 4), (1, 1, 1, 1), (1, 1, 2, 9)]
    roundings = ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    forms = [{"mode": "linear"}, *({"mode": "nearest", "nearest_mode": way} for way in roundings)]
    for form in forms:
        for mode in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
            attrs = {**form, "coordinate_transformation_mode": mode}
            for factors in by_scales:
                inputs = [shape, None, floats(*factors)]
                note = f"{attrs} scales {factors}"
                yield Case("Resize", inputs, attrs=attrs, note=note, constant=(2,))
            for sizes in by_sizes:
                inputs = [shape, None, None, ints(*sizes)]
                yield Case("Resize", inputs, attrs=attrs, note=f"{attrs} sizes {sizes}")
    for inputs in ([(2, 3, 5), None, floats(2)], [(2, 3, 5), None, None, ints(4)]):
        attrs = {"mode": "linear", "axes": [2]}
        yield Case("Resize", inputs, attrs=attrs, note=f"one axis {len(inputs)}", constant=(2,))
    inputs = [(2, 3, 4, 4), None, floats(1, 1, 2, 2)]
    for attrs in ({}, {"cubic_coeff_a": -0.5, "exclude_outside": 1}):
        yield Case("Resize", inputs, attrs={"mode": "cubic", **attrs}, constant=(2,))
    attrs = {"mode": "linear", "antialias": 1}
    yield Case("Resize", inputs, attrs=attrs, note=f"refused {attrs}", constant=(2,))


def gathers() -> Iterator[Case]:
    yield Case("Gather", [(4, 3), ints(0, 2, 2)])
    yield Case("Gather", [(4, 3), ints(-1, 0, -4)], note="negative")
    rows = np.array([[0, 1], [2, 3]], np.int64)
    yield Case("Gather", [(4, 3), rows], note="a matrix of consecutive indices")
    yield Case("Gather", [(4, 3), np.array(2, np.int64)], note="scalar index")
    yield Case("Gather", [(4, 3), np.array(-1, np.int64)], note="scalar negative index")
    yield Case(
        "Gather",
        [(4, 3), np.array([[0, 1], [1, 2]], np.int64)],
        attrs={"axis": 1},
        note="2d axis 1",
    )
    yield Case("Gather", [(4, 3), ints(0, -1)], attrs={"axis": -1}, note="axis -1")
    yield Case("Gather", [(2, 4, 3), ints(0, -1)], attrs={"axis": 1}, note="axis 1 negative")
    yield Case("Gather", [(4, 3), np.array([1, 1], np.int32)], note="int32")
    yield Case(
        "GatherElements", [(3, 4), np.array([[0, 1, 1, 3]] * 3, np.int64)], attrs={"axis": 1}
    )
    yield Case(
        "GatherElements",
        [(3, 4), np.array([[0, -1, 1, -3]] * 3, np.int64)],
        attrs={"axis": 1},
        note="negative",
    )
    yield Case(
        "GatherElements", [(3, 4), np.array([[0, 2, 1, 2]] * 2, np.int64)], attrs={"axis": 0}
    )
    yield Case(
        "GatherElements",
        [(3, 4), np.array([[0, 2], [2, 2]], np.int64)],
        attrs={"axis": -2},
        note="axis -2, smaller",
    )
    some = np.array([True, False, True])
    yield Case("Compress", [(3, 4), some], attrs={"axis": 0})
    yield Case("Compress", [(2, 3, 4), some[:2]], attrs={"axis": -2}, note="axis -2, shorter")
    yield Case("Compress", [(3, 4), np.array([False, True] * 4)], note="flat, shorter")
    yield Case("GatherND", [(3, 4), np.array([[0, 1], [2, 3], [0, 1]], np.int64)])
    yield Case("GatherND", [(3, 4), np.array([[0], [2], [-1]], np.int64)], note="rows, negative")
    yield Case("GatherND", [(3, 4), np.array([[-1, -1], [0, -2]], np.int64)], note="negative")
    yield Case("GatherND", [(2, 3, 4), np.array([[1], [0]], np.int64)], attrs={"batch_dims": 1})
    yield Case(
        "GatherND",
        [(2, 3, 4), np.array([[[1, 2], [0, 0]], [[2, 3], [2, 3]]], np.int64)],
        attrs={"batch_dims": 1},
        note="batch 1, pairs",
    )
    yield Case(
        "GatherND",
        [(2, 3, 4), np.array([[[1], [0], [3]], [[1], [1], [2]]], np.int64)],
        attrs={"batch_dims": 2},
        note="batch 2",
    )
    yield Case("ScatterND", [(4, 3), np.array([[0], [2]], np.int64), (2, 3)], (0, 2))
    yield Case(
        "ScatterND", [(4, 3), np.array([[-1], [-3]], np.int64), (2, 3)], (0, 2), note="negative"
    )
    yield Case("ScatterND", [(4, 3), np.array([[0, 1], [2, 2]], np.int64), (2,)], (0, 2))
    for reduction in ("add", "mul", "max", "min"):
        yield Case(
            "ScatterND",
            [(4, 3), np.array([[0], [2]], np.int64), (2, 3)],
            (0, 2),
            {"reduction": reduction},
        )
        yield Case(
            "ScatterND",
            [(4, 3), np.array([[0], [0]], np.int64), (2, 3)],
            (0, 2),
            {"reduction": reduction},
            note=f"{reduction} repeated",
        )
        yield Case(
            "ScatterElements",
            [(4, 3), np.array([[0, 1, 2], [2, 0, 3]], np.int64), (2, 3)],
            (0, 2),
            {"axis": 0, "reduction": reduction},
        )
    yield Case(
        "ScatterElements",
        [(4, 3), np.array([[0, 1, 2], [2, 0, 3]], np.int64), (2, 3)],
        (0, 2),
        {"axis": 0},
    )
    yield Case("ReverseSequence", [(4, 3, 2), np.array([2, 4, 1], np.int64)])
    yield Case(
        "ScatterElements",
        [(4, 3), np.array([[0, -1, -2], [-2, 0, -4]], np.int64), (2, 3)],
        (0, 2),
        {"axis": 0},
        note="negative",
    )
    yield Case(
        "ScatterElements",
        [(4, 3), np.array([[0, 1], [2, 0]], np.int64), (2, 2)],
        (0, 2),
        {"axis": 1},
    )
    yield Case(
        "ScatterElements",
        [(4, 3), np.array([[0, 1], [2, 0]], np.int64), (2, 2)],
        (0, 2),
        {"axis": -1},
        note="axis -1",
    )
    for largest in (0, 1):
        for s in (0, 1):
            yield Case(
                "TopK",
                [(3, 5), ints(2)],
                attrs={"largest": largest, "sorted": s, "axis": 1},
                outputs=2,
            )
        yield Case("TopK", [(3, 5), ints(2)], attrs={"largest": largest, "axis": 0}, outputs=2)
        yield Case("TopK", [(3, 5, 2), ints(2)], attrs={"largest": largest, "axis": -2}, outputs=2)
    yield Case("TopK", [(3, 5), ints(5)], outputs=2, note="all")


def softmaxes() -> Iterator[Case]:
    for op in ("Softmax", "LogSoftmax"):
        for x in ((3, 4), (2, 3, 4), (4,), (2, 3, 2, 2)):
            for axis in sorted({-1, 0, len(x) - 1, min(1, len(x) - 1), -len(x)}):
                yield Case(op, [x], attrs={"axis": axis})
        yield Case(op, [(2, 3, 4)], note="default axis")
        yield Case(op, [floats(1000, 1, 999)], note="large")
    yield Case("Hardmax", [(3, 4)])


def losses() -> Iterator[Case]:
    labels = ints(0, 3, 1)
    for op in ("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"):
        for red in ("mean", "sum", "none"):
            yield Case(op, [(3, 4), labels], attrs={"reduction": red})
            yield Case(
                op,
                [(3, 4), labels, floats(0.5, 1, 2, 3)],
                attrs={"reduction": red},
                constant=(2,),
                note=f"weights {red}",
            )
            yield Case(
                op,
                [(3, 4), ints(0, -1, 1)],
                attrs={"reduction": red, "ignore_index": -1},
                note=f"ignore {red}",
            )
            yield Case(
                op,
                [(3, 4), ints(0, 2, 1), floats(0.5, 1, 2, 3)],
                attrs={"reduction": red, "ignore_index": 2},
                constant=(2,),
                note=f"weights ignore {red}",
            )
            yield Case(
                op,
                [(2, 4, 3), np.array([[0, 1, 2], [3, 3, 1]], np.int64)],
                attrs={"reduction": red},
                note=f"3d {red}",
            )
            yield Case(
                op,
                [(2, 4, 2, 2), np.array([[[0, 1], [2, 3]], [[3, 3], [1, 0]]], np.int64)],
                attrs={"reduction": red},
                note=f"4d {red}",
            )
    yield Case("SoftmaxCrossEntropyLoss", [(3, 4), labels], outputs=2, note="2 outputs")
    yield Case(
        "SoftmaxCrossEntropyLoss", [(3, 4), labels], outputs=2, use=(0, 1), note="log_prob used"
    )
    yield Case(
        "SoftmaxCrossEntropyLoss",
        [(3, 4), ints(-1, -1, -1)],
        attrs={"ignore_index": -1},
        note="all ignored",
    )


def contributed() -> Iterator[Case]:
    """Operators of com.microsoft; the runtime itself is the oracle."""
    ms = {"domain": "com.microsoft"}
    yield Case("Gelu", [(3, 4)], note="ms", **ms)
    yield Case("FastGelu", [(3, 4)], note="ms", **ms)
    yield Case("FastGelu", [(3, 4), (4,)], (0, 1), note="ms bias", **ms)
    yield Case("BiasGelu", [(3, 4), (4,)], (0, 1), note="ms", **ms)
    yield Case("QuickGelu", [(3, 4)], note="ms", **ms)
    yield Case("QuickGelu", [(3, 4)], attrs={"alpha": 1.0}, **ms)


def decomposed() -> Iterator[Case]:
    for op in (
        "HardSwish",
        "Softplus",
        "Softsign",
        "Mish",
        "Elu",
        "Selu",
        "Celu",
        "HardSigmoid",
        "ThresholdedRelu",
        "Shrink",
        "Tan",
        "Sinh",
        "Cosh",
        "Atan",
        "Asinh",
        "Sign",
        "Round",
        "Floor",
        "Ceil",
    ):
        yield Case(op, [(3, 4)], low=-1.4, high=1.4)
        yield (
            Case(op, [(3, 4)], low=-4, high=4, note="wide")
            if op != "Tan"
            else Case(op, [()], note="scalar", low=-1, high=1)
        )
    for op in ("Acos", "Asin", "Atanh"):
        yield Case(op, [(3, 4)], low=-0.9, high=0.9)
    yield Case("Acosh", [(3, 4)], low=1.2, high=4)
    for op, at in (
        ("Elu", {"alpha": 0.5}),
        ("Selu", {"alpha": 1.2, "gamma": 2.0}),
        ("Celu", {"alpha": 0.5}),
        ("HardSigmoid", {"alpha": 0.3, "beta": 0.4}),
        ("ThresholdedRelu", {"alpha": 0.3}),
        ("Shrink", {"lambd": 0.3, "bias": 0.1}),
    ):
        yield Case(op, [(3, 4)], attrs=at)
    for op in ("Softplus", "Elu", "Selu", "Celu", "Mish", "Sinh", "Softsign"):
        if op != "Sinh":
            yield Case(op, [floats(-1000, -100, 100, 1000)], note="extreme")
    for slope in ((3, 4), (4,), (3, 1), (1,), ()):
        yield Case("PRelu", [(3, 4), slope], (0, 1))
    yield Case("PRelu", [(2, 3, 2, 2), (3, 1, 1)], (0, 1))
    yield Case("CastLike", [(3, 4), (1,)])
    for matrices in ((3, 3), (2, 4, 4), (1, 1), floats(0, 0, 0, 0).reshape(2, 2)):
        yield Case("Det", [matrices])
    yield Case("Mod", [(3, 4), scalar(0.7)], attrs={"fmod": 1}, constant=(1,))
    yield Case("Mod", [(3, 4), (4,)], (0, 1), attrs={"fmod": 1}, low=0.6, high=0.95)
    yield Case("Softmax", [(2, 3)], attrs={"axis": 1})
    yield Case("Sigmoid", [(3,)])
