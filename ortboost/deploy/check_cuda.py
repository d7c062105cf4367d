"""Check for CUDA without CUDA: what of a step, or of a model, would leave the GPU.

======= ======= =============================================================
CUDA001 error   no kernel on CUDA nor on the CPU: the session does not open
CUDA002 error   an opset that the release does not read
CUDA003 warn    a node that runs on the CPU, and why
CUDA004 warn    a copy of more than a few numbers; to the host, one that waits
CUDA005 info    a copy of a few numbers
CUDA006 info    work on shapes that stays on the host, integers on the device
CUDA007 info    whether it can be captured as a CUDA graph, and what is in the way
======= ======= =============================================================
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.errors import UsageError
from ortboost.core.printable import count_of
from ortboost.deploy.tensorrt.checker import TargetReport, open_lazily, sorted_findings
from ortboost.deploy.tensorrt.profiles import Profile
from ortboost.deploy.tensorrt.rules.registry import Finding
from ortboost.graph.io import ModelSource
from ortboost.graph.query import format_shape, has_subgraph, known_shape, label, static_shape
from ortboost.graph.shape_inference import infer_shapes
from ortboost.program.program import Program
from ortboost.runtime.cuda.capture import capturable, draws
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import Kernels, load_kernels
from ortboost.runtime.cuda.placement import Copy, Placed, place

__all__ = ["check_cuda", "graph_findings"]

_FEW: Final = 16  # numbers: a scalar, a shape
_INTEGERS: Final = (ir.DataType.INT64, ir.DataType.INT32)
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Range", "Abs", "Neg"})


def check_cuda(
    source: ModelSource, target: str = "cuda", profiles: Iterable[Profile] = ()
) -> TargetReport:
    """Find what would not run on the GPU, from the tables of kernels; nothing is run.

    Args:
        source: A program folder: each of its step graphs, in the form that CUDA gets. Or a model, as it is.
        target: ``cuda`` (onnxruntime-gpu 1.31.1), or ``cuda=1.19.2`` (onnxruntime-training).
        profiles: None: this target has no shape profiles.

    Raises:
        FileError: The file or folder is not readable.
        UsageError: An unknown release, or a shape profile was given.
    """
    if list(profiles):
        raise UsageError(
            "Only TensorRT has shape profiles.", where="--shape", fix="Leave --shape out."
        )
    kernels = load_kernels(target)
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        programs = Program.load(source).graphs
        graphs = {name: for_cuda(graph, kernels) for name, graph in programs.items()}
    else:
        graphs = {"": open_lazily(source)[0]}
    several = len(graphs) > 1
    found = [
        Finding(**{**vars(finding), "node": f"{name}: {finding.node}" if several else finding.node})
        for name, graph in graphs.items()
        for finding in graph_findings(graph, kernels)
    ]
    return TargetReport(
        f"onnxruntime {kernels.release} on CUDA",
        "its tables of kernels; nothing was run",
        sorted_findings(found),
    )


def graph_findings(graph: ir.Model, kernels: Kernels) -> Iterator[Finding]:
    """The findings on one graph, which is not changed."""
    opset = graph.opset_imports.get("", 18)
    if opset > kernels.newest_opset:
        yield Finding(
            "CUDA002",
            "error",
            "model",
            "model",
            f"onnxruntime {kernels.release} reads opsets up to {kernels.newest_opset}; this is {opset}.",
            "Use a newer onnxruntime-gpu, or an older opset.",
        )
        return
    model = graph.clone()
    if model.functions:
        common.InlinePass()(model)
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    infer_shapes(model)
    placed, copies = place(model, kernels)
    yield from _nodes(placed)
    yield from _copies(copies)
    yield _capture(model, kernels, copies)


def _nodes(placed: Sequence[Placed]) -> Iterator[Finding]:
    for row in placed:
        node, name = row.node, (label(row.node), row.node.op_type)
        if row.side == "none":
            yield Finding(
                "CUDA001",
                "error",
                *name,
                f"Nothing runs it. {row.reason}.",
                "Keep it in float32 (PrecisionConfig.keep), or write it in other operators.",
            )
        elif row.side == "cpu" and not row.shape_work and (_is_work(node) or _reads_much(node)):
            yield Finding(
                "CUDA003",
                "warn",
                *name,
                f"It runs on the CPU: {row.reason}.",
                "Write it in operators that CUDA has, or in a type that they take.",
            )
        elif row.side == "cpu":
            why = row.reason or "it reads nothing but host values and inputs"
            heavy = row.shape_work and _is_work(node)
            yield Finding(
                "CUDA003" if heavy else "CUDA006",
                "warn" if heavy else "info",
                name[0],
                node.op_type if heavy else "shapes",
                f"It is left on the host: {why}.",
                "Let it read a value that is computed on the device."
                if heavy
                else "Nothing: shapes are cheaper there.",
            )
        elif node.op_type in _ARITHMETIC and node.outputs[0].dtype in _INTEGERS and _is_work(node):
            yield Finding(
                "CUDA006",
                "info",
                name[0],
                "integers",
                "It computes integers on the device.",
                "Nothing.",
            )


def _copies(copies: Sequence[Copy]) -> Iterator[Finding]:
    for copy in copies:
        value, few = copy.value, _is_few(copy.value)
        shape = known_shape(value)
        what = f"{value.dtype} {'?' if shape is None else format_shape(shape)}"
        way = "to the host, which waits for it" if copy.to_host else "to the device"
        yield Finding(
            "CUDA005" if few else "CUDA004",
            "info" if few else "warn",
            value.name or "?",
            "copy",
            f"{what} is copied {way}, in each run.",
            "Nothing, if it is one of few."
            if few
            else "Mend the node that needs it on the other side.",
        )


def _capture(model: ir.Model, kernels: Kernels, copies: Sequence[Copy]) -> Finding:
    """Whether ``enable_cuda_graph`` takes the graph, or the form of it without branches.

    ``InferenceSession::Initialize`` allows no control flow and no copies, and CPU nodes where they need none.
    """
    reasons = []
    flow = next((node for node in model.graph if has_subgraph(node)), None)
    if flow is not None:
        form = for_cuda(capturable(model), kernels)
        infer_shapes(form)
        copies = place(form, kernels)[1]
        left = next((node for node in form.graph if has_subgraph(node)), None)
        reasons += [f"control flow ({label(left)})"] if left is not None else []
    drawn = draws(model)
    reasons += (
        [f"{count_of(len(copies), 'copy', 'copies')} (the first: {copies[0].value.name})"]
        if copies
        else []
    )
    reasons += [f"random numbers, which each replay would repeat ({label(drawn)})"] if drawn else []
    form_of = "" if flow is None else " in the form without branches"
    return Finding(
        "CUDA007",
        "info",
        "graph",
        "model",
        f"No CUDA graph{form_of and ', nor' + form_of}: {', '.join(reasons)}."
        if reasons
        else f"It can be captured as a CUDA graph{form_of}.",
        "A checkpoint of recompute waits on the host for its gradient: convert without it."
        if any((copy.value.name or "").startswith("ortboost/recompute/") for copy in copies)
        else "Lengths that are numbers need no copies: convert with --dim batch=N."
        if copies
        else "Nothing: docs/cuda.md has more.",
    )


def _is_work(node: ir.Node) -> bool:
    """Whether a node computes more than a few numbers, or nobody knows how many."""
    if all(_is_few(value) for value in node.outputs):
        return False
    return node.op_type in ("ConstantOfShape", "Expand", "Range", "Tile") or _reads_much(node)


def _reads_much(node: ir.Node) -> bool:
    return not all(value is None or _is_few(value) for value in node.inputs)


def _is_few(value: ir.Value) -> bool:
    shape = static_shape(value)
    if shape is None:
        # A shape: one dimension, whose length is a rank that inference did not find.
        known = known_shape(value)
        return known is not None and len(known) == 1 and value.dtype == ir.DataType.INT64
    return math.prod(shape) <= _FEW
