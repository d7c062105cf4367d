"""The main workflow, from a model to a trained, exported file, on the digits in ``models/``.

Usage::

    make quickstart        (or: python tools/quickstart.py --epochs 20)
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

import ortboost as ob
from ortboost.core.errors import OrtBoostError, ParityError
from ortboost.training import make_progress

__all__ = ["main"]

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description="Train and export LeNet-5 on the digits.")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart"))
    options = parser.parse_args()
    try:
        _run(options.out, options.epochs)
    except OrtBoostError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def _run(out: Path, epochs: int) -> None:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    model, data = ROOT / "models/lenet5.onnx", ROOT / "models/digits.npz"
    exported = out / "lenet5.opt.onnx"
    started = time.perf_counter()
    out.mkdir(parents=True, exist_ok=True)
    config = ob.ProgramConfig(learning_rate="cosine:0.05", metrics=("accuracy",))
    ob.convert(model, out / "run", config, overwrite=True)
    summary = ob.train(
        out / "run",
        data,
        data,
        epochs=epochs,
        batch_size=32,
        progress=make_progress("auto"),
    )
    result = ob.export(out / "run", exported, verify=data)
    answers = ob.evaluate(exported, data)
    seconds = time.perf_counter() - started

    accuracy, worst = answers["accuracy"], result.parity.worst
    rows = [
        ("accuracy", f"{accuracy:.2%} of 360 test digits, by the exported file"),
        ("seconds", f"{seconds:.1f} in all, {summary.seconds:.1f} of training"),
        ("steps", f"{summary.steps}, {summary.steps_per_second:.0f} a second"),
        ("skipped", f"{summary.skipped_steps} steps ({summary.health})"),
        ("export", f"answers as the trained model does: max difference {worst.max_abs:.1g}"),
        ("program", str(out / "run")),
        ("curves", str(summary.plot)),
        ("model", str(exported)),
    ]
    print()
    for name, text in rows:
        print(f"{name:<9} {text}")
    print("\nTry next:")
    print("  . .venv/bin/activate")
    print("  ortboost inspect models/resnet20.onnx")
    print("  ortboost convert models/mlp.onnx -o runs/mlp --optimizer adamw --lr 1e-3")
    print("  ortboost train runs/mlp --data models/digits.npz --val models/digits.npz")
    if accuracy < 0.97:
        raise ParityError(
            f"The accuracy is {accuracy:.2%}; 97 % was expected.",
            where=str(exported),
            fix="Run again with more --epochs; if that does not help, please report it.",
        )


if __name__ == "__main__":
    sys.exit(main())
