"""Operands of unknown lengths, broadcast at run time or not, against central differences.

Every broadcasting operator is combined with every form of unknown length. The native builder treats
such lengths as equal; the gradient of BERT's position embeddings is then not summed.
"""

from __future__ import annotations

import re

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.numeric import numeric_gradients
from tests.autodiff.oracle import graph
from tests.support import ENGINES, run

WAYS = {
    # how y [1, n, 2] is computed from p; l is a vector of n elements
    "named": ("float[one,n,2] p", "y = Identity(p)"),
    "unnamed": ("float[one,n,2] p", "y = Identity(p)"),
    "fixed": ("float[1,{n},2] p", "y = Identity(p)"),
    "sliced": ("float[1,6,2] p", "y = Slice(p, zero, n, axis)"),
    "gathered": (
        "float[6,2] p",
        "m = Squeeze(n) i = Range(start, m, step) g = Gather(p, i) y = Unsqueeze(g, zero)",
    ),
    "looked_up": ("float[6,2] p", "i = Slice(ids, zero, n, axis) y = Gather(p, i)"),
    "reshaped": ("float[{n},2] p", "t = Concat<axis=0>(axis, n, width) y = Reshape(p, t)"),
    "of_any_rank": ("float[{n},2] p", "y = Reshape(p, free)"),
    "expanded": ("float[1,1,2] p", "t = Concat<axis=0>(axis, n, axis) y = Expand(p, t)"),
    "joined": (
        "float[1,6,2] p",
        "k = Sub(n, axis) u = Slice(p, zero, k, axis) v = Slice(p, zero, axis, axis) "
        "y = Concat<axis=1>(u, v)",
    ),
    "padded": (
        "float[1,1,2] p",
        "k = Sub(n, axis) t = Concat<axis=0>(zero, zero, zero, zero, k, zero) y = Pad(p, t, two)",
    ),
    "tiled": ("float[1,1,2] p", "t = Concat<axis=0>(axis, n, axis) y = Tile(p, t)"),
    "chosen": (
        "float[2,6,2] p",
        "a, b = Split<axis=0, num_outputs=2>(p) c = Mul(a, b) y = Slice(c, zero, n, axis)",
    ),
}
OPERATORS = {
    "Add": "o = Add({0}, {1})",
    "Sub": "o = Sub({0}, {1})",
    "Sum": "o = Sum({0}, {1}, {0})",
    "Max": "o = Max({0}, {1})",
    "Min": "o = Min({0}, {1}, w)",
    "Where": "c = Greater(w, half) o = Where(c, {0}, {1})",
    "PRelu": "a = Neg({0}) o = PRelu(a, {1})",
    "Mul": "o = Mul({0}, {1})",
    "Div": "o = Div({0}, {1})",
    "Pow": "a = Shape({1}) b = Expand(two, a) o = Pow({0}, b)",
    "Expand": "a = Shape({0}) o = Expand({1}, a)",
    "MatMul": "a = Unsqueeze({0}, last) b = Unsqueeze({1}, row) c = MatMul(a, b) o = "
    "ReduceSum<keepdims=0>(c, last)",
    "Gemm": "a = ReduceSum<keepdims=0>({0}, zero) b = ReduceSum<keepdims=0>({1}, zero) "
    "c = Gemm<transB=1, alpha=0.5, beta=2.0>(a, square, b) o = Unsqueeze(c, zero)",
}
ONE_WAY = ("Gemm", "PRelu")  # the second operand is broadcast to the first
FAMILIES = {
    "sums": ("Add", "Sub", "Sum", "Max", "Min", "Where"),
    "products": ("Mul", "Div", "Pow", "Expand", "MatMul"),
    "one_way": ONE_WAY,
}
CONSTANTS = (
    "int64[1] zero = {0}, int64[1] axis = {1}, int64[1] width = {2}, int64[1] last = {-1}, "
    "int64[1] row = {-2}, int64 start = {0}, int64 step = {1}, int64[1,6] ids = {3, 1, 4, 1, 5, "
    "0}, float two = {2}, float half = {1.1}, float[2,2] square = {1, 2, 0, 3}"
)
SIZES = [((2, 3), 3), ((2, 3), 1), ((2, 1), 3), ((1, 3), 3), ((1, 1), 3)]


def build(family: str, way: str, n: int, swapped: bool):
    """``loss = sum(w * operator(x, y))``, summed over the operators of the family."""
    declared, made = (text.replace("{n}", str(n)) for text in WAYS[way])
    operands = ("y", "x") if swapped else ("x", "y")
    lines, operators = [made], list(FAMILIES[family])
    if way == "of_any_rank" and family == "products":
        operators.remove("MatMul")  # refused: the rank must be known
    for k, operator in enumerate(operators):
        line = OPERATORS[operator].format(*operands)
        lines.append(re.sub(r"\b([abco])\b(?=[,) ])", rf"\1_{k}", line + " "))
        lines.append(f"v_{k} = Mul(o_{k}, w) s_{k} = ReduceSum<keepdims=0>(v_{k})")
    parts = ", ".join(f"s_{k}" for k in range(len(operators)))
    free = ", int64[r] free" if way == "of_any_rank" else ""
    model = graph(
        f"g (float[batch,length,2] x, {declared}, float[m] l, float[batch,full,2] w{free}) "
        f"=> (float loss) <{CONSTANTS}> {{ n = Shape(l) {' '.join(lines)} loss = Sum({parts}) }}"
    )
    if way == "unnamed":
        model.graph.inputs[1].shape = ir.Shape([None, None, 2])
        for value in (output for node in model.graph for output in node.outputs):
            value.shape = None
        infer_shapes(model)
    return model


def arrays(model, n: int, lengths: tuple[int, int]):
    batch, length = lengths
    known = {"m": n, "n": n, "one": 1, "batch": batch, "length": length, "full": max(n, length)}
    rng = np.random.default_rng(3)
    feeds = {}
    for value in model.graph.inputs:
        sizes = [d if isinstance(d, int) else known.get(str(d.value)) for d in value.shape]
        sizes = [1, n, 2] if None in sizes else sizes
        feeds[value.name] = rng.uniform(0.5, 2.0, size=sizes).astype(np.float32)
    if "free" in feeds:
        feeds["free"] = np.array([1, n, 2], np.int64)
    return feeds


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("swapped", [False, True], ids=["right", "left"])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("way", WAYS)
def test_gradient(way, family, swapped, engine):
    if swapped and family == "one_way":
        pytest.skip("the other operand may not be broadcast")
    for (batch, length), n in SIZES:
        if family == "one_way" and n > length:
            continue
        model = build(family, way, n, swapped)
        feeds = arrays(model, n, (batch, length))
        expected = numeric_gradients(model, "loss", ["x", "p"], feeds)
        work = model.clone()
        decompose(work, wrt=["x", "p"], loss="loss", engine=get_engine(engine))
        found = run(differentiate(work, "loss", ["x", "p"], engine), feeds)
        for name, oracle in expected.items():
            case = f"{name} with batch {batch}, length {length}, n {n}"
            gradient = found[f"{name}_grad"]
            assert gradient.shape == oracle.shape, case
            np.testing.assert_allclose(gradient, oracle, rtol=2e-5, atol=2e-5, err_msg=case)
