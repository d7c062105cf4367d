"""Break the package in many small ways and see whether the tests notice.

    python tools/mutate.py ortboost/program ortboost/transforms --sample 40
    python tools/mutate.py ortboost/program/step.py --sample 0 --seed 3     every mutant of one file

A mutant is one change of one expression or statement: a comparison or operator inverted, a number
or name off by one, a condition negated, a statement dropped. Each is written into the file, the
test files of that module (tools/tests_of.py) and the examples of its package run until the first
failure, and the file is restored. A mutant that no test catches is listed with its line: either a
test is missing, or the change has no effect. A test run that hangs counts as caught.

Run it in a separate work tree, as it modifies the files.
"""

from __future__ import annotations

import argparse
import ast
import copy
import itertools
import json
import os
import random
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

# Only third-party modules: they are imported once, and the tests run in forks of this process.
import onnx.reference  # noqa: F401
import onnx_ir  # noqa: F401
import onnxruntime  # noqa: F401
import pytest
from onnxscript import optimizer, rewriter, version_converter  # noqa: F401

sys.path.insert(0, str(Path(__file__).parent))
from tests_of import ELSEWHERE, ROOT, last_tests, mirrored_test, tests_of

__all__ = ["Mutant", "mutants"]

_OUT_OF_TIME = (signal.SIGXCPU, signal.SIGKILL, signal.SIGALRM)
_EXAMPLES = "tests/test_doctests.py::test_every_example_answers_what_it_says"
OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True)
class Mutant:
    """One change of one file.

    Attributes:
        file: The module's path from the root of the repository.
        line: Where the change begins, from 1.
        before: The source that is replaced.
        after: The replacement.
        span: Offsets of ``before`` in the UTF-8 bytes of the file.
    """

    file: str
    line: int
    before: str
    after: str
    span: tuple[int, int]

    def applied(self, source: bytes) -> bytes:
        """The file with the change in it."""
        return source[: self.span[0]] + self.after.encode() + source[self.span[1] :]


def mutants(file: str, source: str) -> Iterator[Mutant]:
    """All changes of a file, in the order of its lines."""
    tree = ast.parse(source)
    starts = [0]
    for line in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    data = source.encode()
    for node in _live(tree):
        condition = isinstance(node, (ast.If, ast.IfExp))
        part = node.test if condition else node  # of a statement with a body only its first line
        for after in _changes(node):
            begin = starts[part.lineno - 1] + part.col_offset
            end = starts[part.end_lineno - 1] + part.end_col_offset
            text = ast.unparse(after)
            if isinstance(part, ast.expr):
                text = f"({text})"
            yield Mutant(file, part.lineno, data[begin:end].decode(), text, (begin, end))


def _live(tree: ast.AST) -> Iterator[ast.expr | ast.stmt]:
    """The nodes to mutate: no docstrings, annotations, messages, assertions or lists of names."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, (ast.JoinedStr, ast.Raise, ast.Import, ast.ImportFrom, ast.arg)):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.keyword) and child.arg == "strict":
            continue  # an assertion: the lengths are equal
        if isinstance(child, ast.Assign) and ast.unparse(child.targets[0]) == "__all__":
            continue
        if isinstance(child, ast.AnnAssign):
            if child.value is not None:
                yield from _live(ast.Expr(child.value))
            continue
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield from _live(ast.Tuple(child.args.defaults, ast.Load()))
            yield from _live(ast.Module(child.body, []))
            continue
        if isinstance(child, ast.ClassDef):  # not its bases and decorators
            yield from _live(ast.Module(child.body, []))
            continue
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        if isinstance(child, (ast.expr, ast.stmt)) and hasattr(child, "lineno"):
            yield child
        yield from _live(child)


def _changes(node: ast.expr | ast.stmt) -> Iterator[ast.AST]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[index] = OPPOSITE[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BoolOp, ast.BinOp)) and type(node.op) in OPPOSITE:
        changed = copy.deepcopy(node)
        changed.op = OPPOSITE[type(node.op)]()
        yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node.value)
    elif isinstance(node, (ast.IfExp, ast.If)):
        yield ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, (ast.AugAssign, ast.Continue, ast.Break)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
    ):
        yield ast.Pass()
    elif isinstance(node, ast.Return) and not _is_nothing(node.value):
        yield ast.Return(ast.Constant(None))


def _is_nothing(value: ast.expr | None) -> bool:
    """Returning None instead would seldom make a difference."""
    return value is None or (isinstance(value, ast.Constant) and not value.value)


def _constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, (int, float)):
        yield ast.Constant(value + 1)
    elif isinstance(value, str) and value.replace("_", "a").replace("/", "a").isalnum():
        yield ast.Constant(value + "_x")  # a name of an operator, an attribute or a value


def selected(module: str, wide: bool) -> list[str]:
    """The tests of a module: the file that mirrors it, or else those of its folder.

    Those that are listed for it (``tests_of.ELSEWHERE``) run too, instead of the folder, and so do
    the examples in docstrings of its package, if it has any.

    With ``wide``, all tests that import it, and all tests of its package.
    """
    files = tests_of(module)
    has_examples = ">>> " in (ROOT / module).read_text(encoding="utf-8")
    examples = [f"{_EXAMPLES}[{Path(module).parts[1]}]"] if has_examples else []
    if wide:
        top = ROOT / "tests" / Path(module).parts[1]
        beside = sorted(path.relative_to(ROOT).as_posix() for path in top.rglob("test_*.py"))
        return list(dict.fromkeys([*files, *examples, *beside]))
    mirror = mirrored_test(module)
    own = [file for file in (mirror, *ELSEWHERE.get(module, ())) if file in files]
    folder = Path("tests", *Path(module).parts[1:-1])
    own = own or [file for file in files if folder in Path(file).parents] or files
    return list(dict.fromkeys([*examples, *own, *last_tests(module)]))


def run(tests: list[str], limit: float) -> str:
    """The outcome of the tests: ``passed``, ``failed`` or ``timeout``.

    They run in a fork of this process, which has imported the unchanged modules. The limit is in
    seconds of CPU time, so that it is independent of the load of the machine. A process that waits
    in vain ends after ten times as long.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            signal.alarm(int(10 * limit))
            resource.setrlimit(resource.RLIMIT_CPU, (int(limit), int(limit)))
            quiet = os.open(os.devnull, os.O_WRONLY)
            os.dup2(quiet, 1)
            os.dup2(quiet, 2)
            os.chdir(ROOT)
            sys.path.insert(0, str(ROOT))
            os.environ |= {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
            sys.dont_write_bytecode = True
            os._exit(pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests]))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) in _OUT_OF_TIME:
        return "timeout"
    nothing_ran = pytest.ExitCode.NO_TESTS_COLLECTED  # all were skipped, as without torch
    return "passed" if os.waitstatus_to_exitcode(status) in (0, nothing_ran) else "failed"


def sample(folders: list[str], size: int, seed: int) -> list[Mutant]:
    """Sample equally many mutants from each folder, with a seed, in turns; 0 selects all."""
    drawn: list[list[Mutant]] = []
    for folder in folders:
        path = ROOT / folder
        files = sorted(path.rglob("*.py")) if path.is_dir() else [path]
        found = [
            mutant
            for file in files
            for mutant in mutants(file.relative_to(ROOT).as_posix(), file.read_text())
        ]
        draw = random.Random(f"{seed} {folder}")
        drawn.append(draw.sample(found, min(size, len(found))) if size else found)
    return [mutant for row in itertools.zip_longest(*drawn) for mutant in row if mutant]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="+", help="folders or files, from the root")
    parser.add_argument("--sample", type=int, default=20, help="mutants of each; 0 for all (20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--wide", action="store_true", help="run whatever imports the module, too")
    parser.add_argument("--limit", type=float, default=300, help="processor seconds for one (300)")
    parser.add_argument(
        "--results", type=Path, help="a file of JSON lines; what it has is not run again"
    )
    options = parser.parse_args()
    os.nice(10)
    known: dict[str, str] = {}
    if options.results and options.results.exists():
        lines = options.results.read_text().splitlines()
        known = {json.dumps(row["mutant"]): row["outcome"] for row in map(json.loads, lines)}
    chosen = sample(options.folders, options.sample, options.seed)
    unproven: set[tuple[str, ...]] = set()
    proven: set[tuple[str, ...]] = set()  # they pass: a mutant survived them
    survivors = []
    for number, mutant in enumerate(chosen, 1):
        tests = selected(mutant.file, options.wide)
        outcome = known.get(json.dumps(asdict(mutant)))
        if outcome is None:
            outcome, seconds = attempt(mutant, tests, options.limit)
            took = f"{number}/{len(chosen)} {outcome:7} {seconds:4.0f} s"
            print(took, described(mutant), sep="  ", flush=True)
            if options.results:
                with options.results.open("a") as file:
                    file.write(json.dumps({"mutant": asdict(mutant), "outcome": outcome}) + "\n")
        if outcome == "passed":
            survivors.append(mutant)
            proven.add(tuple(tests))
        else:
            unproven.add(tuple(tests))
    print(f"\ncaught {len(chosen) - len(survivors)} of {len(chosen)}; not caught:")
    print(*map(described, survivors), sep="\n")
    # With the same limit: tests that take longer seem to catch everything.
    broken = [tests for tests in unproven - proven if run(list(tests), options.limit) != "passed"]
    for tests in broken:
        print(f"void, because these fail or take too long without any change: {' '.join(tests)}")
    return 2 if broken else bool(survivors)


def attempt(mutant: Mutant, tests: list[str], limit: float) -> tuple[str, float]:
    path = ROOT / mutant.file
    source = path.read_bytes()
    start = time.monotonic()
    try:
        path.write_bytes(mutant.applied(source))
        return run(tests, limit), time.monotonic() - start
    finally:
        path.write_bytes(source)


def described(mutant: Mutant) -> str:
    """File, line and the change; for a long statement, only the part near the change."""
    before, after = (" ".join(text.split()) for text in (mutant.before, mutant.after))
    return f"{mutant.file}:{mutant.line}: {before[:90]}  ->  {after[:90]}"


if __name__ == "__main__":
    sys.exit(main())
