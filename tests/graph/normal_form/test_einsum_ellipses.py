from __future__ import annotations

import numpy as np
import pytest

from ortboost.graph.normal_form.einsum_ellipses import name_ellipses
from ortboost.graph.normalize import normalize
from tests.support import run, text_model, weights


def einsum(equation: str, w: str, x: str, y: str):
    return text_model(f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[{w}] w, float[{x}] x) => (float[{y}] y) {{
            [e] y = Einsum<equation = "{equation}">(w, x) }}""")


@pytest.mark.parametrize(
    ("equation", "w", "x", "y", "written"),
    [
        ("...ij,...j->...i", "3,4", "n,4", "n,3", "ij,aj->ai"),
        ("...ij, ...j -> ...i", "6,3,4", "n,6,4", "n,6,3", "bij,abj->abi"),
        ("i,...i->...", "4", "n,5,4", "n,5", None),  # one ellipsis
        ("...ij,...j->...i", "n,3,4", "n,4", "n,3", None),  # of one length
        ("...ij,...j->...i", "1,3,4", "n,2,4", "n,2,3", None),  # broadcast
        ("...ij,...j", "3,4", "n,4", "n,3", "ij,aj->ai"),
        ("...ij", "3,4", "n,4", "n,3", None),  # of one operand, but the node has two
    ],
)
def test_ellipses_of_several_lengths_become_letters(equation, w, x, y, written):
    model = einsum(equation, w, x, y)
    if written is None and "1" in w:
        model = einsum(equation, w, f"5,{x}", f"5,{y}")
    report = name_ellipses(model)
    assert report.changed == (
        {} if written is None else {"e": f"'{equation.replace(' ', '')}' becomes '{written}'"}
    )
    assert not name_ellipses(model).modified


def test_the_file_then_runs_like_numpy():
    model = einsum("...ij,...j->...i", "6,3,4", "n,6,4", "n,6,3")
    normalize(model, opsets=range(18, 22), ir_version=10)
    feeds = {"w": weights(6, 3, 4), "x": weights(2, 6, 4)}
    expected = np.einsum("bij,abj->abi", feeds["w"], feeds["x"])
    found = run(model, feeds)["y"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
