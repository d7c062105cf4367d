"""LoRA: against PEFT, what is trained and adapted, and the exported file."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.boosts import FullNormHead, Lora
from ortboost.core.errors import ConfigError, ModelError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.deploy.export import export_model
from ortboost.optimizers import AdamW, Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.loss_config import LossConfig
from tests.support import (
    ENGINES,
    GOLDEN,
    assert_three_lines,
    batch_for,
    run,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}


def build(model=None, boost=None, **fields):
    fields = {"loss_scale": NO_SCALE, "boosts": (boost or Lora(rank=1),), **fields}
    return build_program(model or small_mlp(), ProgramConfig(**fields))


def trained(program):
    return [e.name for e in program.catalogue.entries("parameter") if e.next]


def report(program):
    (found,) = (r for r in program.reports if r.rewrite == "lora")
    return found


def linear(body, **stored):
    """A network with a square input of 8 features, and further stored tensors."""
    types = ", ".join(
        f"{'int8' if array.dtype == np.int8 else 'float'}[{','.join(map(str, array.shape))}] {name}"
        for name, array in stored.items()
    )
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        net (float[batch,8] x, {types}) => (float[batch,N] y) {{ {body} }}""",
        **stored,
    )


# ---- against PEFT -------------------------------------------------------------------------------


def peft_network(z):
    names = ("conv.weight", "conv.bias", "fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias")
    inputs = ", ".join(f'float[{",".join(map(str, z[n].shape))}] "{n}"' for n in names)
    body = """
        [conv] c = Conv<strides = [2, 2], pads = [1, 1, 1, 1]>(x, "conv.weight", "conv.bias")
        [r1] r = Relu(c)
        [pool] axes = Constant<value_ints = [2, 3]>()
        [mean] m = ReduceMean<keepdims = 0>(r, axes)
        [fc1] h = Gemm<transB = 1>(m, "fc1.weight", "fc1.bias")
        [r2] a = Relu(h)
        [fc2] logits = Gemm<transB = 1>(a, "fc2.weight", "fc2.bias")"""
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3,6,6] x, {inputs}) => (float[N,4] logits) {{ {body} }}""",
        **{name: z[name] for name in names},
    )


def laid_out(name, array):
    """PEFT's adapter of a linear layer as ours: ``[in, rank]`` and ``[rank, out]``."""
    return array.T if name.startswith("fc") else array


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("case", ["sgd", "adamw"])
def test_it_trains_as_peft(case, engine):
    z = np.load(GOLDEN / "torch" / "lora.npz")
    about = json.loads(str(z["cases"]))[case]
    rules = {"SGD": Sgd(momentum=0.9), "AdamW": AdamW()}
    program = build(
        peft_network(z),
        Lora(about["rank"], about["alpha"], layers=("conv*", "fc1*")),
        optimizer=rules[about["optimizer"]],
        weight_decay=about.get("weight_decay", 0.0),
        engine=engine,
    )
    training = stepper(program)
    names = [f"{layer}.lora_{half}" for layer in ("conv", "fc1") for half in "AB"]
    assert trained(program) == names
    training.load_state(
        training.state() | {n: laid_out(n, z[f"{case}/start/{n}"]).copy() for n in names}
    )
    for x, labels, loss in zip(z["x"], z["labels"], z[f"{case}/loss"], strict=True):
        result = training.step({"x": x, "labels": labels}, {"learning_rate": about["lr"]})
        assert result.loss == pytest.approx(loss, rel=2e-6)
    for name in names:
        found, expected = training.get(name), laid_out(name, z[f"{case}/{name}"])
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)
    exported = export_model(program, training.state()).model
    logits = run(exported, {"x": z["x"][-1]})["logits"]
    np.testing.assert_allclose(logits, z[f"{case}/logits"], rtol=2e-5, atol=2e-5)
    for layer in ("conv", "fc1"):
        merged = exported.graph.initializers[f"{layer}.weight"].const_value.numpy()
        expected = z[f"{case}/merged/{layer}.weight"]
        np.testing.assert_allclose(merged, expected, rtol=2e-5, atol=2e-6)


# ---- what is trained ----------------------------------------------------------------------------


def test_only_the_adapters_are_trained():
    program = build()
    training = stepper(program)
    before = training.state()
    assert trained(program) == ["w1.lora_A", "w1.lora_B", "w2.lora_A", "w2.lora_B"]
    for seed in range(2):
        training.step(batch_for(program, seed=seed), RATE)
    for entry in program.catalogue.entries("parameter"):
        moved = not np.array_equal(training.get(entry.name), before[entry.name])
        assert moved == ("lora" in entry.name)
    slots = {entry.name.rpartition("/")[2] for entry in program.catalogue.entries("slot")}
    assert slots == set(trained(program))


def test_nothing_changes_before_the_first_update():
    batch = batch_for(build())
    found = [
        stepper(p).evaluator().evaluate(batch)["logits"]
        for p in (build(), build_program(small_mlp(), ProgramConfig()))
    ]
    np.testing.assert_array_equal(*found)


def test_the_initial_values_are_bounded_and_seeded():
    one, same, other = (build(boost=Lora(1, seed=seed)).initial["w1.lora_A"] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one, same)
    assert not np.array_equal(one, other)
    assert np.abs(one).max() <= 1 / math.sqrt(4)
    assert not build().initial["w1.lora_B"].any()
    kernels = build(small_convnet(), Lora(1)).initial["cw.lora_A"]  # of a 3x3 window of 1 channel
    assert 0.9 / 3 < np.abs(kernels).max() <= 1 / 3


def test_patterns_of_the_user_add_to_the_adapters():
    names = ["w1.lora_A", "w1.lora_B", "w2.lora_A", "w2.lora_B"]
    assert sorted(trained(build(trainable=("b*",)))) == ["b1", "b2", *names]
    assert sorted(trained(build(freeze=("*lora_A",)))) == ["w1.lora_B", "w2.lora_B"]
    listed = build(parameters={"b1": True, "w1": False, "w1.lora_A": False})
    assert sorted(trained(listed)) == ["b1", *names[1:]]


def test_a_new_head_is_trained_as_a_whole():
    program = build(new_head=5)
    assert sorted(trained(program)) == ["b2", "w1.lora_A", "w1.lora_B", "w2"]
    assert report(program).kept["w2"] == "it is new, and trained as a whole"


def test_a_normalized_head_stays_normalized():
    program = build(boosts=(FullNormHead(), Lora(1)))
    assert trained(program) == ["w1.lora_A", "w1.lora_B", "w2.multiplier"]
    assert "stays normalized" in report(program).kept["w2"]


def test_the_note_counts_what_is_trained():
    (choice,) = (r for r in build().reports if r.rewrite == "choose_trainable")
    assert choice.notes == ["trains 19 of 70 parameters in 4 tensors; 4 tensors frozen"]
    assert choice.kept["w1"] == "frozen by lora"


def test_what_is_frozen_is_not_doubted():
    """A weight of 0 and 1 may be a mask, which matters only where it is trained."""
    model = linear("y = MatMul(x, w)", w=np.eye(8, dtype=np.float32))
    notes = {
        bool(boosts): [n for r in build_program(model, config).reports for n in r.notes]
        for boosts in ((), (Lora(2),))
        for config in [ProgramConfig(loss=LossConfig("mse"), boosts=boosts)]
    }
    assert [any("doubtful" in note for note in notes[lora]) for lora in (False, True)] == [1, 0]


# ---- what is adapted ----------------------------------------------------------------------------


def test_layers_are_chosen_by_patterns():
    program = build(boost=Lora(1, layers=("w2",)))
    assert trained(program) == ["w2.lora_A", "w2.lora_B"]
    assert report(program).kept == {"w1": "not among the layers"}
    with pytest.raises(ConfigError) as caught:
        build(boost=Lora(1, layers=("w2", "attention*")))
    assert_three_lines(caught.value)
    assert "'attention*' matches no" in str(caught.value)
    assert "w1, w2" in str(caught.value)


def test_a_weight_that_is_no_larger_than_its_adapters_is_kept():
    program = build(boost=Lora(2))
    assert "no smaller" in report(program).kept["w2"]
    with pytest.raises(ModelError) as caught:
        build(boost=Lora(3))
    assert_three_lines(caught.value)
    assert "'w1': adapters of rank 3 would be no smaller" in str(caught.value)


KEPT = {
    "a convolution of 2 groups": (
        "s = Constant<value_ints = [0, 2, 4, 1]>() r = Reshape(x, s) c = Conv<group = 2>(r, w) "
        "f = Flatten(c) m = MatMul(x, v) y = Concat<axis = 1>(f, m)",
        weights(8, 1, 1, 1),
    ),
    "both operands are stored": ("a = MatMul(v, w) y = MatMul(x, a)", weights(8, 8)),
    "its input is transposed": (
        "t = Transpose(x) [odd] y0 = Gemm<transA = 1>(t, w) y = MatMul(y0, v)",
        weights(8, 8),
    ),
    "its weight is the first operand": (
        "t = Transpose(x) m = MatMul(w, t) a = Transpose(m) y = MatMul(a, v)",
        weights(8, 8),
    ),
    "a transposed convolution": (
        "s = Constant<value_ints = [0, 8, 1, 1]>() r = Reshape(x, s) c = ConvTranspose(r, w) "
        "f = Flatten(c) y = MatMul(f, v)",
        weights(8, 8, 1, 1),
    ),
    "a constant: it holds sines or cosines of positions, input 1 of MatMul 'a/MatMul'": (
        "a = MatMul(x, w) y = MatMul(a, v)",
        np.cos(np.arange(8)[:, None] * np.arange(8) * np.pi / 8).astype(np.float32),
    ),
    "a stack of matrices [2, 8, 8]": (
        "m = MatMul(x, w) a = Constant<value_ints = [0]>() r = ReduceSum<keepdims = 0>(m, a) "
        "y = MatMul(r, v)",
        weights(2, 8, 8),
    ),
}


def test_a_layer_behind_a_body_that_reads_the_data_is_adapted():
    """As EmbeddingBag in files of TorchScript: a Loop whose body takes rows of an outer tensor."""
    body = (
        "n = Constant<value_int = 2>() t = Constant<value = bool {1}>() l = Loop(n, t) <body = b "
        "(int64 i, bool k) => (bool m, p) { m = Identity(k) p = Relu(x) }> "
        "o = Constant<value_ints = [0]>() h = ReduceSum<keepdims = 0>(l, o) "
        "a = MatMul(h, w) y = MatMul(a, v)"
    )
    program = build(linear(body, w=weights(8, 8), v=weights(8, 8, seed=1)))
    assert list(report(program).changed) == ["w", "v"]


@pytest.mark.parametrize("reason", KEPT)
def test_other_forms_are_kept_with_a_reason(reason):
    body, array = KEPT[reason]
    program = build(linear(body, w=array, v=weights(8, 8, seed=1)))
    assert report(program).kept == {"w": reason}
    assert list(report(program).changed) == ["v"]


@pytest.mark.parametrize(
    "body",
    [
        "t = Transpose<perm = [1, 0]>(w) y = MatMul(x, t)",
        "y = Gemm<transB = 1, alpha = 0.5>(x, w)",
        "i = Identity(w) y = MatMul(x, i)",
        "s = Constant<value = float[1,8] {1,1,1,1,-1,-1,-1,-1}>() m = Mul(s, w) y = MatMul(x, m)",
    ],
)
def test_a_weight_is_found_behind_other_nodes(body):
    model = linear(body, w=weights(8, 8))
    program = build(model, Lora(2), loss=LossConfig("mse"))
    assert trained(program) == ["w.lora_A", "w.lora_B"]
    training = stepper(program)
    batch = batch_for(program)
    losses = [training.step(batch, RATE).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    expected = training.evaluator().evaluate(batch)["y"]
    exported = export_model(program, training.state()).model
    np.testing.assert_allclose(
        run(exported, {"x": batch["x"]})["y"], expected, rtol=1e-5, atol=1e-6
    )


def test_a_quantized_weight_stays_as_it_is():
    """The form of QLoRA: the gradient passes through a frozen DequantizeLinear."""
    quantized = np.random.default_rng(0).integers(-127, 128, (8, 8)).astype(np.int8)
    model = linear("d = DequantizeLinear(w, s) y = MatMul(x, d)", w=quantized, s=np.float32(0.01))
    program = build(model, Lora(2), loss=LossConfig("mse"))
    assert trained(program) == ["w.lora_A", "w.lora_B"]
    training = stepper(program)
    batch = batch_for(program)
    losses = [training.step(batch, RATE).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    exported = export_model(program, training.state()).model
    assert [n.op_type for n in exported.graph].count("DequantizeLinear") == 1
    assert exported.graph.initializers["w"].dtype == ir.DataType.INT8


def test_nodes_that_share_a_weight_share_its_adapter():
    model = linear("a = MatMul(x, w) r = Relu(a) y = MatMul(r, w)", w=weights(8, 8))
    program = build(model, Lora(2), loss=LossConfig("mse"))
    assert trained(program) == ["w.lora_A", "w.lora_B"]
    assert sum(n.op_type == "MatMul" for n in program.evaluation.graph) == 6


@pytest.mark.parametrize(
    "turned", ["t = Transpose<perm = [1, 0]>(w) y = MatMul(r, t)", "y = Gemm<transB = 1>(r, w)"]
)
def test_a_weight_that_is_also_read_turned_gets_a_second_adapter(turned):
    """`A B` of the one would be `(A B)^T` of the other: in and out are exchanged."""
    model = linear(f"a = MatMul(x, w) r = Relu(a) {turned}", w=weights(8, 6))
    program = build(model, Lora(2), loss=LossConfig("mse"))
    shapes = {name: program.initial[name].shape for name in trained(program)}
    assert sorted(shapes.values()) == [(2, 6), (2, 8), (6, 2), (8, 2)]


def test_parts_of_a_weight_get_adapters_of_their_own():
    """As in an exported nn.MultiheadAttention, whose three projections are one tensor."""
    body = """k = Constant<value_ints = [8, 8, 4]>() [s] a, b, c = Split<axis = 1>(w, k)
        [q] q = MatMul(x, a) [k] r = MatMul(q, b) [v] y = MatMul(r, c)"""
    program = build(linear(body, w=weights(8, 20)), loss=LossConfig("mse"))
    assert [name for name in trained(program) if name.startswith("w.lora_B")] == [
        "w.lora_B",
        "w.lora_B_1",
        "w.lora_B_2",
    ]
    assert program.initial["w.lora_B_2"].shape == (1, 4)
    assert list(report(program).changed) == ["w", "w (k)", "w (v)"]
    training = stepper(program)
    batch = batch_for(program)
    losses = [training.step(batch, {"learning_rate": 1e-3}).loss for _ in range(4)]
    assert losses[-1] < losses[0]


def test_a_matrix_and_its_transposition_get_adapters_of_their_own():
    body = "a = MatMul(x, w) t = Transpose(w) i = Identity(t) y = MatMul(a, i)"
    program = build(linear(body, w=weights(8, 8)), loss=LossConfig("mse"))
    assert len(trained(program)) == 4


@pytest.mark.parametrize("kind", ["float16", "double", "bfloat16"])
def test_a_network_of_another_type_becomes_float32(kind):
    dtype = ir.DataType["DOUBLE" if kind == "double" else kind.upper()].numpy()
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net ({kind}[N,8] x, {kind}[8,8] w) => ({kind}[N,8] y) {{ y = MatMul(x, w) }}""",
        w=weights(8, 8).astype(dtype),
    )
    program = build(model, Lora(2), loss=LossConfig("mse"))
    assert {entry.dtype for entry in program.catalogue.entries("parameter")} == {np.dtype("f4")}
    training = stepper(program)
    losses = [training.step(batch_for(program), RATE).loss for _ in range(3)]
    assert losses[-1] < losses[0]


# What torch's exporters make of fc.weight, which they store transposed: TorchScript names the node
# by the path of its module, dynamo has the signature of the module.
RENAMED = {
    "torchscript": ("onnx::MatMul_7", "/body/body.0/body.0.fc/MatMul", {}),
    "dynamo": (
        "val_7",
        "node_MatMul_3",
        {
            "pkg.torch.export.ExportedProgram.graph_signature": "# inputs\n"
            "p_fc: PARAMETER target='body.0.fc.weight'\np_v: PARAMETER target='v'\n# outputs\n"
        },
    ),
}


@pytest.mark.parametrize("exporter", RENAMED)
def test_layers_are_found_by_their_names_in_torch(exporter):
    name, node, about = RENAMED[exporter]
    model = linear(
        "[n] a = MatMul(x, w) y = MatMul(a, v)", w=weights(8, 8), v=weights(8, 8, seed=1)
    )
    model.producer_name = "pytorch"
    model.graph.initializers["w"].name = name
    first = model.graph.node("n")
    first.name = node
    first.metadata_props["pkg.torch.onnx.name_scopes"] = "['', 'body', 'body.0', 'body.0.fc', 'l']"
    model.graph.metadata_props.update(about)
    program = build(model, Lora(2, layers=("*.fc.*",)), loss=LossConfig("mse"))
    assert trained(program) == ["body.0.fc.lora_A", "body.0.fc.lora_B"]
    assert "'body.0.fc.weight' in torch" in report(program).changed[name]
    assert trained(build(model, Lora(2, layers=(name,)), loss=LossConfig("mse")))
    with pytest.raises(ConfigError, match=r"Examples of weights: body\.0\.fc\.weight"):
        build(model, Lora(2, layers=("query*",)))


def test_layers_that_share_a_weight_are_merged():
    model = linear("a = MatMul(x, w) r = Relu(a) y = MatMul(r, w)", w=weights(8, 8))
    program = build(model, Lora(2), loss=LossConfig("mse"))
    training = stepper(program)
    batch = batch_for(program)
    for _ in range(2):
        training.step(batch, RATE)
    expected = training.evaluator().evaluate(batch)["y"]
    exported = export_model(program, training.state()).model
    assert [node.op_type for node in exported.graph] == ["MatMul", "Relu", "MatMul"]
    assert list(exported.graph.initializers) == ["w"]
    np.testing.assert_allclose(
        run(exported, {"x": batch["x"]})["y"], expected, rtol=1e-5, atol=1e-6
    )


def test_adapters_of_the_file_stay_as_they_are():
    """As in files of PEFT, and in a run that was trained with the boost and is converted again."""
    model = linear(
        "p = MatMul(x, w) d = MatMul(x, lora_A) u = MatMul(d, lora_B) y = Add(p, u)",
        w=weights(8, 8),
        lora_A=weights(8, 4, seed=1),
        lora_B=weights(4, 8, seed=2),
    )
    program = build(model, Lora(1), loss=LossConfig("mse"))
    assert trained(program) == ["w.lora_A", "w.lora_B"]
    why = "part of an adapter of the file, which stays as it is"
    assert report(program).kept == dict.fromkeys(["lora_A", "lora_B"], why)
    exported = export_model(program, program.initial).model
    assert [node.op_type for node in exported.graph] == ["MatMul"]


def test_a_file_for_integers_is_refused_by_name():
    model = linear(
        "q, s, z = DynamicQuantizeLinear(x) [fc] i = MatMulInteger(q, w, z) f = Cast<to = 1>(i) "
        "y = Mul(f, s)",
        w=np.ones((8, 8), np.int8),
    )
    with pytest.raises(ModelError, match=r"'fc' computes with quantized weights") as caught:
        build(model, Lora(1), loss=LossConfig("mse"))
    assert_three_lines(caught.value)


def test_a_tied_embedding_keeps_its_lookups():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,3] ids, float[16,8] w) => (float[N,3,16] y) {
          e = Gather(w, ids) t = Transpose<perm = [1, 0]>(w) y = MatMul(e, t) }""",
        w=weights(16, 8),
    )
    program = build(model, Lora(2))
    training = stepper(program)
    batch = {"ids": np.array([[0, 1, 2]]), "labels": np.array([[1, 2, 3]])}
    losses = [training.step(batch, RATE).loss for _ in range(4)]
    assert losses[-1] < losses[0]
    expected = training.evaluator().evaluate(batch)["y"]
    exported = export_model(program, training.state()).model  # not merged: the table is read twice
    np.testing.assert_allclose(
        run(exported, {"ids": batch["ids"]})["y"], expected, rtol=1e-5, atol=1e-6
    )


# ---- dropout, normalization, files ---------------------------------------------------------------


def test_dropout_is_for_training_only():
    program = build(boost=Lora(1, dropout=0.5))
    training = stepper(program)
    training.load_state(training.state() | {"w1.lora_B": weights(1, 6, seed=7)})
    batch = batch_for(program)
    losses = {training.step(batch, {"learning_rate": 0.0}, seed=seed).loss for seed in range(4)}
    assert len(losses) > 1
    expected = training.evaluator().evaluate(batch)["logits"]
    exported = export_model(program, training.state()).model
    assert [node.op_type for node in exported.graph] == ["Gemm", "Relu", "Gemm"]
    found = run(exported, {"x": batch["x"]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_running_statistics_still_move_and_it_says_so():
    program = build(small_convnet())
    training = stepper(program)
    before = training.get("mean")
    training.step(batch_for(program), RATE)
    assert not np.array_equal(training.get("mean"), before)
    notes = [note for r in program.reports for note in r.notes]
    assert any("still updates its statistics" in note for note in notes)


def test_it_is_saved_and_loaded(tmp_path):
    program = build(boost=Lora(1, 4.0, 0.1, ("w1",), seed=3))
    program.save(tmp_path / "run")
    loaded = Program.load(tmp_path / "run")
    assert loaded.config.boosts == program.config.boosts
    np.testing.assert_array_equal(loaded.initial["w1.lora_A"], program.initial["w1.lora_A"])


@pytest.mark.parametrize(
    "settings", [{"rank": 0}, {"alpha": 0.0}, {"alpha": -1.0}, {"dropout": 1.0}, {"seed": -1}]
)
def test_a_setting_out_of_range_is_refused(settings):
    with pytest.raises(ConfigError) as caught:
        Lora(**settings)
    assert_three_lines(caught.value)
    assert next(iter(settings)) in str(caught.value)


def test_a_weight_of_equal_parts_is_known_by_the_first():
    """As torch joins the weights of both directions; their order in a set is not fixed."""
    parts = [f"part{i}" for i in range(8)]
    views = " ".join(f"v{i} = Transpose(part{i})" for i in range(8))
    body = f"{views} w = Concat<axis = 1>({', '.join(f'v{i}' for i in range(8))}) y = MatMul(x, w)"
    model = linear(body, **{name: weights(2, 8, seed=i) for i, name in enumerate(parts)})
    found = report(build(model))
    assert [*found.changed, *found.kept] == ["part0"]
