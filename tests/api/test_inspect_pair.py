from __future__ import annotations

import json

import onnx
import onnx_ir as ir
import pytest

from ortboost.api import inspect
from ortboost.api.inspect_pair import inspect_pair
from ortboost.cli import main
from ortboost.core.errors import FileError, UsageError
from tests.support import assert_three_lines, model_path, small_convnet, small_mlp


@pytest.fixture(scope="module")
def convnet(tmp_path_factory):
    """A model, its program, and the export of it."""
    folder = tmp_path_factory.mktemp("pair")
    ir.save(small_convnet(), folder / "raw.onnx")
    raw, run, out = (str(folder / name) for name in ("raw.onnx", "run", "opt.onnx"))
    assert main(["convert", raw, "-o", run, "-q"]) == 0
    assert main(["export", run, "-o", out, "--checkpoint", "initial", "-q"]) == 0
    return raw, run, out


def test_before_and_after_of_an_export(convnet):
    raw, _, out = convnet
    found = inspect_pair(raw, out).to_dict()
    difference = found["difference"]
    before, after = len(onnx.load(raw).graph.node), len(onnx.load(out).graph.node)
    assert difference["nodes"] == {
        "before": before,
        "after": after,
        "difference": after - before,
        "ratio": after / before,
    }
    assert found["ops"]["BatchNormalization"] == {"before": 1, "after": 0, "difference": -1}
    assert next(iter(found["ops"])) in ("BatchNormalization", "Flatten", "Reshape")
    # Four statistics of the normalization are removed, one bias of the convolution is added.
    elements = 4 * 9 + 4 * 4 + 3 * 4 + 3
    assert difference["weight_elements"]["before"] == elements
    assert {"s", "b", "mean", "var"} <= set(found["weights"]["only_before"])
    assert difference["macs"]["before"] == difference["macs"]["after"] == 6 * 6 * 4 * 9 + 12
    assert difference["flops"]["ratio"] == 1.0
    assert difference["bytes"]["difference"] == found["after"]["bytes"] - found["before"]["bytes"]
    assert found["interface"] == []


def test_a_program_folder_against_its_export(convnet):
    raw, run, out = convnet
    found = inspect_pair(run, out).to_dict()
    assert found["before"]["kind"] == "program"
    assert found["before"]["bytes"] is None
    assert found["difference"]["bytes"] == {
        "before": None,
        "after": found["after"]["bytes"],
        "difference": None,
        "ratio": None,
    }
    assert found["ops"]["BatchNormalization"]["difference"] == -1
    assert found["before"]["inputs"] == found["after"]["inputs"]  # neither labels nor weights
    assert found["before"]["ops"] == inspect_pair(raw, out).to_dict()["before"]["ops"]


def test_what_a_caller_would_notice(tmp_path):
    one, two = small_mlp(), small_mlp(classes=5)
    x = two.graph.inputs[0]
    x.name, x.dtype = "pixels", ir.DataType.FLOAT16
    two.graph.outputs[0].shape = ir.Shape(["batch", 5])
    ir.save(one, tmp_path / "a.onnx")
    ir.save(two, tmp_path / "b.onnx")
    found = inspect_pair(tmp_path / "a.onnx", tmp_path / "b.onnx").to_dict()
    assert found["interface"] == [
        "input 'x' was removed",
        "input 'pixels' is new",
        "output 'logits': shape ['batch', 3] -> ['batch', 5]",
    ]
    same = inspect_pair(tmp_path / "a.onnx", tmp_path / "a.onnx").to_dict()
    assert same["interface"] == []
    assert all(row["difference"] == 0 and row["ratio"] == 1 for row in same["difference"].values())
    assert same["weights"] == {"only_before": [], "only_after": []}


def test_work_for_a_shape(convnet):
    raw, _, out = convnet
    found = inspect_pair(raw, out, dims={"x:0": 3}).to_dict()
    assert found["before"]["counted_for"] == {"x": [3, 1, 6, 6]}
    assert found["difference"]["macs"]["after"] == 3 * (6 * 6 * 4 * 9 + 12)
    with pytest.raises(UsageError, match="Neither model has a dimension 'y:0'") as caught:
        inspect_pair(raw, out, dims={"y:0": 1}).to_dict()
    assert_three_lines(caught.value)
    with pytest.raises(FileError):
        inspect_pair(raw, "no-such.onnx").to_dict()


def test_inspect_tells_the_work_of_a_model_and_not_of_a_step(convnet):
    raw, run, _ = convnet
    assert inspect(raw).macs == 6 * 6 * 4 * 9 + 12
    step = inspect(f"{run}/step.onnx")
    assert step.macs is None
    assert "macs" not in step.to_dict()  # its gradient kernels are not counted


def test_work_that_cannot_be_counted_is_unknown_and_not_zero(tmp_path, capsys):
    text = """<ir_version: 8, opset_import: ["" : 18]>
    net (float[n,m] x, float[k,3] w) => (float[n,3] y) { y = MatMul(x, w) }"""
    path = str(tmp_path / "open.onnx")
    onnx.save(onnx.parser.parse_model(text), path)
    found = inspect(path).to_dict()
    assert found["macs"] is None
    assert list(found["macs_uncounted"].values())
    assert main(["inspect", path]) == 0
    assert "unknown; 1 node could not be counted" in capsys.readouterr().out


def test_the_verb(convnet, capsys):
    raw, run, out = convnet
    assert main(["inspect", raw, out, "--params"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["BatchNormalization", "1", "0", "-1"] in lines
    assert ["before", "only", "mean"] in lines
    nodes = next(line for line in lines if line[:1] == ["nodes"])
    assert nodes[3].startswith("-")
    assert main(["inspect", run, out, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kind"] == "comparison"
    assert main(["inspect", raw, out, "--dim", "x:0=2"]) == 0
    assert "2,616" in capsys.readouterr().out
    assert main(["inspect", raw]) == 0
    assert "1,308 multiply-accumulates for x [1, 1, 6, 6]" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["{a}", "{a}", "--layers"],
        ["{a}", "{a}", "--state"],
        ["{a}", "--dim", "x:0=1"],
        ["{a}", "{a}", "--dim", "x:1=2"],
        ["{a}", "{a}", "--dim", "nonsense"],
    ],
)
def test_options_that_make_no_sense(words, capsys):
    words = [word.replace("{a}", str(model_path("mlp"))) for word in words]
    assert main(["inspect", *words]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "  fix:   " in captured.err
