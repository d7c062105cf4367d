from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import FileError, UsageError
from ortboost.drawing import draw, draw_parts, picture_of, to_dot, to_svg, write
from ortboost.drawing.picture import Box, Picture, around
from ortboost.graph.io import load_model
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import assert_three_lines, model_path, small_convnet, small_mlp, text_model

SVG = "{http://www.w3.org/2000/svg}"


def titles(picture):
    return [box.title for box in picture.boxes]


def edges(picture):
    return {(picture.boxes[s].key, picture.boxes[t].key) for s, t in picture.arrows}


# ---- what is in a picture -----------------------------------------------------------------------


def test_boxes_arrows_and_their_texts():
    model = small_convnet()
    infer_shapes(model)
    picture = picture_of(model, marks={"bn": "fold: done"}, title="net")
    ops = ["Conv", "BatchNormalization", "Relu", "GlobalAveragePool", "Flatten", "Gemm"]
    assert titles(picture) == ["x", *ops, "logits"]
    assert [box.kind for box in picture.boxes] == ["input", *["node"] * 6, "output"]
    keys = ["x", "conv", "bn", "relu", "pool", "flat", "fc", "logits"]
    assert edges(picture) == set(itertools.pairwise(keys))
    conv = picture.boxes[1]
    assert conv.lines == ("pad 1", "cw 4x1x3x3", "→ batch x 4 x 6 x 6", "conv")
    assert [box.key for box in picture.boxes if box.mark] == ["bn"]
    assert {box.family for box in picture.boxes} == {"dense", "norm", "activation", "layout", ""}


def test_weights_of_a_program_are_no_boxes():
    model = small_mlp()
    values = [model.graph.initializers[name] for name in ("w1", "b1")]
    for value in values:
        del model.graph.initializers[value.name]
        model.graph.inputs.append(value)
    assert len(picture_of(model).boxes) == 7
    picture = picture_of(model, weights=("w1", "b1"))
    assert titles(picture) == ["x", "Gemm", "Relu", "Gemm", "logits"]
    assert "w1 6x4" in picture.boxes[1].lines


def test_constants_are_lines():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[2,3] x, float lo) => (float[3,2] y) {
          hi = Constant<value = float {6.0}>()  shape = Constant<value = int64[2] {3, 2}>()
          c = Clip(x, lo, hi)  y = Reshape(c, shape)
        }""",
        lo=np.float32(0.5),
    )
    picture = picture_of(model)
    assert titles(picture) == ["x", "Clip", "Reshape", "y"]
    assert picture.boxes[1].lines[:2] == ("lo = 0.5", "const 6")
    assert picture.boxes[2].lines[0] == "const [3, 2]"


def test_a_constant_that_is_an_output_is_a_box():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        m () => (float[2] y) { y = Constant<value = float[2] {1, 2}>() }"""
    )
    assert titles(picture_of(model)) == ["Constant", "y"]


def test_a_node_with_subgraphs_is_one_box_with_all_it_reads():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (bool c, float[2] x) => (float[2] y) {
          a = Relu(x)  b = Neg(x)
          y = If (c) < then_branch = t () => (float[2] u) { u = Exp(a) },
                       else_branch = e () => (float[2] v) { w = Abs(x)  v = Add(w, b) } >
        }"""
    )
    picture = picture_of(model)
    assert titles(picture) == ["c", "x", "Relu", "Neg", "If", "y"]
    assert {"then_branch: 1 node", "else_branch: 2 nodes"} <= set(picture.boxes[4].lines)
    assert {("a", "y"), ("b", "y"), ("x", "y"), ("c", "y")} <= edges(picture)


def test_near_a_node():
    chain = [Box(f"n{i}", "Relu") for i in range(9)]
    whole = Picture(chain, [*zip(range(8), range(1, 9), strict=True), (0, 8)])
    part = around(whole, "n4", 2)
    assert [box.key for box in part.boxes if box.kind == "node"] == ["n2", "n3", "n4", "n5", "n6"]
    assert [box.title for box in part.boxes if box.kind == "more"] == ["1 more", "1 more"]
    assert part.notes == ("5 of 9 nodes: within 2 steps of n4",)
    assert len(around(whole, "n4", 0).boxes) == 3
    with pytest.raises(UsageError, match="no node 'n44'") as caught:
        around(whole, "n44", 1)
    assert "n4" in caught.value.fix
    assert_three_lines(caught.value)


def test_long_names_keep_both_ends():
    name = "/a/very/long/name/of/the/kind/that/exporters/write/Conv_17"
    model = small_mlp()
    model.graph.node(0).name = name
    line = picture_of(model).boxes[1].lines[-1]
    assert len(line) == 34
    assert line.startswith("/a/very")
    assert line.endswith("write/Conv_17")


# ---- SVG ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["lenet5", "resnet_bottleneck", "transformer_tiny"])
def test_every_text_is_inside_its_box(name):
    model = load_model(model_path(name))
    infer_shapes(model)
    nodes = [node.name for node in model.graph][::3]
    marks = dict.fromkeys(
        nodes, "some_rewrite: did something to this node that takes a while to tell"
    )
    picture = picture_of(model, marks=marks, title=name)
    root = ET.fromstring(to_svg(picture))
    boxes = [g for g in root.iter(f"{SVG}g") if g.find(f"{SVG}title") is not None]
    assert len(boxes) == len(picture.boxes)
    for box, g in zip(picture.boxes, boxes, strict=True):
        rect = g.find(f"{SVG}rect")
        left, top = float(rect.get("x")), float(rect.get("y"))
        right, bottom = left + float(rect.get("width")), top + float(rect.get("height"))
        assert ("marked" in rect.get("class")) == (box.mark is not None)
        ys = []
        for text in g.iter(f"{SVG}text"):
            half = len(text.text) * 0.6021 * float(text.get("font-size")) / 2  # DejaVu Sans Mono
            assert left < float(text.get("x")) - half
            assert float(text.get("x")) + half < right
            ys.append(float(text.get("y")))
            assert top + float(text.get("font-size")) * 0.7 < ys[-1] < bottom
        assert all(two - one > 10 for one, two in itertools.pairwise(ys))
    width, height = float(root.get("width")), float(root.get("height"))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    assert width < 4000
    assert height > 500


def test_light_and_dark_style_the_same_things():
    style = ET.fromstring(to_svg(picture_of(small_mlp()))).find(f"{SVG}style").text
    light, dark = style.split("@media (prefers-color-scheme: dark)")
    named = [set(re.findall(r"^(\.[\w. ,]+) \{", part, re.MULTILINE)) for part in (light, dark)]
    assert named[0] == named[1]

    def brightness(part, selector, key):
        block = re.search(re.escape(selector) + r" \{([^}]*)\}", part)[1]
        color = re.search(rf"{key}: #(\w{{6}})", block)[1]
        return np.array([int(color[i : i + 2], 16) for i in (0, 2, 4)]) @ (0.2126, 0.7152, 0.0722)

    for part in (light, dark):
        for text, ground in ((".title", ".box"), (".line", ".box"), (".mark", ".box.marked")):
            gap = abs(brightness(part, text, "fill") - brightness(part, ground, "fill"))
            assert gap > 110, (text, ground)


def test_names_that_are_no_xml():
    picture = Picture([Box('<&>"', "a<b", ("x & y",), mark="<i>")], [], 'net <1> & "2"', ("<n>",))
    root = ET.fromstring(to_svg(picture))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert 'net <1> & "2"' in texts
    assert {"a<b", "x & y", "<i>", "<n>"} <= set(texts)
    assert ET.fromstring(to_svg(Picture([], []))).tag == f"{SVG}svg"


# ---- DOT ----------------------------------------------------------------------------------------


def test_dot_names_every_box_and_arrow():
    model = small_convnet()
    text = to_dot(picture_of(model, marks={"bn": 'say "no"\\'}, title="net"))
    assert text.startswith("digraph model {")
    assert text.rstrip().endswith("}")
    assert len(re.findall(r"^  n\d+ \[", text, re.MULTILINE)) == 8
    assert re.findall(r"n\d+ -> n\d+", text) == [f"n{i} -> n{i + 1}" for i in range(7)]
    assert 'say \\"no\\"\\\\"' in text
    assert text.count("penwidth=2.5") == 1
    assert text.count("shape=ellipse") == 2  # the input and the output
    # Every quotation mark that is not escaped has a partner on its line.
    assert all(len(re.findall(r'(?<!\\)(?:\\\\)*"', line)) % 2 == 0 for line in text.splitlines())


# ---- files --------------------------------------------------------------------------------------


def test_files(tmp_path):
    picture = draw(model_path("lenet5"))
    assert picture.title == "lenet5.onnx"
    assert ET.parse(write(picture, tmp_path / "g.svg")).getroot().tag == f"{SVG}svg"
    assert write(picture, tmp_path / "g.dot").read_text().startswith("digraph")
    for path, kind in (("g.pdf", UsageError), ("g", UsageError), ("no/g.svg", FileError)):
        with pytest.raises(kind) as caught:
            write(picture, tmp_path / path)
        assert_three_lines(caught.value)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["g.dot", "g.svg"]


def test_nodes_with_the_same_name_are_apart(tmp_path):
    """They were in the same part, whose arrows form a circle with the layer between them."""
    path = tmp_path / "model.onnx"
    nodes = [("MatMul", ["x", "w"], "a", "n"), ("MatMul", ["a", "v"], "b", "m")]
    nodes += [("MatMul", ["b", "u"], "y", "n"), ("Relu", ["y"], "z", ""), ("Relu", ["z"], "r", "z")]
    weights = [onnx.numpy_helper.from_array(np.eye(3, dtype=np.float32), name) for name in "wvu"]
    ends = [onnx.helper.make_tensor_value_info(name, 1, [2, 3]) for name in "xr"]
    made = [onnx.helper.make_node(op, read, [out], name=name) for op, read, out, name in nodes]
    graph = onnx.helper.make_graph(made, "g", ends[:1], ends[1:], weights)
    onnx.save(onnx.helper.make_model(graph, ir_version=8), path)
    keys = [box.key for box in draw(path).boxes if box.kind == "node"]
    assert keys == ["n", "m", "n_1", "z", "z_1"]
    layers, parts = draw_parts(path, before=path)
    assert [part.key for part in parts] == ["w", "v", "u"]
    assert not any(box.mark for box in layers.boxes)
    assert to_svg(layers)


def test_large_graphs_are_refused_or_cut():
    with pytest.raises(UsageError, match="73 nodes, more than 50") as caught:
        draw(model_path("resnet20"), max_nodes=50)
    assert_three_lines(caught.value)
    assert "--max-nodes 73" in caught.value.fix
    part = draw(model_path("resnet20"), max_nodes=50, focus="/conv1/Conv", hops=1)
    assert titles(part)[:3] == ["x", "Conv", "BatchNormalization"]
    with pytest.raises(FileError):
        draw("no-such.onnx")
