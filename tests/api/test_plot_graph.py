"""``ob.plot``: what it writes, what a notebook shows."""

import numpy as np
import pytest

import ortboost as ob
from ortboost.drawing import draw, to_svg
from tests.support import assert_three_lines, digits, model_path


def test_a_model_is_shown_without_a_file_and_written_with_one(tmp_path):
    shown = ob.plot(model_path("mlp"))
    svg = to_svg(draw(model_path("mlp")))
    assert shown.path is None
    assert shown._repr_svg_() == svg
    assert shown._repr_png_() is None
    assert len(repr(shown)) < 200
    written = ob.plot(model_path("mlp"), tmp_path / "graph.svg")
    assert (tmp_path / "graph.svg").read_text() == svg
    assert written.nodes == shown.nodes == 3


def test_a_program_gives_its_graph_or_its_curves(tmp_path):
    folder = tmp_path / "run"
    ob.convert(model_path("mlp"), folder)
    step = ob.plot(folder, tmp_path / "step.svg", graph="step", max_nodes=1000)
    assert step.nodes > ob.plot(folder, tmp_path / "eval.svg").nodes
    with pytest.raises(ob.FileError, match="not been trained") as info:
        ob.plot(folder)
    assert_three_lines(info.value)
    assert "--" not in str(info.value)
    data = {"x": digits()["x_train"][:64], "y": digits()["y_train"][:64]}
    ob.train(folder, data, epochs=1, progress=None)
    pytest.importorskip("matplotlib")
    curves = ob.plot(folder)
    assert curves.path == folder / "curves.png"
    assert curves._repr_png_() == curves.path.read_bytes()
    assert curves._repr_svg_() is None
    assert np.frombuffer(curves._repr_png_()[:4], np.uint8).tolist() == [137, 80, 78, 71]
