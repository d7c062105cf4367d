from __future__ import annotations

import numpy as np
import pytest

from ortboost.api import check
from ortboost.core.errors import ModelError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.graph.weights.origins import Origin, Origins, stamp_origins
from ortboost.program.build import build_program
from ortboost.program.choose_trainable import CHOOSE_TRAINABLE
from ortboost.program.config import ParameterGroup, ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    assert_three_lines,
    batch_for,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

DOUBTFUL = """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
net (float[N,4] x, float[4,3] weight, float[3] gain, float[4] inv_freq) => (float[N,3] y) {
  two = Constant<value_float = 2.0>()  i = Mul(inv_freq, two)  a = Mul(x, i)
  b = MatMul(a, weight)  y = Mul(b, gain) }"""


def doubtful():
    return text_model(DOUBTFUL, weight=weights(4, 3), gain=weights(3), inv_freq=weights(4))


def config(**fields) -> ProgramConfig:
    return ProgramConfig(engine="portable", **fields)


def chosen(model, **fields) -> tuple[list[str], list[str]]:
    program = build_program(model, config(**fields))
    report = next(r for r in program.reports if r.rewrite == CHOOSE_TRAINABLE)
    trained = [entry.name for entry in program.catalogue.entries("parameter") if entry.next]
    return trained, report.notes


def test_a_new_head_is_not_trained_beside_the_selected_parameters():
    """It is beside the adapters of LoRA, which select nothing themselves."""
    trained, _ = chosen(small_mlp(), new_head=5, trainable=("b1",))
    assert trained == ["b1"]


def test_the_first_note_counts_and_the_others_name_what_is_in_doubt():
    trained, notes = chosen(doubtful())
    assert trained == ["weight", "gain"]
    assert (
        notes[0]
        == "trains 15 of 15 parameters in 2 tensors; 1 constant, with 4 elements; 2 doubtful"
    )
    assert notes[1].startswith("doubtful and NOT trained: 'inv_freq' (")
    assert "--trainable '*' --trainable NAME" in notes[1]
    assert notes[2].startswith("doubtful and trained: 'gain' (")


@pytest.mark.parametrize(
    ("name", "node", "origin"),
    [
        ("onnx::MatMul_7", "/body/body.0/body.0.fc/MatMul", Origin("folded")),
        ("val_7", "node_MatMul_3", Origin("folded", ("body.0.fc.weight",), known=True)),
    ],
    ids=["torchscript", "dynamo"],
)
def test_patterns_match_the_names_of_torch_where_the_exporter_renamed_weights(name, node, origin):
    """Constant folding, the default of torch's exporters, renames weights, but not biases."""

    def model():
        found = small_mlp()
        found.producer_name = "pytorch"
        found.graph.initializers["w1"].name = name
        found.graph.node(0).name = node
        stamp_origins(found, Origins({name: origin}))
        return found

    assert chosen(model(), freeze=("body*",))[0] == ["b1", "w2", "b2"]
    assert chosen(model(), trainable=("*.fc.weight",))[0] == [name]
    assert chosen(model(), trainable=(name,))[0] == [name]
    group = ParameterGroup("slow", ("body.0.*",), learning_rate=0.0)
    program = build_program(model(), config(groups=(group,), loss_scale=NO_SCALE))
    training = stepper(program)
    training.step(batch_for(program), {"learning_rate": 0.1, "learning_rate/slow": 0.0})
    np.testing.assert_array_equal(training.get(name), program.initial[name])
    assert not np.array_equal(training.get("w2"), program.initial["w2"])


ADAPTED = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,4] x, float[4,3] fc_weight, float[4,2] fc_lora_A, float[2,3] fc_lora_B)
  => (float[N,3] y) {
  a = MatMul(x, fc_weight)  b = MatMul(x, fc_lora_A)  c = MatMul(b, fc_lora_B)
  y = Add(a, c) }"""


def test_adapters_whose_base_is_trained_are_told():
    values = {"fc_weight": (4, 3), "fc_lora_A": (4, 2), "fc_lora_B": (2, 3)}
    tensors = {name: weights(*shape) for name, shape in values.items()}
    model = text_model(ADAPTED, **tensors)
    trained, notes = chosen(model)
    assert trained == ["fc_weight", "fc_lora_A", "fc_lora_B"]
    (note,) = [note for note in notes if "LoRA" in note]
    assert note.startswith("2 tensors of LoRA adapters: 'fc_lora_A', 'fc_lora_B'.")
    alone, notes = chosen(text_model(ADAPTED, **tensors), trainable=("*lora_*",))
    assert alone == ["fc_lora_A", "fc_lora_B"]
    assert not any("LoRA" in note for note in notes)


@pytest.mark.parametrize(
    ("fields", "trained"),
    [
        ({"freeze": ("gain",)}, ["weight"]),
        ({"trainable": ("*", "inv_freq")}, ["inv_freq", "weight", "gain"]),
        ({"parameters": {"inv_freq": True, "gain": False}}, ["inv_freq"]),
        ({"parameters": {"inv_freq": True, "gain": True}, "freeze": ("gain",)}, ["inv_freq"]),
    ],
)
def test_what_the_user_decides_is_not_in_doubt(fields, trained):
    found, notes = chosen(doubtful(), **fields)
    assert found == trained
    assert not any(
        "doubtful" in note and name in note for note in notes for name in found if name != "gain"
    )


def test_a_list_says_all():
    _, notes = chosen(doubtful(), parameters={"inv_freq": True, "gain": False})
    assert notes == ["trains 4 of 19 parameters in 1 tensor; 2 tensors frozen"]


@pytest.mark.parametrize(
    ("model", "listed", "words"),
    [
        (doubtful, {"gian": True}, "Did you mean 'gain'?"),
        (doubtful, {"weight": True, "gian": False}, "Did you mean 'gain'?"),
        (doubtful, {"gain": False}, "Mark at least one parameter"),
        (small_convnet, {"cw": True, "mean": True}, "write 'mean false'"),
    ],
)
def test_lists_that_do_not_fit(model, listed, words):
    with pytest.raises((UsageError, ModelError)) as raised:
        build_program(model(), config(parameters=listed))
    assert words in raised.value.fix
    assert_three_lines(raised.value)


def test_nothing_to_train_blames_only_what_was_given():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float three) => (float[N,4] y) { y = Mul(x, three) }""",
        three=np.float32(3),
    )
    with pytest.raises(ModelError) as raised:
        build_program(model, config())
    assert "--params" in raised.value.fix
    assert "freeze" not in raised.value.fix
    with pytest.raises(ModelError) as raised:
        build_program(small_mlp(), config(freeze=("*",)))
    assert raised.value.fix.startswith("Loosen --freeze;")


@pytest.mark.parametrize(("second", "told"), [("1", 1), ("0", 0)], ids=["copies", "one module"])
def test_copies_of_a_fresh_layer_that_torchscript_merged_are_told(second, told):
    """`nn.TransformerEncoder` copies its layer: equal weights are folded into one tensor."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w) => (float[N,4] y) {{
          ["/layers.0/fc/MatMul"] a = MatMul(x, w)  v = Identity(w)
          ["/layers.{second}/fc/MatMul"] y = MatMul(a, v) }}""",
        w=weights(4, 4),
    )
    model.graph.initializers["w"].name = "onnx::MatMul_7"
    model.graph[1].outputs[0].name = "onnx::MatMul_8"
    notes = [note for note in chosen(model)[1] if "read by several modules" in note]
    assert len(notes) == told
    assert all("first 'onnx::MatMul_7'" in note for note in notes)


def test_a_small_share_is_told_loudly():
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,40] x, float[40] window, float[40,2] mask, float[2,3] weight)
          => (float[N,3] y) {
          a = Mul(x, window)  b = MatMul(a, mask)  y = MatMul(b, weight) }""",
        window=weights(40),
        mask=weights(40, 2),
        weight=weights(2, 3),
    )
    assert any(note.startswith("ONLY 4.8 % of the 126 float elements") for note in chosen(model)[1])


def test_what_an_optimization_of_the_exporter_took_away_is_told():
    model = doubtful()
    key = "pkg.torch.export.ExportedProgram.graph_signature"
    names = ("weight", "gain", "bn.weight")
    model.graph.metadata_props[key] = "\n".join(f"p: PARAMETER target='{n}'" for n in names)
    note = next(note for note in chosen(model)[1] if "not in the file" in note)
    assert "'bn.weight'" in note
    assert "optimize=False" in note


def test_a_fused_operator_that_is_not_written_out_is_refused_by_name():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[N,4] x, float[4,4] w, float[4] b, float[4,3] v) => (float[N,3] y) {
          [dense] h = com.microsoft.FusedGemm<activation = "Mish">(x, w, b)  y = MatMul(h, v) }""",
        w=weights(4, 4),
        b=weights(4),
        v=weights(4, 3),
    )
    found = check(model, config())
    first = found.blockers[0]
    assert (first.node, first.fix) == ("dense", "Start from the unoptimized export.")
    assert "'Mish'" in first.reason
    assert {p["name"]: p["trained"] for p in found.parameters} == {"w": True, "b": True, "v": True}


TIED = """<ir_version: 10, opset_import: ["" : 18]>
net (float[N,3] x, float[3,3] w, float[3] b) => (float[N,3] y) {
  h = MatMul(x, w)  i = Add(h, b)  j = MatMul(i, w)  y = Add(j, b) }"""


@pytest.mark.parametrize(
    "text", [TIED, TIED.replace("y = Add(j, b)", "c = Identity(b) y = Add(j, c)")]
)
@pytest.mark.parametrize(
    ("operator", "numbers", "noted"),
    [
        ("Add", np.zeros(3), True),
        ("PRelu", np.full(1, 0.25), True),
        ("Add", np.arange(3.0), False),
        ("Add", np.array([2.0, 2.0, 3.0]), False),
    ],
)
def test_only_tensors_of_one_number_may_be_tied_by_chance(operator, numbers, noted, text):
    text = text.replace("Add(", f"{operator}(").replace("float[3] b", f"float[{numbers.size}] b")
    model = text_model(text, w=weights(3, 3), b=numbers.astype(np.float32))
    notes = [note for note in chosen(model)[1] if "trained as one" in note]
    assert len(notes) == noted
    assert all("1 tensor with the same value everywhere, 'b'" in note for note in notes)


@pytest.mark.parametrize("missing", [(), ("c.bias",)])
def test_a_parameter_of_torch_is_tied_by_chance_only_if_others_are_missing(missing):
    """Then another note advises how to export the model."""
    model = text_model(TIED, w=weights(3, 3), b=np.zeros(3, np.float32))
    stamp_origins(model, Origins({"b": Origin("parameter")}, missing=missing))
    notes = [note for note in chosen(model)[1] if "trained as one" in note]
    assert len(notes) == len(missing)
    assert not any("export again" in note for note in notes)


def test_a_layer_that_the_module_applies_twice_is_not_tied_by_chance():
    """The dynamo exporter names its parameters; without ``optimize``, it merges none."""
    model = text_model(TIED, w=weights(3, 3), b=np.zeros(3, np.float32))
    kind = "pkg.torch.export.graph_signature.InputSpec.kind"
    for value in model.graph.initializers.values():
        value.metadata_props[kind] = "PARAMETER"
    assert not [note for note in chosen(model)[1] if "trained as one" in note]


def test_a_file_whose_weights_are_all_quantized_is_called_so():
    """A QDQ file of onnxruntime.quantization; the error says where to start instead."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, int8[4,3] w, float scale) => (float[N,3] y) {
          f = DequantizeLinear(w, scale)  y = MatMul(x, f) }""",
        w=np.ones((4, 3), np.int8),
        scale=np.float32(0.5),
    )
    with pytest.raises(ModelError, match="nothing to train: the weight 'w' is quantized") as caught:
        build_program(model, config())
    assert_three_lines(caught.value)
    assert "Start from the float model" in str(caught.value)


@pytest.mark.parametrize("constant", ["value_float = 0.5", "value_floats = [0.5, 1.5, 2.5]"])
def test_a_file_without_its_weights_is_called_so(constant):
    """torch's `export_params=False` writes parameters as inputs; only constants are stored."""
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,3] w, float[3] b) => (float[N,3] y) {{
          c = Constant<{constant}>()  h = Gemm(x, w, b)  y = Mul(h, c) }}"""
    )
    model.graph.inputs[1].name, model.graph.inputs[2].name = "fc.weight", "fc.bias"
    with pytest.raises(ModelError, match=r"has no values for 'fc\.weight', an input") as caught:
        build_program(model, config())
    assert_three_lines(caught.value)
    assert "export_params=True" in str(caught.value)


def test_what_the_loss_does_not_depend_on_is_not_said_to_be_trained():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,3] w, float[4,2] v) => (float[N,3] a, float[N,2] b) {
          a = MatMul(x, w)  b = MatMul(x, v) }""",
        w=weights(4, 3),
        v=weights(4, 2),
    )
    program = build_program(model, config(loss=LossConfig(output="a")))
    (report,) = [r for r in program.reports if r.rewrite == CHOOSE_TRAINABLE]
    assert report.changed == {"w": "trained as weight"}
    assert report.kept == {"v": "the loss does not depend on it"}
    assert report.notes == [
        "trains 12 of 20 parameters in 1 tensor; 1 tensor frozen",
        "not trained, because the loss does not depend on them: 1 tensor, 'v'",
    ]


def test_groups_without_a_parameter_of_their_own_are_told():
    groups = (
        ParameterGroup("frozen", ("w1",), 0.1),
        ParameterGroup("all", ("*",), 0.1),
        ParameterGroup("late", ("w2",), 0.2),
    )
    program = build_program(small_mlp(), ProgramConfig(freeze=("w1",), groups=groups))
    (report,) = [r for r in program.reports if r.rewrite == CHOOSE_TRAINABLE]
    assert [note.split("'")[1] for note in report.notes if "no effect" in note] == [
        "frozen",
        "late",
    ]


@pytest.mark.parametrize(
    "body",
    [
        "q = QuantizeLinear(w, s, z) d = DequantizeLinear(q, t, z) h = MatMul(x, d)",
        "m = MatMul(x, w) q = QuantizeLinear(m, s, z) h = DequantizeLinear(q, t, z)",
    ],
)
def test_weights_before_a_quantizer_are_refused_unless_they_are_frozen(body):
    """Otherwise only the bias after it would be trained."""

    def quantized():
        text = """<ir_version: 8, opset_import: ["" : 18]> net (float[N,4] x, float[4,3] w,
          float[3] b) => (float[N,3] y) <float s = {0.1}, float t = {0.2}, int8 z = {0}>
          { BODY y = Add(h, b) }"""
        return text_model(text.replace("BODY", body), w=weights(4, 3), b=weights(3))

    with pytest.raises(ModelError, match="cannot be trained as it is: 1 reason") as refused:
        build_program(quantized())
    assert "no gradient passes quantized values" in str(refused.value)
    assert_three_lines(refused.value)
    for fields in ({"freeze": ("w",)}, {"trainable": ("b",)}):
        program = build_program(quantized(), ProgramConfig(engine="portable", **fields))
        assert [e.name for e in program.catalogue.entries("parameter") if e.next] == ["b"]


def test_tensors_of_torch_that_no_certain_parameter_represents_are_told():
    """A transposed weight represents its parameter; a tensor of doubtful origin does not."""
    model = doubtful()
    origins = {
        "weight": Origin("folded", folded_from=("m.w",), transposed=True, direct=True, known=True),
        "gain": Origin("folded", folded_from=("m.g",), known=True),
    }
    stamp_origins(model, Origins(origins, missing=("m.w", "m.g", "m.h")))
    _, notes = chosen(model)
    (note,) = [note for note in notes if "not in the file by name" in note]
    assert note.startswith("not in the file by name: 2 tensors of the torch module, 'm.g', 'm.h';")
