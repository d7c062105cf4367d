"""The pipeline that converts a model to a program, one line per stage."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import Engine, gradient_name
from ortboost.boosts.base import GraphContext
from ortboost.core.arguments import checked
from ortboost.core.collector import without_collector
from ortboost.core.errors import ConfigError, ModelError
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.checked_rewrites import check_rewritten
from ortboost.graph.guard_draws import guard_draws
from ortboost.graph.guard_dropouts import guard_dropouts
from ortboost.graph.guard_pads import guard_pads
from ortboost.graph.identity_transposes import bypass_identity_transposes
from ortboost.graph.io import ModelSource
from ortboost.graph.parameters import Parameter
from ortboost.graph.query import all_nodes, is_random, is_read
from ortboost.graph.reach import values_by_name
from ortboost.graph.rewriting import remove_unused
from ortboost.graph.source import source_name
from ortboost.program import catalogue as names
from ortboost.program.catalogue import (
    FLUSH_GRAPH,
    STEP_GRAPH,
    Catalogue,
    StateEntry,
    TensorSpec,
    merged,
    stamp,
)
from ortboost.program.choose_engine import choose_engine, refuse_blockers
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import Forward
from ortboost.program.program import Program
from ortboost.program.step import StepParts, append_flush, append_update
from ortboost.program.trials import build_trials
from ortboost.transforms.attach_loss import AttachedLoss, shifted_labels
from ortboost.transforms.inference_norm import to_inference
from ortboost.transforms.padding_rows import join_padding_rows, protect_padding_rows

__all__ = ["build_program"]


@checked
@without_collector()
def build_program(source: ModelSource, config: ProgramConfig | None = None) -> Program:
    """Convert a model to a training program.

    Args:
        source: Path, :class:`onnx.ModelProto` or :class:`onnx_ir.Model`.
        config: The configuration; the defaults if not given.

    Returns:
        The program, in memory; :meth:`Program.save` writes it.

    Raises:
        ModelError: The model cannot be trained; the error lists all reasons.
        UsageError: A pattern or a name matches nothing.
        DependencyError: The engine cannot run here.
        ConfigError: Boosts exclude each other, or do not fit the model.

    Example:
        >>> build_program("models/mlp.onnx").catalogue.batch[0].name
        'x'
    """
    config = config or ProgramConfig()
    chosen = choose_engine(source, config)
    engine, forward = chosen.engine, chosen.forward
    model, loss, trained = forward.model, forward.loss, forward.trained
    reports = list(forward.reports)
    guard_draws(model)  # before the native engine, whose builder merges draws
    evaluation = model.clone()  # before the rewrites that are for training only
    to_inference(evaluation)

    refuse_blockers(chosen, source, config)
    graph = GraphContext(
        model,
        config.loss.output,
        prediction=loss.prediction,
        objective=loss.objective,
        parameters=forward.parameters,
        trained=trained,
        fp32_operators=engine.fp32_operators,
        window=1 if config.accumulator is None else config.accumulator.steps,
    )
    # Rewrites that look at layers come before those that split a node into several.
    found = []
    for boost in config.enabled_boosts:
        found.append(boost.rewrite_forward(graph))
        check_rewritten(model, f"{boost.name}, rewrite_forward")
    wrt = [parameter.name for parameter in trained]
    found.append(decompose(model, wrt=wrt, loss=graph.objective, engine=engine))
    check_rewritten(model, "decompose")
    raw_next = _rename_raw(model, forward.next_of)
    # From here on, weights are inputs.
    state = _lift_state(model, forward)
    _lift_state(evaluation, forward)
    found.append(protect_padding_rows(model, forward.padding_rows))
    # Layers are found before boundaries and exchange points stand between them.
    groups, splitting = _groups(graph, config)
    for boost in config.enabled_boosts:
        found.append(boost.rewrite_decomposed(graph))
        check_rewritten(model, f"{boost.name}, rewrite_decomposed")
    # Outputs from here on, so that no rewrite removes the next statistics as unused.
    raw = set(raw_next.values())
    kept = _values(model, loss.loss, loss.prediction)
    kept += [output for node in model.graph for output in node.outputs if output.name in raw]
    model.graph.outputs[:] = list({id(value): value for value in kept}.values())
    found += [*splitting, *engine.prepare(model)]
    check_rewritten(model, f"preparation for the engine {engine.name}")
    if bypass_identity_transposes(model).modified:  # it drops outputs that nothing reads yet
        engine.prepare(model)
    scale = _scale_loss(graph, config)
    reports += [report for report in found if report is not None]
    # Differentiate once for each group, and append the update.
    plan = _Plan(forward, config, engine, graph, {**state, **scale}, raw_next)
    graphs, catalogue, initial = _build_graphs(plan, groups)
    stamp(evaluation, "eval")
    for made in (*graphs.values(), evaluation):  # against wrong fusions of onnxruntime
        guard_pads(made)
        guard_dropouts(made)
    return Program(
        step=graphs.pop(STEP_GRAPH),
        variants=graphs,
        evaluation=evaluation,
        catalogue=catalogue,
        initial=initial,
        config=config,
        engine=engine.name,
        source=source_name(model),
        prediction=loss.prediction,
        reports=tuple(
            report for report in reports if report.changed or report.kept or report.notes
        ),
    )


def _lift_state(model: ir.Model, forward: Forward) -> dict[str, NDArray[Any]]:
    """Turn parameters and buffers into graph inputs; return their values, trained ones first.

    Untrained parameters become inputs too: one state serves all graphs, and no engine can fold them
    or merge equal ones.
    """
    roles = forward.parameters.items()
    lifted = [parameter.name for parameter in forward.trained]
    lifted += [name for name, parameter in roles if parameter.trainable]
    lifted += [name for name, parameter in roles if parameter.role.startswith("running_")]
    values: dict[str, NDArray[Any]] = {}
    for name in dict.fromkeys(lifted):
        value = model.graph.initializers.pop(name, None)
        if value is None or value.const_value is None:
            continue
        # The numbers go to the state: an input has none.
        tensor, value.const_value = value.const_value, None
        array = tensor.numpy()
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        values[name] = array
        model.graph.inputs.append(value)
    return values


def _rename_raw(model: ir.Model, next_of: Mapping[str, str]) -> dict[str, str]:
    """Rename new buffer values: they become the next state only if the step is not skipped."""
    renamed = {}
    made = {output.name: output for node in model.graph for output in node.outputs}
    for buffer, name in next_of.items():
        made[name].name = renamed[buffer] = f"{names.RAW}{buffer}"
    return renamed


def _groups(
    graph: GraphContext, config: ProgramConfig
) -> tuple[list[tuple[Parameter, ...]], list[Report]]:
    """The parameters that each step graph trains; a single graph if no boost splits the update."""
    splitter = config.splitter
    if splitter is None:
        return [tuple(graph.trained)], []
    members, report = splitter.split(graph)
    return [tuple(p for p in graph.trained if p.name in names_) for names_ in members], [report]


def _build_graphs(
    plan: _Plan, groups: Sequence[Sequence[Parameter]]
) -> tuple[dict[str, ir.Model], Catalogue, dict[str, NDArray[Any]]]:
    """All training graphs by name, the catalogue of the program, and its initial state."""
    splitter = plan.config.splitter
    separate = splitter is not None and splitter.separate_state
    graphs: dict[str, ir.Model] = {}
    catalogues: list[Catalogue] = []
    initial: dict[str, NDArray[Any]] = {}
    for number, trained in enumerate(groups):
        group = number if separate else None
        step, catalogue, values = _build_step(plan, trained, group, number)
        graphs[names.graph_name(STEP_GRAPH, number)] = step
        stamp(step, STEP_GRAPH, catalogue)
        catalogues.append(catalogue)
        initial = {**values, **initial}  # shared states have the same initial value in all graphs
        if plan.config.accumulator is not None:
            flush, catalogue = _build_flush(plan, trained, group, number, step)
            graphs[names.graph_name(FLUSH_GRAPH, number)] = flush
            stamp(flush, FLUSH_GRAPH, catalogue)
            catalogues.append(catalogue)
        if plan.config.line_search is not None:
            for name, (graph, catalogue) in build_trials(
                plan.forward.model,
                plan.config.line_search,
                trained,
                catalogues[0],
                plan.forward.loss.loss,
            ).items():
                graphs[name] = graph
                stamp(graph, name, catalogue)
                catalogues.append(catalogue)
    return graphs, merged(catalogues), initial


def _scale_loss(graph: GraphContext, config: ProgramConfig) -> dict[str, NDArray[Any]]:
    """Multiply the loss by the scale; return the scale as a state."""
    scaler = config.scaler
    if scaler is None:
        return {}
    start = scaler.start()
    scale = ir.val(names.SCALE, ir.DataType.FLOAT, start.shape)
    graph.model.graph.inputs.append(scale)
    _values(graph.model, graph.objective)  # raises if a rewrite lost the loss
    scaler.scale_loss(graph, scale)
    return {names.SCALE: start}


@dataclass(frozen=True)
class _Plan:
    """Data shared by all step graphs of a program.

    Args:
        forward: The forward graph with weights as inputs, ready to be differentiated.
        config: The configuration.
        engine: The engine.
        graph: The boosts' view of the forward graph; its objective is the scaled loss.
        values: Parameters, buffers and scale: name to initial value.
        buffers_next: Buffer to the raw next value that the forward pass computes.
    """

    forward: Forward
    config: ProgramConfig
    engine: Engine
    graph: GraphContext
    values: Mapping[str, NDArray[Any]]
    buffers_next: Mapping[str, str]

    def context(self, model: ir.Model, trained: Sequence[Parameter], number: int) -> GraphContext:
        """The context for another graph, with a separate copy of the memory."""
        return dataclasses.replace(
            self.graph,
            model=model,
            trained=trained,
            memory=dict(self.graph.memory),
            number=number,
        )

    def entries(self) -> list[StateEntry]:
        """Parameters, buffers and scale as state entries."""
        roles = {name: p.role for name, p in self.forward.parameters.items()}
        found = []
        for name, array in self.values.items():
            # The scale is the only state that is no tensor of the model.
            kind = "scale" if name not in roles else "parameter"
            if roles.get(name, "").startswith("running_"):
                kind = "buffer"
            found.append(
                StateEntry(name, kind, array.dtype, array.shape, None, roles.get(name, ""))
            )
        return found


def _build_step(
    plan: _Plan, trained: Sequence[Parameter], group: int | None, number: int
) -> tuple[ir.Model, Catalogue, dict[str, NDArray[Any]]]:
    """Differentiate, append the update, order inputs and outputs, and build the catalogue."""
    config, loss = plan.config, plan.forward.loss
    entries = plan.entries()
    states = {entry.name for entry in entries}
    step = _differentiate(plan, trained, number)  # with one output X_grad for each trained X
    check_rewritten(step, "differentiation")
    # From here on, the detached tables are the parameters again.
    join_padding_rows(step)
    bypass_identity_transposes(step)
    graph = plan.context(step, trained, number)
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
        {p.name: values[gradient_name(p.name)] for p in trained},
        {buffer: values[raw] for buffer, raw in plan.buffers_next.items()},
        values.get(names.SCALE),
        group=group,
    )
    shown = [
        values[loss.loss],
        parts.overflow,
        parts.loss_scale,
        *(() if parts.loss_scales is None else (parts.loss_scales,)),
        *_metrics(step, config, values, loss),
    ]
    axes = plan.forward.batch_axes
    specs = tuple(
        dataclasses.replace(
            _batch_input(value, config, loss), batch_axis=axes.get(value.name or "", 0)
        )
        for value in batch
    )
    catalogue = _close(step, parts, entries, specs, shown)
    check_rewritten(step, "the update")
    return step, catalogue, {**plan.values, **parts.initial}


def _differentiate(plan: _Plan, trained: Sequence[Parameter], number: int) -> ir.Model:
    """The gradient graph of the parameters, with the values that boosts request."""
    model = plan.forward.model
    asked = [
        boost.watched(plan.context(model, trained, number)) for boost in plan.config.enabled_boosts
    ]
    kept = list(dict.fromkeys(name for seen, _ in asked for name in seen))
    # A table with a sparse gradient is not differentiated; the boost asks for its lookups.
    requested = dict.fromkeys(p.name for p in trained if p.name not in plan.graph.rows)
    requested |= dict.fromkeys(name for _, gradients in asked for name in gradients)
    # An engine keeps only outputs: make what boosts want to see one, for this differentiation.
    outputs = list(model.graph.outputs)
    present = {value.name for value in (*outputs, *model.graph.inputs)}
    model.graph.outputs.extend(_values(model, *(name for name in kept if name not in present)))
    try:
        objective = plan.graph.objective
        return plan.engine.differentiate(model, objective, list(requested), prepared=True)
    finally:
        model.graph.outputs[:] = outputs


def _build_flush(
    plan: _Plan, trained: Sequence[Parameter], group: int | None, number: int, like: ir.Model
) -> tuple[ir.Model, Catalogue]:
    """The update with an incomplete accumulation window, as a separate graph."""
    entries = [entry for entry in plan.entries() if entry.name in {p.name for p in trained}]
    inputs = [entry.value() for entry in entries]
    graph = ir.Graph(inputs, [], nodes=[], opset_imports=like.opset_imports, name="flush")
    model = ir.Model(graph, ir_version=like.ir_version)
    parts = append_flush(plan.context(model, trained, number), plan.config, group=group)
    return model, _close(model, parts, entries, (), [parts.overflow])


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
        classes, ignored = indices
        return dataclasses.replace(spec, classes=classes, ignored=ignored, class_axis=1)
    if value.name != loss.labels or not loss.class_axis:
        return spec
    if not config.loss.sparse:
        return dataclasses.replace(spec, class_axis=loss.class_axis)
    # Only class indices are checked: they select elements, and a runtime does not look.
    return dataclasses.replace(
        spec,
        classes=loss.classes,
        ignored=loss.ignored,
        class_axis=loss.class_axis,
        shifted=config.loss.shift_labels,
        averaged=config.loss.reduction != "sum",
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
    guess = b.op("ArgMax", values[loss.prediction], axis=axis, keepdims=0, dtype=int64)
    right = b.op("Equal", guess, labels, dtype=ir.DataType.BOOL)
    share = b.op("Cast", right, to=single, dtype=single)
    if loss.ignored is None:
        accuracy = b.op("ReduceMean", share, keepdims=0, name="accuracy", shape=())
    else:  # the mean over labels that are not ignored; 0 if there are none
        stray = b.op("Equal", labels, b.const(loss.ignored, int64), dtype=ir.DataType.BOOL)
        counted = b.op("Cast", b.op("Not", stray, dtype=ir.DataType.BOOL), to=single, dtype=single)
        hits = b.op("ReduceSum", b.op("Mul", share, counted), keepdims=0)
        number = b.op("Max", b.op("ReduceSum", counted, keepdims=0), b.const(1.0))
        accuracy = b.op("Div", hits, number, name="accuracy", shape=())
    b.flush()
    return [accuracy]


def _values(model: ir.Model, *names_: str) -> list[ir.Value]:
    found = values_by_name(model.graph)
    lost = next((name for name in names_ if name not in found), None)
    if lost is not None:
        raise ModelError(
            f"The tensor '{lost}' was lost during the conversion.",
            where=source_name(model),
            fix="Please report this.",
        )
    return [found[name] for name in names_]
