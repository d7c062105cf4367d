"""``ortboost convert --boost --boost-config --set --explain --dry-run``."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import numpy as np
import pytest

import ortboost as ob
from ortboost.boosts import Clip, GradFreeze, GroupLossScale, LessBN, MixedPrecision, Thor
from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.cli import main
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.optimizers import Adam, Momentum
from ortboost.program.boost_config import resolve_boost
from ortboost.program.program import Program

ROOT = Path(__file__).resolve().parents[2]
MLP = str(ROOT / "models/mlp.onnx")
RESNET = str(ROOT / "models/resnet_bottleneck.onnx")
SMALL = ["--set", "grad_freeze.param_groups=2"]


def convert(model, run, *words):
    return main(["convert", model, "-o", str(run), *words])


@pytest.mark.parametrize(
    ("option", "boost"),
    [
        (("--precision", "bf16"), "mixed-precision"),
        (("--loss-scale", "off"), "loss-scale"),
        (("--loss-scale", "fixed:8"), "group-loss-scale"),
        (("--accumulate", "2"), "grad-accumulation:steps=3"),
        (("--clip", "value:2"), "clip:by=norm,limit=1"),
    ],
)
def test_a_boost_that_contradicts_another_option_is_refused(tmp_path, capsys, option, boost):
    assert convert(MLP, tmp_path / "run", *option, "--boost", boost) == 2
    assert "contradicts another option" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert convert(MLP, tmp_path / "run", "--boost", boost) == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--boost", "grad-freeze:p=0.4,p=0.5,groups=2"),
        ("--optimizer", "momentum:momentum=0.1,momentum=0.2"),
        ("--dim", "batch=4", "--dim", "batch=5"),
    ],
)
def test_a_setting_given_twice_is_refused(tmp_path, capsys, words):
    assert convert(MLP, tmp_path / "run", *words) == 2
    assert "is given twice" in capsys.readouterr().err


def test_a_level(tmp_path, capsys):
    assert convert(RESNET, tmp_path / "run", "--boost", "O1") == 0
    text = capsys.readouterr().out
    assert "boosts" in text
    assert "less-bn, full-norm-head" in text
    config = Program.load(tmp_path / "run").config
    assert config.less_bn
    assert config.full_norm_head
    assert config.centralize is not None
    assert config.grad_freeze == FreezeConfig()


def test_a_file_and_settings_that_overrule_it(tmp_path, capsys):
    path = tmp_path / "boost.json"
    source = {
        "boost": {"mode": "manual", "less_bn": False, "grad_accumulation": True},
        "grad_freeze": {"freeze_p": 0.2, "param_groups": 4},
        "grad_accumulation": {"grad_accumulation_step": 3},
    }
    path.write_text(json.dumps(source))
    words = ["--boost", "O1", "--boost-config", str(path), "--set", "grad_freeze.freeze-p=0.6"]
    assert convert(RESNET, tmp_path / "run", *words, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["config"]["grad_freeze"]["freeze_p"] == 0.6
    config = Program.load(tmp_path / "run").config
    assert not config.less_bn
    assert config.grad_freeze == FreezeConfig(4, freeze_p=0.6)
    assert config.accumulate == 3


def test_a_setting_alone_turns_a_boost_on(tmp_path):
    words = ["--set", "boost.grad_freeze=true", *SMALL, "-q"]
    assert convert(MLP, tmp_path / "run", *words) == 0
    config = Program.load(tmp_path / "run").config
    assert config.grad_freeze == FreezeConfig(2)
    assert not config.less_bn


def test_boosts_by_name(tmp_path, capsys):
    words = ["--boost", "less-bn", "--boost", "grad-freeze:p=0.4,by=cost,groups=3"]
    words += ["--boost", "group-loss-scale:init=64,groups=2", "--boost", "clip:by=norm,limit=2"]
    words += ["--boost", "mixed_precision:compute=fp16,keep_fp32=Conv|,emulate=true"]
    assert convert(RESNET, tmp_path / "run", *words) == 0
    names = "less-bn, mixed-precision, group-loss-scale, clip, grad-freeze"
    assert names in capsys.readouterr().out
    config = Program.load(tmp_path / "run").config
    assert config.boosts == (
        LessBN(),
        MixedPrecision("fp16", keep_fp32=("Conv",), emulate=True),
        GroupLossScale(GroupedScaleConfig(64, 2)),
        Clip("norm", 2),
        GradFreeze(p=0.4, by="cost", groups=3),
    )


def test_a_boost_by_name_is_stronger_than_a_level(tmp_path, capsys):
    words = ["--boost", "O1", "--boost", "grad-freeze:p=0.2,groups=2"]
    assert convert(RESNET, tmp_path / "run", *words, "--boost", "grad-accumulation:steps=3") == 0
    config = Program.load(tmp_path / "run").config
    assert (config.grad_freeze, config.accumulate) == (FreezeConfig(2, freeze_p=0.2), 3)
    assert config.less_bn
    assert "already has" in capsys.readouterr().out


def test_an_option_is_stronger_than_a_boost(tmp_path, capsys):
    words = ["--set", "boost.grad_accumulation=true", "--accumulate", "5"]
    words += ["--set", "grad_accumulation.grad_accumulation_step=2"]
    assert convert(MLP, tmp_path / "run", *words) == 0
    assert Program.load(tmp_path / "run").config.accumulate == 5
    assert "already has" in capsys.readouterr().out


def test_explain_says_what_each_boost_became(tmp_path, capsys):
    assert convert(RESNET, tmp_path / "run", "--boost", "O2", "--explain") == 0
    text = capsys.readouterr().out
    assert "auto_boost: 5 changed" in text
    assert "one process" in text
    assert "\nless_bn: " in text
    assert "\ngrad_freeze: " in text


def test_what_changes_nothing_is_said_without_explain(tmp_path, capsys):
    assert convert(MLP, tmp_path / "run", "--boost", "O0", *SMALL) == 0
    assert "note: grad_freeze: settings of a boost that is off" in capsys.readouterr().out


def test_dry_run_writes_nothing(tmp_path, capsys):
    assert convert(RESNET, tmp_path / "run", "--boost", "O1", "--dry-run") == 0
    text = capsys.readouterr().out
    assert "not written" in text
    assert not (tmp_path / "run").exists()
    assert convert(MLP, tmp_path / "run", "-q") == 0
    before = (tmp_path / "run" / "program.json").read_bytes()
    again = ["--overwrite", "--dry-run", "--lr", "0.5", "--json"]
    assert convert(MLP, tmp_path / "run", *again) == 0
    assert json.loads(capsys.readouterr().out)["dry_run"] is True
    assert (tmp_path / "run" / "program.json").read_bytes() == before
    assert convert(MLP, tmp_path / "run", "--dry-run") != 0  # the folder is taken


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--boost", "O7"], "choices: O0, O1, O2"),
        (["--boost", "o1"], "did you mean 'O1'"),
        (["--set", "freeze_p=0.5"], "grad_freeze.freeze_p"),
        (["--set", "grad_freeze.freeze_q=0.5"], "did you mean 'freeze_p'"),
        (["--set", "gradfreeze.freeze_p=0.5"], "did you mean 'grad_freeze'"),
        (["--set", "grad_freeze.freeze_p"], "SECTION.KEY=VALUE"),
        (["--set", "grad_freeze.freeze_p=2"], "0 to 1"),
        (["--set", "common.gradient_split_groups=[1"], "positions"),
        (["--boost", "O1", "--set", "boost.mode=sometimes"], "choices: auto, manual"),
        (["--boost", "O1", "--set", "boost.dim_reduce=true"], "needs the principal components"),
        (["--boost", "O1", "--boost", "O2"], "one of them"),
        (["--boost", "les-bn"], "did you mean 'less-bn'"),
        (["--boost", "grad-freeze:q=1"], "choices: p, by"),
        (["--boost", "grad-freeze:p"], "KEY=VALUE"),
        (["--boost", "grad-freeze:p=x"], "a number"),
        (["--boost", "grad-freeze:groups=0"], "'groups' is 0"),
        (["--boost", "grad-accumulation"], "steps"),
        (["--boost-config", "missing.json"], "missing.json"),
        (["--boost-config", MLP], "not valid JSON"),
    ],
)
def test_errors_in_three_lines(tmp_path, capsys, words, said):
    assert convert(MLP, tmp_path / "run", *words) != 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert "\n  where: " in captured.err
    assert "\n  fix:   " in captured.err
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("level", ["O1", "O2"])
def test_a_level_on_a_small_network_freezes_nothing_and_says_so(tmp_path, capsys, level):
    assert convert(MLP, tmp_path / "run", "--boost", level) == 0
    assert "note: grad-freeze: nothing is frozen: 10 groups" in capsys.readouterr().out


def test_a_boosted_run_from_convert_to_export(tmp_path, capsys):
    rng = np.random.default_rng(0)
    data = tmp_path / "data.npz"
    x = rng.standard_normal((32, 3, 32, 32)).astype(np.float32)
    np.savez(data, x=x, labels=rng.integers(0, 10, 32))
    run, out = tmp_path / "run", tmp_path / "out.onnx"
    words = ["--boost", "O1", "--set", "grad_freeze.param_groups=3", "--lr", "0.02", "-q"]
    words += ["--set", "boost.grad_accumulation=true"]
    words += ["--set", "grad_accumulation.grad_accumulation_step=2"]
    assert convert(RESNET, run, *words) == 0
    train = ["train", str(run), "--data", str(data), "--batch-size", "4", "--epochs", "2", "-q"]
    assert main(train) == 0
    assert main(["export", str(run), "-o", str(out), "--checkpoint", "last", "-q"]) == 0
    assert "BatchNormalization" not in {
        node.op_type for node in ob.load(out).model.graph
    }  # folded, the rest was removed


def test_the_same_from_python(tmp_path):
    source = {"grad_freeze": {"param_groups": 3}}
    one = ob.convert(RESNET, tmp_path / "a", boost="O1", boost_config=source)
    other = ob.convert(RESNET, tmp_path / "b", boost=resolve_boost("O1", source), dry_run=True)
    assert one.config == other.config
    assert one.fingerprint == other.fingerprint
    assert one.reports[0].rewrite == "auto_boost"
    assert not (tmp_path / "b").exists()
    plain = ob.convert(MLP, tmp_path / "c", boost_config=source)
    assert plain.config.grad_freeze is None


# ---- the card -----------------------------------------------------------------------------------

CARD = (ROOT / "docs" / "cards" / "auto-boost.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", CARD, re.DOTALL)


def test_the_lines_of_the_card_run(tmp_path, monkeypatch):
    lines = [line for line in blocks("sh")[0].splitlines() if line]
    settings = " ".join(blocks("sh")[1].replace("\\\n", " ").split())
    assert len(lines) == 4
    monkeypatch.chdir(tmp_path)
    Path("boost.json").write_text(blocks("json")[0])
    shutil.copy(RESNET, "model.onnx")
    for line in [*lines, f"ortboost convert model.onnx -o run {settings}"]:
        assert main([*shlex.split(line)[1:], "--dry-run", "-q"]) == 0, line


def test_the_sample_of_the_card_runs(monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(blocks("python")[0], names)
    assert names["evaluate"] is names["network"].backbone_network
    assert names["boost"].reports[0].changed.keys() == {"less_bn", "grad_freeze"}
    assert names["model"].train_network.freeze


def test_thor_is_momentum_and_a_boost(tmp_path, capsys):
    assert (
        convert(MLP, tmp_path / "run", "--optimizer", "thor:frequency=7,damping=0.1,momentum=0.8")
        == 0
    )
    config = Program.load(tmp_path / "run").config
    assert config.optimizer == Momentum(0.8)
    assert config.with_boosts(Thor(0.1, frequency=7)) == config
    capsys.readouterr()
    assert main(["inspect", str(tmp_path / "run"), "--reports"]) == 0
    shown = capsys.readouterr().out
    assert "thor (damping 0.1" in shown
    assert "step.1.onnx" in shown
    assert "fc1.weight: dense, A 64, G 32; 20480 bytes of state" in shown


def test_an_optimizer_takes_its_numbers_after_a_colon(tmp_path):
    assert convert(MLP, tmp_path / "run", "--optimizer", "adam:beta1=0.8,eps=1e-6") == 0
    assert Program.load(tmp_path / "run").config.optimizer == Adam(0.8, eps=1e-6)


@pytest.mark.parametrize(("name", "fix"), [("lamb", "choices: sgd"), ("tohr", "mean 'thor'")])
def test_an_optimizer_that_is_not_there_is_not_in_this_version(name, fix, tmp_path, capsys):
    assert convert(MLP, tmp_path / "run", "--optimizer", name) == 3
    said = capsys.readouterr().err
    assert f"Unknown optimizer '{name}'." in said
    assert "where: --optimizer" in said
    assert fix in said


@pytest.mark.parametrize("text", ["thor:frequencee=3", "thor:damping=0", "thor:mode=mindspore"])
def test_what_thor_does_not_know_is_refused(text, tmp_path, capsys):
    assert convert(MLP, tmp_path / "run", "--optimizer", text) == 3
    assert not (tmp_path / "run").exists()
    assert "fix:" in capsys.readouterr().err


def test_the_former_option_for_settings(tmp_path):
    words = ("--optimizer-arg", "momentum=0.7", "--optimizer-arg", "nesterov=true")
    assert convert(MLP, tmp_path / "run", *words) == 0
    optimizer = Program.load(tmp_path / "run").config.optimizer
    assert (optimizer.momentum, optimizer.nesterov) == (0.7, True)


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["convert", "--sync-bn"], "It is a boost: ortboost convert MODEL -o RUN --boost sync-bn"),
        (["train", "--adasum"], "It is a boost: ortboost convert MODEL -o RUN --boost adasum"),
        (["train", "--sync"], "See 'ortboost train --help'."),
        (["convert", "model.onnx", "--clip"], "See 'ortboost convert --help'."),
        (["--sync"], "See 'ortboost --help'."),
        (["train", "--learning-rate", "1"], "Write --lr; see 'ortboost train --help'."),
        (["export", "--fp16"], "Write --precision fp16; see 'ortboost export --help'."),
        (["train", "--fp16"], "See 'ortboost train --help'."),  # a choice of `convert`
    ],
)
def test_an_unknown_option_that_has_another_form(words, fix, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err.endswith(f"  fix:   {fix}\n")
