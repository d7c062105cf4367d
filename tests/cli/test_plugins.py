"""Parts of users on the command line."""

from __future__ import annotations

import re
import sys
from types import SimpleNamespace

import pytest

from ortboost.autodiff.portable import registry
from ortboost.cli import main, plugins
from ortboost.optimizers import OPTIMIZERS
from tests.support import ROOT

MLP, DIGITS = str(ROOT / "models" / "mlp.onnx"), str(ROOT / "models" / "digits.npz")
PAGE = (ROOT / "docs" / "own_boost.md").read_text()
LION = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[1].partition("\nob.convert(")[0]


@pytest.fixture
def lion(tmp_path, monkeypatch):
    """The optimizer of the documentation, as a file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lion.py").write_text(LION)
    yield tmp_path
    forget("lion")


def forget(module: str) -> None:
    """What a new process would not know."""
    OPTIMIZERS.pop("lion", None)
    sys.modules.pop(module, None)


@pytest.mark.parametrize("name", ["lion.py", " ./lion.py ,", "lion"])
def test_an_optimizer_trains_and_exports(name, lion, monkeypatch, capsys):
    monkeypatch.syspath_prepend(lion)
    monkeypatch.setenv(plugins.VARIABLE, name)
    words = ["--optimizer", "lion:beta1=0.95", "--lr", "1e-3", "--engine", "portable", "-q"]
    assert main(["convert", MLP, "-o", "run", *words]) == 0
    forget("lion")
    assert main(["train", "run", "--data", DIGITS, "--max-steps", "3", "-q"]) == 0
    assert main(["export", "run", "-o", "trained.onnx", "-q"]) == 0
    forget("lion")
    monkeypatch.delenv(plugins.VARIABLE)
    capsys.readouterr()
    assert main(["train", "run", "--data", DIGITS, "--resume"]) == 8
    message = capsys.readouterr().err
    assert "Unknown optimizer 'lion'" in message
    assert "docs/own_boost.md" in message
    assert main(["convert", MLP, "-o", "other", *words]) == 3
    assert "docs/own_boost.md" in capsys.readouterr().err


def test_packages_are_imported(lion, monkeypatch, capsys):
    entry = SimpleNamespace(name="x", value="lion", load=lambda: plugins._import_file("lion.py"))
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [entry] if group == "ortboost.plugins" else []
    )
    assert main(["convert", MLP, "-o", "run", "--optimizer", "lion", "--lr", "0.1", "-q"]) == 0


def test_a_gradient_rule_is_used(tmp_path, monkeypatch, capsys):
    (tmp_path / "rounding.py").write_text(
        "import ortboost as ob\n"
        "@ob.register_gradient('NonZero', domain='my.domain')\n"
        "def rule(b):\n"
        "    return [b.gradient()]\n"
    )
    monkeypatch.setenv(plugins.VARIABLE, str(tmp_path / "rounding.py"))
    try:
        assert main(["doctor", "-q"]) == 0
        assert registry.has_own_rule("my.domain", "NonZero")
    finally:
        registry._OWN.pop(("my.domain", "NonZero"), None)
        sys.modules.pop("rounding", None)


@pytest.mark.parametrize(
    ("name", "text", "status", "message"),
    [
        ("absent.py", None, 8, "does not exist"),
        ("absent_module", None, 3, "No module named 'absent_module'"),
        ("broken.py", "raise ValueError('oh')", 3, "ValueError('oh')"),
        ("script.py", "raise SystemExit", 3, "SystemExit"),
        ("wrong.py", "import ortboost as ob; ob.Momentum(momentum='x')", 3, "momentum"),
        ("wrong.py", "import ortboost as ob; ob.register_gradient()", 3, "Write @register"),
        ("numpy.py", "", 3, "already imported"),
    ],
)
def test_what_cannot_be_imported_is_named(
    name, text, status, message, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / name).write_text(text)
    monkeypatch.setenv(plugins.VARIABLE, name)
    before = set(sys.modules)
    assert main(["list"]) == status
    error = capsys.readouterr().err
    assert message in error
    assert name in error
    assert error.count("\n") == 3
    assert not {"broken", "script", "wrong"} & (set(sys.modules) - before)
