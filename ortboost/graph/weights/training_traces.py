"""What a network does in training and its ONNX file does not, found by traces in the file.

torch's dynamo exporter stores with each node the call that it was written for and the lines of code
that led there, and with the graph the tensors that ``forward`` changes in place. From these:

- ``tensor.detach()``, see :func:`ortboost.graph.reach.stops_gradient`;
- a ``torch.autograd.Function``, if there are more calls of ``forward`` than modules, and one of
  them is from a line with ``.apply(``. If there are only as many calls as modules, a rounding
  operator is torch's own, which has no gradient;
- tensors that ``forward`` changes: running averages, the table of ``nn.Embedding(max_norm=...)``,
  the vectors of a spectral norm (also found by their names), but not those of BatchNormalization,
  which a step updates;
- ``nn.Embedding(scale_grad_by_freq=True)``;
- blocks such as ``torch.no_grad()``, whose code ``torch.export`` generates, where a gradient flows
  through to parameters that are read outside, too (:mod:`ortboost.graph.weights.parameters` doubts
  others).

torch's TorchScript exporter writes ``index_add`` as zeros, a scatter that does not add, and a sum.
It drops ``detach``, but ``x + (q - x)`` is a straight-through estimator: else it would be ``q``.

``nn.Embedding(max_norm=...)`` detaches its table to shorten rows in place, and then trains it: the
detach is removed, so that the gradient is that of the shortened rows.

jax2onnx writes ``lax.stop_gradient`` as an Identity whose output it names ``stop_out_0``.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

import onnx_ir as ir

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.patterns import Op, match
from ortboost.graph.query import input_at, is_standard, label, producer_of
from ortboost.graph.reach import STOP_MARK, dropped_detaches, reach, stops_gradient
from ortboost.graph.weights.origins import (
    CALL_KEY,
    SIGNATURE_KEY,
    STACK_KEY,
    in_block,
    made_by_torch,
    scopes_of,
    tensor_origins,
)

__all__ = ["find_training_traces"]

_CHANGED = re.compile(r"^\w+: (?:BUFFER|PARAMETER)_MUTATION target='([^']*)'", re.MULTILINE)
_UPDATED = ("running_mean", "running_var", "num_batches_tracked")
_FRAME = re.compile(r'File "[^"]*", line \d+, in (\w+)\n\s*(.*)')
_FORWARD = re.compile(r'File "([^"]*)", line \d+, in forward\b')
_APPLY = re.compile(r"\b(\w+)\.apply\(")
_STEPS = ("Ceil", "Floor", "Round", "Sign")
_STOPPED = re.compile(r"stop_out(_\d+)?$")
_STRAIGHT_THROUGH = Op("Add", "x", Op("Sub", "q", "x"))
_SHORTENED = "aten.embedding_renorm"
# embedding(weight, ids, padding_idx, scale_grad_by_freq)
_BY_FREQUENCY = re.compile(r"aten\.embedding\.default\]\(args = \(%\w+, %\w+, -?\d+, True")
# Key of a finding to the noun for what is found, and the note on it.
_NOTES = {
    "detached": (
        "value",
        "the torch module detaches {}, but the exporter dropped this: gradients flow through; "
        "export again with optimize=False to stop them as torch does",
    ),
    "straight": (
        "Add",
        "{} of x + (q - x), a straight-through estimator whose detach() TorchScript drops: the "
        "gradient goes to q instead of x; export again with dynamo=True and optimize=False",
    ),
    "steps": (
        "operator",
        "{} with a derivative that is zero almost everywhere: no gradient passes, as in torch, "
        "unless a torch.autograd.Function replaces its gradient; write that with detach()",
    ),
    "passed": (
        "value",
        "{} of a block such as torch.no_grad() or torch.autocast(): the file does not say which, "
        "and gradients flow through; if it is the former, detach what it computes in the torch "
        "module and export again with optimize=False",
    ),
    "functions": (
        "torch.autograd.Function",
        "the torch module calls {}, whose backward() is not in the file: the gradient is that of "
        "its forward()",
    ),
    "changed": (
        "tensor",
        "forward() of the torch module changes {} in place (as spectral norms, running averages "
        "and nn.Embedding(max_norm=...) do), which the file does not: apart from gradients, they "
        "stay as they are",
    ),
    "scaled": (
        "table",
        "torch divides gradients of {} by the frequency of each row in the batch "
        "(scale_grad_by_freq), which is not in the file: they are not divided",
    ),
    "replaced": (
        "ScatterElements",
        "{} of an index_add: where an index repeats, as in graphs, torch adds, but the file keeps "
        "one value; export again with dynamo=True",
    ),
}


def find_training_traces(model: ir.Model) -> Report:
    """What becomes of values that the network detaches, and notes on what the file lacks.

    The model, as loaded, is changed in place where an embedding shortens its rows, and where
    the only trace of a stopped gradient is a name.
    """
    report = Report("training_traces")
    found: defaultdict[str, set[str]] = defaultdict(set)
    of_jax, of_torch = model.producer_name == "jax2onnx", made_by_torch(model)
    for node in list(model.graph.all_nodes()):
        if of_jax and is_standard(node, "Identity") and _STOPPED.match(node.outputs[0].name or ""):
            node.metadata_props[STOP_MARK] = "stop_gradient"
        if stops_gradient(node):
            if _shortens(node) and node.inputs[0] is not None:
                ir.convenience.replace_all_uses_with(node.outputs[0], node.inputs[0])
                report.changed[node.outputs[0].name or ""] = "an embedding: gets a gradient"
                continue
            report.changed[node.outputs[0].name or ""] = "detached: gets no gradient"
        function = _function_of(node)
        if function is not None:
            found["functions"].add(function)
        if of_torch and _replaces(node):
            found["replaced"].add(label(node))
        table, call = input_at(node, 0), node.metadata_props.get(CALL_KEY, "")
        if table is not None and _BY_FREQUENCY.search(call):
            found["scaled"].add(table.name or "")
    found["straight"] = _straight_through(model)
    found["steps"] = _stop_at_steps(model)
    found["passed"], found["changed"] = _passed_by_blocks(model), _changed_tensors(model)
    found["detached"] = dropped_detaches(model.graph)
    if found["detached"]:
        found.pop("straight", None)
        # What is detached may be the rest of a straight-through estimator, x + (q - x).detach().
        for node in filter(_is_step_of_modules, model.graph):
            node.metadata_props.pop(STOP_MARK, None)
        found.pop("steps", None)
    for key, (noun, note) in _NOTES.items():
        if names := sorted(found[key]):
            plural = noun if noun.endswith("s") else None
            listed = f"{count_of(len(names), noun, plural)} ({', '.join(names[:3])})"
            report.notes.append(note.format(listed))
    return report


def _replaces(node: ir.Node) -> bool:
    """Whether a node scatters into zeros without a reduction, and only an Add reads the result."""
    if not is_standard(node, "ScatterElements"):
        return False
    readers = [use.node.op_type for use in node.outputs[0].uses()]
    adds = node.attributes.get_string("reduction", "none") != "none"
    zeros = producer_of(node.inputs[0], "ConstantOfShape")
    return not adds and zeros is not None and readers == ["Add"]


def _passed_by_blocks(model: ir.Model) -> set[str]:
    """Values of blocks that pass on a gradient to parameters which are read outside, too."""
    inside = {node for node in model.graph if in_block(node)}
    if not inside:
        return set()
    origins = tensor_origins(model).of
    shared = [n for n, found in origins.items() if found.kind == "parameter" and not found.in_block]
    found = reach(model, shared, [value.name or "" for value in model.graph.outputs])
    read = (v for node in found.nodes if node not in inside for v in node.inputs if v is not None)
    return {v.name or "" for v in read if v.producer() in inside and v.name in found.active}


def _shortens(node: ir.Node) -> bool:
    """Whether only ``nn.Embedding(max_norm=...)`` reads what a node detaches."""
    readers = [use.node.metadata_props.get(CALL_KEY, "") for use in node.outputs[0].uses()]
    return bool(readers) and all(_SHORTENED in call for call in readers)


def _function_of(node: ir.Node) -> str | None:
    """The name of the ``torch.autograd.Function`` that a node belongs to, if any."""
    frames = _FRAME.findall(node.metadata_props.get(STACK_KEY, ""))
    calls = [i for i, (name, _) in enumerate(frames) if name == "forward"]
    modules = scopes_of(node)
    if not modules or len(calls) <= len(modules):  # each forward is that of a module
        return None
    callers = (_APPLY.search(frames[i - 1][1]) for i in calls if i > 0)
    return next((found[1] for found in callers if found is not None), None)


def _stop_at_steps(model: ir.Model) -> set[str]:
    """Mark the rounding on the way from a tensor to an output; returns what was marked."""
    steps = _passed_by_gradients(model, filter(_is_step_of_modules, model.graph))
    for node in steps:
        node.metadata_props[STOP_MARK] = "true"
    return {label(node) for node in steps}


def _straight_through(model: ir.Model) -> set[str]:
    """Each ``x + (q - x)`` of torch through which a gradient flows, unlike those of positions."""
    if not made_by_torch(model):
        return set()
    found = (n for n in model.graph.all_nodes() if match(n.outputs[0], _STRAIGHT_THROUGH))
    return {label(node) for node in _passed_by_gradients(model, found)}


def _passed_by_gradients(model: ir.Model, nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """The nodes between a tensor and an output, and those in bodies, for which it is not known."""
    asked = list(nodes)
    if not asked:
        return []
    outputs = [value.name or "" for value in model.graph.outputs]
    reached = set(reach(model, list(model.graph.initializers), outputs).nodes)
    return [node for node in asked if node in reached or node.graph is not model.graph]


def _is_step_of_modules(node: ir.Node) -> bool:
    """Whether torch rounds here, and no ``torch.autograd.Function``: each forward is a module's.

    False if that is not known: only the dynamo exporter writes the calls, and not all of them where
    it had to trace its own code.
    """
    files = _FORWARD.findall(node.metadata_props.get(STACK_KEY, ""))
    known = bool(files) and not any(file.startswith("<") for file in files)
    return is_standard(node, *_STEPS) and known and len(files) == len(scopes_of(node))


def _changed_tensors(model: ir.Model) -> set[str]:
    """Tensors that ``forward`` changes in place, except the statistics of BatchNormalization."""
    changed = set(_CHANGED.findall(model.graph.metadata_props.get(SIGNATURE_KEY, "")))
    stored = set(model.graph.initializers)
    for name in stored:  # of a spectral norm, by its names: eval() leaves no other trace
        base = name.removesuffix("_u")
        if base != name and (f"{base}_orig" in stored or ".parametrizations." in base):
            changed.add(name)
    return {name for name in changed if not name.endswith(_UPDATED)}
