"""Write ``tests/golden/programs/native``: a small trained program of the native engine.

Its step graph holds operators that only onnxruntime-training has, so that the tests can use a
stock onnxruntime to evaluate and export it. ``data.npz`` is what it was trained on.

The shipped files were made with onnxruntime-training 1.19.2.

Examples:
    From the root of the repository, in the training environment::

        python -m tools.golden.native_program
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import numpy as np

import ortboost as ob
from ortboost.optimizers import Adam
from tests.support import small_mlp

__all__ = ["main", "samples"]


def samples(count: int = 48) -> dict[str, np.ndarray]:
    """Points with four features around three centres."""
    random = np.random.default_rng(1)
    labels = random.integers(0, 3, count)
    centres = random.standard_normal((3, 4)) * 2
    x = centres[labels] + random.standard_normal((count, 4)) * 0.5
    return {"x": x.astype(np.float32), "labels": labels.astype(np.int64)}


def main(argv: list[str] | None = None) -> int:
    """Write the folder."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.golden.native_program",
        description="Make tests/golden/programs/native.",
        epilog="example: python -m tools.golden.native_program",
    )
    parser.add_argument("--out", type=Path, default=Path("tests/golden/programs/native"))
    out = parser.parse_args(argv).out
    shutil.rmtree(out, ignore_errors=True)
    config = ob.ProgramConfig(engine="native", optimizer=Adam(), learning_rate="0.02")
    ob.convert(small_mlp(), out, config)
    data = samples()
    ob.train(out, data, data, batch_size=16, epochs=4, keep=1, device="cpu", threads=1)
    np.savez(out / "data.npz", **data)
    for made in ("log.jsonl", "curves.png"):
        (out / made).unlink(missing_ok=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
