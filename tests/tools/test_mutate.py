"""The mutation run changes what counts, one thing at a time, and puts the file back."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support import ROOT
from tools import mutate

SOURCE = '''"""Ünïcode before everything: offsets are in bytes."""

__all__ = ["f"]


def f(x: int, flag: bool = True) -> str | None:
    """A docstring."""
    if x < 3 and flag:
        raise ValueError("some text")
    x += 1
    zip(x, x, strict=True)
    return "Relu" if not flag else None


@dataclass(frozen=False)
class Box:
    size: int = 7
'''


def changed(before: str) -> list[str]:
    return sorted(m.after for m in mutate.mutants("f.py", SOURCE) if m.before == before)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("x < 3", ["(x <= 3)"]),
        ("x < 3 and flag", ["(not (x < 3 and flag))", "(x < 3 or flag)"]),
        ("3", ["(4)"]),
        ("7", ["(8)"]),
        ("True", ["(False)"]),  # the default, not that of zip
        ("zip(x, x, strict=True)", ["pass"]),
        ("x += 1", ["pass"]),
        ("1", ["(2)"]),
        ('"Relu"', ["('Relu_x')"]),
        ("not flag", ["(flag)", "(not not flag)"]),
        ('return "Relu" if not flag else None', ["return None"]),
    ],
)
def test_what_is_changed(before, after):
    assert changed(before) == after


def test_what_says_nothing_is_left_alone():
    for text in ('"f"', '"""A docstring."""', '"some text"', "None", "False"):
        assert changed(text) == []


def test_each_is_one_change_that_can_be_compiled():
    for mutant in mutate.mutants("f.py", SOURCE):
        result = mutant.applied(SOURCE.encode()).decode()
        assert ast.dump(ast.parse(result)) != ast.dump(ast.parse(SOURCE))
        assert SOURCE.splitlines()[mutant.line - 1].find(mutant.before.splitlines()[0]) >= 0


def test_a_sample_is_the_same_every_time():
    folders = ["ortboost/optimizers", "ortboost/core/report.py"]
    first = mutate.sample(folders, 5, seed=1)
    assert first == mutate.sample(folders, 5, seed=1)
    assert first != mutate.sample(folders, 5, seed=2)
    assert len(first) == 10
    assert {m.file for m in first if m.file.endswith("report.py")} == {"ortboost/core/report.py"}


def test_the_file_is_put_back_whatever_happens(monkeypatch):
    path = ROOT / "ortboost/core/report.py"
    source = path.read_bytes()
    mutant = next(mutate.mutants("ortboost/core/report.py", source.decode()))
    seen = []

    def fail(tests: list[str], limit: float) -> str:
        seen.append(path.read_bytes())
        raise KeyboardInterrupt

    monkeypatch.setattr(mutate, "run", fail)
    with pytest.raises(KeyboardInterrupt):
        mutate.attempt(mutant, [], 1)
    assert seen == [mutant.applied(source)]
    assert path.read_bytes() == source


OUTCOMES = {
    "assert False": "failed",
    "while True: pass": "timeout",
    "import signal; signal.alarm(1); signal.pause()": "timeout",
    # As those that need torch do without it: they would seem to catch every mutant.
    "import pytest; pytest.skip('no torch', allow_module_level=True)": "passed",
}


def test_outcomes(tmp_path):
    """In a process of its own, as it forks; the last file is of this suite.

    What was imported before disturbs no test, with warnings as errors, as the suite has them.
    """
    paths = [tmp_path / f"test_{number}.py" for number in range(len(OUTCOMES))]
    for path, body in zip(paths, OUTCOMES, strict=True):
        top = "" if "skip" in body else "def test_one():\n    "
        path.write_text(f"{top}{body}\n")
    paths.append(ROOT / "tests" / "drawing" / "test_layout.py")
    script = (
        "import sys; from tools import mutate as m; print(*(m.run([p], 4) for p in sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *map(str, paths)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [*OUTCOMES.values(), "passed"]


@pytest.mark.parametrize(
    ("module", "tests"),
    [
        ("graph/reach.py", ["graph/test_reach.py"]),
        (
            "boosts/loss_scale.py",
            [
                "test_doctests.py::test_every_example_answers_what_it_says[boosts]",
                "program/test_step.py",
            ],
        ),
        (
            "autodiff/portable/rules/swapped.py",
            ["autodiff/portable/rules/test_convolution.py", "autodiff/portable/test_probe.py"],
        ),
    ],
)
def test_the_tests_of_a_mutant(module, tests):
    assert mutate.selected(f"ortboost/{module}", False) == [f"tests/{test}" for test in tests]
