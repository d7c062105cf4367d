"""The names that users rely on. Record each change of them in CHANGELOG.md."""

import ast
import dataclasses
import subprocess
import sys
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

import ortboost

NAMES = [
    "NO_SCALE",
    "AdaSum",
    "Adam",
    "AdamW",
    "AugmentConfig",
    "BenchConfig",
    "Boost",
    "Callback",
    "CentralizeConfig",
    "CheckpointConfig",
    "Clip",
    "ClipConfig",
    "Comparison",
    "ConfigError",
    "DecayFilter",
    "DependencyError",
    "DimReduce",
    "DivergedError",
    "Drawing",
    "DynamicLossScaleManager",
    "DynamicScaleConfig",
    "EarlyStopping",
    "Ema",
    "ExportResult",
    "FileError",
    "FixedLossScaleManager",
    "FixedScaleConfig",
    "FreezeConfig",
    "FullNormHead",
    "GradAccumulation",
    "GradCentralization",
    "GradFreeze",
    "GroupLossScale",
    "GroupedScaleConfig",
    "HealthCheck",
    "ImageConfig",
    "InputConfig",
    "Int8Config",
    "Lars",
    "LessBN",
    "Lora",
    "LossConfig",
    "LossMonitor",
    "LossScale",
    "LostProcessError",
    "Measurement",
    "Metric",
    "MixedPrecision",
    "Model",
    "ModelCheckpoint",
    "ModelDescription",
    "ModelError",
    "Momentum",
    "Network",
    "NoScaleConfig",
    "Optimizer",
    "OrtBoostError",
    "PairDescription",
    "ParallelMode",
    "Parameter",
    "ParameterGroup",
    "ParityError",
    "PrecisionConfig",
    "Program",
    "ProgramConfig",
    "ProgramDescription",
    "Recompute",
    "Report",
    "RunContext",
    "ScaleConfig",
    "Sgd",
    "SparseEmbedding",
    "Stepper",
    "SyncBatchNorm",
    "TargetReport",
    "Tensor",
    "Thor",
    "TimeMonitor",
    "TrainConfig",
    "TrainSummary",
    "TrainabilityReport",
    "UsageError",
    "amp",
    "bench",
    "bool_",
    "boost",
    "build_program",
    "check",
    "communication",
    "compare",
    "convert",
    "doctor",
    "dtype",
    "evaluate",
    "export",
    "float16",
    "float32",
    "float64",
    "inspect",
    "inspect_pair",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "load_checkpoint",
    "load_param_into_net",
    "load_run",
    "nn",
    "pca",
    "plot",
    "register_gradient",
    "runs",
    "save_checkpoint",
    "set_auto_parallel_context",
    "train",
    "uint8",
]


def test_all_is_what_was_promised():
    assert sorted(ortboost.__all__) == sorted(NAMES)


def test_every_name_is_there():
    for name in NAMES:
        assert getattr(ortboost, name) is not None


def test_what_completion_offers_is_what_is_public():
    for name in NAMES:  # what is loaded on the way must not show
        getattr(ortboost, name)
    assert sorted(dir(ortboost)) == sorted([*NAMES, "__version__"])


def test_the_stub_names_each_thing_by_the_name_it_has_at_home():
    """The form of the file is all that ``ortboost/__init__.py`` reads."""
    tree = ast.parse(Path(ortboost.__file__).with_suffix(".pyi").read_text())
    for line in tree.body[1:]:  # after the docstring
        assert isinstance(line, ast.ImportFrom)
        assert [(alias.name, alias.asname) for alias in line.names] == [(line.names[0].name,) * 2]


SCRIPT = """
import ortboost as ob

config = ob.ProgramConfig(
    loss=ob.LossConfig("mse", reduction="sum"),
    inputs=ob.InputConfig(dims={"height": 64}),
    optimizer=ob.Lars(inner=ob.Sgd(momentum=0.5)),
    groups=(ob.ParameterGroup("head", ("fc*",), weight_decay=0.0),),
    loss_scale=ob.DynamicScaleConfig(init_scale=64.0),
    clip=ob.ClipConfig("norm", 1.0),
    precision=ob.PrecisionConfig("fp16"),
)
program: ob.Program = ob.convert("m.onnx", "run", config)
found: ob.ModelDescription | ob.ProgramDescription = ob.inspect("run")
measured: list[ob.Measurement] = ob.bench(["m.onnx"], ob.BenchConfig(rounds=3))
checks: list[ob.HealthCheck] = ob.doctor()
summary: ob.TrainSummary = ob.train("run", "data.npz")
trainable: ob.TrainabilityReport = ob.check("m.onnx", config)
runs: ob.TargetReport = ob.check("m.onnx", target="tensorrt=11")
drawing: ob.Drawing = ob.plot("m.onnx", around="conv1")
"""


def test_a_configuration_is_written_from_public_names_alone(tmp_path):
    """With types: mypy takes the script, and finds what is wrong in it."""
    mypy = pytest.importorskip("mypy.api")
    good, bad = tmp_path / "good.py", tmp_path / "bad.py"
    good.write_text(SCRIPT)
    bad.write_text(SCRIPT.replace('ob.ClipConfig("norm", 1.0)', 'ob.ClipConfig("nrm", "1")'))
    root = Path(__file__).resolve().parents[1]
    options = ["--strict", "--config-file", str(root / "pyproject.toml"), "--cache-dir"]
    text, _, status = mypy.run([*options, str(tmp_path / "cache"), str(good), str(bad)])
    assert status == 1, text
    assert "good.py" not in text
    assert text.count("bad.py") == 2, text


def leaves(hint):
    """The classes of an annotation."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return set()
    return {c for part in inner for c in leaves(part)} if inner else {hint}


def test_every_class_in_a_public_configuration_is_public():
    public = {id(getattr(ortboost, name)) for name in NAMES}
    plain = {int, float, str, bool, type(None), Mapping, Sequence, Ellipsis, typing.Any}
    configs = [getattr(ortboost, name) for name in NAMES if name.endswith("Config")]
    found = [kind for kind in configs if dataclasses.is_dataclass(kind)]
    assert ortboost.ProgramConfig in found
    for kind in found:
        for name, hint in typing.get_type_hints(kind).items():
            for leaf in leaves(hint) - plain:
                if getattr(leaf, "__module__", "").startswith("ortboost.training.schedules"):
                    continue  # schedules are written as texts, or imported from there
                assert id(leaf) in public, f"{kind.__name__}.{name}: {leaf}"


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, ortboost; "
        "print([m for m in ('onnx', 'onnxruntime', 'numpy', 'onnx_ir') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def test_help_loads_nothing_heavy():
    code = (
        "import sys; from ortboost.cli import main; main(['train', '--help']); "
        "print([m for m in ('onnx', 'onnxruntime', 'onnx_ir') if m in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip().endswith("[]")
