import pytest

from ortboost.runtime.cpu import products
from tests.autodiff.oracle import graph, random_feeds
from tests.runtime.cpu.forms import assert_same, operators


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(products, "_ROWS", 4)
    monkeypatch.setattr(products, "_COLUMNS", 8)


def gradient(attributes="transA = 1", more=""):
    return graph(
        f"""g (float[N,6] x, float[N,9] d{", float[9] c" if more else ""}) => (float[6,9] y)
        {{ y = Gemm<{attributes}>(x, d{more}) }}"""
    )


@pytest.mark.parametrize("rows", [1, 5])
def test_a_gradient_of_a_weight(rows):
    model = gradient()
    changed = assert_same(model, products.plain_products, random_feeds(model, N=rows))
    assert "Gemm" not in operators(changed)


def test_a_transposed_gradient_takes_one_copy():
    model = graph(
        """g (float[N,9] x, float[N,6] d) => (float[6,9] y)
        { p = Gemm<transA = 1>(x, d) y = Transpose<perm = [1, 0]>(p) }"""
    )
    next(iter(model.graph)).outputs[0].shape = None
    changed = assert_same(model, products.plain_products, random_feeds(model, N=5))
    assert operators(changed).count("Transpose") == 1


@pytest.mark.parametrize(
    "model",
    [
        gradient("transA = 1, alpha = 2.0"),
        gradient("transA = 1", ", c"),
        graph("g (float[3,N] x, float[N,9] d) => (float[3,9] y) { y = Gemm(x, d) }"),
        graph("g (float[N,3] x, float[N,9] d) => (float[3,9] y) { y = Gemm<transA = 1>(x, d) }"),
    ],
    ids=["alpha", "bias", "not transposed", "small"],
)
def test_other_products_are_left_alone(model):
    assert not products.plain_products(model)
