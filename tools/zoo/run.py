"""Measure every gathered model, each stage in a process of its own, and write ``docs/zoo.md``.

A process that dies or runs out of time is a result, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tools.zoo.table import decided_in_float32, write_table

__all__ = ["main"]

_JOBS = (
    ("native", "training", "train", "native"),
    ("portable", "training", "train", "portable"),
    ("stock", "stock", "train", "portable"),
    ("double", "stock", "double", "portable"),
    ("overfit", "stock", "overfit", "portable"),
    ("export", "stock", "export", "auto"),
    ("tensorrt", "stock", "tensorrt", "auto"),
)
"""Name of the result, environment, stage, engine."""


def measured(python: Path, folder: Path, stage: str, engine: str, limit: float) -> dict[str, Any]:
    """Run one stage in a process of its own."""
    command = [str(python), "-m", "tools.zoo.measure", str(folder)]
    command += ["--stage", stage, "--engine", engine]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.getcwd()}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=limit, env=variables, check=False
        )
    except subprocess.TimeoutExpired:
        return {"timeout": limit}
    if done.returncode:
        return {"died": done.returncode, "said": done.stderr[-600:]}
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.zoo.run", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--models", type=Path, default=Path("runs/zoo/models"))
    parser.add_argument("--results", type=Path, default=Path("runs/zoo/results"))
    parser.add_argument(
        "--training", type=Path, default=Path(".venv/bin/python"), help="with onnxruntime-training"
    )
    parser.add_argument(
        "--stock", type=Path, default=Path(".venv-stock/bin/python"), help="with stock onnxruntime"
    )
    parser.add_argument(
        "--only", nargs="*", default=(), help="models, or the beginnings of their names"
    )
    parser.add_argument("--stages", nargs="*", default=[job[0] for job in _JOBS])
    parser.add_argument("--again", action="store_true", help="also what was measured already")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=300, help="limit of a stage")
    parser.add_argument("--table", type=Path, default=Path("docs/zoo.md"))
    arguments = parser.parse_args(argv)
    arguments.results.mkdir(parents=True, exist_ok=True)
    pythons = {"training": arguments.training, "stock": arguments.stock}

    def one(folder: Path) -> None:
        path = arguments.results / f"{folder.name}.json"
        found = json.loads(path.read_text()) if path.exists() else {}
        if (folder / "failed.txt").exists() and not (folder / "entry.json").exists():
            path.write_text(json.dumps({"failed": (folder / "failed.txt").read_text().strip()}))
            return
        entry = json.loads((folder / "entry.json").read_text())
        found["entry"] = entry
        for name, environment, stage, engine in _JOBS:
            if name not in arguments.stages or (name in found and not arguments.again):
                continue
            if entry["loss"] == "none" and stage in ("train", "double", "overfit"):
                continue
            if stage == "double" and decided_in_float32(found.get("stock")):
                continue
            found[name] = measured(pythons[environment], folder, stage, engine, arguments.seconds)
            path.write_text(json.dumps(found, indent=1))
        print("measured", folder.name, flush=True)

    folders = [
        folder
        for folder in sorted(arguments.models.iterdir())
        if not arguments.only or folder.name.startswith(tuple(arguments.only))
    ]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, folders))
    write_table(arguments.results, arguments.table)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
