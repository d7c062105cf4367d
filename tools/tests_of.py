"""Find the test files of a module, for `make check` and `tools/mutate.py`.

    python tools/tests_of.py ortboost/graph/query.py    test files of a module, nearest first
    python tools/tests_of.py --changed                  those of all changes since the main branch
    python tools/tests_of.py --unmirrored               test files without a module, and the reverse

A test file mirrors its module: ``ortboost/graph/query.py`` and ``tests/graph/test_query.py``.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path

__all__ = ["changed_files", "last_tests", "mirrored_test", "tests_of", "unmirrored"]

ROOT = Path(__file__).resolve().parents[1]
# Not found by imports: rules that are loaded by name, and tested with others of their kind.
_RULES, _RULE_TESTS = "ortboost/autodiff/portable/rules", "tests/autodiff/portable"
_DECOMPOSE = "ortboost/autodiff/decompose"
_DECOMPOSED = (
    *("activations", "affine_grid", "einsum", "fourier", "layouts"),
    *("normalizations", "reductions", "registry", "steps", "trigonometry"),
)
ELSEWHERE = {
    **{f"{_DECOMPOSE}/{n}.py": ["tests/autodiff/decompose/test_rules.py"] for n in _DECOMPOSED},
    "ortboost/cli/command.py": ["tests/cli/test_config_file.py"],
    "ortboost/cli/parse.py": ["tests/cli/test_parse_scale.py"],
    "ortboost/boosts/loss_scale.py": ["tests/program/test_step.py"],
    "ortboost/optimizers/base.py": ["tests/optimizers/test_golden.py"],
    "ortboost/graph/normalize.py": ["tests/graph/weights/test_origins.py"],
    "ortboost/program/gradients.py": [
        "tests/program/test_step.py",
        "tests/boosts/test_group_loss_scale.py",
    ],
    "ortboost/program/step.py": ["tests/boosts/test_own_boost.py"],
    "ortboost/transforms/attach_loss.py": ["tests/transforms/test_own_loss.py"],
    "ortboost/transforms/loss_config.py": [
        "tests/program/test_training_graphs.py",
        "tests/transforms/test_attach_loss.py",
    ],
    "ortboost/training/data/csv_file.py": ["tests/training/data/test_tables.py"],
    f"{_RULES}/padding.py": [f"{_RULE_TESTS}/rules/test_shapes.py"],
    f"{_RULES}/slicing.py": [f"{_RULE_TESTS}/rules/test_shapes.py"],
}
# Cheap tests of the package as a whole, which belong to every change.
ALWAYS = tuple(
    f"tests/test_{name}.py" for name in ("layers", "public_api", "dependencies", "operator_names")
)


def mirrored_test(module: str) -> str:
    """The path of the test file that mirrors a module, whether it exists or not."""
    path = Path(module).relative_to("ortboost")
    return (Path("tests") / path.parent / f"test_{path.name}").as_posix()


def last_tests(module: str) -> list[str]:
    """The tests of all operators, for gradient rules and decompositions, after their own tests."""
    folders = (f"{_RULES}/", f"{_DECOMPOSE}/")
    return [f"{_RULE_TESTS}/test_probe.py"] if module.startswith(folders) else []


@cache
def _test_files() -> dict[str, frozenset[str]]:
    """Every test file with the modules that it imports by name."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    return {file.relative_to(ROOT).as_posix(): _imported(file) for file in files}


def _imported(file: Path) -> frozenset[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        found.update(path for path in (_module(name) for name in names) if path)
    return frozenset(found)


def _module(name: str) -> str | None:
    path = f"{name.replace('.', '/')}.py"
    return path if (ROOT / path).is_file() else None


@cache
def _importers() -> dict[str, frozenset[str]]:
    """Every imported module of the package, with the modules that import it."""
    found: dict[str, set[str]] = {}
    for file in sorted((ROOT / "ortboost").rglob("*.py")):
        for module in _imported(file):
            found.setdefault(module, set()).add(file.relative_to(ROOT).as_posix())
    return {module: frozenset(others) for module, others in found.items()}


def tests_of(module: str) -> list[str]:
    """The test files of a module: the one that mirrors it, then those that import it by name.

    A module with neither is tested through others: the result is then the mirrored tests of the
    nearest modules in its folder that import it, or else every file of the mirrored folder.

    Args:
        module: The module's path from the root of the repository, for example
            ``ortboost/graph/query.py``.

    Returns:
        Paths from the root of the repository.
    """
    files = _test_files()
    mirror = mirrored_test(module)
    chosen = [mirror] if mirror in files else []
    chosen += [file for file, modules in files.items() if module in modules and file != mirror]
    chosen += [f for f in ELSEWHERE.get(module, []) if f in files and f not in chosen]
    near, seen = {module}, {module}
    while not chosen and near:
        near = {other for one in near for other in _importers().get(one, ())} - seen
        near = {other for other in near if Path(other).parent == Path(module).parent}
        seen |= near
        chosen = sorted(mirrored_test(other) for other in near if mirrored_test(other) in files)
    folder = Path(mirror).parent
    while not chosen and folder != Path():
        chosen = [file for file in files if Path(file).parent == folder]
        folder = folder.parent
    return chosen + [file for file in last_tests(module) if file not in chosen]


def changed_files(base: str) -> list[str]:
    """The files changed since this branch diverged from another one, including new files."""

    def git(*arguments: str) -> list[str]:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
        )
        return done.stdout.splitlines()

    [start] = git("merge-base", "HEAD", base)
    changed = git("diff", "--name-only", start) + git("ls-files", "--others", "--exclude-standard")
    return sorted(file for file in set(changed) if (ROOT / file).is_file())


def tests_of_change(changed: Iterable[str]) -> list[str]:
    """Changed test files, mirrored tests of changed modules, then other tests that import these."""
    files, own, mirrored, others = _test_files(), [], [], []
    for file in changed:
        if file in files:
            own.append(file)
        elif file.startswith("ortboost/") and file.endswith(".py"):
            mirror = mirrored_test(file)
            mirrored += [mirror] if mirror in files else []
            others += [test for test in tests_of(file) if test != mirror]
    chosen = [*ALWAYS, *own, *mirrored, *others]
    return [file for file in dict.fromkeys(chosen) if (ROOT / file).is_file()]


def unmirrored() -> tuple[list[str], list[str]]:
    """Test files without a module of the same name, and modules without a test file."""
    modules = {
        mirrored_test(path): path
        for file in (ROOT / "ortboost").rglob("*.py")
        if (path := file.relative_to(ROOT).as_posix()) and file.name != "__init__.py"
    }
    files = set(_test_files())
    return sorted(files - set(modules)), sorted(modules[test] for test in set(modules) - files)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("modules", nargs="*", help="paths from the root of the repository")
    parser.add_argument("--changed", action="store_true", help="of what differs from --base")
    parser.add_argument("--base", default="main", help="the branch to compare with (main)")
    parser.add_argument("--unmirrored", action="store_true", help="what has no counterpart")
    options = parser.parse_args()
    if options.unmirrored:
        tests, modules = unmirrored()
        print(*(f"no module: {path}" for path in tests), sep="\n")
        print(*(f"no test:   {path}" for path in modules), sep="\n")
    elif options.changed:
        try:
            changed = changed_files(options.base)
        except subprocess.CalledProcessError as error:
            print(f"error: {error.stderr.strip()}\n  fix:   give --base BRANCH", file=sys.stderr)
            return 2
        print(*tests_of_change(changed), sep="\n")
    else:
        print(*dict.fromkeys(test for path in options.modules for test in tests_of(path)), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
