"""Col2Im against central differences, with known and unknown sizes."""

from __future__ import annotations

import pytest

from tests.autodiff.oracle import assert_gradients, graph, random_feeds


def model(shape: str, image: str, attributes: str = "", block: str = "{2, 3}"):
    return graph(
        f"""g (float[{shape}] x, float[{image}] r) => (float loss)
        <int64[2] size = {{5, 6}}, int64[2] block = {block}> {{
        y = Col2Im{attributes}(x, size, block) s = Mul(y, r) q = Mul(s, y)
        loss = ReduceSum<keepdims = 0>(q) }}"""
    )


@pytest.mark.parametrize(
    ("attributes", "blocks"),
    [
        ("", 16),
        ("<strides = [2, 1]>", 8),
        ("<pads = [1, 0, 1, 2], strides = [2, 2]>", 9),
        ("<dilations = [2, 2]>", 6),
    ],
)
@pytest.mark.parametrize("known", [True, False])
def test_gradient(attributes, blocks, known):
    shapes = (f"2,12,{blocks}", "2,2,5,6") if known else ("N,12,B", "N,2,H,W")
    found = model(*shapes, attributes)
    feeds = random_feeds(model(f"2,12,{blocks}", "2,2,5,6", attributes))
    assert_gradients(found, ["x"], feeds, engine="portable")
