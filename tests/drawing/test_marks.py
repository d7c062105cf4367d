from __future__ import annotations

import json
import xml.etree.ElementTree as ET

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.boosts import Lora, LossScale
from ortboost.cli import main
from ortboost.core.errors import UsageError
from ortboost.core.report import Report
from ortboost.deploy.fold_bn import fold_bn
from ortboost.drawing import draw
from ortboost.drawing.marks import marks_against, marks_of_reports
from ortboost.graph.query import label
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import model_path, small_convnet, small_mlp


def test_reports_name_nodes_tensors_and_weights():
    model = small_mlp()
    marks, missing = marks_of_reports(
        model,
        [
            Report("one", {"fc1": "rewritten", "gone": "removed", "lost": "removed"}),
            Report("two", {"h": "its output", "w2": "transposed"}),
            Report("choose_trainable", {"w1": "trained as weight", "b9": "trained as bias"}),
        ],
    )
    assert marks == {"fc1": "one: rewritten; two: its output", "fc2": "two: transposed"}
    assert missing == {"one": 2}


def test_a_name_that_the_runtime_has_lengthened():
    model = small_mlp()
    model.graph.node(1).name = "act_Relu"
    assert marks_of_reports(model, [Report("r", {"act": "done"})])[0] == {"act_Relu": "r: done"}


def test_equal_graphs_have_no_marks():
    for name in ("lenet5", "transformer_tiny"):
        model = ir.load(model_path(name))
        assert marks_against(model, model.clone()) == ({}, {})


def test_other_names_are_no_difference():
    renamed = small_convnet()
    for index, node in enumerate(renamed.graph):
        node.name = f"k{index}"
        for out in node.outputs:
            out.name = f"v{index}"
    assert marks_against(small_convnet(), renamed) == ({}, {})


def test_a_folded_normalization():
    after = small_convnet()
    report = fold_bn(after)
    assert report.modified
    marks, gone = marks_against(small_convnet(), after)
    assert gone == {"bn": "BatchNormalization"}
    assert len(marks) == 1
    label, what = marks.popitem()
    assert next(n for n in after.graph if n.name == label).op_type == "Conv"
    assert what == "BatchNormalization 'bn' folded in"


def test_what_is_gone_beside_other_weights_is_folded_only_where_it_can_be():
    after = small_mlp()
    fc1, act, fc2 = list(after.graph)
    fc1.inputs[1].const_value = ir.tensor(np.zeros((6, 4), np.float32))
    fc2.replace_input_with(0, fc1.outputs[0])
    after.graph.remove(act)
    before = small_mlp()
    assert marks_against(before, after)[0] == {"fc1": "Relu 'act' folded in"}
    before.graph.node(1).op_type = "Tanh"
    assert marks_against(before, after)[0] == {"fc1": "different weights"}
    before.graph.node(1).op_type = "Relu"
    before.graph.outputs.append(before.graph.node(0).outputs[0])  # read elsewhere, too
    assert marks_against(before, after)[0] == {"fc1": "different weights"}


def test_what_is_different_is_said():
    before, after = small_mlp(), small_mlp()
    fc1, act, fc2 = list(after.graph)
    fc1.attributes.add(ir.AttrFloat32("alpha", 2.0))
    act.op_type = "Tanh"
    fc2.inputs[2].const_value = ir.tensor(np.zeros(3, np.float32))
    identity = ir.node("Identity", [fc2.inputs[1]], name="extra")
    after.graph.insert_before(fc2, identity)
    marks, gone = marks_against(before, after)
    assert marks == {
        "fc1": "attributes: alpha",
        "act": "was Relu",
        "fc2": "different weights",
        "extra": "new",
    }
    assert gone == {}
    assert marks_against(after, before)[1] == {"extra": "Identity"}


def test_reading_from_elsewhere_is_no_difference():
    before = small_mlp()
    after = small_mlp()
    fc1, act, fc2 = list(after.graph)
    fc2.replace_input_with(0, fc1.outputs[0])
    after.graph.remove(act)
    assert marks_against(before, after) == ({}, {"act": "Relu"})


def test_adapters_are_new_and_the_layer_beside_them_is_as_it_was():
    program = build_program(small_mlp(), ProgramConfig(boosts=(Lora(rank=1), LossScale())))
    by_reports = marks_of_reports(program.evaluation, program.reports)[0]
    by_comparison = marks_against(small_mlp(), program.evaluation)[0]
    for marks, word in ((by_reports, "lora: new"), (by_comparison, "new")):
        assert not marks.keys() & {"fc1", "act", "fc2"}
        adapters = [marks[label(n)] for n in program.evaluation.graph if "/lora/" in label(n)]
        assert len(adapters) > 3
        assert {text.partition(";")[0] for text in adapters} == {word}


# ---- the verb -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("plot")
    ir.save(small_convnet(), folder / "raw.onnx")
    words = ["convert", str(folder / "raw.onnx"), "-o", str(folder / "run"), "-q"]
    assert main(words) == 0
    return folder


def test_a_program_marks_what_its_reports_name(run, capsys):
    out = run / "run.svg"
    assert main(["plot", str(run / "run"), "-o", str(out)]) == 0
    assert "marked" in capsys.readouterr().out
    root = ET.parse(out).getroot()
    marked = [rect for rect in root.iter() if "marked" in rect.get("class", "")]
    assert len(marked) >= 2  # the legend is one
    picture = draw(run / "run")
    boxes = {box.key: box for box in picture.boxes}
    assert "batch_norm_to_training" in boxes["bn"].mark
    assert boxes["relu"].mark is None
    assert not any(box.title == "fw" for box in picture.boxes)  # weights are lines
    step = draw(run / "run", graph="step")
    assert sum(b.kind == "node" for b in step.boxes) > 6
    assert "labels" in {box.title for box in step.boxes}
    assert not any(box.title == "fw" and box.kind == "input" for box in step.boxes)
    with pytest.raises(UsageError, match="no graph 'stepp'") as caught:
        draw(run / "run", graph="stepp")
    assert "'step'" in caught.value.fix


def test_before_and_after_of_an_export(run, capsys):
    out, picture = str(run / "opt.onnx"), str(run / "opt.svg")
    assert main(["export", str(run / "run"), "-o", out, "--checkpoint", "initial", "-q"]) == 0
    words = ["plot", out, "-o", picture, "--before", str(run / "raw.onnx"), "--json"]
    assert main(words) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["path"] == picture
    assert any("bn (BatchNormalization)" in note for note in data["notes"])
    assert any(text for text in data["marked"].values())


def test_curves_of_a_run(run, tmp_path, capsys):
    assert main(["plot", str(run / "run")]) == 8
    assert "has not been trained" in capsys.readouterr().err
    event = {"event": "step", "step": 1, "epoch": 0, "loss": 1.0, "overflow": False}
    event.update(loss_scale=1.0, learning_rate={}, applied_steps=1, total_skips=0, metrics={})
    (run / "run" / "log.jsonl").write_text(json.dumps(event) + "\n")
    try:
        assert main(["plot", str(run / "run"), "-o", str(tmp_path / "c.png")]) in (0, 7)
    finally:
        (run / "run" / "log.jsonl").unlink()
    err = capsys.readouterr().err
    assert (tmp_path / "c.png").exists() or "matplotlib" in err


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        ([], 2, "-o graph.svg"),
        (["-o", "g.pdf"], 2, ".svg"),
        (["-o", "g.svg", "--around", "nowhere"], 2, "--layers"),
        (["-o", "g.svg", "--max-nodes", "2"], 2, "--max-nodes 3"),
        (["-o", "g.svg", "--before", "none.onnx"], 8, "Check the path"),
    ],
)
def test_errors_are_three_lines(words, status, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["plot", str(model_path("mlp")), *words]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert hint in captured.err
    assert "  where: " in captured.err
    assert not list(tmp_path.iterdir())
