"""Resize decomposed has the values of the runtime's kernel, where rounding in float32 decides too."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.transforms.decompose import decompose
from tests.autodiff.oracle import graph
from tests.support import run

# Without round_prefer_ceil: at ties the kernels of onnxruntime 1.19 and 1.31 differ.
FORMS = [
    'mode="linear"',
    *(f'mode="nearest", nearest_mode="{way}"' for way in ("floor", "ceil", "round_prefer_floor")),
]
COORDINATES = ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
SCALES = (2, 0.5, 1 / 3, 0.6, 0.7, 0.9, 1.7, 2.3)
SIZES = (1, 3, 4, 9, 14)


def resized(length, factor, attributes):
    number = "ints" if isinstance(factor, str) else "floats"
    last = factor if isinstance(factor, str) else repr(float(np.float32(factor)))
    one, two, before = ("1", "2", ", ,") if number == "ints" else ("1.0", "1.0", ",")
    return graph(
        f"g (float[1,1,2,{length}] x, float[1] w) => (float[A,B,C,D] y, float loss) {{ "
        f"h = Mul(x, w) r = Constant<value_{number}=[{one},{one},{two},{last}]>() "
        f"y = Resize<{attributes}>(h, {before} r) loss = ReduceSum<keepdims=0>(y) }}"
    )


@pytest.mark.parametrize(("form", "coordinates"), [*itertools.product(FORMS, COORDINATES)])
def test_same_values_as_the_kernel(form, coordinates):
    attributes = f'{form}, coordinate_transformation_mode="{coordinates}"'
    for length, factor in itertools.product((5, 6, 10), (*SCALES, *map(str, SIZES))):
        model = resized(length, factor, attributes)
        x = np.random.default_rng(length).uniform(-1, 1, size=(1, 1, 2, length))
        feeds = {"x": x.astype(np.float32), "w": np.ones(1, np.float32)}
        work = model.clone()
        assert not decompose(work, wrt=["w"], loss="loss", engine=get_engine("portable")).kept
        expected = run(model, feeds)["y"]
        np.testing.assert_allclose(run(work, feeds)["y"], expected, atol=2e-5, err_msg=str(factor))
