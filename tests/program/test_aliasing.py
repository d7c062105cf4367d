"""The proof that a state may be updated in place: accepted and refused graphs."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.loss_scale import NO_SCALE
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.aliasing import in_place_states
from ortboost.program.build import build_program
from ortboost.program.catalogue import Catalogue, StateEntry
from ortboost.program.config import ClipConfig, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    ENGINES,
    NAMES,
    assert_same_bits,
    batch_for,
    run,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

OPTIMIZERS = {
    "sgd": Sgd(),
    "momentum": Momentum(dampening=0.1),
    "nesterov": Sgd(momentum=0.9, nesterov=True),
    "adam": Adam(amsgrad=True, nesterov=True),
    "adamw": AdamW(),
    "lars": Lars(),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("name", NAMES)
def test_every_state_of_the_shipped_models_is_proven(name, optimizer):
    program = shipped_program(
        name,
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=0.01,
        clip=ClipConfig("global-norm", 1.0),
        metrics=("accuracy",),
    )
    proven = in_place_states(program.step, program.catalogue)
    assert {e.name for e in program.catalogue.state if e.next} - proven == set()


@pytest.mark.parametrize("fields", [{"loss_scale": NO_SCALE}, {"gate_buffers": False}], ids=str)
def test_other_gated_forms_are_proven_too(fields):
    program = build_program(small_convnet(), ProgramConfig(**fields))
    proven = in_place_states(program.step, program.catalogue)
    assert {e.name for e in program.catalogue.state if e.next} - proven == set()


def test_without_the_gate_nothing_is_proven():
    program = build_program(small_mlp(), ProgramConfig(loss_scale=NO_SCALE, check_finite=False))
    assert in_place_states(program.step, program.catalogue) == frozenset()


def test_what_the_runtime_moves_a_transpose_behind_still_reads_the_state():
    """Its optimizer lets the loss read the weight itself, after the update: a wrong loss."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[5,4] w) => (float loss) {
          t = Transpose<perm = [1, 0]>(w) s = Mul(t, t) loss = ReduceMean<keepdims = 0>(s) }""",
        w=weights(5, 4),
    )
    config = ProgramConfig(loss=LossConfig("output"), parameters={"w": True})
    opened = stepper(build_program(model, config))
    found = opened.step({}, {"learning_rate": 0.1}).loss
    assert found == pytest.approx(np.mean(weights(5, 4) ** 2))


@pytest.mark.parametrize(
    ("name", "optimizer"),
    [
        ("mlp", "adam"),
        ("lenet5", "momentum"),
        ("resnet_bottleneck", "lars"),
        ("mobilenet_like", "adamw"),
        ("transformer_tiny", "nesterov"),
    ],
)
def test_in_place_and_double_buffered_runs_have_the_same_bits(name, optimizer):
    program = shipped_program(
        name,
        optimizer=OPTIMIZERS[optimizer],
        weight_decay=0.01,
        clip=ClipConfig("global-norm", 1.0),
        metrics=("accuracy",),
    )
    one, two = stepper(program), stepper(program, in_place=False)
    for i in range(20):
        feeds = batch_for(program, 4, seed=i)
        if i in (3, 4, 11) and feeds[program.catalogue.batch[0].name].dtype == np.float32:
            feeds["x"][0] = np.inf
        results = [s.step(feeds, {"learning_rate": 0.01}, seed=i) for s in (one, two)]
        assert results[0].overflow == results[1].overflow
        assert results[0].loss_scale == results[1].loss_scale
        np.testing.assert_array_equal(results[0].loss, results[1].loss)
    assert_same_bits(one.state(), two.state())


# ---- planted graphs ---------------------------------------------------------------------------


def planted(
    outside: str = "",
    then: str = "n = Sub(w, g)",
    otherwise: str = "m = Identity(w)",
    extra: str = "",
) -> tuple[ir.Model, Catalogue]:
    """`w` and `v` are states, `g` a gradient of `w`, `ok` depends on it; `outside` is planted."""
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        step (float[2,2] x, float[2,2] w, float[2,2] v)
          => (float[2,2] next_w, float[2,2] next_v{extra}) {{
          h = MatMul(x, w)
          g = MatMul(h, w)
          s = ReduceSum<keepdims = 0>(g)
          zero = Constant<value_float = 0.0>()
          z = Mul(s, zero)
          ok = Equal(z, zero)
          {outside}
          next_w, next_v = If(ok) <
            then_branch = yes () => (float[2,2] n, float[2,2] a) {{ {then} a = Add(v, g) }},
            else_branch = no () => (float[2,2] m, float[2,2] b) {{ {otherwise} b = Identity(v) }}
          >
        }}"""
    )
    entries = [
        StateEntry(name, "parameter", np.dtype(np.float32), (2, 2), f"next_{name}") for name in "wv"
    ]
    return model, Catalogue((), (), tuple(entries), ())


def test_the_planted_frame_itself_is_safe():
    assert in_place_states(*planted()) == {"w", "v"}


@pytest.mark.parametrize("length", ["Shape", "Size"])
def test_a_reader_of_which_only_a_length_is_needed_may_run_late(length):
    """`u` is 2 x 2, which a runtime knows without computing it."""
    outside = f"u = Add(w, w) k = {length}(u)"
    needed = "c = Cast<to = 1>(k) e = ReduceSum(c) d = Mul(g, e) n = Sub(w, d)"
    assert in_place_states(*planted(outside, needed)) == {"v"}
    assert in_place_states(*planted("u = Add(w, w) k = Identity(u)", needed)) == {"w", "v"}


def test_a_reader_of_which_only_the_type_is_needed_may_run_late():
    """A runtime folds the CastLike, as it may for ``torch.lerp`` of the dynamo exporter."""
    outside = "u = Add(w, w) o = Constant<value_float = 1.0>() k = CastLike(o, u)"
    assert in_place_states(*planted(outside, "d = Mul(g, k) n = Sub(w, d)")) == {"v"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_loss_that_adds_a_parameter_reads_it_before_the_update(engine):
    """The weights of several losses, learned: ``(exp(-v) * losses + v).sum()``."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,2] x, float[2] v) => (float loss) <int64[1] rows = {0}> {
          m = ReduceMean<keepdims = 0>(x, rows) n = Neg(v) e = Exp(n) p = Mul(m, e)
          s = Add(p, v) loss = ReduceSum<keepdims = 0>(s) }""",
        v=np.zeros(2, np.float32),
    )
    config = ProgramConfig(loss=LossConfig("output", output="loss"), engine=engine)
    result = stepper(build_program(model, config)).step(
        {"x": np.full((3, 2), 5, np.float32)}, {"learning_rate": 0.5}
    )
    assert result.loss == 10.0


@pytest.mark.parametrize(
    "outside",
    [
        "norm = ReduceL2<keepdims = 0>(w)",
        "t = Transpose<perm = [1, 0]>(w) norm = ReduceL2<keepdims = 0>(t)",
        # The Reshape itself has run: h could depend on it. Its output is still the memory of w.
        "shape = Constant<value_ints = [4]>() r = Reshape(w, shape) norm = ReduceL2<keepdims = "
        "0>(r)",
        "i = Identity(w) norm = ReduceL2<keepdims = 0>(i)",
    ],
)
def test_a_reader_that_may_come_after_the_writer(outside):
    model, catalogue = planted(outside, extra=", float norm")
    assert in_place_states(model, catalogue) == {"v"}


def test_a_late_reader_of_a_view_that_the_gradient_reads_too():
    _, catalogue = planted()
    text = """<ir_version: 10, opset_import: ["" : 18]>
        step (float[2,2] x, float[2,2] w, float[2,2] v) =>
            (float[2,2] next_w, float[2,2] next_v, float norm) {
          shape = Constant<value_ints = [2, 2]>()
          r = Reshape(w, shape)
          g = MatMul(x, r)
          s = ReduceSum<keepdims = 0>(g)
          zero = Constant<value_float = 0.0>()
          z = Mul(s, zero)
          ok = Equal(z, zero)
          norm = ReduceL2<keepdims = 0>(r)
          next_w, next_v = If(ok) <
            then_branch = yes () => (float[2,2] n, float[2,2] a) { n = Sub(w, g) a = Add(v, g) },
            else_branch = no () => (float[2,2] m, float[2,2] b) { m = Identity(w) b = Identity(v) }
          >
        }"""
    assert in_place_states(text_model(text), catalogue) == {"v"}


def test_a_reader_that_the_gate_waits_for_is_safe():
    model, catalogue = planted(
        "norm = ReduceL2<keepdims = 0>(w)",
        then="n0 = Sub(w, g) n = Mul(n0, norm)",
        extra=", float norm",
    )
    assert in_place_states(model, catalogue) == {"w", "v"}


@pytest.mark.parametrize(
    "then",
    [
        "n = Transpose<perm = [1, 0]>(w)",
        "n = MatMul(w, g)",
        "n = Softmax(w)",
        "c = Concat<axis = 0>(w, g) n, rest = Split<axis = 0, num_outputs = 2>(c)",
        "n = Identity(v)",  # w takes the old v, which the branch overwrites
        "n = Sub(w, g) late = ReduceSum<keepdims = 0>(w)",
        "t = Identity(w) n = Sub(w, g) late = ReduceSum<keepdims = 0>(t)",
    ],
)
def test_writers_that_are_not_safe(then):
    model, catalogue = planted(then=then)
    assert in_place_states(model, catalogue) < {"w", "v"}


@pytest.mark.parametrize(
    "then",
    [
        "n = Sub(w, g)",
        "t = Transpose<perm = [1, 0]>(w) n = Add(t, g)",  # reads a copy
        "l = ReduceL2<keepdims = 0>(w) q = Mul(g, l) n = Sub(w, q)",
    ],
)
def test_writers_that_are_safe(then):
    model, catalogue = planted(then=then)
    assert in_place_states(model, catalogue) == {"w", "v"}


def test_swapped_outputs():
    model, catalogue = planted(then="n = Identity(v)", otherwise="m = Identity(v)")
    for attribute in next(n for n in model.graph if n.op_type == "If").attributes.values():
        branch = attribute.as_graph()
        node = branch.outputs[1].producer()
        node.op_type, inputs = "Identity", node.inputs
        node.resize_inputs(1)
        node.replace_input_with(0, model.graph.inputs[1])
        assert inputs is not None
    x = np.zeros((2, 2), np.float32)
    found = run(model, {"x": x, "w": x + 1, "v": x + 2})
    np.testing.assert_array_equal(found["next_w"], x + 2)
    np.testing.assert_array_equal(found["next_v"], x + 1)
    assert in_place_states(model, catalogue) == frozenset()


def test_a_writer_that_is_no_gate():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        step (float[2,2] x, float[2,2] w) => (float[2,2] next_w, float[2,2] g) {
          h = MatMul(x, w)
          g = MatMul(h, w)
          next_w = Sub(w, x)
        }"""
    )
    entry = StateEntry("w", "parameter", np.dtype(np.float32), (2, 2), "next_w")
    assert in_place_states(model, Catalogue((), (), (entry,), ())) == frozenset()


def test_a_reader_in_another_gate():
    model, catalogue = planted(
        """late = If(ok) <
            then_branch = t2 () => (float[2,2] p) { p = Relu(w) },
            else_branch = e2 () => (float[2,2] q) { q = Neg(w) }
          >""",
        extra=", float[2,2] late",
    )
    assert in_place_states(model, catalogue) == {"v"}
