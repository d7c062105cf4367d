import json

import pytest

from ortboost.boosts import LossScale, Recompute
from ortboost.cli import main
from ortboost.core.errors import UsageError
from ortboost.deploy.check_cuda import check_cuda
from ortboost.deploy.targets import get_checker
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import MODELS, NAMES, text_model


def check(text, target="cuda", opset=18):
    return check_cuda(text_model(f'<ir_version: 8, opset_import: ["" : {opset}]> g {text}'), target)


def rules(report):
    return {f.rule: f for f in report.findings}


def test_what_has_no_kernel_on_either_side_is_refused():
    report = check("(bfloat16[n,4] x, bfloat16[n,4] z) => (bool[n,4] y) { y = Greater(x, z) }")
    found = rules(report)["CUDA001"]
    assert not report.ok
    assert (found.node, found.op, found.severity) == ("y", "Greater", "error")
    assert "CUDA: its kernels of Greater do not support bfloat16; CPU: " in found.reason
    assert "--keep-fp32" in found.fix  # an option that there is


def test_an_opset_that_the_release_does_not_read():
    text = "(float[n] x) => (float[n] y) { y = Neg(x) }"
    assert rules(check(text, "cuda=1.19.2", 22))["CUDA002"].severity == "error"
    assert check(text, "cuda=1.31.1", 22).ok
    assert check(text, "cuda=1.19.2", 21).ok


def test_a_node_on_the_cpu_and_what_it_costs():
    text = """(float[64,64] x) => (float[64,64] y) {
        r = Relu(x) z = Det(r) d = Mul(r, z) y = Shrink(d) }"""
    report = check(text)
    assert report.ok
    assert [(f.rule, f.node) for f in report.findings if f.severity == "warn"] == [
        ("CUDA003", "z"),
        ("CUDA004", "r"),
    ]
    few = rules(report)["CUDA005"]
    assert (few.node, few.reason) == ("z", "FLOAT [] is copied to the device, in each run.")
    assert "2 copies (the first: z)" in rules(report)["CUDA007"].reason


def test_one_copy_is_one_copy():
    report = check("(float[n,64] x) => (int64[2] s, float[64,64] y) { s = Shape(x) y = Det(x) }")
    graph = rules(report)["CUDA007"]
    assert (graph.node, graph.op) == ("graph", "model")
    assert graph.reason == "No CUDA graph: 1 copy (the first: x)."


@pytest.mark.parametrize(
    ("body", "rule", "copied"),
    [
        ("m = ReduceMax<axes = [1], keepdims = 0>(r) y = Unique(m)", "CUDA004", "FLOAT [n]"),
        ("t = Reshape(r, s) e = Exp(t) y = Unique(e)", "CUDA004", "FLOAT ?"),
        # A shape, of an unknown rank.
        ("t = Reshape(r, s) e = Exp(t) q = Shape(e) y = Gather(r, q)", "CUDA005", "INT64 [unk__0]"),
    ],
)
def test_a_copy_of_unknown_length_is_large_unless_it_is_a_shape(body, rule, copied):
    text = f"(float[n,64] x, int64[k] s) => (float[?] y) {{ r = Relu(x) {body} }}"
    (found,) = (f for f in check(text, opset=13).findings if f.rule in ("CUDA004", "CUDA005"))
    assert (found.rule, found.reason.partition(" is copied")[0]) == (rule, copied)


def test_an_input_that_is_dragged_to_the_host():
    text = """(float[64,64] w, float[n,64] x) => (float[64,64] y) {
        s = Size(x) c = Cast<to=1>(s) y = Div(w, c) }"""
    dragged = rules(check(text))["CUDA003"]
    assert (dragged.node, dragged.op) == ("y", "Div")
    assert "only host values and inputs" in dragged.reason
    assert dragged.fix == "Make it read a value that is computed on the device."


def test_work_on_shapes_and_integers_is_only_told():
    text = """(float[n,64] x, int64[n,64] i) => (int64[2] c, int64[n,64] y) {
        s = Shape(x) c = Mul(s, s) y = Mul(i, i) }"""
    found = [(f.rule, f.severity, f.node, f.op) for f in check(text).findings]
    assert found == [
        ("CUDA006", "info", "c", "shapes"),
        ("CUDA006", "info", "y", "integers"),
        ("CUDA007", "info", "graph", "model"),
    ]


@pytest.mark.parametrize("name", NAMES)
def test_shipped_models_have_steps_that_stay_on_the_device(name, tmp_path):
    config = ProgramConfig(engine="portable")
    build_program(MODELS / f"{name}.onnx", config).save(tmp_path / "run")
    for target in ("cuda=1.19.2", "cuda=1.31.1"):
        report = check_cuda(tmp_path / "run", target)
        assert {f.severity for f in report.findings} == {"info"}
        waits = [f for f in report.findings if "to the host" in f.reason]
        assert [f.node for f in waits] == ["ortboost/update/Equal"]
        captured = rules(report)["CUDA007"].reason
        assert captured.startswith("Training captures it as a CUDA graph (tried with") != (
            name == "transformer_tiny"  # dropout
        )


def test_steps_that_can_be_captured(tmp_path):
    config = ProgramConfig(engine="portable", inputs=InputConfig(dims={"batch": 8}))
    build_program(MODELS / "lenet5.onnx", config).save(tmp_path / "run")
    fixed = rules(check_cuda(tmp_path / "run"))["CUDA007"]
    assert fixed.reason == "Training captures it as a CUDA graph."
    whole = check_cuda(tmp_path / "run" / "step.onnx")  # as it is, for a loop without ortboost
    reason = "It can be captured as a CUDA graph in the form without branches."
    assert rules(whole)["CUDA007"].reason == reason
    boosted = ProgramConfig(
        engine="portable", boosts=(Recompute(), LossScale()), inputs=InputConfig(dims={"batch": 8})
    )
    build_program(MODELS / "lenet5.onnx", boosted).save(tmp_path / "waits")
    assert "convert without recompute" in rules(check_cuda(tmp_path / "waits"))["CUDA007"].fix
    build_program(MODELS / "transformer_tiny.onnx", config).save(tmp_path / "draws")
    assert "random numbers" in rules(check_cuda(tmp_path / "draws"))["CUDA007"].reason
    adding = ProgramConfig(engine="portable", accumulate=2)
    build_program(MODELS / "mlp.onnx", adding).save(tmp_path / "adds")
    assert "runs in some steps only" in rules(check_cuda(tmp_path / "adds"))["CUDA007"].reason


def test_a_program_is_checked_graph_by_graph(tmp_path):
    run = tmp_path / "run"
    words = ["convert", str(MODELS / "mlp.onnx"), "-o", str(run), "--boost", "grad-freeze:groups=2"]
    assert main([*words, "--engine", "portable", "-q"]) == 0
    report = check_cuda(run)
    graphs = {f.node.partition(": ")[0] for f in report.findings if f.rule == "CUDA007"}
    assert len(graphs) > 1
    assert "step" in graphs


def test_on_the_command_line(tmp_path, capsys):
    model = str(MODELS / "mlp.onnx")
    assert main(["check", model, "--for", "cuda", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["target"] == "onnxruntime 1.31.1 on CUDA"
    assert {f["rule"] for f in data["findings"]} == {"CUDA007"}
    assert main(["check", model, "--for", "cuda=1.19.2"]) == 0
    assert "No problems found for onnxruntime 1.19.2 on CUDA" in capsys.readouterr().out
    assert main(["check", model, "--for", "cuda=3"]) == 2
    assert main(["check", model, "--for", "cuda", "--shape", "x:1x2"]) == 2
    assert main(["check", model, "--for", "cuda", "--fix", "-o", str(tmp_path / "m.onnx")]) == 2


def test_the_checker_is_found_by_its_name():
    assert get_checker("cuda=1.19.2") is check_cuda
    with pytest.raises(UsageError):
        check("(float[n] x) => (float[n] y) { y = Neg(x) }", "cuda=0")
