from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.api.bench_models import bench, bench_to_dict
from ortboost.cli import main
from ortboost.core.errors import FileError, UsageError
from ortboost.deploy.bench_results import BenchConfig
from tests.support import MODELS, assert_three_lines, model_path

MLP, DIGITS = str(model_path("mlp")), str(MODELS / "digits.npz")
QUICK = ("--iters", "3", "--rounds", "1", "--warmup", "0", "--threads", "1", "--device", "cpu")
QUICK += ("--loads", "1")


def test_data_are_bound_by_name_and_converted():
    config = BenchConfig(iters=2, rounds=1, warmup=0, loads=1, device="cpu", batch_sizes=(5,))
    pixels = np.full((7, 8, 8), 255, np.uint8)  # flattened and divided by 255 for the MLP
    (found,) = bench([MLP], config, data={"images": pixels})
    assert found.batch == 5
    with pytest.raises(UsageError, match="No array feeds the input 'x'") as caught:
        bench([MLP], config, data={"pixels": pixels})
    assert_three_lines(caught.value)
    assert bench([MLP], config, data={"pixels": pixels}, mapping={"x": "pixels"})[0].batch == 5
    for one in ((pixels,), pixels):  # in the order of the inputs, and one file by itself
        assert bench(MLP, config, data=one)[0].batch == 5
    with pytest.raises(FileError):
        bench([MLP], config, data="no-such.npz")
    with pytest.raises(UsageError, match="whole arrays") as caught:
        bench([MLP], config, data=[(pixels,)])
    assert_three_lines(caught.value)


def test_json_says_what_the_figures_hold_for():
    config = BenchConfig(iters=2, rounds=2, warmup=0, loads=1, device="cpu", batch_sizes=(1, 2))
    found = bench([MLP, MLP], config)
    data = json.loads(json.dumps(bench_to_dict(found, config), allow_nan=False))
    assert data["machine"]["cores"] >= 1
    assert data["options"]["iters"] == 2
    assert data["options"]["seconds"] is None
    assert [r["batch"] for r in data["results"]] == [1, 1, 2, 2]
    assert [r["over_first"] is None for r in data["results"]] == [True, False, True, False]
    for index in (1, 3):
        first, second = data["results"][index - 1 : index + 1]
        assert second["over_first"]["bytes"] == 1.0
        expected = second["peak_memory"] / first["peak_memory"]
        assert second["over_first"]["peak_memory"] == pytest.approx(expected)


def test_the_verb(capsys):
    words = ["bench", MLP, str(model_path("lenet5")), "--batch-size", "2", *QUICK]
    assert main(words) == 0
    captured = capsys.readouterr()
    assert captured.err == "batch 2, 1 thread ...\n"
    lines = captured.out.splitlines()
    assert lines[0].startswith("onnxruntime ")
    assert "synthetic inputs" in lines[0]
    assert lines[2].split()[:3] == ["file", "batch", "threads"]
    assert lines[3].split()[:3] == ["mlp.onnx", "2", "1"]
    assert lines[6] == "As ratios to the first file; below 1 is less:"
    assert lines[8].split()[:3] == ["lenet5.onnx", "2", "1"]
    assert len(lines) == 9
    assert main(["bench", MLP, "--data", DIGITS, *QUICK, "--json", "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert json.loads(captured.out)["results"][0]["latency"]["runs"] == 3


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (["bench"], 2, "Missing argument"),
        (["bench", MLP, "--dim", "3x64"], 2, "--dim height=640"),
        (["bench", MLP, "--dim", "y=3"], 2, "no dimension 'y'"),
        (["bench", MLP, "--data", DIGITS, "--batch-size", "5000"], 2, "smaller --batch-size"),
        (["bench", MLP, "--split", "train"], 2, "no data are given"),
        (["bench", MLP, "--map", "x=images"], 2, "no data are given"),
        (["bench", MLP, "--seconds", "0"], 3, "seconds"),
        (["bench", DIGITS], 8, "not a readable ONNX model"),
        (["bench", str(MODELS)], 8, "ortboost export"),
    ],
)
def test_errors_are_three_lines(words, status, hint, capsys):
    assert main([*words, "--device", "cpu", "--loads", "1"]) == status
    captured = capsys.readouterr()
    assert captured.out == ""
    assert hint in captured.err
    assert "  where: " in captured.err
    assert "  fix:   " in captured.err
