"""Find, without a GPU, the parts of a training step or a model that CUDA would not run.

======= ======= =============================================================
CUDA001 error   no kernel on CUDA nor on the CPU: the session does not open
CUDA002 error   an opset that the release does not support
CUDA003 warn    a node that runs on the CPU, and why
CUDA004 warn    a copy of more than a few elements; one to the host also synchronizes
CUDA005 info    a copy of a few elements
CUDA006 info    shape computations left on the host, integer ones on the device
CUDA007 info    whether training captures it as a CUDA graph, or what prevents it
======= ======= =============================================================
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.printable import count_of
from ortboost.deploy.findings import Finding, TargetReport, error, info, warn
from ortboost.deploy.tensorrt.profiles import Profile, refuse_profiles
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.query import format_shape, has_subgraph, known_shape, label, static_shape
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.program.program import Program
from ortboost.runtime.cuda.capture import capturable, draws
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import Kernels, load_kernels
from ortboost.runtime.cuda.placement import Copy, Placed, place
from ortboost.runtime.cuda.replay import form_to_capture, why_not_replayed

__all__ = ["check_cuda", "graph_findings"]

_SMALL: Final = 16  # elements; a scalar or a shape has fewer
_LENGTH: Final = 8  # of a batch, for a step that is captured once this is known
_GRAPH: Final = ("graph", "model")
_INTEGERS: Final = (ir.DataType.INT64, ir.DataType.INT32)
_ARITHMETIC: Final = frozenset({"Add", "Sub", "Mul", "Div", "Mod", "Range", "Abs", "Neg"})


def check_cuda(
    source: ModelSource, target: str = "cuda", profiles: Sequence[Profile] = ()
) -> TargetReport:
    """Find what would not run on the GPU, from tables of kernels; nothing is executed.

    Args:
        source: A program folder, where each step graph is checked in its CUDA form; or a model,
            which is checked unchanged.
        target: ``cuda`` (onnxruntime-gpu 1.31.1), or ``cuda=1.19.2`` (onnxruntime-training).
        profiles: Must be empty: this target has no shape profiles.

    Raises:
        FileError: The file or folder is not readable.
        UsageError: The release is unknown, or a shape profile was given.
    """
    refuse_profiles(profiles)
    kernels = load_kernels(target)
    if isinstance(source, (str, Path)) and Path(source).is_dir():
        program = Program.load(source)
        groups = {
            name: graph_findings(
                for_cuda(graph, kernels), kernels, _replay(program, graph, kernels)
            )
            for name, graph in program.graphs.items()
        }
    else:
        groups = {"": graph_findings(load_model(source, weights=False), kernels)}
    prefix = "{}: " if len(groups) > 1 else ""
    found = [
        dataclasses.replace(finding, node=prefix.format(name) + finding.node)
        for name, findings in groups.items()
        for finding in findings
    ]
    return TargetReport.of(
        f"onnxruntime {kernels.release} on CUDA",
        "its tables of kernels; nothing was executed",
        found,
    )


def graph_findings(
    graph: ir.Model, kernels: Kernels, replay: Finding | None = None
) -> Iterator[Finding]:
    """Check one graph, which is not modified; ``replay`` is set if training captures a step."""
    opset = graph.opset_imports.get("", 18)
    if opset > kernels.newest_opset:
        yield error(
            ("model", "model"),
            f"onnxruntime {kernels.release} supports opsets up to {kernels.newest_opset}; this is "
            f"{opset}.",
            "Use a newer onnxruntime-gpu, or an older opset.",
            rule="CUDA002",
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
    yield replay or _capture(model, kernels, copies)


def _nodes(placed: Sequence[Placed]) -> Iterator[Finding]:
    """At most one finding for each node."""
    for row in placed:
        node, why = row.node, row.reason or "it reads only host values and inputs"
        if row.side == "none":
            fix = "Keep it in float32 (--keep-fp32), or express it with other operators."
            yield error(node, f"It has no kernel. {row.reason}.", fix, rule="CUDA001")
        elif row.side == "cpu" and not row.shape_work and (_is_work(node) or _reads_much(node)):
            fix = "Use operators that CUDA implements, or a type that they support."
            yield warn(node, f"It runs on the CPU: {row.reason}.", fix, rule="CUDA003")
        elif row.side == "cpu" and _is_work(node):  # such as an Expand to a computed shape
            fix = "Make it read a value that is computed on the device."
            yield warn(node, f"It stays on the host: {why}.", fix, rule="CUDA003")
        elif row.side == "cpu":
            about, fix = (label(node), "shapes"), "Nothing: shapes are cheaper there."
            yield info(about, f"It stays on the host: {why}.", fix, rule="CUDA006")
        elif node.op_type in _ARITHMETIC and node.outputs[0].dtype in _INTEGERS and _is_work(node):
            about = label(node), "integers"
            yield info(about, "It computes integers on the device.", "Nothing.", rule="CUDA006")


def _copies(copies: Sequence[Copy]) -> Iterator[Finding]:
    for copy in copies:
        value, shape = copy.value, known_shape(copy.value)
        what = f"{value.dtype} {'?' if shape is None else format_shape(shape)}"
        way = "to the host, which synchronizes" if copy.to_host else "to the device"
        about, text = (value.name or "?", "copy"), f"{what} is copied {way}, in each run."
        if _is_small(value):
            yield info(about, text, "Nothing, unless there are many.", rule="CUDA005")
        else:
            fix = "Fix the node that needs it on the other side."
            yield warn(about, text, fix, rule="CUDA004")


def _replay(program: Program, graph: ir.Model, kernels: Kernels) -> Finding:
    """Whether training captures a step, which needs the lengths of a batch."""
    why = why_not_replayed(program)
    if why is None:
        open_lengths = any(not isinstance(d, int) for s in program.catalogue.batch for d in s.shape)
        shapes = {
            spec.name: [d if isinstance(d, int) else _LENGTH for d in spec.shape]
            for spec in program.catalogue.batch
        }
        form = form_to_capture(graph, shapes, "cuda", kernels)
        why = form if isinstance(form, str) else None
    if why is None:
        fix = "Nothing; --no-cuda-graph turns it off. docs/cuda.md has more."
        tried = f" (tried with a length of {_LENGTH} where it is open)" if open_lengths else ""
        return info(_GRAPH, f"Training captures it as a CUDA graph{tried}.", fix, rule="CUDA007")
    fix = "Nothing: docs/cuda.md has more."
    if any((n.name or "").startswith("ortboost/recompute/") for n in graph.graph.all_nodes()):
        fix = (
            "A recompute checkpoint waits on the host for its gradient: convert without recompute."
        )
    return info(
        _GRAPH, f"Training does not capture it as a CUDA graph: {why}.", fix, rule="CUDA007"
    )


def _capture(model: ir.Model, kernels: Kernels, copies: Sequence[Copy]) -> Finding:
    """Whether ``enable_cuda_graph`` accepts the graph, or its form without branches.

    ``InferenceSession::Initialize`` allows neither control flow nor copies, and CPU nodes only
    where they need no copy.
    """
    reasons = []
    # A graph with branches is judged by its form without them.
    branches = any(map(has_subgraph, model.graph))
    if branches:
        form = for_cuda(capturable(model), kernels)
        infer_shapes(form)
        copies = place(form, kernels)[1]
        left = next(filter(has_subgraph, form.graph), None)
        if left is not None:
            reasons.append(f"control flow ({label(left)})")
    if copies:
        first = copies[0].value.name
        reasons.append(f"{count_of(len(copies), 'copy', 'copies')} (the first: {first})")
    drawn = draws(model)
    if drawn:
        reasons.append(f"random numbers, which each replay would repeat ({label(drawn)})")
    form_of = " in the form without branches" if branches else ""
    return info(
        _GRAPH,
        f"No CUDA graph{form_of and ', nor' + form_of}: {', '.join(reasons)}."
        if reasons
        else f"It can be captured as a CUDA graph{form_of}.",
        "Fix the lengths of a batch: --dim batch=N."
        if copies
        else "Nothing: docs/cuda.md has more.",
        rule="CUDA007",
    )


def _is_work(node: ir.Node) -> bool:
    """Whether a node computes more than a few elements, or an unknown number of them."""
    if all(_is_small(value) for value in node.outputs):
        return False
    # These operators compute large outputs from small inputs.
    return node.op_type in ("ConstantOfShape", "Expand", "Range", "Tile") or _reads_much(node)


def _reads_much(node: ir.Node) -> bool:
    return not all(value is None or _is_small(value) for value in node.inputs)


def _is_small(value: ir.Value) -> bool:
    shape = static_shape(value)
    if shape is None:
        # A shape: its only dimension is a rank that shape inference did not find.
        known = known_shape(value)
        return known is not None and len(known) == 1 and value.dtype == ir.DataType.INT64
    return math.prod(shape) <= _SMALL
