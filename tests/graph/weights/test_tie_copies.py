from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

import ortboost as ob
from ortboost.graph.weights.origins import Origin, stamp_origin
from ortboost.graph.weights.store_weights import store_weights
from ortboost.graph.weights.tie_copies import tie_copies
from tests.support import run, text_model, weights

TEXT = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3] x, float[3,4] w, float[{shape}] val_1) => (float[N,{out}] y) {{
  h = MatMul(x, w) y = {last} }}"""
TRANSPOSED = {"shape": "4,3", "out": "3", "last": "MatMul(h, val_1)"}
RESHAPED = {"shape": "1,12", "out": "12", "last": "MatMul(s, val_1)"}


def model(form, copy: np.ndarray, kinds: dict[str, str], w: np.ndarray) -> ir.Model:
    text = TEXT.format(**form).replace("y = MatMul(s", "s = ReduceSum<keepdims=1>(h) y = Mul(s")
    found = text_model(text, w=w, val_1=copy)
    for name, kind in kinds.items():
        stamp_origin(found.graph.initializers[name], Origin(kind))
    return found


TORCH = {"w": "parameter", "val_1": "folded"}


@pytest.mark.parametrize(
    ("form", "copy"),
    [(TRANSPOSED, weights(3, 4).T), (RESHAPED, weights(3, 4).reshape(1, 12))],
    ids=["transposed", "reshaped"],
)
def test_a_folded_copy_is_computed_from_its_source(form, copy):
    found = model(form, copy, TORCH, weights(3, 4))
    feeds = {"x": weights(2, 3)}
    before = run(found, feeds)["y"]
    report = tie_copies(found)
    assert report.changed == {"val_1": "computed from 'w'"}
    assert report.notes == [
        "'val_1' is a copy, made by the exporter, of 'w': both are trained as one"
    ]
    assert "val_1" not in found.graph.initializers
    np.testing.assert_array_equal(run(found, feeds)["y"], before)
    assert not tie_copies(found).modified


@pytest.mark.parametrize("kinds", [{}, {"w": "folded", "val_1": "folded"}])
def test_without_names_a_transposition_is_tied_to_the_tensor_used_first(kinds):
    found = model(TRANSPOSED, weights(3, 4).T, kinds, weights(3, 4))
    assert tie_copies(found).changed == {"val_1": "computed from 'w'"}


def test_copies_that_were_folded_from_one_parameter_are_one():
    """torch's dynamo exporter writes such copies for layers that share their parameters."""
    body = "a = MatMul(x, val_1) b = MatMul(a, val_2) y = MatMul(b, val_3)"
    found = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, {", ".join(f"float[3,3] val_{i}" for i in (1, 2, 3))}) => (float[N,3] y)
        {{ {body} }}""",
        **{f"val_{i}": weights(3, 3) for i in (1, 2, 3)},
    )
    origin = Origin("folded", ("fc.weight",), direct=True, transposed=True, known=True)
    for value in found.graph.initializers.values():
        stamp_origin(value, origin)
    report = tie_copies(found)
    assert report.changed == dict.fromkeys(["val_2", "val_3"], "computed from 'val_1'")
    assert "a copy, made by the exporter, of 'val_1'" in report.notes[0]


@pytest.mark.parametrize(
    ("sources", "tied"),
    [((["t"], ["t"]), True), ((["t"], ["s"]), False), ((["t", "s"],) * 2, False)],
)
def test_two_copies_of_a_parameter_that_is_not_in_the_file(sources, tied):
    """The transitions of a conditional random field: torch's exporter folds each use (optimize)."""
    found = model(RESHAPED, weights(3, 4).reshape(1, 12), {}, weights(3, 4))
    for name, made_from in zip(("w", "val_1"), sources, strict=True):
        stamp_origin(found.graph.initializers[name], Origin("folded", tuple(made_from), known=True))
    assert tie_copies(found).modified == tied


@pytest.mark.parametrize(
    ("form", "copy", "kinds", "apart"),
    [
        (TRANSPOSED, weights(3, 4).T, {"w": "parameter", "val_1": "parameter"}, ()),
        (TRANSPOSED, weights(3, 4).T, {"w": "buffer", "val_1": "folded"}, ()),
        (TRANSPOSED, weights(3, 4).T, TORCH, ("val_1",)),
        (TRANSPOSED, weights(4, 3)[::-1], TORCH, ()),
        (TRANSPOSED, np.nextafter(weights(3, 4).T, np.float32(9)), TORCH, ()),
        (RESHAPED, weights(3, 4).reshape(1, 12), {}, ()),
    ],
    ids=["both named", "buffer", "kept apart", "other values", "rounded", "fresh clones"],
)
def test_others_stay(form, copy, kinds, apart):
    found = model(form, copy, kinds, weights(3, 4))
    assert not tie_copies(found, apart=apart).modified
    assert {"w", "val_1"} <= set(found.graph.initializers)


def test_equal_values_of_a_fresh_layer_are_a_coincidence():
    found = model(TRANSPOSED, np.ones((4, 3), np.float32), TORCH, np.ones((3, 4), np.float32))
    assert not tie_copies(found).modified


def test_two_possible_sources_are_told():
    text = TEXT.format(**TRANSPOSED).replace("h = ", "o = MatMul(x, v) h = ")
    text = text.replace("float[3,4] w,", "float[3,4] w, float[3,4] v,")
    w = weights(3, 4)
    found = text_model(text, w=w, v=w, val_1=w.T)
    for name in ("w", "v"):
        stamp_origin(found.graph.initializers[name], Origin("module"))
    stamp_origin(found.graph.initializers["val_1"], Origin("folded"))
    report = tie_copies(found)
    assert not report.modified
    assert report.notes[0].startswith("'val_1' equals 'v', 'w': it is trained separately")


def test_a_tied_output_layer_is_one_parameter():
    """The table gets the gradients of both uses: their sum, from two separate tables."""
    table, x = weights(5, 4), np.array([[1, 3], [0, 2]])

    def gradients(kinds):
        text = """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,S] x, float[5,4] emb, float[4,5] val_1) => (float[N,S,5] y) {
          e = Gather(emb, x) y = MatMul(e, val_1) }"""
        found = text_model(text, emb=table, val_1=np.ascontiguousarray(table.T))
        for name, kind in kinds.items():
            stamp_origin(found.graph.initializers[name], Origin(kind))
        loss = ob.LossConfig(class_axis=-1)
        rates = {"learning_rate": 1.0}
        program = ob.build_program(
            found, ob.ProgramConfig(loss=loss, optimizer=ob.Sgd(), engine="portable")
        )
        stepper = ob.Stepper(program, device="cpu")
        stepper.step({"x": x, "labels": np.array([[2, 0], [4, 1]])}, rates)
        trained = [n for n in ("emb", "val_1") if n in program.initial]
        return {name: program.initial[name] - stepper.get(name) for name in trained}

    apart = gradients({"emb": "parameter", "val_1": "parameter"})
    tied = gradients({"emb": "parameter", "val_1": "folded"})
    assert list(apart) == ["emb", "val_1"]
    assert list(tied) == ["emb"]
    np.testing.assert_allclose(tied["emb"], apart["emb"] + apart["val_1"].T, atol=1e-6)


def test_a_copy_of_a_copy_is_tied_through_it():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,3] x, float[3,4] w, float[4,3] t, float[3,4] d) => (float[N,4] y) {
      g = MatMul(x, w) h = MatMul(g, t) y = MatMul(h, d) }"""
    found = text_model(text, w=weights(3, 4), t=weights(3, 4).T, d=weights(3, 4))
    assert tie_copies(found).changed == {"t": "computed from 'w'", "d": "computed from 't'"}
    read = [value for node in found.graph for value in node.inputs]
    assert all(value.producer() or value.graph is found.graph for value in read)


def test_what_the_body_of_a_loop_captured_is_a_copy():
    """jax2onnx stores a weight again in the body of a loop that reads it from outside."""
    found = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2] x, float[2,2] w) => (float[N,2] y)
        <int64 turns = {2}, bool go = {1}> {
          h = MatMul(x, w)
          y = Loop <body = turn (int64 i, bool c, float[N,2] s) => (bool d, float[N,2] t)
              <float[2,2] v = {1, 2, 3, 4}> { d = Identity(c) t = MatMul(s, v) }>
            (turns, go, h) }""",
        w=np.float32([[1, 2], [3, 4]]),
    )
    store_weights(found)
    assert tie_copies(found).changed == {"v": "computed from 'w'"}
