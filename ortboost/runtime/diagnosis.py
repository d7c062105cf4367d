"""Locate the origin of an overflow: the first non-finite tensors of a step, and their inputs.

The step runs again with its intermediate tensors as outputs. Only non-finite tensors from which a
non-finite loss or gradient is computed are traced back; others, such as the minus infinity of an
attention mask before a softmax, are not findings. A finding is

- an input or a state that is itself not finite;
- a node with finite inputs that computes inf or NaN: the overflow itself;
- a node that computes NaN from inputs with inf but without NaN (inf - inf, 0 * inf).

All intermediate tensors are in memory at once, so this is for a failed step, not for every step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.engine import gradient_name
from ortboost.graph.query import FLOAT_TYPES
from ortboost.program import catalogue as names
from ortboost.program.catalogue import Catalogue
from ortboost.program.gradients import ZEROS
from ortboost.runtime.peepholes import emulated_for
from ortboost.runtime.session import drawing, open_session
from ortboost.runtime.tensor_stats import TensorStats

__all__ = ["Diagnosis", "Finding", "TensorStats", "diagnose", "inner_tensors"]

_MOST = 5
_WIDENED = "ortboost/widened/"


@dataclass(frozen=True)
class Finding:
    """The origin of a non-finite tensor.

    Args:
        where: ``input``, ``state``, ``forward`` (the loss depends on it), ``backward`` (a gradient
            depends on it), ``update`` (it depends on a gradient), or ``statistics`` (none of
            these).
        node: The node that computed it; empty for inputs and states.
        op: Its operator.
        tensor: The tensor.
        inputs: Statistics of the inputs of the node.
        parameters: The parameters among the inputs.
    """

    where: str
    node: str
    op: str
    tensor: TensorStats
    inputs: tuple[TensorStats, ...] = ()
    parameters: tuple[str, ...] = ()

    def __str__(self) -> str:
        found = [
            f"{100 * share:.3g} % {kind}"
            for kind, share in (("inf", self.tensor.inf), ("nan", self.tensor.nan))
            if share
        ]
        maker = f", made by {self.op} '{self.node}'" if self.node else ""
        maker += f" with '{self.parameters[0]}'" if self.parameters else ""
        text = f"{self.where}: '{self.tensor.name}'{maker}, has {' and '.join(found)}"
        carried = [stats.name for stats in self.inputs if not stats.finite]
        if carried:
            return f"{text} (inf comes in by '{carried[0]}')"
        largest = max((i for i in self.inputs if i.abs_max is not None), key=_size, default=None)
        if largest is None:
            return text
        return (
            f"{text} (its inputs reach {largest.abs_max:.3g} in '{largest.name}'; "
            f"{self.tensor.dtype} ends at {self.tensor.limit:.3g})"
        )


def _size(stats: TensorStats) -> float:
    return stats.abs_max or 0.0


@dataclass(frozen=True)
class Diagnosis:
    """The result of a diagnosis.

    Args:
        findings: The first tensors that became non-finite, in topological order.
        nonfinite: Total number of non-finite tensors.
        tensors: Number of tensors examined.
        loss_scale: The loss scale of the step.
    """

    findings: tuple[Finding, ...]
    nonfinite: int
    tensors: int
    loss_scale: float

    def __str__(self) -> str:
        if self.findings:
            return f"first in {self.findings[0]}"
        if self.nonfinite:
            return f"{self.nonfinite} tensors are not finite, and none of them feeds a gradient"
        return "all tensors are finite when the step is run again"

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**asdict(self), "text": str(self)}


def inner_tensors(
    model: ir.Model,
    inputs: Mapping[str, NDArray[Any]],
    *,
    device: str,
    threads: int | None = None,
    seed: int | None = None,
) -> dict[str, NDArray[Any]]:
    """Compute all float outputs of the nodes of a graph, in graph order.

    Nodes with subgraphs (the gated update) are omitted; bfloat16 is returned as float32.

    Args:
        model: The graph; not modified.
        inputs: Input name to value; other names are ignored.
        device: ``cpu`` or ``cuda``.
        threads: Intra-op threads.
        seed: Seed of the random generator, if the graph draws random numbers.
    """
    copy = emulated_for(model, device, keep_names=True).clone()
    shown: list[ir.Value] = []
    keys: list[str] = []
    for node in list(copy.graph):
        if any(a.type == ir.AttributeType.GRAPH for a in node.attributes.values()):
            continue
        for output in node.outputs:
            if not output.name or output.dtype not in (*FLOAT_TYPES, None):
                continue  # the runtime infers types that the native engine left open
            keys.append(output.name)
            shown.append(output if output.dtype != ir.DataType.BFLOAT16 else _widened(copy, output))
    copy.graph.outputs[:] = shown
    session = open_session(copy, device=device, threads=threads)
    wanted = {value.name for value in session.get_inputs()}
    with drawing(seed):
        answers = session.run(None, {k: v for k, v in inputs.items() if k in wanted})
    found = dict(zip(keys, answers, strict=True))
    return {name: array for name, array in found.items() if array.dtype.kind == "f"}


def _widened(model: ir.Model, value: ir.Value) -> ir.Value:
    """Add a float32 copy: the bindings cannot convert bfloat16 to numpy."""
    node = ir.node("Cast", [value], {"to": ir.DataType.FLOAT.value}, num_outputs=1)
    (out,) = node.outputs
    out.name, out.dtype, out.shape = f"{_WIDENED}{value.name}", ir.DataType.FLOAT, value.shape
    model.graph.append(node)
    return out


def diagnose(
    model: ir.Model,
    catalogue: Catalogue,
    inputs: Mapping[str, NDArray[Any]],
    *,
    device: str,
    threads: int | None = None,
    seed: int | None = None,
) -> Diagnosis:
    """Locate the origin of an overflow in a step graph.

    Args:
        model: The step graph.
        catalogue: Its catalogue.
        inputs: Batch, learning rates and the whole state before the step.
        device: ``cpu`` or ``cuda``.
        threads: Intra-op threads.
        seed: Seed of the random generator in the step, if it draws random numbers.

    Returns:
        At most five findings.
    """
    computed = inner_tensors(model, inputs, device=device, threads=threads, seed=seed)
    values = {name: array for name, array in inputs.items() if array.dtype.kind == "f"}
    values.update(computed)
    bad = {name for name, array in values.items() if not np.isfinite(array).all()}
    parameters = {entry.name for entry in catalogue.entries("parameter")}
    gradients = [gradient_name(name) for name in sorted(parameters)]
    makers = {out.name: node for node in model.graph for out in node.outputs if out.name}
    sinks = [name for name in (*gradients, names.LOSS) if name in bad]
    sinks = sinks or [name for name in bad if name.startswith(ZEROS)]  # too large, yet finite
    way = _back(sinks, makers, among=bad)
    forward = _back([names.LOSS], makers)
    backward = _back(gradients, makers)
    update = _ahead(gradients, model.graph)

    def side(node: ir.Node) -> str:
        made = {out.name for out in node.outputs}
        sides = (("forward", forward), ("backward", backward), ("update", update))
        return next((kind for kind, members in sides if made & members), "statistics")

    batch = {spec.name for spec in catalogue.batch}
    findings = [
        Finding("input" if name in batch else "state", "", "", TensorStats.of(name, values[name]))
        for name in inputs
        if name in way
    ]
    for node in model.graph:
        made = [out for out in node.outputs if out.name in way and out.name in computed]
        if not made:
            continue
        tensors = [TensorStats.of(o.name or "", values[o.name or ""], _type(o)) for o in made]
        stats = _inputs(node, values)
        worse = [t for t in tensors if t.nan] if any(not s.finite for s in stats) else tensors
        if worse and not any(s.nan for s in stats):
            label = node.name or worse[0].name
            used = tuple(s.name for s in stats if s.name in parameters)
            findings.append(Finding(side(node), label, node.op_type, worse[0], stats, used))
    scale = inputs.get(names.SCALE, np.ones(()))
    return Diagnosis(tuple(findings[:_MOST]), len(bad), len(values), float(np.max(scale)))


def _type(value: ir.Value) -> str | None:
    """The type of a value whose array has another type: upcast for numpy, or emulated."""
    kinds = {ir.DataType.BFLOAT16: "bfloat16", ir.DataType.FLOAT16: "float16"}
    return kinds.get(value.dtype) if value.dtype is not None else None


def _inputs(node: ir.Node, values: Mapping[str, NDArray[Any]]) -> tuple[TensorStats, ...]:
    """Statistics of the inputs of a node, including constants."""
    found: dict[str, TensorStats] = {}
    for value in node.inputs:
        if value is None:
            continue
        name = value.name or ""
        tensor = ir.convenience.get_const_tensor(value)
        if name in values:
            found[name] = TensorStats.of(name, values[name], _type(value))
        elif tensor is not None and tensor.dtype in FLOAT_TYPES:
            array = np.asarray(tensor.numpy()).astype(np.float32)
            found[name] = TensorStats.of(name, array, _type(value))
    return tuple(found.values())


def _back(
    ends: Iterable[str], makers: Mapping[str, ir.Node], among: set[str] | None = None
) -> set[str]:
    """Names of the tensors that ``ends`` depend on, and the ends themselves."""
    pending, seen = [end for end in ends if among is None or end in among], set[str]()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        node = makers.get(name)
        read = () if node is None else (value.name for value in node.inputs if value is not None)
        pending += [other for other in read if other and (among is None or other in among)]
    return seen


def _ahead(starts: Sequence[str], graph: ir.Graph) -> set[str]:
    """Names of the tensors that depend on ``starts``, and the starts themselves."""
    seen = set(starts)
    for node in graph:  # in topological order
        if any(value is not None and value.name in seen for value in node.inputs):
            seen.update(out.name for out in node.outputs if out.name)
    return seen
