from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ortboost.deploy.write_verified as write_verified_module
from ortboost.core.errors import ParityError
from ortboost.core.report import Report
from ortboost.deploy.export import export_network
from ortboost.deploy.intermediates import (
    AT_A_TIME,
    first_difference,
    intermediate_floats,
    measure_ranges,
    run_intermediates,
)
from ortboost.deploy.pipeline import REWRITES, STAGES, optimize
from ortboost.deploy.targets import TARGETS, get_target
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.write_verified import faulty_step, write_verified
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.support import (
    GOLDEN,
    NAMES,
    assert_three_lines,
    model_path,
    run,
    small_convnet,
    text_model,
    weights,
)

X = {"x": weights(5, 1, 6, 6, seed=3)}


def made_up(name, size=3):
    rng = np.random.default_rng(1)
    model = ir.load(model_path(name))
    (value,) = model.graph.inputs
    shape = [size, *value.shape[1:]]
    if value.dtype == ir.DataType.INT64:
        return {value.name: rng.integers(0, 200, shape)}
    return {value.name: rng.standard_normal(shape).astype(np.float32)}


def test_every_rewrite_is_in_a_stage():
    assert {name for _, names in STAGES.values() for name in names.split()} == set(REWRITES)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_for_every_target(name, target, tmp_path):
    exported = export_network(model_path(name), target=get_target(target))
    proto = ir.to_proto(exported.model)
    onnx.checker.check_model(proto, full_check=True)
    wanted = get_target(target)
    assert proto.opset_import[0].version in wanted.opsets
    assert proto.ir_version <= wanted.ir_version
    assert {opset.domain for opset in proto.opset_import} == {""}
    assert len(proto.graph.node) <= len(exported.base.graph)
    feeds = made_up(name)
    expected = run(exported.base, feeds)
    parity = write_verified(exported, tmp_path / "o.onnx", expected=[expected], feeds=[feeds])
    assert parity.worst.max_rel < 1e-5
    steps = [step.name for step in exported.steps]
    again, _ = optimize(exported.model, wanted)
    assert not [report.rewrite for report in again if report.changed]
    assert "fold_bn" in steps


@pytest.mark.parametrize(
    ("name", "nodes"),
    [
        ("mlp", 3),
        ("lenet5", 12),
        ("resnet20", 52),
        ("resnet_bottleneck", 44),
        ("mobilenet_like", 29),
        ("transformer_tiny", 65),
    ],
)
def test_as_few_nodes_as_ever(name, nodes):
    """The best of onnxscript, onnxslim and onnxsim, and for the transformer fewer nodes (79)."""
    model = export_network(model_path(name), target=get_target("onnxruntime")).model
    assert len(model.graph) <= nodes


@pytest.mark.parametrize("path", sorted((GOLDEN / "exports").glob("*.onnx")), ids=lambda p: p.stem)
def test_what_exporters_write(path):
    exported = export_network(path, target=get_target("onnxruntime"))
    onnx.checker.check_model(ir.to_proto(exported.model), full_check=True)
    (value,) = exported.base.graph.inputs
    feeds = {value.name: weights(*[d if isinstance(d, int) else 2 for d in value.shape])}
    want, have = run(exported.base, feeds), run(exported.model, feeds)
    for name in want:
        np.testing.assert_allclose(have[name], want[name], rtol=1e-4, atol=1e-5)
    assert not {"BatchNormalization", "Dropout", "Identity", "Constant"} & {
        node.op_type for node in exported.model.graph
    }


def test_nodes_in_training_mode_are_compared_in_inference_form(tmp_path):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[n,4,5,5] x, float[4] s, float[4] b, float[4] m, float[4] v, float r, bool t)
        => (float[n,4,5,5] y, float[4] nm, float[4] nv) {
          h, nm, nv = BatchNormalization<training_mode = 1>(x, s, b, m, v)
          y = Dropout(h, r, t)
        }""",
        s=weights(4), b=weights(4), m=weights(4), v=1 + weights(4) ** 2,
        r=np.float32(0.5), t=np.array(True),
    )  # fmt: skip
    exported = export_network(model)
    assert [v.name for v in exported.model.graph.outputs] == ["y"]
    assert [node.op_type for node in exported.model.graph] == ["BatchNormalization"]


# ---- the gate names who did it -------------------------------------------------------------------


@pytest.mark.parametrize("name", REWRITES)
def test_a_planted_mistake_is_caught_and_named(name, tmp_path, monkeypatch):
    original = REWRITES[name]

    def wrong(model, target):
        report = original(model, target)
        scale = ir.tensor(np.float32(1.01), name="spoil")
        if "spoil" not in model.graph.initializers:
            value = ir.Value(name="spoil", type=ir.TensorType(ir.DataType.FLOAT), const_value=scale)
            value.shape = ir.Shape([])
            model.graph.register_initializer(value)
            logits = model.graph.outputs[0]
            node = ir.node("Mul", [logits, value], name="spoilt")
            model.graph.append(node)
            node.outputs[0].type, node.outputs[0].shape = logits.type, logits.shape
            model.graph.outputs[0] = node.outputs[0]
            logits.name, node.outputs[0].name = "inner", "logits"
        return report

    monkeypatch.setitem(REWRITES, name, wrong)
    exported = export_network(small_convnet(), target=get_target("onnxruntime"))
    expected = [run(exported.base, X)]
    path = tmp_path / "o.onnx"
    path.write_bytes(b"the good one")
    with pytest.raises(ParityError) as info:
        write_verified(exported, path, expected=expected, feeds=[X])
    assert_three_lines(info.value)
    assert f"the rewrite '{name}'" in info.value.what
    assert path.read_bytes() == b"the good one"
    assert [p.name for p in tmp_path.iterdir()] == ["o.onnx"]


def test_a_mistake_before_the_rewrites_is_told_apart(tmp_path):
    exported = export_network(small_convnet())
    expected = [{"logits": run(exported.base, X)["logits"] + 1}]
    with pytest.raises(ParityError, match="the graph before any rewrite"):
        write_verified(exported, tmp_path / "o.onnx", expected=expected, feeds=[X])


@pytest.mark.parametrize(("error", "cause"), [(0, "rounding, which this"), (5, "the graph before")])
def test_amplified_rounding_is_told_from_a_mistake(error, cause, tmp_path):
    """One unit in the last place of the inputs is 0.06 in the sine."""
    exported = export_network(
        text_model(
            """<ir_version: 8, opset_import: ["" : 17]> net (float[n,4] x) => (float[n,4] y) {
            big = Constant <value: tensor = float[1] {1e6}> () z = Mul(x, big) y = Sin(z) }"""
        )
    )
    feeds = {"x": 1 + np.abs(weights(5, 4))}
    expected = run(exported.base, {"x": np.nextafter(feeds["x"], np.float32(9))})["y"] + error
    with pytest.raises(ParityError, match=f"The cause is {cause}") as info:
        write_verified(exported, tmp_path / "o.onnx", expected=[{"y": expected}], feeds=[feeds])
    assert_three_lines(info.value)
    assert ("--atol 0." in info.value.fix) == (not error)


REWRITTEN = """<ir_version: 8, opset_import: ["" : 17]>
net (float[n,4] x, float[n,4] z) => (float[1,n,4] y) {
    one = Constant <value: tensor = float[1,1,1] {1.0}> () q = Div(one, x) y = Mul(z, q) }"""


@pytest.mark.parametrize(
    ("known", "cause", "optimize"),
    [
        (None, "the fusion 'DivMulFusion' of onnxruntime", True),
        ([], "an optimization of onnxruntime [0-9.]+[.]", True),
        ([], "an optimization of onnxruntime [0-9.]+[.]", False),
    ],
)
def test_an_optimization_of_the_runtime_is_told_from_a_rewrite(
    known, cause, optimize, tmp_path, monkeypatch
):
    """It makes z / x of (1 / x) z, which loses the first axis of the 1."""
    if known is not None:  # then there is no name for it
        monkeypatch.setattr(write_verified_module, "wrong_optimizers", lambda *_: known)
    target = get_target("onnxruntime")
    exported = export_network(text_model(REWRITTEN), target=target, optimize=optimize)
    feeds = {"x": weights(5, 4), "z": weights(5, 4, seed=1)}
    expected = {"y": (feeds["z"] * (np.float32(1) / feeds["x"]))[None]}
    with pytest.raises(ParityError, match=cause) as info:
        write_verified(exported, tmp_path / "o.onnx", expected=[expected], feeds=[feeds])
    assert_three_lines(info.value)
    assert "ORT_DISABLE_ALL" in info.value.fix


def test_an_optimization_that_makes_the_reference_wrong_is_told_from_a_rewrite(tmp_path):
    exported = export_network(text_model(REWRITTEN), target=get_target("onnxruntime"))
    feeds = {"x": weights(5, 4), "z": weights(5, 4, seed=1)}
    expected = {"y": feeds["z"] / feeds["x"]}  # of the runtime
    exported.model.graph.outputs[0].producer().op_type = "Sub"
    with pytest.raises(ParityError, match="without onnxruntime's optimizations the model itself"):
        write_verified(exported, tmp_path / "o.onnx", expected=[expected], feeds=[feeds])


@pytest.mark.parametrize("wrong", range(1, 8))
def test_halving_finds_the_first_wrong_step(wrong):
    from ortboost.deploy.pipeline import Step

    def step(number):
        def apply(model):
            model.metadata_props["done"] = model.metadata_props.get("done", "") + str(number)
            return Report(str(number))

        return Step(str(number), apply)

    base = small_convnet()
    steps = [step(number) for number in range(1, 8)]
    tried = []

    def passes(model):
        tried.append(model.metadata_props.get("done", ""))
        return str(wrong) not in tried[-1]

    assert faulty_step(base, steps, passes) == str(wrong)
    assert len(tried) <= 5
    assert "done" not in base.metadata_props
    assert faulty_step(base, steps, lambda _: False) == ""


# ---- inner tensors -------------------------------------------------------------------------------


def test_the_first_inner_tensor_that_differs():
    one, other = small_convnet(), small_convnet()
    for model in (one, other):
        infer_shapes(model)
    weight = other.graph.initializers["fw"]
    weight.const_value = ir.tensor(weight.const_value.numpy() * 1.5, name="fw")
    found = first_difference(one, other, X, Tolerance())
    assert (found.difference.output, found.node, found.op_type) == ("logits", "fc", "Gemm")
    assert found.inputs == ("f", "fw", "fb")
    scale = other.graph.initializers["s"]
    scale.const_value = ir.tensor(scale.const_value.numpy() * 1.5, name="s")
    assert first_difference(one, other, X, Tolerance()).node == "bn"
    assert first_difference(one, one, X, Tolerance()) is None


def test_inner_tensors_come_in_portions():
    length = 2 * AT_A_TIME + 5
    body = " ".join(f"h{i + 1} = Neg(h{i})" for i in range(length))
    text = f"""<ir_version: 10, opset_import: ["" : 18]> net (float[n] x) => (float[n] y) {{
        h0 = Abs(x) {body} y = Relu(h{length}) }}"""
    model = ir.from_onnx_text(text)
    infer_shapes(model)
    x = np.array([3, -7, 2], np.float32)
    ranges = measure_ranges(model, [{"x": x}, {"x": x * 2}])
    assert len(ranges) == length + 2
    assert ranges["h70"] == 14
    assert run_intermediates(model, ["h1"], {"x": x})["h1"].tolist() == [-3, -7, -2]
    assert [value.name for value in intermediate_floats(model)][:2] == ["h0", "h1"]
    assert [value.name for value in model.graph.outputs] == ["y"]


def test_the_model_given_is_not_changed():
    model = small_convnet()
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    export_network(model, target=get_target("tensorrt"))
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before


def test_control_flow_sequences_and_strings():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[n,3] x, bool flag, int64 trips)
    => (float[n,3] y, float[a,b] z, float[c,d] same, float[m,3] joined)
    {
      one = Constant<value = float {1.0}>()
      y = If (flag) <
        then_branch = g1 () => (float[n,3] t) { a = Identity(x) b = Mul(a, one) t = Relu(b) },
        else_branch = g2 () => (float[n,3] e) { e = Identity(x) }
      >
      go = Constant<value = bool {1}>()
      r = Identity(x)
      z = Loop (trips, go, r) <
        body = g3 (int64 i, bool c, float[n,3] v) => (bool c2, float[n,3] w) {
          c2 = Identity(c) two = Constant<value = float {2.0}>()
          k = Mul(v, two) q = Identity(k) w = Add(q, x)
        }
      >
      same = Identity(x)
      s = SplitToSequence<axis = 0>(x)
      joined = ConcatFromSequence<axis = 0>(s)
    }"""
    model = ir.from_onnx_text(text)
    for target in ("generic", "onnxruntime"):
        exported = export_network(model, target=get_target(target))
        onnx.checker.check_model(ir.to_proto(exported.model), full_check=True)
        assert len(list(exported.model.graph.all_nodes())) == 10
        for flag in (True, False):
            feeds = {"x": weights(4, 3), "flag": np.array(flag), "trips": np.array(3)}
            want, have = run(model, feeds), run(exported.model, feeds)
            for name in want:
                np.testing.assert_allclose(have[name], want[name], rtol=1e-6)


@pytest.mark.parametrize("opset", [7, 9, 11, 12])
def test_old_opsets(opset):
    text = f"""<ir_version: 6, opset_import: ["" : {opset}]> net
        (float[n,3,4] x) => (float[n,12] y) {{
        a = Unsqueeze<axes = [1]>(x) b = Squeeze<axes = [1]>(a) c = Flatten(b) y = Relu(c) }}"""
    exported = export_network(ir.from_onnx_text(text), target=get_target("onnxruntime"))
    x = weights(2, 3, 4)
    assert exported.model.opset_imports[""] >= 13
    assert [node.op_type for node in exported.model.graph] == ["Flatten", "Relu"]
    np.testing.assert_array_equal(
        run(exported.model, {"x": x})["y"], np.maximum(x, 0).reshape(2, -1)
    )
