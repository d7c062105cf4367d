"""Results of ``ortboost check --for cuda`` for the steps of many models, as a table.

A file ``entry.json`` beside a model (``tools/zoo`` writes them) names the loss that fits it.

Example::

    python -m tools.gpu.survey models/*.onnx ZOO/models/*/model.onnx
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from ortboost.core.errors import OrtBoostError
from ortboost.deploy.check_cuda import graph_findings
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import load_kernels
from tools.bench.report import table

_CELLS = (
    ("1.31.1", "fp32"),
    ("1.31.1", "fp16"),
    ("1.31.1", "bf16"),
    ("1.19.2", "fp32"),
    ("1.19.2", "fp16"),
)


def settings(path: Path, compute: str) -> dict[str, Any]:
    """The configuration for a model, as plain data."""
    found: dict[str, Any] = {"engine": "portable", "optimizer": {"name": "adamw"}}
    if compute != "fp32":
        found["precision"] = {"compute": compute}
    entry = path.with_name("entry.json")
    if entry.exists():
        known = json.loads(entry.read_text("utf-8"))
        loss = {"name": {"ce": "softmax-cross-entropy"}.get(known["loss"], known["loss"])}
        if known.get("output") is not None:
            loss["output"] = known["output"]
        if known["loss"] == "ce" and known.get("class_axis", 1) != 1:
            loss["class_axis"] = known["class_axis"]
        found["loss"] = loss
    return found


def row(path: Path) -> list[str]:
    """Name, nodes; per release and type: nodes off the GPU, host waits, copies to the device."""
    name = path.stem if path.stem != "model" else path.parent.name
    cells, nodes = [], 0
    for release, compute in _CELLS:
        try:
            step = build_program(path, ProgramConfig.from_dict(settings(path, compute))).step
        except OrtBoostError as error:
            print(f"{name} {compute}: {error.what}", file=sys.stderr)
            cells.append("-")
            continue
        nodes = nodes or sum(1 for _ in step.graph.all_nodes())
        kernels = load_kernels(f"cuda={release}")
        found = list(graph_findings(for_cuda(step, kernels), kernels))
        rules = Counter(finding.rule for finding in found)
        waits = sum("to the host" in finding.reason for finding in found)
        copies = rules["CUDA004"] + rules["CUDA005"] - waits
        bad = rules["CUDA001"] + rules["CUDA002"]
        cells.append(f"refused {bad}" if bad else f"{rules['CUDA003']} / {waits} / {copies}")
    return [name, str(nodes), *cells]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("models", nargs="+", type=Path)
    rows = []
    for path in parser.parse_args().models:
        rows.append(row(path))
        print(*rows[-1], file=sys.stderr, flush=True)
    print(table(["model", "nodes", *(" ".join(cell) for cell in _CELLS)], rows))


if __name__ == "__main__":
    main()
