import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.api.doctor_machine import Diagnosis, HealthCheck
from ortboost.cli import main
from ortboost.cli.console import Output
from ortboost.core.errors import DependencyError
from ortboost.deploy.pipeline import REWRITES
from ortboost.graph.io import save_model
from ortboost.optimizers import OPTIMIZERS
from ortboost.transforms.loss_config import LOSSES
from tests.support import model_path, needs_native, text_model, weights

ROOT = Path(__file__).resolve().parents[2]
MLP = str(ROOT / "models/mlp.onnx")
DIGITS = str(ROOT / "models/digits.npz")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    run = tmp_path_factory.mktemp("cli") / "run"
    assert main(["convert", MLP, "-o", str(run), "--lr", "0.1", "-q"]) == 0
    words = ["train", str(run), "--data", DIGITS, "--val", DIGITS, "--epochs", "2", "-q"]
    assert main(words) == 0
    return run


def error_lines(capsys):
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert lines[0].startswith("error: ")
    assert any(line.startswith("  where: ") for line in lines)
    assert any(line.startswith("  fix:   ") for line in lines)
    assert "Traceback" not in captured.err
    return captured.err


@pytest.mark.parametrize(
    "verb",
    [
        "check",
        "convert",
        "train",
        "export",
        "eval",
        "inspect",
        "doctor",
        "bench",
        "plot",
        "compare",
        "watch",
        "runs",
    ],
)
def test_help_shows_examples(verb, capsys):
    assert main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert "Example" in text
    assert f"  ortboost {verb}" in text


def test_the_help_of_convert_names_every_optimizer_and_loss(capsys):
    assert main(["convert", "--help"]) == 0
    text = "".join(capsys.readouterr().out.split())  # lines break in the middle of names
    assert [name for name in (*OPTIMIZERS, *LOSSES) if name not in text] == []


def test_version_and_bare_command(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("ortboost ")
    main([])
    assert "Commands:" in "".join(capsys.readouterr())


def test_the_three_verbs_tell_where_things_are(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "model.onnx"
    words = ["convert", MLP, "-o", str(run), "--optimizer", "adam", "--lr", "3e-3", "--explain"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "2,410 of 2,410 parameters in 4 tensors" in text
    assert "fc1.weight: trained as weight" in text
    assert "adam, learning rate 3e-3" in text
    assert f"next: ortboost train {run}" in text
    assert main(["train", str(run), "--data", DIGITS, "--val", DIGITS, "--epochs", "2"]) == 0
    captured = capsys.readouterr()
    assert "best val_accuracy" in captured.out
    assert str(run / "curves.png") in captured.out
    assert (run / "curves.png").is_file()
    assert "epoch 2/2" in captured.err
    assert main(["export", str(run), "-o", str(out), "--verify", DIGITS, "--explain"]) == 0
    text = capsys.readouterr().out
    assert "360 samples (data)" in text
    assert "strip_training" in text
    assert main(["eval", str(out), "--data", DIGITS]) == 0
    assert capsys.readouterr().out.startswith("accuracy ")


@pytest.mark.parametrize("more", [[], ["--val", DIGITS], ["--val-split", "0.2"]])
def test_the_export_that_follows_is_verified_on_data(more, tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["convert", MLP, "-o", run, "-q"]) == 0
    assert main(["train", run, "--data", DIGITS, "--max-steps", "1", *more]) == 0
    said = capsys.readouterr().out
    assert said.endswith(f"next: ortboost export {run} -o model.opt.onnx --verify {DIGITS}\n")


def test_json_is_one_object_on_stdout(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "model.onnx"
    keys = {
        ("convert", MLP, "-o", str(run)): "catalogue",
        ("train", str(run), "--data", DIGITS, "--max-steps", "3"): "applied_steps",
        ("export", str(run), "-o", str(out)): "parity",
        ("eval", str(run), "--data", DIGITS): "accuracy",
        ("inspect", str(out)): "ops",
        ("inspect", str(run)): "fingerprint",
        ("inspect", str(run / "step.onnx")): "catalogue",
        ("check", MLP): "blockers",
        ("doctor",): "findings",
    }
    for words, key in keys.items():
        assert main([*words, "--json"]) == 0, words
        assert key in json.loads(capsys.readouterr().out), words


def test_quiet_says_nothing(tmp_path, capsys):
    assert main(["convert", MLP, "-o", str(tmp_path / "run"), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_inspect_shows_parameters_layers_state_and_reports(trained, capsys):
    assert main(["inspect", MLP, "--params", "--layers"]) == 0
    text = capsys.readouterr().out
    assert "input 1 of Gemm" in text
    assert "[batch, 32]" in text
    assert main(["inspect", str(trained), "--state", "--reports"]) == 0
    text = capsys.readouterr().out
    assert "ortboost/slot/momentum/fc2.bias" in text
    assert "attach_loss" in text
    assert "scale: 1 tensor, 1 element\n" in text
    assert main(["inspect", str(ROOT / "models/resnet20.onnx"), "--layers"]) == 0
    lines = capsys.readouterr().out.splitlines()
    wide = next(line for line in lines if "layer2.0/shortcut/shortcut.1/BatchNormalization" in line)
    assert "…" not in wide
    assert wide.split()[1] == "BatchNormalization"


def test_inspect_shows_what_boosts_cost_in_each_layer(trained, tmp_path, capsys):
    run = tmp_path / "second"
    assert main(["convert", MLP, "-o", str(run), "--optimizer", "thor"]) == 0
    capsys.readouterr()
    assert main(["inspect", str(run), "--layers"]) == 0
    rows = {
        words[0]: words for line in capsys.readouterr().out.splitlines() if (words := line.split())
    }
    bytes_of = {name: rows[name][4].replace(",", "") for name in ("fc1.weight", "fc2.weight")}
    assert rows["total"][1].replace(",", "") == str(sum(map(int, bytes_of.values())))
    assert main(["inspect", str(trained), "--layers"]) == 0
    assert "no costs to show" in capsys.readouterr().out


@pytest.mark.each_runtime
def test_doctor_finds_this_environment_fit(capsys):
    assert main(["doctor"]) == 0
    text = capsys.readouterr().out
    assert "Ready to train." in text
    assert "engine native" in text


def test_doctor_tries_a_device_that_is_offered(capsys, monkeypatch):
    def try_device(name):
        if name == "cuda":
            raise DependencyError(
                "did not load", where="libcudnn.so.9: no such file", fix="brew it"
            )

    module = "ortboost.api.doctor_machine"
    monkeypatch.setattr(f"{module}.available_devices", lambda: {"cpu": None, "cuda": None})
    monkeypatch.setattr(f"{module}.try_device", try_device)
    assert main(["doctor", "--json"]) == 0
    checks = {check["name"]: check for check in json.loads(capsys.readouterr().out)["findings"]}
    assert checks["device cpu"]["status"] == "ok"
    assert checks["device cuda"]["status"] == "note"
    assert checks["device cuda"]["detail"] == "does not work: libcudnn.so.9: no such file"
    assert checks["device cuda"]["fix"] == "brew it"


def test_a_diagnosis_is_a_list_that_is_shown_short():
    good, bad = HealthCheck("python", "ok", "3.11"), HealthCheck("numpy", "fail", "missing")
    assert Diagnosis([good]).ok
    assert not Diagnosis([good, bad]).ok
    assert Diagnosis([good, bad])[1:] == [bad]
    assert repr(Diagnosis([good, bad])) == "<Diagnosis: python 3.11; numpy FAIL: missing>"


@pytest.mark.parametrize(
    ("words", "status", "hint"),
    [
        (["trian"], 2, "Did you mean 'train'"),
        (["train", "", "--data", DIGITS], 2, "An argument is empty"),
        (["train", "x", "--data="], 2, "The value of --data is empty"),
        (["train"], 2, "Missing argument"),
        (["train", "x", "--data", "y", "--epochs", "0"], 2, "epochs"),
        (["train", "x", "--data", "y", "--no-such"], 2, "--no-such"),
        (["convert", MLP, "-o", "{tmp}/r", "--loss-scale", "dynamo"], 2, "dynamic"),
        (["convert", MLP, "-o", "{tmp}/r", "--freeze", "fc9.*"], 2, "fc1.weight"),
        (["convert", MLP, "-o", "{tmp}/r", "--optimizer", "adm"], 3, "'adam'"),
        (["convert", MLP, "-o", "{tmp}/r", "--loss", "mce"], 3, "'mse'"),
        (["convert", MLP, "-o", "{tmp}/r", "--optimizer", "sgd:momentun=1"], 3, "'momentum'"),
        (["convert", "{tmp}/none.onnx", "-o", "{tmp}/r"], 8, "Check the path"),
        (["convert", DIGITS, "-o", "{tmp}/r"], 8, "not a readable ONNX model"),
        (["inspect", "{tmp}"], 8, "ortboost convert"),
        (["inspect", MLP, MLP, "--parameters", MLP], 2, "--parameters applies only to one file"),
        (["inspect", MLP, MLP, "--layers"], 2, "--layers applies only to one file"),
        (["inspect", MLP, MLP, "--state"], 2, "--state applies only to one file"),
        (["inspect", MLP, MLP, "--reports"], 2, "--reports applies only to one file"),
        (["inspect", MLP, MLP, "--precision"], 2, "--precision applies only to one file"),
        (["inspect", MLP, "--dim", "batch=2"], 2, "--dim applies only to two files"),
        (["inspect", MLP, "--shape", "x:1x2"], 2, "--shape applies only to two files"),
        (["eval", MLP, "--data", "{tmp}/none.npz"], 8, "none.npz"),
        (["eval", MLP, "--data", MLP], 8, "mlp.onnx"),
        (["eval", MLP, "--data", DIGITS, "--device", "cuda"], 7, "--device cpu"),
        (["eval", MLP, "--data", DIGITS, "--device", "tpu"], 2, "cpu"),
        (["eval", MLP, "--data", DIGITS, "--map", "x=pixels"], 2, "pixels"),
    ],
)
def test_errors_say_what_where_and_fix(words, status, hint, tmp_path, capsys):
    assert main([word.format(tmp=tmp_path) for word in words]) == status
    assert hint in error_lines(capsys)


def test_a_trained_run_is_not_lost_by_mistake(trained, capsys):
    before = sorted(p.name for p in trained.rglob("*"))
    assert main(["convert", MLP, "-o", str(trained)]) == 2
    assert "--overwrite" in error_lines(capsys)
    assert main(["train", str(trained), "--data", DIGITS]) == 2
    assert "--resume" in error_lines(capsys)
    assert sorted(p.name for p in trained.rglob("*")) == before


def test_a_run_that_was_complete_has_no_pace(trained, capsys):
    words = ["train", str(trained), "--data", DIGITS, "--val", DIGITS, "--epochs", "2", "--resume"]
    assert main(words) == 0
    steps = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("steps"))
    assert steps.split()[1:] == ["46"]
    assert main([*words, "-q"]) == 0
    assert capsys.readouterr() == ("", "")


def test_a_model_that_cannot_be_trained_leaves_with_four(tmp_path, capsys):
    import onnx_ir as ir

    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[batch, 4] x) => (float[batch, 3] logits)
    <float[4, 3] w = {1,2,3,4,5,6,7,8,9,10,11,12}>
    { h = MatMul(x, w)  r = Round(h)  logits = Det_free(r) }""".replace("Det_free(r)", "Floor(r)")
    path = tmp_path / "blocked.onnx"
    ir.save(ir.from_onnx_text(text), path)
    assert main(["check", str(path)]) == 4
    text = capsys.readouterr().out
    assert "Round" in text
    assert "Floor" in text
    assert main(["convert", str(path), "-o", str(tmp_path / "run")]) == 4
    assert "Round" in error_lines(capsys)
    assert not (tmp_path / "run").exists()


def test_a_wrong_export_leaves_with_five_and_keeps_the_old_file(
    trained, tmp_path, capsys, monkeypatch
):
    import onnx_ir as ir

    out = tmp_path / "model.onnx"
    out.write_bytes(b"the good one")
    original = REWRITES["fold_constants"]

    def corrupt(model, target):
        report = original(model, target)
        weight = model.graph.initializers["fc2.weight"]
        weight.const_value = ir.tensor(weight.const_value.numpy() * np.float32(1.1))
        report.changed["fc2.weight"] = "spoilt"
        return report

    monkeypatch.setitem(REWRITES, "fold_constants", corrupt)
    assert main(["export", str(trained), "-o", str(out), "--verify", DIGITS]) == 5
    text = error_lines(capsys)
    assert "logits" in text
    assert "the rewrite 'fold_constants'" in text
    assert out.read_bytes() == b"the good one"
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]


def test_divergence_leaves_with_six_and_names_the_tensors(tmp_path, capsys):
    run, data = tmp_path / "run", tmp_path / "bad.npz"
    x = np.full((64, 64), 1e30, np.float32)
    np.savez(data, x=x, y=np.arange(64) % 10)
    words = ["convert", MLP, "-o", str(run), "--loss-scale", "dynamic:init=4", "-q"]
    assert main(words) == 0
    status = main(
        ["train", str(run), "--data", str(data), "--batch-size", "8", "--epochs", "20", "-q"]
    )
    assert status == 6
    text = capsys.readouterr().err
    assert "_grad" in text.split("not finite, or too large:")[1]
    assert "epoch" not in text
    assert list((run / "checkpoints").glob("*.safetensors"))


def test_traceback_only_with_two_v(tmp_path, capsys):
    words = ["inspect", str(tmp_path / "none.onnx")]
    assert main([*words, "-v"]) == 8
    assert "Traceback" not in capsys.readouterr().err
    assert main([*words, "-vv"]) == 8
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.slow
def test_ctrl_c_saves_and_leaves_with_130(tmp_path):
    run = tmp_path / "run"
    assert main(["convert", MLP, "-o", str(run), "-q"]) == 0
    train = [sys.executable, "-m", "ortboost", "train", str(run), "--data", DIGITS]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [*train, "--epochs", "100000"], stderr=subprocess.PIPE, text=True, env=environment
    )
    deadline = time.monotonic() + 60
    while not (run / "checkpoints").is_dir() or not list((run / "checkpoints").glob("*.json")):
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline, "no checkpoint in a minute"
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, text = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "--resume" in text


@pytest.mark.parametrize("abort", [False, True])
def test_ctrl_c_elsewhere_says_so_too(capsys, monkeypatch, abort):
    def interrupted(*_, **__):
        raise RuntimeError from KeyboardInterrupt() if abort else KeyboardInterrupt

    monkeypatch.setattr("ortboost.api.inspect", interrupted)
    assert main(["inspect", MLP]) == 130
    assert error_lines(capsys).startswith("error: Interrupted.")


def test_inspect_says_where_what_it_lacks_is(tmp_path, capsys):
    run = str(tmp_path / "run")
    assert main(["convert", MLP, "-o", run, "-q"]) == 0
    for words, hint in ((["--params", run], "--state"), (["--state", MLP], "--params")):
        assert main(["inspect", *words]) == 0
        assert capsys.readouterr().out.strip().splitlines()[-1].endswith(hint)


def test_bare_command_is_the_help_and_no_error(capsys):
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out.startswith("Usage: ortboost")
    assert captured.err == ""


def test_a_reader_that_leaves_is_no_bug():
    words = [sys.executable, "-m", "ortboost", "inspect", MLP, "--json", "--params", "--layers"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait() == 128 + signal.SIGPIPE


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_lines_that_cannot_be_written_change_no_exit_status(tmp_path):
    """A log on a full disk: the training goes on, and an error still has its status."""
    run = tmp_path / "run"
    assert main(["convert", MLP, "-o", str(run), "-q"]) == 0
    for words, status in (
        (["train", str(run), "--data", DIGITS, "--val", DIGITS, "--epochs", "1"], 0),
        (["eval", str(tmp_path / "missing"), "--data", DIGITS], 8),
        (["evl"], 2),
    ):
        with open("/dev/full", "w") as full:
            command = [sys.executable, "-m", "ortboost", *words]
            found = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, check=False)
        assert (found.returncode, bool(found.stdout)) == (status, status == 0)
    assert (run / "checkpoints").is_dir()


def test_an_export_cannot_overwrite_its_program(trained, capsys):
    before = (trained / "step.onnx").read_bytes()
    for name in ("step.onnx", "../run/eval.onnx"):
        assert main(["export", str(trained), "-o", str(trained / name)]) == 2
        assert "part of the program" in error_lines(capsys)
    assert (trained / "step.onnx").read_bytes() == before


def test_a_damaged_last_checkpoint_is_refused_and_not_replaced_by_an_older_one(
    trained, tmp_path, capsys
):
    run = tmp_path / "run"
    shutil.copytree(trained, run)
    last = sorted((run / "checkpoints").glob("*.safetensors"))[-1]
    data = bytearray(last.read_bytes())
    data[-5] ^= 1
    last.write_bytes(data)
    assert main(["eval", str(run), "--data", DIGITS, "--checkpoint", "last"]) == 8
    assert last.name in error_lines(capsys)


def test_a_failed_new_start_keeps_the_checkpoints(trained, tmp_path, capsys):
    bad = tmp_path / "bad.npz"
    np.savez(bad, x=np.zeros((64, 64), np.float32), y=np.full(64, 99))
    before = sorted(p.name for p in (trained / "checkpoints").iterdir())
    assert main(["train", str(trained), "--data", str(bad), "--overwrite", "-q"]) != 0
    assert "99" in error_lines(capsys)
    words = ["train", str(trained), "--data", DIGITS, "--overwrite", "--early-stop", "2"]
    assert main(words) == 2
    assert "--val" in error_lines(capsys)
    assert sorted(p.name for p in (trained / "checkpoints").iterdir()) == before


def test_one_training_to_a_folder(trained, capsys):
    holder = os.open(trained, os.O_RDONLY)
    fcntl.flock(holder, fcntl.LOCK_EX)
    try:
        assert main(["train", str(trained), "--data", DIGITS, "--resume", "-q"]) == 2
    finally:
        os.close(holder)
    assert "Another process" in error_lines(capsys)


def test_a_misspelt_schedule_is_found_by_convert(tmp_path, capsys):
    for text in ("cosin:0.1", "-1", "cosine:0.1,warm=5"):
        assert main(["convert", MLP, "-o", str(tmp_path / "run"), "--lr", text]) in (2, 3)
        error_lines(capsys)
    assert not (tmp_path / "run").exists()
    words = ["convert", MLP, "-o", str(tmp_path / "a b"), "--lr", "cosine:0.1,warmup=9999"]
    assert main(words) == 0
    assert f"ortboost train '{tmp_path}/a b'" in capsys.readouterr().out


def test_early_stop_and_metrics_follow_the_loss(tmp_path, capsys):
    run, data = tmp_path / "run", tmp_path / "data.npz"
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 64)).astype(np.float32)
    np.savez(data, x=x, y=x[:, :10])
    words = ["convert", MLP, "-o", str(run), "--loss", "mse", "--lr", "0", "-q"]
    assert main(words) == 0
    train = ["train", str(run), "--data", str(data), "--val", str(data), "--epochs", "9"]
    assert main([*train, "--metric", "accuracy"]) == 2
    assert "needs classes" in error_lines(capsys)
    assert main([*train, "--metric", "perplexity"]) == 2
    assert "mean cross entropy" in error_lines(capsys)
    assert main([*train, "--metric", "mae", "--metric", "mae"]) == 2
    assert "Several metrics" in error_lines(capsys)
    measure = ["eval", str(run), "--data", str(data), "--checkpoint", "initial", "--metric"]
    assert main([*measure, "perplexity"]) == 2
    assert "mean cross entropy" in error_lines(capsys)
    assert main([*measure, "mae", "--metric", "mae"]) == 2
    assert "Several metrics" in error_lines(capsys)
    assert main([*train, "--early-stop", "2"]) == 0
    assert "early stop: no better val_loss" in capsys.readouterr().out


def test_a_model_fixed_to_a_batch_can_be_evaluated_and_exported(tmp_path, capsys):
    import onnx_ir as ir

    model, run, out = tmp_path / "m.onnx", tmp_path / "run", tmp_path / "out.onnx"
    fixed = ir.load(MLP)
    for value in (*fixed.graph.inputs, *fixed.graph.outputs):
        value.shape = ir.Shape([7, *value.shape[1:]])
    ir.save(fixed, model)
    assert main(["convert", str(model), "-o", str(run), "-q"]) == 0
    words = ["train", str(run), "--data", DIGITS, "--batch-size", "7", "--epochs", "1", "-q"]
    assert main(words) == 0
    assert main(["export", str(run), "-o", str(out), "--verify", DIGITS]) == 0
    capsys.readouterr()
    answers = []
    for target in (run, out):
        assert main(["eval", str(target), "--data", DIGITS, "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["accuracy"])
    assert answers[0] == answers[1]


@needs_native  # the frozen runtime knows no newer opset than 21
def test_an_opset_beyond_the_runtime_is_named(trained, tmp_path, capsys):
    out = str(tmp_path / "new.onnx")
    assert main(["export", str(trained), "-o", out, "--opset", "22"]) == 4
    assert "opset 21" in error_lines(capsys)


def test_export_proposes_what_works_with_the_loss(tmp_path, capsys):
    run, out = tmp_path / "run", tmp_path / "out.onnx"
    assert main(["convert", MLP, "-o", str(run), "--loss", "mse", "-q"]) == 0
    assert main(["export", str(run), "-o", str(out), "--checkpoint", "initial"]) == 0
    assert f"next: ortboost inspect {out}" in capsys.readouterr().out


def test_export_proposes_an_evaluation_only_on_data_with_labels(trained, tmp_path, capsys):
    out, data = tmp_path / "out.onnx", tmp_path / "unlabelled.npz"
    np.savez(data, x=np.load(DIGITS)["x_test"][:8])
    for words, verb in (["--verify", str(data)], "inspect"), (["--verify", DIGITS], "eval"):
        assert main(["export", str(trained), "-o", str(out), *words]) == 0
        assert f"next: ortboost {verb} {out}" in capsys.readouterr().out


def test_what_the_file_system_refuses_is_no_bug(trained, tmp_path, capsys, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied", str(tmp_path))

    monkeypatch.setattr("tempfile.mkdtemp", refuse)
    assert main(["export", str(trained), "-o", str(tmp_path / "x.onnx")]) == 8
    text = error_lines(capsys)
    assert "Permission denied" in text
    assert str(tmp_path) in text


@pytest.mark.parametrize("said", ["Unable to allocate 12.2 MiB", ""])
def test_a_lack_of_memory_is_no_bug(said, trained, capsys, monkeypatch):
    def fail(*arguments, **settings):
        raise MemoryError(said)

    monkeypatch.setattr("ortboost.training.data.load.load_npz", fail)
    assert main(["eval", str(trained), "--data", DIGITS]) == 7
    what, where, _ = error_lines(capsys).splitlines()
    assert what == "error: There is not enough memory."
    assert where == f"  where: {said or f'ortboost eval {trained} --data {DIGITS}'}"


def test_a_missing_package_is_no_bug(trained, capsys, monkeypatch):
    def fail(*arguments, **settings):
        raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")

    monkeypatch.setattr("ortboost.training.data.load.load_npz", fail)
    assert main(["eval", str(trained), "--data", DIGITS]) == 7
    what, where, _ = error_lines(capsys).splitlines()
    assert what == "error: The package 'safetensors' is missing."
    assert where == f"  where: ortboost eval {trained} --data {DIGITS}"


def test_labels_that_do_not_count_are_in_no_accuracy(tmp_path, capsys):
    digits = np.load(DIGITS)
    labels = digits["y_test"].copy()
    clean = tmp_path / "clean.npz"
    np.savez(clean, x=digits["x_test"][1::2].reshape(-1, 64), y=labels[1::2])
    labels[::2] = -100
    half = tmp_path / "half.npz"
    np.savez(half, x=digits["x_test"].reshape(-1, 64), y=labels)
    run = tmp_path / "run"
    words = ["convert", MLP, "-o", str(run), "--ignore-index", "-100", "--lr", "0", "-q"]
    assert main(words) == 0
    assert main(["train", str(run), "--data", str(half), "--epochs", "1", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)["metrics"]["train_accuracy"]
    answers = []
    for target, data in ((run, half), (run, clean), (MLP, clean)):
        assert main(["eval", str(target), "--data", str(data), "--json"]) == 0
        answers.append(json.loads(capsys.readouterr().out)["accuracy"])
    assert answers[0] == answers[1] == answers[2] == pytest.approx(shown, abs=0.03)
    assert main(["eval", MLP, "--data", str(half), "--metric", "top5"]) == 2  # what does not count?
    assert "The label -100 is not a class" in error_lines(capsys)


def test_json_has_null_for_what_is_not_finite(capsys):
    Output(json=True).result({"loss": float("nan"), "all": [float("inf"), 1.5], "n": 3})
    assert json.loads(capsys.readouterr().out) == {"loss": None, "all": [None, 1.5], "n": 3}


def test_the_list_of_verbs_is_not_cut_off(capsys):
    assert main(["--help"]) == 0
    assert "..." not in capsys.readouterr().out.partition("Commands:")[2]


def test_check_names_a_loss_if_only_the_default_does_not_fit(tmp_path, capsys):
    path = tmp_path / "regressor.onnx"
    net = """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,1] w) => (float[N,1] y) { y = MatMul(x, w) }"""
    save_model(text_model(net, w=np.ones((3, 1), np.float32)), path)
    assert main(["check", str(path)]) == 0
    out = capsys.readouterr().out
    assert "note: the default loss does not fit: " in out
    assert "--loss mse" in out.partition("next: ")[2]
    assert main(["check", str(path), "--loss", "softmax-cross-entropy"]) == 4


def test_check_proposes_a_convert_with_the_same_weights(capsys):
    assert main(["check", MLP, "--freeze", "fc1.*"]) == 0
    assert "--freeze 'fc1.*'" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["eval", "{run}/eval.onnx", "--data", DIGITS], "This is the eval graph of a program"),
        (["eval", "{run}/step.onnx", "--data", DIGITS], "This is the step graph of a program"),
        (["eval", MLP, "--data", DIGITS, "--device", "gpu"], "did you mean 'cuda'"),
    ],
)
def test_a_likely_slip_is_named(words, hint, trained, capsys):
    assert main([word.format(run=trained) for word in words]) == 2
    assert hint in error_lines(capsys)


def test_inspect_calls_a_node_without_a_name_by_its_output(tmp_path, capsys):
    path = tmp_path / "model.onnx"
    graph = "g (float[2] x) => (float[2] y) {y = Relu(x)}"
    save_model(text_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}'), path)
    assert main(["inspect", str(path), "--layers", "--precision", "--reports"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "y     Relu  y       [2]" in lines
    assert "y     fp32       as in the file" in lines
    assert lines[-1] == "no reports to show: only a program keeps them"
    assert main(["plot", str(path), "-o", str(tmp_path / "g.svg"), "--around", "y"]) == 0


def test_check_proposes_another_folder_for_a_program(trained, capsys):
    assert main(["check", str(trained)]) == 0
    assert f"next: ortboost convert {trained} -o tuned" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "option"),
    [
        (["export", MLP, "-o", "{tmp}/o.onnx", "--skip", "fc*"], "--skip applies only to int8"),
        (["export", MLP, "-o", "{tmp}/o.onnx", "--max-drop", "0.1"], "applies only to int8"),
        (["check", MLP, "--rtol", "0.1"], "--rtol applies only to a target"),
        (["eval", MLP, "--data", DIGITS, "--metric", "loss"], "An ONNX file has no loss"),
        (["plot", "{run}", "--graph", "step"], "but curves are drawn"),
        (["train", "{run}", "--data", DIGITS, "--max-restarts", "2"], "only with --processes"),
        (["check", MLP, "--for", "tensorrt", "--verify", DIGITS], "applies only with --fix"),
    ],
)
def test_an_option_without_effect_is_refused(words, option, trained, tmp_path, capsys):
    assert main([word.format(tmp=tmp_path, run=trained) for word in words]) == 2
    assert option in error_lines(capsys)


def test_warnings_of_a_training_look_like_those_of_other_verbs(trained):
    words = ["train", str(trained), "--data", DIGITS, "--images", "resize=3"]
    found = subprocess.run(
        [sys.executable, "-m", "ortboost", *words], capture_output=True, text=True, check=False
    )
    assert found.stderr.startswith(f"warning: {DIGITS}: no images"), found.stderr


def test_a_folder_is_no_file_to_write(trained, tmp_path, capsys):
    assert main(["export", str(trained), "-o", str(tmp_path)]) == 8
    assert "is a folder" in error_lines(capsys)


def test_check_names_what_is_done_alike_in_one_row(capsys):
    model = str(model_path("resnet20"))
    assert main(["check", model, "--engine", "portable"]) == 0
    out = capsys.readouterr().out
    assert "/bn1/BatchNormalization and 20 more" in out
    assert out.count("batch statistics computed") == 1
    assert main(["check", model, "--engine", "portable", "-v"]) == 0
    assert capsys.readouterr().out.count("batch statistics computed") == 21


def test_a_list_of_parameters_and_what_is_in_doubt(tmp_path, capsys):
    path, listed = tmp_path / "m.onnx", tmp_path / "m.txt"
    ir.save(
        text_model(
            """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
            net (float[N,4] x, float[4] mask, float[4,3] weight) => (float[N,3] y) {
              a = Mul(x, mask)  y = MatMul(a, weight) }""",
            mask=weights(4),
            weight=weights(4, 3),
        ),
        path,
    )
    assert main(["inspect", str(path), "--params"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "doubtful 1, see --params" in text
    assert "mask [4] constant no? named like a buffer" in text
    listed.write_text("mask\nweight false\n")
    for verb in (["check"], ["convert", "--out", str(tmp_path / "run"), "--dry-run"]):
        assert main([verb[0], str(path), *verb[1:], "--parameters", str(listed)]) == 0
        text = " ".join(capsys.readouterr().out.split())
        assert "4 of 16 parameters in 1 tensor; 1 tensor frozen" in text
        assert "doubtful" not in text
    assert main(["inspect", str(path), "--params", "--parameters", str(listed)]) == 0
    assert "mask [4] constant yes " in " ".join(capsys.readouterr().out.split())
    listed.write_text("mosk\n")
    for verb in (["check"], ["inspect"], ["convert", "--out", str(tmp_path / "run")]):
        assert main([verb[0], str(path), *verb[1:], "--parameters", str(listed)]) == 2
        assert "Did you mean 'mask'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["train", "RUN", "--data", DIGITS, "--overwrite", "--check-sync", "3"],
        ["train", "RUN", "--data", DIGITS, "--overwrite", "--exchange-dtype", "float16"],
        ["train", "RUN", "--data", DIGITS, "--overwrite", "--segments", "3"],
        ["train", "RUN", "--data", DIGITS, "--overwrite", "--val-split", "0.9999"],
        ["pca", "RUN", "-o", "p.npy", "--components", "40"],
        ["plot", "RUN", "--around", "x"],
        ["convert", MLP, "-o", "OUT", "--precision", "fp16", "--keep-fp32", "nothing"],
    ],
    ids=lambda words: words[-2],
)
def test_errors_name_options_and_not_arguments(words, trained, tmp_path, capsys):
    places = {"RUN": str(trained), "OUT": str(tmp_path / "out")}
    assert main([places.get(word, word) for word in words]) == 2
    where = next(line for line in error_lines(capsys).splitlines() if "  where: " in line)
    assert words[-2] in where
    assert words[-2].strip("-").replace("-", "_") not in where.replace(words[-2], "")
