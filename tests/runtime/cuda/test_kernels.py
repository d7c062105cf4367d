import onnx_ir as ir
import pytest

from ortboost.core.errors import UsageError
from ortboost.runtime.cuda.kernels import Kernel, kernels_of, load_kernels
from tests.support import text_model


def node(text: str, opset: int = 18) -> tuple[ir.Node, dict[str, int]]:
    model = text_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}')
    return model.graph[0], dict(model.opset_imports)


def found(text: str, opset: int = 18, release: str = "1.31.1", side: str = "cuda", **more):
    return load_kernels(f"cuda={release}").find(side, *node(text, opset), **more)


def test_releases():
    assert load_kernels("cuda").release == load_kernels("cuda=1.31").release == "1.31.1"
    assert load_kernels("CUDA=1.19").release == "1.19.2"
    assert kernels_of("1.19.2").release == "1.19.2"
    assert kernels_of("1.31.0").release == kernels_of("1.40.1").release == "1.31.1"
    for wrong in ("cuda=1.3", "cuda=2", "cuda=", "rocm"):
        with pytest.raises(UsageError, match="There is no table of kernels"):
            load_kernels(wrong)


def test_operands_on_the_host():
    text = "(float[n] x, int64[m] s) => (float[m] y) { y = Reshape(x, s) }"
    assert found(text) == Kernel(frozenset({1}), frozenset())
    assert found("(float[n] x) => (int64[1] y) { y = Shape(x) }") == Kernel(
        frozenset(), frozenset({0})
    )
    assert found("(float[n] x) => (float[n] y) { y = Relu(x) }") == Kernel()


def test_an_open_ended_kernel_serves_no_newer_definition():
    dropout = "(bfloat16[n] x) => (bfloat16[n] y) { y = Dropout(x) }"
    assert isinstance(found(dropout, 21), Kernel)
    assert "other opsets than 22" in found(dropout, 22)
    transposed = "(float[n,m] x) => (float[m,n] y) { y = Transpose(x) }"
    assert isinstance(found(transposed, 20, "1.19.2"), Kernel)
    assert "other opsets than 21" in found(transposed, 21, "1.19.2")


def test_types():
    greater = "({} [n] x, {} [n] z) => (bool[n] y) {{ y = Greater(x, z) }}"
    assert isinstance(found(greater.format("float16", "float16")), Kernel)
    assert "do not support bfloat16" in found(greater.format("bfloat16", "bfloat16"))
    as_float = found(greater.format("bfloat16", "bfloat16"), as_float=("bfloat16",))
    assert isinstance(as_float, Kernel)
    assert "no kernel of Det" in found("(float[3,3] x) => (float y) { y = Det(x) }")
    assert isinstance(found("(float[3,3] x) => (float y) { y = Det(x) }", side="cpu"), Kernel)


def test_kernels_of_training():
    graph = ir.from_onnx_text(
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[n] d, float[n] y) '
        "=> (float[n] x) { x = com.microsoft.ReluGrad(d, y) }"
    )
    one, opsets = graph.graph[0], graph.opset_imports
    assert isinstance(load_kernels("cuda=1.19.2").find("cuda", one, opsets), Kernel)
    assert "no kernel of com.microsoft::ReluGrad" in load_kernels("cuda").find("cuda", one, opsets)


def test_operators_that_only_training_has():
    text = (
        '<ir_version: 8, opset_import: ["" : 18, "com.microsoft" : 1]> g (float[n,4] d, float[n,4] '
        "y, "
        "int64[n,4] i) => (float[n,4] x, float[n,4] z) "
        "{ x = com.microsoft.SoftmaxGrad_13<axis=1>(d, y) z = MaxPoolGrad(d, i) }"
    )
    graph = ir.from_onnx_text(text)
    softmax, pool = graph.graph
    kernels = load_kernels("cuda=1.19.2")
    assert isinstance(kernels.find("cuda", softmax, graph.opset_imports), Kernel)
    assert "no kernel of MaxPoolGrad" in kernels.find("cuda", pool, graph.opset_imports)
    assert isinstance(kernels.find("cpu", pool, graph.opset_imports), Kernel)
