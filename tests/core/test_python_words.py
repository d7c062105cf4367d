"""Messages mention arguments in Python, and options on the command line."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re

import pytest

import ortboost as ob
from ortboost.core.python_words import ARGUMENTS, ONLY_OPTIONS, in_python
from tests.support import ROOT

OPTION = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]*)")
# Options of other programs, and of verbs whose whole command a message shows.
OTHER_OPTIONS = {
    "force-reinstall", "format", "mem", "no-deps", "nproc-per-node", "onnx", "query-gpu", "save",
    "standalone", "strongly", "timing", "upgrade", "layers", "params",
}  # fmt: skip


def texts(path):
    """The strings of a module that are not docstrings."""
    tree = ast.parse(path.read_text())
    bare = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in bare:
            yield node.value


def test_every_option_of_a_message_has_an_argument():
    own = ROOT / "ortboost" / "core" / "python_words.py"
    files = [p for p in (ROOT / "ortboost").rglob("*.py") if p != own and "cli" not in p.parts]
    named = {name for path in files for text in texts(path) for name in OPTION.findall(text)}
    assert named - OTHER_OPTIONS == ARGUMENTS.keys() | ONLY_OPTIONS


def test_every_argument_exists():
    functions = (
        ob.train,
        ob.convert,
        ob.export,
        ob.evaluate,
        ob.check,
        ob.compare,
        ob.plot,
        ob.pca,
    )
    given = {name for function in functions for name in inspect.signature(function).parameters}
    for kind in (ob.TrainConfig, ob.BenchConfig):
        given |= {field.name for field in dataclasses.fields(kind)}
    for argument in ARGUMENTS.values():
        home, _, name = argument.partition("=")[0].rpartition(".")
        known = {f.name for f in dataclasses.fields(getattr(ob, home))} if home else given
        known |= {"loss_scale"} if home == "ProgramConfig" else set()  # one of its former fields
        assert name in known, argument


@pytest.mark.parametrize(
    ("options", "arguments"),
    [
        (
            "Assign it with --map INPUT=y, or drop it.",
            "Assign it with mapping={INPUT: 'y'}, or drop it.",
        ),
        ("Use --device cpu.", "Use device='cpu'."),
        ("Say --batch-axis state=1, or none.", "Say batch_axes={'state': 1}, or none."),
        ("--batch-axis x=none.", "batch_axes={'x': None}."),
        ("fix it with --dim NAME=LENGTH)", "fix it with InputConfig(dims={NAME: LENGTH}))"),
        ("name it (--new-head), or", "name it (new_head of ProgramConfig), or"),
        # An argument of evaluate, too, for a file that has no LossConfig.
        ("name it (--ignore-index).", "name it (ignore_index)."),
        ("Give --val DATA.", "Give validation=DATA."),
        ("use --loss output --output NAME.", "use LossConfig(name='output', output=NAME)."),
        ("Leave --slim out.", "Leave slim=True out."),
        ("where: --rtol, --atol", "where: rtol, atol"),
        ("--class-axis -1 (language models)", "LossConfig(class_axis=-1) (language models)"),
        ("more in --calib, --skip for the", "more in calibration, skip of Int8Config for the"),
        ("give --verify data with labels", "give verify data with labels"),
        ("with --shape x:1,8,32x3x9x9, too", "with shapes=['x:1,8,32x3x9x9'], too"),
        ("Use --batch-size 64, or", "Use batch_size=64, or"),
        ("Freeze it with --freeze 'a.*'.", "Freeze it with ProgramConfig(freeze=('a.*',))."),
        ("--frozen-bn PATTERN keeps it", "ProgramConfig(frozen_norm=(PATTERN,)) keeps it"),
    ],
)
def test_options_become_arguments(options, arguments):
    assert in_python(options) == arguments


@pytest.mark.parametrize(
    "text",
    [
        "List them with 'ortboost inspect MODEL --params'.",
        "Fold constants: ortboost check --fix does.",
        "pip install --force-reinstall --no-deps onnxruntime==1.20",
        "torchrun --nproc-per-node 2 -m ortboost train RUN",
        "a - b -- c, x--y",
        "start several: --processes 2",
    ],
)
def test_commands_stay(text):
    assert in_python(text) == text
