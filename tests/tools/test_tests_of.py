"""`make check` and the mutation run choose tests by this."""

from __future__ import annotations

import subprocess

import pytest

from tests.support import ROOT
from tools import tests_of as chooser


@pytest.mark.parametrize(
    ("module", "expected"),
    [
        ("ortboost/graph/query.py", ["tests/graph/test_query.py"]),  # its mirror comes first
        ("ortboost/program/aliasing.py", ["tests/program/test_aliasing.py"]),
        # a part of the rule of convolutions, two imports away
        (
            "ortboost/autodiff/portable/rules/swapped.py",
            ["tests/autodiff/portable/rules/test_convolution.py"],
        ),
    ],
)
def test_the_nearest_tests_come_first(module, expected):
    assert chooser.tests_of(module)[: len(expected)] == expected


def test_a_gradient_rule_is_tested_with_all_operators_too():
    found = chooser.tests_of("ortboost/autodiff/portable/rules/matmul.py")
    rules = "tests/autodiff/portable"
    assert found == [f"{rules}/rules/test_matmul.py", f"{rules}/test_probe.py"]


def test_importers_come_after_the_mirror():
    found = chooser.tests_of("ortboost/boosts/full_norm_head.py")
    assert found[0] == "tests/boosts/test_full_norm_head.py"
    assert "tests/deploy/test_fold_full_norm.py" in found[1:]


def test_every_module_has_tests_and_every_path_exists():
    for path in sorted((ROOT / "ortboost").rglob("*.py")):
        found = chooser.tests_of(path.relative_to(ROOT).as_posix())
        assert found, path
        assert all((ROOT / test).is_file() for test in found)
        assert len(found) == len(set(found))


def test_what_is_named_by_hand_exists():
    for module, tests in chooser.ELSEWHERE.items():
        assert (ROOT / module).is_file()
        assert all((ROOT / test).is_file() for test in tests)


def test_a_change_brings_its_own_tests_first():
    changed = ["README.md", "ortboost/graph/query.py", "tests/graph/test_io.py"]
    found = chooser.tests_of_change(changed)
    always = [path for path in chooser.ALWAYS if (ROOT / path).is_file()]
    assert found[: len(always)] == always
    rest = found[len(always) :]
    assert rest[:2] == ["tests/graph/test_io.py", "tests/graph/test_query.py"]
    assert len(found) == len(set(found))


def test_changed_files_are_those_since_the_branches_parted(tmp_path, monkeypatch):
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=A", "-c", "user.email=a@b.example")
        subprocess.run(
            ["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True
        )

    def write(name: str, text: str) -> None:
        (tmp_path / name).write_text(text)

    git("init", "-b", "main")
    for name in ("same.py", "edited.py", "gone.py"):
        write(name, "1\n")
    git("add", ".")
    git("commit", "-m", "one")
    git("checkout", "-b", "work")
    write("edited.py", "2\n")
    (tmp_path / "gone.py").unlink()
    git("commit", "-am", "two")
    write("new.py", "3\n")
    git("checkout", "main")
    write("theirs.py", "4\n")
    git("add", "theirs.py")
    git("commit", "-m", "three")
    git("checkout", "work")
    monkeypatch.setattr(chooser, "ROOT", tmp_path)
    assert chooser.changed_files("main") == ["edited.py", "new.py"]


def test_unmirrored_names_both_sides():
    tests, modules = chooser.unmirrored()
    assert "tests/test_layers.py" in tests
    assert "tests/graph/test_query.py" not in tests
    assert "ortboost/graph/query.py" not in modules
    assert all((ROOT / path).is_file() for path in (*tests, *modules))
