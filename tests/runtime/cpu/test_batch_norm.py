import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.engine import differentiate
from ortboost.runtime.cpu.batch_norm import fused_statistics
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same, operators
from tests.support import session


def model(dims: str, layers: int = 1) -> ir.Model:
    """Gradients of batch normalizations one behind the other, and their running statistics."""
    chain = " ".join(
        f"""y{i + 1}, m{i + 1}, v{i + 1} =
        BatchNormalization<training_mode = 1, momentum = 0.75, epsilon = 0.01>(y{i}, s, b, m, v)"""
        for i in range(layers)
    )
    text = f"""g (float[{dims}] x, float[3] s, float[3] b, float[3] m, float[3] v)
        => (float loss, float[3] m1, float[3] v1) {{ y0 = Identity(x) {chain}
        e = Exp(y{layers}) loss = ReduceMean<keepdims = 0>(e) }}"""
    return differentiate(graph(text), "loss", ["x", "s", "b"], "portable")


@pytest.mark.parametrize("dims", ["N,3", "N,3,5", "N,3,4,4", "2,3,2,2,3"])
def test_one_operator_with_the_same_numbers(dims):
    plain = model(dims)
    feeds = [random_feeds(plain, seed=seed, N=4) for seed in range(2)]
    for batch in feeds:
        batch["v"] = np.abs(batch["v"]) + 1
    changed = assert_same(plain, fused_statistics, *feeds, tolerance=1e-4)
    assert operators(changed).count("ReduceMean") == 1  # that of the loss
    trained = [n for n in changed.graph if n.attributes.get_int("training_mode", 0) == 1]
    assert len(trained) == 1
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)


def test_a_batch_that_overflows_leaves_no_trace():
    """The kernel writes over its inputs: those are no constants that a later step reads again."""
    plain = model("N,3,4,4", layers=3)
    changed = plain.clone()
    assert fused_statistics(changed)
    feeds = random_feeds(plain, N=4)
    feeds["v"] = np.abs(feeds["v"]) + 1
    broken = {**feeds, "x": np.full_like(feeds["x"], np.inf)}
    one, other = session(plain), session(changed)
    names = [value.name for value in one.get_outputs()]
    for batch in (feeds, broken, feeds, feeds):
        expected, found = one.run(names, batch), other.run(names, batch)
        for name, a, b in zip(names, expected, found, strict=True):
            assert np.isfinite(b).all() == np.isfinite(a).all(), name
            np.testing.assert_allclose(b, a, rtol=1e-3, atol=1e-4)


def test_stored_statistics_are_left_alone():
    text = """g (float[N,3,4] x, float[3] s, float[3] b, float[3] m, float[3] v) => (float[N,3,4] y)
        { y = BatchNormalization(x, s, b, m, v) }"""
    assert not fused_statistics(graph(text))


def test_constant_scales_are_left_alone():
    text = """g (float[N,3,4] x, float[3] m, float[3] v) => (float loss)
        <float[3] s = {1, 2, 3}, float[3] b = {0, 1, 0}>
        { y, m1, v1 = BatchNormalization<training_mode = 1>(x, s, b, m, v)
        e = Exp(y) loss = ReduceMean<keepdims = 0>(e) }"""
    assert not fused_statistics(differentiate(graph(text), "loss", ["x"], "portable"))
