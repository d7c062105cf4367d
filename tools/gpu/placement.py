"""Compare onnxruntime's own placement of nodes with its CUDA provider with ortboost's tables.

``record`` needs onnxruntime with CUDA and nothing else, on a GPU or on the stub libraries of
``stub_cuda.py``. ``compare`` needs ortboost: it compares ``ortboost.runtime.cuda.placement`` with
the record, node by node and copy by copy, and ends with status 1 where they differ.

Example::

    LD_LIBRARY_PATH=stub ENV/bin/python tools/gpu/placement.py record step.onnx -o placement.json
    python tools/gpu/placement.py compare placement.json --for cuda=1.31.1
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir

_INSERTED = "Cast InsertedPrecisionFreeCast_"  # the casts around a float16 node on the CPU


def record(path: str) -> dict[str, list[str]]:
    """The nodes on the CPU and the copies from the runtime's log, or the node that it rejects."""
    done = subprocess.run(
        [sys.executable, __file__, "open", path], capture_output=True, text=True, check=False
    )
    log = re.sub(r"\x1b\[[\d;]*m", "", done.stderr)
    if done.returncode:
        refused = re.search(r"Provider type for (\w+) node with name '(.*?)' is not set", log)
        refused = refused or re.search(
            r"implementation for (\w+)\(\d+\) node with name '(.*?)'", log
        )
        return {"refused": [f"{refused[1]} {refused[2]}" if refused else log[-600:]]}
    nodes: list[str] = []
    provider = ""
    for line in log.splitlines():
        header = re.search(r"(?:Node\(s\) placed on|All nodes placed on) \[(\w+)\]", line)
        if header:
            provider = header[1]
            continue
        row = re.search(r"\]\s{2,}(\w+) \((.*)\)$", line)
        if row and provider == "CPUExecutionProvider":
            nodes.append(f"{row[1]} {row[2]}")
        elif not row:
            provider = ""
    copies = re.findall(r"Add Memcpy(FromHost|ToHost) (?:after|before) (.+) for CUDA", log)
    return {"cpu": sorted(nodes), "copies": sorted(f"{way} {name}" for way, name in copies)}


def open_loudly(path: str) -> None:
    """Open a session without changes to the graph, all of the log on stderr."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 0
    session = onnxruntime.InferenceSession(
        path, options, providers=["CUDAExecutionProvider", "CPUExecutionProvider"]
    )
    assert session.get_providers()[0] == "CUDAExecutionProvider"
    sys.stderr.flush()
    os._exit(0)  # a stand-in cannot be torn down in every release


def differences(model: ir.Model, answer: dict[str, list[str]], target: str) -> list[str]:
    """Lines on nodes and copies whose placement by our tables differs from that of the runtime."""
    from ortboost.graph.shapes.shape_inference import infer_shapes
    from ortboost.runtime.cuda.kernels import load_kernels
    from ortboost.runtime.cuda.placement import place

    infer_shapes(model)
    kernels = load_kernels(target)
    placed, copies = place(model, kernels, folds=False)
    none = [f"{p.node.op_type} {p.node.name}" for p in placed if p.side == "none"]
    if "refused" in answer:
        if model.opset_imports.get("", 18) > kernels.newest_opset:
            return []
        return [f"only the runtime refuses: {row}" for row in answer["refused"] if row not in none]
    ours = Counter(f"{p.node.op_type} {p.node.name}" for p in placed if p.side == "cpu")
    theirs = Counter(row for row in answer["cpu"] if not row.startswith(("Memcpy", _INSERTED)))
    moved = Counter(
        f"{'FromHost' if c.kind == 'input' or not c.to_host else 'ToHost'} {c.value.name}"
        for c in copies
        if c.kind != "captured"
    )
    real = Counter(answer["copies"])
    return [
        *(f"only we refuse: {row}" for row in none),
        *(f"we say CPU, the runtime CUDA: {row}" for row in ours - theirs),
        *(f"the runtime says CPU, we CUDA: {row}" for row in theirs - ours),
        *(f"we say a copy, the runtime none: {row}" for row in moved - real),
        *(f"the runtime copies, we do not say so: {row}" for row in real - moved),
    ]


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record")
    recording.add_argument("models", nargs="+")
    recording.add_argument("-o", "--out", type=Path, required=True)
    verbs.add_parser("open").add_argument("model")
    comparing = verbs.add_parser("compare")
    comparing.add_argument("answers", type=Path)
    comparing.add_argument("--for", dest="target", default="cuda")
    options = parser.parse_args()
    if options.verb == "open":
        open_loudly(options.model)
    elif options.verb == "record":
        answers = {path: record(path) for path in options.models}
        options.out.write_text(json.dumps(answers, indent=1) + "\n", encoding="utf-8")
    else:
        from ortboost.graph.io import load_model

        wrong = 0
        for path, answer in json.loads(options.answers.read_text("utf-8")).items():
            lines = differences(load_model(path), answer, options.target)
            counts = ", ".join(f"{what} {len(rows)}" for what, rows in answer.items())
            print(f"{path}: {counts}; {len(lines)} differences")
            print(*(f"  {line}" for line in lines), sep="\n")
            wrong += len(lines)
        return int(wrong > 0)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
