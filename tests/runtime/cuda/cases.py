r"""Small graphs, one question about the CUDA provider each.

``tests/golden/onnxruntime/placement-*.json`` has what two builds of onnxruntime say of them. To
make it again, in a folder FOLDER::

    python -m tests.runtime.cuda.cases FOLDER
    cd FOLDER
    LD_LIBRARY_PATH=STUB ENV/bin/python TOOLS/gpu/placement.py record *.onnx \
        -o placement-1.31.1.json
"""

import sys
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ortboost.graph.io import save_model
from tests.support import text_model

_ONE = {"one": np.ones(1, np.int64)}
_CASES = {
    # A length divides an input of the graph: the input counts as a host value, and is copied.
    "input_over_length": "(float[n,4] x) => (float[n,4] y) { s = Size(x) c = Cast<to=1>(s) y = "
    "Div(x, c) }",
    # The same with a value that is computed on the device: only the length is copied.
    "value_over_length": "(float[n,4] x) => (float[n,4] y) "
    "{ s = Size(x) c = Cast<to=1>(s) r = Relu(x) y = Div(r, c) }",
    "shapes": "(float[n,4] x) => (float[m] y, int64[2] t) "
    "{ r = Relu(x) s = Shape(r) t = Mul(s, s) p = ReduceProd<keepdims=1>(s) y = Reshape(r, p) }",
    # Expand wants its shape on the host and leaves its result on the device.
    "expand_and_back": "(float[n,4] x, int64[1] one) => (float[a,b] y) "
    "{ r = Relu(x) s = Shape(r) k = Shape(s) o = Expand(one, k) t = Mul(s, o) y = Reshape(r, t) }",
    # The condition of an If comes from the device.
    "gate": "(float[n,4] x, float[4] w) => (float[4] v) { s = ReduceSum<keepdims=0>(x) b = "
    "Greater(s, s) "
    "v = If(b) <then_branch = t () => (float[4] a) { a = Add(w, w) }, "
    "else_branch = e () => (float[4] c) { c = Identity(w) }> }",
    # A branch copies a value of both sides by itself.
    "branch": "(float[n,4] x, bool b, int64[1] one) => (float[m] v) { r = Relu(x) v = If(b) "
    "<then_branch = t () => (float[m] a) { s = Shape(r) q = Mul(s, s) p = "
    "ReduceProd<keepdims=1>(s) "
    "f = Cast<to=1>(q) g = Mul(f, f) h = Reshape(r, p) i = Cast<to=1>(p) a = Div(h, i) }, "
    "else_branch = e () => (float[m] c) { c = Reshape(r, one) }> }",
    # No CUDA kernel of Det; none of ArgMax for integers.
    "no_kernel": "(float[3,3] x, int32[n,4] i) => (float y, int64[n,1] j) "
    "{ r = Relu(x) d = Det(r) y = Neg(d) j = ArgMax<axis=1>(i) }",
    # The runtime casts around it, on the CPU.
    "half": "(float16[3,3] x) => (float16 y) { r = Relu(x) d = Det(r) y = Neg(d) }",
    # Numbers of 16 bits are not kept on the host.
    "short_length": "(float16[n,4] x) => (float16[n,4] y) "
    "{ s = Size(x) c = Cast<to=10>(s) d = Mul(c, c) r = Relu(x) y = Div(r, d) }",
    "asymmetric": "(float[n,1,8,8] x, float[1,1,3,3] w) => (float[n,1,9,9] y) "
    "{ r = Relu(x) y = ConvTranspose<pads=[1,1,0,0]>(r, w) }",
    "last_index": "(float[n,4] x) => (int64[n,1] y) "
    "{ r = Relu(x) y = ArgMax<axis=1, select_last_index=1>(r) }",
    # Without a kernel, but with a definition in other operators.
    "defined": "(float[n,4] x) => (float[n,4] y) { r = Relu(x) h = HardSwish(r) y = Neg(h) }",
    # Kernels for other opsets than this: of Reshape in 1.19.2.
    "opset_21": "(float[n,4] x, int64[1] one) => (float[1] y) { r = Relu(x) y = Reshape(r, one) }",
    # No kernel on either side: the session does not open.
    "refused": "(bfloat16[n,4] x, bfloat16[n,4] z) => (bool[n,4] y) { r = Neg(x) y = Greater(r, z) "
    "}",
}
NAMES = tuple(_CASES)


def case(name: str) -> ir.Model:
    """One of the graphs; a node has the name of its first output."""
    opset = 21 if name == "opset_21" else 18
    text = f'<ir_version: 8, opset_import: ["" : {opset}]> g {_CASES[name]}'
    model = text_model(text, **(_ONE if " one)" in text.split("=>")[0] else {}))
    for node in model.graph.all_nodes():
        node.name = node.outputs[0].name
    return model


if __name__ == "__main__":
    for wanted in NAMES:
        save_model(case(wanted), Path(sys.argv[1]) / f"{wanted}.onnx")
