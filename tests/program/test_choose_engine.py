"""``--engine auto``: the first engine that supports the model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.check import check_trainable, find_blockers
from ortboost.autodiff.engine import get_engine
from ortboost.autodiff.portable.engine import PortableEngine
from ortboost.boosts import GradFreeze
from ortboost.core.errors import ModelError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.optimizers import Sgd
from ortboost.program import choose_engine as choose_engine_module
from ortboost.program.build import build_program
from ortboost.program.choose_engine import choose_engine
from ortboost.program.config import ProgramConfig
from tests.support import (
    ENGINES,
    assert_three_lines,
    needs_native,
    small_mlp,
    stepper,
    text_model,
    weights,
)


def recurrent():
    """Only the portable engine differentiates a GRU."""
    return text_model(
        """<ir_version: 8, opset_import: ["" : 18]>
        net (float[5,N,3] x, float[1,12,3] w, float[1,12,4] r, float[4,2] v) => (float[N,2] y) {
          [gru] h, last = GRU<hidden_size = 4>(x, w, r)
          ax = Constant<value = int64[1] {0}>()
          s = Squeeze(last, ax) y = MatMul(s, v) }""",
        w=weights(1, 12, 3),
        r=weights(1, 12, 4, seed=1),
        v=weights(4, 2, seed=2),
    )


def test_a_recurrent_model_is_trained():
    program = build_program(recurrent(), ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE))
    assert program.engine == "portable"
    assert {entry.name for entry in program.catalogue.entries("parameter")} == {"w", "r", "v"}
    training = stepper(program)
    before = training.get("r")
    batch = {"x": weights(5, 6, 3, seed=5), "labels": np.arange(6) % 2}
    training.step(batch, {"learning_rate": 0.5})
    assert np.abs(training.get("r") - before).max() > 0


@needs_native
def test_what_the_first_engine_cannot_do_goes_to_the_second(monkeypatch):
    monkeypatch.setattr(
        PortableEngine,
        "gradient_support",
        lambda _, node, *__: "not today" if node.op_type == "Relu" else None,
    )
    chosen = choose_engine(small_mlp(), ProgramConfig())
    assert chosen.engine.name == "native"
    (report,) = (r for r in chosen.forward.reports if r.rewrite == "choose_engine")
    (note,) = report.notes
    assert note.startswith("the native engine is used; portable: Relu '")
    assert note.endswith("': not today")
    assert note in chosen.forward.notes


def test_where_it_can_the_first_engine_is_taken_and_nothing_is_said():
    chosen = choose_engine(small_mlp(), ProgramConfig())
    assert chosen.engine.name == "portable"
    assert not any(report.rewrite == "choose_engine" for report in chosen.forward.reports)


@needs_native
def test_an_engine_that_was_asked_for_stays_and_the_error_names_the_other():
    with pytest.raises(ModelError) as caught:
        build_program(recurrent(), ProgramConfig(engine="native"))
    assert_three_lines(caught.value)
    assert "GRU 'gru'" in caught.value.where
    assert caught.value.fix == "Use --engine portable, which can differentiate it."


def test_what_no_engine_can_do_is_refused_with_the_reasons_of_the_first():
    foreign = text_model(
        """<ir_version: 8, opset_import: ["" : 18, "my" : 1]>
        net (float[N,3] x, float[3,2] w) => (float[N,2] y) {
          h = MatMul(x, w) [thing] y = my.Thing(h) }""",
        w=weights(3, 2),
    )
    for engine in ("auto", "portable"):
        with pytest.raises(ModelError) as caught:
            build_program(foreign, ProgramConfig(engine=engine))
        assert_three_lines(caught.value)
        assert "Thing 'thing'" in caught.value.where
        assert "--engine" not in caught.value.fix


@needs_native
@pytest.mark.parametrize("refuses", [["native"], ["portable"], ["portable", "native"]])
def test_an_engine_that_cannot_prepare_a_model_is_passed_over(monkeypatch, refuses):
    """Blockers of one engine say more than what another one could not even prepare."""
    prepared = choose_engine_module._prepared

    def prepare(source, config, engine):
        if engine.name in refuses:
            raise ModelError(f"{engine.name} cannot.", where="here", fix="Do.")
        return prepared(source, config, engine)

    monkeypatch.setattr(choose_engine_module, "_prepared", prepare)
    monkeypatch.setattr(PortableEngine, "gradient_support", lambda *_: "not today")
    if len(refuses) == 2:
        with pytest.raises(ModelError, match="portable cannot"):
            choose_engine(small_mlp(), ProgramConfig())
        return
    chosen = choose_engine(small_mlp(), ProgramConfig())
    (other,) = {"native", "portable"} - set(refuses)
    assert chosen.engine.name == other
    assert bool(chosen.blockers) is (other == "portable")


def test_a_model_without_blockers_is_not_rewritten_to_find_none(monkeypatch):
    monkeypatch.setattr(PortableEngine, "prepare", lambda *_: pytest.fail("it was prepared"))
    chosen = choose_engine(small_mlp(), ProgramConfig(engine="portable"))
    assert not chosen.blockers


@pytest.mark.parametrize("operator", ["HardSwish", "Round", "Softsign", "Mish", "Einsum"])
def test_the_short_way_finds_the_blockers_of_the_long_one(operator):
    inside = 'Einsum<equation = "ij->ji">(h)' if operator == "Einsum" else f"{operator}(h)"
    model = text_model(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,2] w) => (float[N,2] y) {{
          h = MatMul(x, w) [act] y = {inside} }}""",
        w=weights(3, 2),
    )
    infer_shapes(model)
    for engine in (get_engine("portable"), Refusing()):
        about = {"wrt": ["w"], "loss": "y", "engine": engine}
        expected = check_trainable(model, **about).blockers
        assert find_blockers(model, **about) == expected
        assert bool(expected) is (operator == "Round" or isinstance(engine, Refusing))


class Refusing(PortableEngine):
    """Differentiates no product."""

    def gradient_support(self, node, *active):
        return "no" if node.op_type == "MatMul" else super().gradient_support(node, *active)


def test_a_prepared_graph_is_not_prepared_again(monkeypatch):
    calls: list[str] = []
    real = PortableEngine.prepare

    def prepare(engine, model):
        calls.append("prepare")
        return real(model)

    monkeypatch.setattr(PortableEngine, "prepare", prepare)
    config = ProgramConfig(boosts=(GradFreeze(p=0.5, groups=2),), engine="portable")
    assert len(build_program(small_mlp(), config).variants) == 1
    assert calls == ["prepare"]


def in_type(word, dtype):
    """A small network in one type."""
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({word}[N,4] x, {word}[5,4] w, {word}[5] b, {word}[5] g, {word}[3,5] v) =>
        ({word}[N,3] y) {{
          [fc] h = Gemm<transB = 1>(x, w, b)
          [norm] n = LayerNormalization(h, g, b)
          [head] y = Gemm<transB = 1>(n, v) }}""",
        **{
            name: weights(*shape, seed=i).astype(dtype)
            for i, (name, shape) in enumerate(
                {"w": (5, 4), "b": (5,), "g": (5,), "v": (3, 5)}.items()
            )
        },
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(("word", "dtype"), [("float16", np.float16), ("double", np.float64)])
def test_a_network_of_another_type_is_trained_in_float32(word, dtype, engine):
    config = ProgramConfig(optimizer=Sgd(), loss_scale=NO_SCALE, engine=engine)
    program = build_program(in_type(word, dtype), config)
    assert any("becomes float32" in n for r in program.reports for n in r.notes)
    same = in_type("float", np.float32)
    for name, value in same.graph.initializers.items():
        rounded = value.const_value.numpy().astype(dtype).astype(np.float32)
        value.const_value = ir.tensor(rounded, name=name)
    expected = build_program(same, config)
    for p in (program, expected):
        assert [spec.dtype for spec in p.catalogue.batch] == [np.float32, np.int64]
    feeds = {"x": weights(6, 4, seed=9), "labels": np.arange(6) % 3}
    left, right = stepper(program), stepper(expected)
    for _ in range(3):
        step = [one.step(feeds, {"learning_rate": 0.5}) for one in (left, right)]
        assert step[0].loss == step[1].loss


def test_a_frozen_part_keeps_its_type():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float16[5,4] w, float[3,5] v) => (float[N,3] y) {
          c = Cast<to = 10>(x)
          [fc] h = Gemm<transB = 1>(c, w)
          d = Cast<to = 1>(h)
          [head] y = Gemm<transB = 1>(d, v) }""",
        w=weights(5, 4).astype(np.float16),
        v=weights(3, 5),
    )
    frozen = build_program(model, ProgramConfig(freeze=("w",)))
    assert {e.name: e.dtype for e in frozen.catalogue.state}["w"] == np.float16
    trained = build_program(model, ProgramConfig())
    assert {e.name: e.dtype for e in trained.catalogue.state}["w"] == np.float32
