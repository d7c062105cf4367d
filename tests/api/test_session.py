"""What a Python session shows: short texts, tables in a notebook, progress."""

import dataclasses
import sys
from types import SimpleNamespace

import pytest

import ortboost as ob
from ortboost.api import train_program
from ortboost.cli import main
from ortboost.deploy.bench_results import Latency, Measurement, Ratio
from ortboost.training.progress import QuietProgress
from tests.support import assert_three_lines, digits, model_path

X, Y = digits()["x_train"][:64].reshape(64, 64), digits()["y_train"][:64]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("session") / "run"
    ob.convert(model_path("mlp"), path)
    return path


def bench_pair():
    latency = Latency(0.001, 0.002, 0.003, 0.001, 0.001, 10)
    ratio = Ratio(1.1, 1.0, 1.2)
    return Measurement("mlp.onnx", 1, None, "cpu", latency, 1e3, 0.01, 1591, 10**8, 10**7, ratio)


def test_large_objects_are_shown_short(folder):
    program = ob.Program.load(folder)
    summary = ob.train(folder, (X, Y), epochs=1, overwrite=True)
    shown = {
        "64": ob.load(model_path("mlp")),
        "portable": program,
        "updates 0": ob.Stepper(program),
        "2, 0 skipped": ob.train(folder, (X, Y), epochs=2, overwrite=True),
        "all epochs done": summary,
        "softmax-cross-entropy": ob.inspect(folder),
        "opset": ob.inspect(model_path("mlp")),
        "trainable True": ob.check(model_path("mlp")),
        "TensorRT": ob.check(model_path("mlp"), target="tensorrt=11"),
        "alike True": ob.compare(model_path("mlp"), model_path("mlp"), data=(X, Y)),
        "over the first 1.": bench_pair(),
        "after": ob.inspect_pair(model_path("mlp"), model_path("lenet5")),
        "precision fp32": ob.export(folder, folder / "mlp.onnx", verify=(X, Y)),
    }
    for word, value in shown.items():
        text, page = repr(value), value._repr_html_()
        assert "\n" not in text
        assert len(text) < 420
        assert word in text
        assert word.split()[-1] in page
        assert page.startswith(f"<table><caption>{type(value).__name__}</caption>")


def test_training_shows_itself_unless_it_is_told_not_to(folder, monkeypatch, capsys):
    made = []
    monkeypatch.setattr(
        train_program, "session_progress", lambda: made.append(QuietProgress()) or made[-1]
    )
    ob.train(folder, (X, Y), epochs=1, overwrite=True)
    assert len(made) == 1
    ob.train(folder, (X, Y), epochs=1, overwrite=True, progress=None)
    assert capsys.readouterr() == ("", "")
    ob.train(folder, (X, Y), epochs=1, overwrite=True, progress="plain")
    assert "train_loss" in capsys.readouterr().err
    assert len(made) == 1
    with pytest.raises(ValueError, match="'progress' is 'loud'"):
        ob.train(folder, (X, Y), progress="loud")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("batchsize", "batch_size"), ("epoch", "epochs"), ("valdation", "validation")],
)
def test_a_wrong_keyword_has_the_nearest_name(folder, given, meant):
    with pytest.raises(ob.ConfigError, match=f"did you mean '{meant}'") as info:
        ob.train(folder, (X, Y), **{given: 3})
    assert_three_lines(info.value)


def test_a_notebook_has_a_bar_of_its_own(folder, monkeypatch):
    pages = []

    class ZMQInteractiveShell:
        pass

    class Shell(ZMQInteractiveShell):
        """As Colab has one."""

    class Handle:
        def update(self, page):
            pages.append(page)

    def show(page, display_id):
        pages.append(page)
        return Handle()

    display = SimpleNamespace(HTML=str, display=show)
    shell = SimpleNamespace(get_ipython=Shell, display=display)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    ob.train(folder, (X, Y), (X, Y), epochs=2, overwrite=True, batch_size=16)
    assert any("<progress" in page for page in pages)
    assert "<progress" not in pages[-1]
    assert pages[-1].count("val_accuracy") == 2


def test_the_same_error_speaks_of_arguments_or_of_options(folder, capsys):
    with pytest.raises(ob.UsageError) as info:
        ob.convert(model_path("mlp"), folder)
    assert "or overwrite=True to replace it" in str(info.value)
    assert "--" not in str(info.value)
    assert main(["convert", str(model_path("mlp")), "-o", str(folder)]) == 2
    assert "or --overwrite to replace it" in capsys.readouterr().err
    ob.train(folder, (X, Y), epochs=1, overwrite=True)
    with pytest.raises(ob.UsageError, match="with resume=True, or start over with overwrite=True"):
        ob.train(folder, (X, Y), epochs=1)
    shown = repr(
        dataclasses.replace(ob.train(folder, (X, Y), overwrite=True), health="see --debug-overflow")
    )
    assert "see debug_overflow" in shown
