"""The training graphs of a program: gradients and update for each group of parameters."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.engine import gradient_name
from ortboost.core.errors import ConfigError
from ortboost.graph.build import Builder
from ortboost.graph.checked_rewrites import check_rewritten
from ortboost.graph.normal_form.identity_transposes import bypass_identity_transposes
from ortboost.graph.query import all_nodes, is_random, is_read
from ortboost.graph.rewriting import remove_unused
from ortboost.program import names
from ortboost.program.catalogue import Catalogue, StateEntry, TensorSpec, stamp
from ortboost.program.config import ProgramConfig
from ortboost.program.lowered import Lowered, find_values
from ortboost.program.names import FLUSH_GRAPH, STEP_GRAPH
from ortboost.program.step import StepParts, append_flush, append_update
from ortboost.program.trials import build_trials
from ortboost.transforms.attach_loss import AttachedLoss, shifted_labels
from ortboost.transforms.dequantize_again import dequantize_again
from ortboost.transforms.padding_rows import join_padding_rows

__all__ = ["TrainingGraph", "build_graphs"]


@dataclass(frozen=True)
class TrainingGraph:
    """A training graph of a program.

    Args:
        name: Its name in the program: ``step``, ``flush.1``.
        model: The graph, with its catalogue in the metadata.
        catalogue: Its inputs, states and outputs.
        initial: State to initial value; empty if all its states are those of a step.
    """

    name: str
    model: ir.Model
    catalogue: Catalogue
    initial: Mapping[str, NDArray[Any]] = field(default_factory=dict)


def build_graphs(lowered: Lowered) -> list[TrainingGraph]:
    """The graphs of each group: a step, with accumulation a flush, with a line search trials."""
    config, found = lowered.config, list[TrainingGraph]()
    for number in range(len(lowered.groups)):
        step = _build_step(lowered, number)
        found.append(step)
        if config.accumulator is not None:
            found.append(_build_flush(lowered, number, step.model))
        if config.line_search is not None:
            trained, forward = lowered.groups[number], lowered.forward
            trials = build_trials(
                forward.model, config.line_search, trained, step.catalogue, forward.loss.loss
            )
            found += [TrainingGraph(name, *trial) for name, trial in trials.items()]
    for graph in found:
        stamp(graph.model, graph.name.partition(".")[0], graph.catalogue)
    return found


def _build_step(lowered: Lowered, number: int) -> TrainingGraph:
    """Differentiate, let boosts rewrite the gradients, and append the update."""
    config, loss = lowered.config, lowered.forward.loss
    entries = lowered.entries()
    states = {entry.name for entry in entries}
    step = _differentiate(lowered, number)  # with one output X_grad for each trained X
    check_rewritten(step, "differentiation")
    # From here on, the detached tables are the parameters again.
    join_padding_rows(step)
    bypass_identity_transposes(step)
    dequantize_again(step)
    graph = lowered.context(step, number)
    for boost in reversed(config.enabled_boosts):  # in reverse order of insertion
        boost.rewrite_gradients(graph)
        check_rewritten(step, f"{boost.name}, rewrite_gradients")
    # What is left of the inputs is data; boosts may have added inputs of their own.
    batch = [
        value
        for value in step.graph.inputs
        if value.name not in states and not (value.name or "").startswith("ortboost/")
    ]
    values = {value.name or "": value for value in (*step.graph.inputs, *step.graph.outputs)}
    parts = append_update(
        graph,
        config,
        {p.name: values[gradient_name(p.name)] for p in graph.trained},
        {buffer: values[raw] for buffer, raw in lowered.buffers_next.items()},
    )
    shown = [values[loss.loss], *parts.outputs, *_metrics(step, config, values, loss)]
    axes = lowered.forward.batch_axes
    specs = tuple(
        dataclasses.replace(
            _batch_input(value, config, loss),
            batch_axis=axes.get(value.name or "", 0),
            rows=lowered.forward.token_rows.get(value.name or ""),
            joined=lowered.forward.joined.get(value.name or "", ()),
        )
        for value in batch
    )
    catalogue = _close(step, parts, entries, specs, shown)
    check_rewritten(step, "the update")
    name = names.graph_name(STEP_GRAPH, number)
    return TrainingGraph(name, step, catalogue, {**lowered.values, **parts.initial})


def _differentiate(lowered: Lowered, number: int) -> ir.Model:
    """The gradient graph of the parameters, with the values that boosts request."""
    graph = lowered.context(lowered.forward.model, number)
    watched = [boost.watched(graph) for boost in lowered.config.enabled_boosts]
    kept = list(dict.fromkeys(name for values, _ in watched for name in values))
    # A table with a sparse gradient is not differentiated; the results of its lookups are.
    requested = dict.fromkeys(p.name for p in graph.trained if p.name not in graph.rows)
    requested |= dict.fromkeys(name for _, gradients in watched for name in gradients)
    # An engine keeps only outputs: the values that boosts request are outputs while it runs.
    model = graph.model
    outputs = list(model.graph.outputs)
    present = {value.name for value in (*outputs, *model.graph.inputs)}
    model.graph.outputs.extend(find_values(model, *(name for name in kept if name not in present)))
    try:
        return lowered.engine.differentiate(model, graph.objective, list(requested), prepared=True)
    finally:
        model.graph.outputs[:] = outputs


def _build_flush(lowered: Lowered, number: int, like: ir.Model) -> TrainingGraph:
    """The update with an incomplete accumulation window, as a separate graph."""
    trained = {parameter.name for parameter in lowered.groups[number]}
    entries = [entry for entry in lowered.entries() if entry.name in trained]
    inputs = [entry.value() for entry in entries]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports=like.opset_imports, name="flush")
    model = ir.Model(graph, ir_version=like.ir_version)
    parts = append_flush(lowered.context(model, number), lowered.config)
    catalogue = _close(model, parts, entries, (), parts.outputs[:1])
    return TrainingGraph(names.graph_name(FLUSH_GRAPH, number), model, catalogue)


def _close(
    step: ir.Model,
    parts: StepParts,
    entries: Sequence[StateEntry],
    batch: tuple[TensorSpec, ...],
    shown: Sequence[ir.Value],
) -> Catalogue:
    """Order inputs and outputs, remove unused nodes, and build the catalogue."""
    entries = [
        dataclasses.replace(e, next=names.next_name(e.name) if e.name in parts.next_of else None)
        for e in (*entries, *parts.state)
    ]
    inputs = {value.name: value for value in step.graph.inputs}
    step.graph.outputs[:] = [*shown, *(parts.next_of[e.name] for e in entries if e.next)]
    remove_unused(*all_nodes(step.graph))  # the scaled loss, and values kept only for their names
    for name, value in list(step.graph.initializers.items()):
        if not is_read(value):
            del step.graph.initializers[name]
    step.graph.inputs[:] = [
        *(inputs[spec.name] for spec in batch),
        *parts.hyper,
        *(inputs[entry.name] for entry in entries),
    ]
    return Catalogue(
        batch=batch,
        hyper=tuple(TensorSpec.of(value) for value in parts.hyper),
        state=tuple(entries),
        outputs=tuple(TensorSpec.of(value) for value in shown),
        randomness=any(map(is_random, all_nodes(step.graph))),
    )


def _batch_input(value: ir.Value, config: ProgramConfig, loss: AttachedLoss) -> TensorSpec:
    spec = TensorSpec.of(value)
    if (indices := loss.inputs.get(value.name or "")) is not None:
        classes, ignored, axis = indices
        return dataclasses.replace(spec, classes=classes, ignored=ignored, class_axis=axis)
    if value.name == loss.labels:
        spec = dataclasses.replace(
            spec, threshold=loss.threshold, probabilities=config.loss.wants_probabilities
        )
    if value.name != loss.labels or not loss.class_axis:
        return spec
    if not config.loss.sparse:
        return dataclasses.replace(spec, class_axis=loss.class_axis)
    # Only class indices are checked: they select elements, and a runtime does not check them.
    return dataclasses.replace(
        spec,
        classes=loss.classes,
        ignored=loss.ignored,
        class_axis=loss.class_axis,
        shifted=config.loss.shift_labels,
        averaged=config.loss.reduction != "sum",
        weights=config.loss.class_weights,
    )


def _metrics(
    step: ir.Model, config: ProgramConfig, values: Mapping[str, ir.Value], loss: AttachedLoss
) -> list[ir.Value]:
    """Metrics of the batch, computed from the outputs of the forward pass."""
    if "accuracy" not in config.metrics:
        return []
    if loss.labels is None or config.loss.name != "softmax-cross-entropy" or not config.loss.sparse:
        raise ConfigError(
            "The metric 'accuracy' requires softmax cross entropy with sparse labels.",
            where="metrics",
            fix="Omit it, or measure it in validation.",
        )
    b = Builder(step.graph, "ortboost/metric")
    int64, single = ir.DataType.INT64, ir.DataType.FLOAT
    labels = values[loss.labels]
    if config.loss.shift_labels:
        labels = shifted_labels(b, labels, loss.ignored or 0)
    axis = loss.class_axis or 1
    guess = b.op("ArgMax", values[loss.prediction], axis=axis, keepdims=0)
    right = b.op("Equal", guess, labels)
    share = b.cast(right, single)
    if loss.ignored is None:
        accuracy = b.op("ReduceMean", share, keepdims=0, name="accuracy", shape=())
    else:  # the mean over labels that are not ignored; 0 if there are none
        stray = b.op("Equal", labels, b.const(loss.ignored, int64))
        counted = b.cast(b.op("Not", stray), single)
        hits = b.op("ReduceSum", b.op("Mul", share, counted), keepdims=0)
        number = b.op("Max", b.op("ReduceSum", counted, keepdims=0), b.const(1.0))
        accuracy = b.op("Div", hits, number, name="accuracy", shape=())
    b.flush()
    return [accuracy]
