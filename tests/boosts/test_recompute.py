"""Activation checkpointing: bitwise equal results with less memory at a time."""

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import GroupLossScale, LossScale, MixedPrecision, Recompute
from ortboost.boosts.roles import SCALE
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.graph.reach import uses_inside
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import (
    ENGINES,
    assert_same_bits,
    batch_for,
    model_path,
    shipped_program,
    stepper,
    text_model,
    weights,
)

COPY = "/again"


def boosted(name, engine, every="best", **fields):
    boosts = (Recompute(every=every), LossScale())
    return shipped_program(name, engine=engine, boosts=boosts, **fields)


def assert_same_training(one, other, steps=4):
    first, second = stepper(one), stepper(other)
    for number in range(steps):
        feeds = batch_for(one, seed=number)
        if number == 1:  # an overflow
            name = one.catalogue.batch[0].name
            if feeds[name].dtype.kind == "f":
                feeds[name] = np.clip(feeds[name], -3, 3) * np.float32(1e38)
        answers = [s.step(feeds, {"learning_rate": 0.01}, seed=number) for s in (first, second)]
        assert answers[0].overflow == answers[1].overflow
        np.testing.assert_array_equal(answers[0].loss, answers[1].loss)
    assert_same_bits(first.state(), second.state())


@pytest.mark.parametrize("every", ["best", "block"])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["resnet20", "transformer_tiny", "mobilenet_like"])
def test_the_same_bits(name, engine, every):
    program = boosted(name, engine, every)
    copies = [n for n in program.step.graph if (n.outputs[0].name or "").endswith(COPY)]
    assert len(copies) > 10
    assert_same_training(shipped_program(name, engine=engine), program)


@pytest.mark.parametrize("engine", ENGINES)
def test_boundaries_between_loss_scales_are_not_copied(engine):
    """A copy would carry the ratio of the scales, which is 1 only as long as they are equal."""
    grouped = GroupLossScale(GroupedScaleConfig(2.0**6, groups=3))
    states = []
    for boosts in ((grouped,), (grouped, Recompute(every="block"))):
        one = stepper(shipped_program("resnet20", engine=engine, boosts=boosts))
        one.set(SCALE, np.array([2.0**6, 2.0**4, 2.0**8], np.float32))
        one.step(batch_for(one.program), {"learning_rate": 0.01})
        states.append(one.state())
    for name, value in states[0].items():
        np.testing.assert_allclose(states[1][name], value, atol=1e-5, err_msg=name)


def ancestors(node):
    found, pending = {}, [node]
    while pending:
        for value in (*(p := pending.pop()).inputs, *uses_inside(p)):
            made = None if value is None else value.producer()
            if made is not None and id(made) not in found:
                found[id(made)] = made
                pending.append(made)
    return found.values()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copy_waits_for_the_gradient(engine):
    """No copy can run before the loss: a runtime that runs it early saves nothing."""
    program = boosted("resnet20", engine)
    graph = program.step.graph
    read = {id(v) for node in graph for v in node.inputs}
    copies = [n for n in graph if (n.outputs[0].name or "").endswith(COPY)]
    loss_nodes = {"LogSoftmax", "Softmax", "SoftmaxCrossEntropyLoss", "SoftmaxCrossEntropyLossGrad"}
    for node in copies:
        assert any(id(value) in read for value in node.outputs)
        assert any(
            before.op_type in loss_nodes | {"ReduceMax", "Exp"} for before in ancestors(node)
        )


def live_bytes(program, batch):
    """The most bytes of activations at once, in the order of the file; states not counted."""
    model = ir.to_proto(program.step)
    names = {s.name for s in program.catalogue.state}
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = batch
    model = onnx.shape_inference.infer_shapes(model)
    sizes = {
        v.name: int(np.prod([d.dim_value or batch for d in v.type.tensor_type.shape.dim])) * 4
        for v in model.graph.value_info
    }
    last = {}
    for index, node in enumerate(program.step.graph):
        for value in (*node.inputs, *uses_inside(node)):
            last[value.name if value is not None else ""] = index
    live, peak = {}, 0
    for index, node in enumerate(program.step.graph):
        if node.op_type in ("Reshape", "If"):  # views, and the update
            continue
        live.update({v.name: sizes.get(v.name, 0) for v in node.outputs if v.name not in names})
        peak = max(peak, sum(live.values()))
        live = {name: size for name, size in live.items() if last.get(name, -1) > index}
    return peak


def test_it_saves_memory():
    plain = shipped_program("resnet20", engine="portable", boosts=(LossScale(),))
    assert live_bytes(boosted("resnet20", "portable"), 64) < 0.75 * live_bytes(plain, 64)


def test_what_was_drawn_is_kept():
    """A second draw of a Dropout would differ."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N,6] x, float[6,32] w1, float[32,32] w2, float[32,8] w3, float[8,3] w4, float half,
        bool on) => (float[N,3] y) {
        a = Gemm(x, w1) b = Relu(a) d = Dropout(b, half, on) e = Gemm(d, w2) f = Tanh(e)
        h = Gemm(f, w3) k = Tanh(h) y = Gemm(k, w4) }""",
        w1=weights(6, 32),
        w2=weights(32, 32, seed=1),
        w3=weights(32, 8, seed=2),
        w4=weights(8, 3, seed=3),
        half=np.float32(0.5),
        on=np.array(True),
    )
    plain = build_program(model, ProgramConfig(engine="portable"))
    boosts = (Recompute(every="block"), LossScale())
    program = build_program(model, ProgramConfig(engine="portable", boosts=boosts))
    assert program.catalogue.randomness
    assert sum(n.op_type == "Dropout" for n in program.step.graph) <= 1
    assert_same_training(plain, program)


@pytest.mark.parametrize("engine", ENGINES)
def test_with_mixed_precision(engine):
    boosts = (MixedPrecision(), LossScale())
    plain = shipped_program("resnet20", engine=engine, boosts=boosts)
    program = shipped_program("resnet20", engine=engine, boosts=(Recompute(), *boosts))
    assert_same_training(plain, program)


@pytest.mark.parametrize("engine", ENGINES)
def test_two_branches(engine):
    """A decoder that reads each of its layers and the encoder: backward needs copies of both."""
    layers = " ".join(
        f"p{i} = Gemm(d{i}, w) q{i} = Tanh(p{i}) r{i} = MatMul(q{i}, kt) s{i} = Softmax(r{i}) "
        f"t{i} = MatMul(s{i}, e) d{i + 1} = Add(q{i}, t{i})"
        for i in range(3)
    )
    encoder = " ".join(
        f"a{i} = Gemm(e{i}, w) b{i} = Relu(a{i}) c{i} = Mul(b{i}, a{i}) f{i} = Tanh(c{i}) "
        f"e{i + 1} = Gemm(f{i}, w)"
        for i in range(4)
    )
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[6,8] x, float[6,8] z, float[8,8] w) => (float[6,8] y) {{
        e0 = Identity(x) {encoder} e = Identity(e4) kt = Transpose<perm=[1,0]>(e)
        d0 = Identity(z) {layers} y = Gemm(d3, w) }}""",
        w=weights(8, 8),
    )
    plain = build_program(model, ProgramConfig(engine=engine))
    boosts = (Recompute(every="block"), LossScale())
    program = build_program(model, ProgramConfig(engine=engine, boosts=boosts))
    assert any((n.outputs[0].name or "").endswith(COPY) for n in program.step.graph)
    assert_same_training(plain, program)


@pytest.mark.parametrize(("dims", "said"), [({"batch": 8}, False), ({}, True)])
def test_the_estimate_says_whether_it_guesses_lengths(dims, said):
    config = ProgramConfig(boosts=(Recompute(), LossScale()), inputs=InputConfig(dims=dims))
    program = build_program(model_path("lenet5"), config)
    (report,) = (r for r in program.reports if r.rewrite == "recompute")
    assert "segments" in report.notes[0]
    assert ("unknown lengths counted as 32" in report.notes[0]) is said


def test_a_graph_without_a_narrow_place_says_so():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        g (float[N,4] x, float[4,2] w) => (float[N,2] y) { y = Gemm(x, w) }""",
        w=weights(4, 2),
    )
    program = build_program(model, ProgramConfig(boosts=(Recompute(), LossScale())))
    (report,) = (r for r in program.reports if r.rewrite == "recompute")
    assert not report.changed
    assert "no single tensor" in report.notes[0]


def test_evaluation_is_left_alone():
    program = boosted("lenet5", "portable")
    plain = shipped_program("lenet5", engine="portable", boosts=(LossScale(),))
    assert [n.op_type for n in program.evaluation.graph] == [
        n.op_type for n in plain.evaluation.graph
    ]
