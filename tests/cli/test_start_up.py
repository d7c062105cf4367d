"""What `ortboost train` imports before it begins: large packages that it does not need stay out."""

from __future__ import annotations

import subprocess
import sys

_SEEN = """
import sys
from ortboost.cli import main
sys.argv = ["ortboost", *sys.argv[1:]]
try:
    main()
except SystemExit:
    pass
print(*(name for name in ("matplotlib", "onnxscript", "pandas", "torch") if name in sys.modules))
"""


def test_a_run_starts_without_what_only_conversion_and_plots_need(tmp_path):
    words = ["train", str(tmp_path / "none"), "--data", str(tmp_path / "none.npz")]
    done = subprocess.run(
        [sys.executable, "-c", _SEEN, *words], capture_output=True, text=True, check=True
    )
    assert "none" in done.stderr  # it came as far as to look for the program
    assert done.stdout.split() == []
