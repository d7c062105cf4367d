"""docs/train_with_numpy.py: a step file trains where ortboost has never been."""

import re
import subprocess
import sys

from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.support import MODELS, ROOT, model_path

SCRIPT = ROOT / "docs" / "train_with_numpy.py"
# Runs a script in a process that can import numpy, onnxruntime and the standard library only.
BARE = """
import runpy, sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in REFUSED:
            raise ImportError(f"{name} is not there")
REFUSED = {"ortboost", "onnx", "onnx_ir", "onnxscript", "safetensors", "google", "torch", "scipy"}
sys.meta_path.insert(0, Refuse())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
assert not REFUSED & {name.split(".")[0] for name in sys.modules}
"""


def test_it_learns_the_digits(tmp_path):
    run = build_program(model_path("lenet5"), ProgramConfig(engine="portable")).save(tmp_path / "r")
    command = [sys.executable, "-c", BARE, str(SCRIPT), str(run), str(MODELS / "digits.npz")]
    answer = subprocess.run(command, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    losses = [float(text) for text in re.findall(r"loss ([\d.]+)", answer.stdout)]
    assert len(losses) == 3
    assert losses[-1] < 0.5


def test_it_is_short():
    lines = SCRIPT.read_text().split('"""')[2].splitlines()
    code = [line for line in lines if line.strip() and not line.startswith(("import", "#"))]
    assert len(code) <= 20
