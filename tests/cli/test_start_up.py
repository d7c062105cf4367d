"""What `ortboost train` imports before it begins: large packages that it does not need stay out."""

from __future__ import annotations

import subprocess
import sys

from ortboost.cli import main
from ortboost.program.program import Program
from tests.support import model_path

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


def test_a_conversion_makes_the_manifest_for_json_alone(tmp_path, monkeypatch, capsys):
    """It counts operators and hashes graphs: a third of the time of a conversion."""
    made = []
    manifest = Program.manifest
    monkeypatch.setattr(Program, "manifest", lambda self: made.append(1) or manifest(self))
    words = ["convert", str(model_path("mlp")), "--dry-run", "-o", str(tmp_path / "run")]
    assert main(words) == 0
    assert not made
    assert main([*words, "--json"]) == 0
    assert made
    assert '"dry_run": true' in capsys.readouterr().out
