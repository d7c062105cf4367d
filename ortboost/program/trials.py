"""The graphs ``trial`` (the loss at a rate) and ``accept`` of a boost that takes the step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from ortboost.boosts.roles import LineSearch
from ortboost.graph.build import Builder
from ortboost.graph.unused import remove_unused_nodes
from ortboost.graph.weights.parameters import Parameter
from ortboost.program import names
from ortboost.program.catalogue import Catalogue, StateEntry, TensorSpec
from ortboost.transforms.padding_rows import join_padding_rows

__all__ = ["build_trials"]


def build_trials(
    forward: ir.Model,
    search: LineSearch,
    trained: Sequence[Parameter],
    step: Catalogue,
    loss: str,
) -> dict[str, tuple[ir.Model, Catalogue]]:
    """Build both graphs, by name, with their catalogues; their states are those of the step.

    ``forward`` is the training graph before differentiation, with weights as inputs, and is not
    changed; ``step`` is the catalogue of the step graph, ``loss`` the name of the loss that users
    see.
    """
    known = {entry.name: entry for entry in step.state}
    model = forward.clone()
    join_padding_rows(model)  # a trial is not differentiated
    trial = _trial(model, search, trained, known, step, loss)
    return {names.TRIAL_GRAPH: trial, names.ACCEPT_GRAPH: _accept(forward, search, trained, known)}


def _trial(
    model: ir.Model,
    search: LineSearch,
    trained: Sequence[Parameter],
    known: Mapping[str, StateEntry],
    step: Catalogue,
    loss: str,
) -> tuple[ir.Model, Catalogue]:
    """The forward pass with trial weights; its running statistics are discarded."""
    graph = model.graph
    inputs = {value.name or "": value for value in graph.inputs}
    uses = {p.name: inputs[p.name].uses() for p in trained}  # those of the forward pass only
    for name in search.trial_states():
        inputs[name] = known[name].value()
    rate = ir.val(names.RATE, ir.DataType.FLOAT, ())
    # The trial weights, before all nodes of the forward pass.
    b = Builder(graph, "ortboost/trial")
    weights, promised = search.trial_weights(b, inputs, rate, trained)
    promised = b.op("Identity", promised, name=names.PROMISED, shape=())
    graph.insert_before(graph[0], b.take())
    for name, used in uses.items():
        for usage in used:
            usage.node.replace_input_with(usage.idx, weights[name])
    # The loss and this term are the only outputs: all other nodes are removed, also the running
    # statistics.
    shown = [next(v for v in graph.outputs if v.name == loss), promised]
    graph.outputs[:] = shown
    graph.inputs.extend([rate, *(inputs[name] for name in search.trial_states())])
    remove_unused_nodes(model)
    # Batch and states that are left, in the order of all catalogues.
    read = {v.name or "": v for v in graph.inputs if v.uses()}
    batch = tuple(spec for spec in step.batch if spec.name in read)
    state = tuple(dataclasses.replace(e, next=None) for n, e in known.items() if n in read)
    order = [*(spec.name for spec in batch), names.RATE, *(entry.name for entry in state)]
    graph.inputs[:] = [read[name] for name in order]
    catalogue = Catalogue(
        batch=batch,
        hyper=(TensorSpec.of(rate),),
        state=state,
        outputs=tuple(TensorSpec.of(value) for value in shown),
        randomness=step.randomness,
    )
    return model, catalogue


def _accept(
    forward: ir.Model,
    search: LineSearch,
    trained: Sequence[Parameter],
    known: Mapping[str, StateEntry],
) -> tuple[ir.Model, Catalogue]:
    read = [p.name for p in trained] + list(search.accept_states(trained))
    inputs = {name: known[name].value() for name in read}
    rate = ir.val(names.RATE, ir.DataType.FLOAT, ())
    graph = ir.Graph(
        [rate, *inputs.values()],
        [],
        nodes=[],
        opset_imports=forward.graph.opset_imports,
        name="accept",
    )
    b = Builder(graph, "ortboost/accept")
    found = search.accepted(b, inputs, rate, trained)
    b.flush()
    for name, value in found.items():
        value.name = b.unique(names.next_name(name))
        value.type, value.shape = inputs[name].type, inputs[name].shape
        graph.outputs.append(value)
    state = tuple(
        dataclasses.replace(known[name], next=names.next_name(name) if name in found else None)
        for name in read
    )
    catalogue = Catalogue((), (TensorSpec.of(rate),), state, ())
    return ir.Model(graph, ir_version=forward.ir_version), catalogue
