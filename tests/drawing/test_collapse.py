"""Step graphs as layers: what belongs where, that no circle comes of it, and the page."""

from __future__ import annotations

import itertools
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser

import onnx_ir as ir
import pytest

import ortboost as ob
from ortboost.cli import main
from ortboost.core.loss_scale import NO_SCALE
from ortboost.drawing import Box, Part, Picture, draw_parts, picture_of, to_html, to_svg
from ortboost.drawing.collapse import _titles, collapse
from ortboost.drawing.layout import arrange
from tests.support import model_path


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Program folders by name, made when asked for."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def make(name, **settings):
        key = f"{name}{settings}"
        if key not in made:
            made[key] = folder / str(len(made))
            config = ob.ProgramConfig(metrics=("accuracy",), **settings)
            ob.convert(model_path(name), made[key], config)
        return made[key]

    return make


def box(picture, key):
    return next(one for one in picture.boxes if one.key == key)


def edges(picture):
    return {(picture.boxes[s].key, picture.boxes[t].key) for s, t in picture.arrows}


def test_a_step_is_layers_loss_gradients_and_update(runs):
    picture, parts = draw_parts(runs("lenet5"), graph="step")
    layers = ["conv1", "conv2", "fc1", "fc2", "fc3"]
    assert [one.key for one in picture.boxes if one.kind == "node"] == [part.key for part in parts]
    assert {part.key for part in parts} == {
        *layers,
        *(f"gradients of {layer}" for layer in layers),
        *("loss", "metrics", "update"),
    }
    found = edges(picture)
    for one, two in itertools.pairwise(layers):
        assert {(one, two), (f"gradients of {two}", f"gradients of {one}")} <= found
        assert (f"gradients of {one}", "update") in found
    assert ("labels", "loss") in found
    assert ("learning_rate", "update") in found
    assert ("update", "ortboost/next/") in found
    assert box(picture, "ortboost/next/").title == "26 states"
    assert "Conv, Relu, MaxPool" in box(picture, "conv1").lines


def check(folder):
    """Every node is in one part, and the parts form no circle."""
    program = ob.Program.load(folder)
    picture, parts = draw_parts(folder, graph="step")
    nodes = [n for n in program.step.graph if n.op_type != "Constant"]
    shown = [one.key for part in parts for one in part.picture.boxes if one.kind == "node"]
    assert len(shown) == len(set(shown)) == len(nodes)
    layout = arrange([(100, 50)] * len(picture.boxes), picture.arrows)  # raises for a circle
    for s, t in picture.arrows:
        assert layout.centers[s][1] < layout.centers[t][1]
    assert 8 < sum(one.kind == "node" for one in picture.boxes) < 40
    assert float(ET.fromstring(to_svg(picture)).get("width")) < 2500
    return picture


@pytest.mark.parametrize("name", ["lenet5", "transformer_tiny"])
def test_every_node_is_in_one_part_and_parts_form_no_circle(runs, name):
    check(runs(name))


def test_what_gradients_need_of_each_other_is_in_the_part_of_the_later_layer(runs):
    program = ob.Program.load(runs("lenet5"))
    _, parts = draw_parts(runs("lenet5"), graph="step")
    inside = {one.key: part.key for part in parts for one in part.picture.boxes}
    makers = {v.name: n.name for n in program.step.graph for v in n.outputs}
    for layer in ("conv1", "fc2", "fc3"):
        for parameter in (f"{layer}.weight", f"{layer}.bias"):
            assert inside[makers[f"{parameter}_grad"]] == f"gradients of {layer}"


def test_what_boosts_changed_is_said_of_the_part(runs):
    settings = {"boosts": (ob.LessBN(), ob.GradCentralization())}
    picture = check(runs("resnet20", **settings))
    assert "grad_centralization 21" in box(picture, "update").mark
    block = box(picture, "layer1.0")  # of two layers, so that there is no doubt
    assert "less_bn 1" in block.mark
    assert "batch_norm_to_training 1" in block.mark
    assert "attach_loss 1" in box(picture, "fc").mark
    said = " ".join(one.mark or "" for one in picture.boxes)
    assert (
        sum(map(int, re.findall(r"less_bn (\d+)", said)))
        + sum(int(n) for note in picture.notes for n in re.findall(r"less_bn (\d+)", note))
        == 11
    )


def test_boosts_of_the_update_mark_it(runs):
    """They report no nodes; they change every parameter."""
    settings = {"boosts": (ob.Clip("global-norm", 1.0), ob.GradAccumulation(4))}
    picture = check(runs("lenet5", **settings))
    mark = box(picture, "update").mark
    assert mark == "loss_scale 10, grad_accumulation 10, clip 10"
    assert box(check(runs("lenet5", loss_scale=NO_SCALE)), "update").mark is None


def test_neighbours_are_joined_where_there_are_too_many():
    few = [["a.0.weight"], ["a.1.weight"], ["b"]]
    assert _titles(few) == ["a.0", "a.1", "b"]
    many = [[f"net.{i // 4}.{i % 4}.weight"] for i in range(20)]
    assert _titles(many) == [f"net.{i // 4}" for i in range(20)]
    apart = [["loss.weight"], ["x.weight"], ["loss.weight_2"]]
    assert _titles(apart) == ["loss (layer)", "x", "loss (layer) (2)"]


def test_a_rewrite_whose_place_is_in_doubt_is_in_a_note():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[2,2] x, float[2,2] v, float[2,2] w) => (float[2,2] z) {
          a = MatMul(x, v)  z = MatMul(a, w) }"""
    )
    one, two = model.graph
    one.name, two.name = "/net/block/one/MatMul", "/net/block/two/MatMul"
    changed = {"r": ["/net/block/gone/Relu", "/net/block/two/act/Relu", "elsewhere"]}
    weights = {"v", "w"}
    whole = picture_of(model, weights=weights)
    picture, _ = collapse(model, whole, weights=weights, loss=None, labels=None, changed=changed)
    assert {b.key: b.mark for b in picture.boxes if b.kind == "node"} == {"v": None, "w": "r 1"}
    assert picture.notes[-1] == "also changed, but not a node of this graph: r 2"


def test_what_is_made_of_weights_alone_is_where_it_is_read():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float16[2,2] x, float[2,2] v, float[2,2] w) => (float16[2,2] z) {
          w16 = Cast<to = 10>(w)  v16 = Cast<to = 10>(v)  vt = Transpose(v16)
          a = MatMul(x, vt)  r = Relu(a)  z = MatMul(r, w16) }"""
    )
    whole = picture_of(model, weights={"v", "w"})
    names = {"weights": {"v", "w"}, "loss": None, "labels": None, "changed": {}}
    _, parts = collapse(model, whole, **names)
    assert {p.key: {b.key for b in p.picture.boxes if b.kind == "node"} for p in parts} == {
        "v": {"v16", "vt", "a", "r"},
        "w": {"w16", "z"},
    }


class Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.links, self.ids, self.tags, self.foreign = [], [], set(), []

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self.tags.add(tag)
        if tag == "a":
            self.links.append(found["href"])
        if tag == "section":
            self.ids.append(f"#{found['id']}")
        self.foreign += [v for k, v in attrs if k in ("src", "href") and not v.startswith("#")]


def test_the_page_holds_everything_and_needs_nothing(runs, tmp_path):
    out = tmp_path / "step.html"
    assert main(["plot", str(runs("lenet5")), "-o", str(out), "--graph", "step", "-q"]) == 0
    text, page = out.read_text(), Page()
    page.feed(text)
    assert page.links == page.ids
    assert len(page.links) == 13
    assert not page.foreign
    assert "script" not in page.tags
    assert "url(" not in text
    assert "ScatterElements" in text  # a node of a part


def test_names_that_are_no_html():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[2,2] x, float[2,2] w) => (float[2,2] z) { z = MatMul(x, w) }"""
    )
    model.graph.inputs[1].name = "<script>.w"
    whole = picture_of(model, weights={"<script>.w"}, title="</title><b>")
    names = {"weights": {"<script>.w"}, "loss": None, "labels": None, "changed": {}}
    page = Page()
    page.feed(to_html(*collapse(model, whole, **names)))
    assert not page.tags & {"script", "b"}


def test_a_part_that_nobody_could_read_is_not_drawn():
    chain = [Box(f"n{i}", "Relu") for i in range(401)]
    page = to_html(Picture(chain[:1], []), [Part("n0", Picture(chain, []))])
    assert "401 nodes are too many" in page
    assert page.count("<svg") == 1


def test_layers_are_drawn_of_what_trains_unless_all_is_asked_for(runs, tmp_path):
    folder = runs("lenet5")
    layers = ob.plot(folder, tmp_path / "layers.svg", graph="step")
    every = ob.plot(folder, tmp_path / "all.svg", graph="step", whole=True)
    assert (layers.nodes, every.nodes) == (13, 135)
    assert ob.plot(folder, tmp_path / "eval.svg").nodes == 13
    near = ob.plot(folder, tmp_path / "near.svg", graph="step", around="node_relu", hops=1)
    assert {one.key for one in near.picture.boxes} >= {"node_relu", "node_conv2d"}
