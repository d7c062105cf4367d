"""The names that users rely on. A change here is a change of the contract: say so in CHANGELOG.md."""

import subprocess
import sys

import ortboost

NAMES = [
    "Callback",
    "CentralizeConfig",
    "CheckpointConfig",
    "ClipConfig",
    "DynamicLossScaleManager",
    "EarlyStopping",
    "FixedLossScaleManager",
    "FreezeConfig",
    "LossConfig",
    "LossMonitor",
    "Model",
    "ModelCheckpoint",
    "Network",
    "OrtBoostError",
    "Parameter",
    "ParameterGroup",
    "Program",
    "ProgramConfig",
    "RunContext",
    "Stepper",
    "Tensor",
    "TimeMonitor",
    "TrainConfig",
    "amp",
    "bool_",
    "boost",
    "build_program",
    "check",
    "compare",
    "convert",
    "evaluate",
    "export",
    "float16",
    "float32",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "load",
    "load_checkpoint",
    "load_param_into_net",
    "load_run",
    "nn",
    "save_checkpoint",
    "train",
    "uint8",
]


def test_all_is_what_was_promised():
    assert ortboost.__all__ == NAMES


def test_every_name_is_there():
    for name in NAMES:
        assert getattr(ortboost, name) is not None
    assert set(NAMES) <= set(dir(ortboost))


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
