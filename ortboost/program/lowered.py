"""The forward graph in the form that the engine differentiates, with weights as inputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import Engine
from ortboost.boosts.base import GraphContext
from ortboost.core.errors import ModelError
from ortboost.core.report import Report
from ortboost.graph.normal_form.identity_transposes import bypass_identity_transposes
from ortboost.graph.reach import values_by_name
from ortboost.graph.source import source_name
from ortboost.graph.weights.parameters import Parameter
from ortboost.program import names
from ortboost.program.catalogue import StateEntry
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import Forward
from ortboost.program.rewrite_log import RewriteLog
from ortboost.transforms.padding_rows import protect_padding_rows

__all__ = ["Lowered", "find_values", "lift_state", "lower_forward"]


@dataclass(frozen=True)
class Lowered:
    """What all graphs of a program are made from.

    Args:
        forward: The forward graph with weights as inputs, ready to be differentiated.
        config: The configuration.
        engine: The engine.
        graph: The boosts' view of the forward graph; its objective is the scaled loss.
        groups: The parameters that each step graph trains.
        values: Parameters, buffers and scale: name to initial value.
        buffers_next: Buffer to the raw next value that the forward pass computes.
        reports: Reports of all rewrites.
    """

    forward: Forward
    config: ProgramConfig
    engine: Engine
    graph: GraphContext
    groups: tuple[tuple[Parameter, ...], ...]
    values: Mapping[str, NDArray[Any]]
    buffers_next: Mapping[str, str]
    reports: tuple[Report, ...]

    def context(self, model: ir.Model, number: int) -> GraphContext:
        """The context of a graph of group ``number``, with a separate copy of the memory."""
        return dataclasses.replace(
            self.graph,
            model=model,
            trained=self.groups[number],
            memory=self.graph.memory.copy(),
            number=number,
            values=self.values,
        )

    def entries(self) -> list[StateEntry]:
        """Parameters, buffers and scale as state entries."""
        roles = {name: p.role for name, p in self.forward.parameters.items()}
        found = []
        for name, array in self.values.items():
            # The scale is the only state that is not a tensor of the model.
            kind = "scale" if name not in roles else "parameter"
            if roles.get(name, "").startswith("running_"):
                kind = "buffer"
            found.append(
                StateEntry(name, kind, array.dtype, array.shape, None, roles.get(name, ""))
            )
        return found


def lower_forward(forward: Forward, config: ProgramConfig, engine: Engine) -> Lowered:
    """Let boosts rewrite the forward graph, decompose it, turn weights into inputs, scale the loss.

    The model of the forward graph is changed in place.
    """
    model, loss, trained = forward.model, forward.loss, forward.trained
    log = RewriteLog(model, forward.reports)
    graph = GraphContext(
        model,
        config.loss.output,
        prediction=loss.logits,
        objective=loss.objective,
        parameters=forward.parameters,
        trained=trained,
        fp32_operators=engine.fp32_operators,
        window=1 if config.accumulator is None else config.accumulator.steps,
    )
    # Rewrites that look at layers come before those that split a node into several.
    for boost in config.enabled_boosts:
        log.add(boost.rewrite_forward(graph), by=f"{boost.name}, rewrite_forward")
    wrt = [parameter.name for parameter in trained]
    log.add(decompose(model, wrt=wrt, loss=graph.objective, engine=engine))
    buffers_next = _rename_raw(model, forward.next_of)
    # From here on, weights are inputs.
    values = lift_state(model, forward)
    log.add(protect_padding_rows(model, forward.padding_rows))
    # Layers are found before boundaries and exchange points stand between them.
    groups, splitting = _groups(graph, config)
    for boost in config.enabled_boosts:
        log.add(boost.rewrite_decomposed(graph), by=f"{boost.name}, rewrite_decomposed")
    log.add(splitting)
    # Outputs from here on, so that no rewrite removes the next statistics as unused.
    raw = set(buffers_next.values())
    kept = find_values(model, loss.loss, loss.prediction)
    kept += [output for node in model.graph for output in node.outputs if output.name in raw]
    model.graph.outputs[:] = list({id(value): value for value in kept}.values())
    log.add(*engine.prepare(model), by=f"preparation for the engine {engine.name}")
    if bypass_identity_transposes(model).modified:  # it drops outputs that nothing reads yet
        engine.prepare(model)
    values |= _scale_loss(graph, config)
    return Lowered(forward, config, engine, graph, groups, values, buffers_next, tuple(log.reports))


def lift_state(model: ir.Model, forward: Forward) -> dict[str, NDArray[Any]]:
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
    made = values_by_name(model.graph)
    for buffer, name in next_of.items():
        made[name].name = renamed[buffer] = f"{names.RAW}{buffer}"
    return renamed


def _groups(
    graph: GraphContext, config: ProgramConfig
) -> tuple[tuple[tuple[Parameter, ...], ...], Report | None]:
    """The parameters that each step graph trains; a single graph if no boost splits the update."""
    if config.splitter is None:
        return (tuple(graph.trained),), None
    members, report = config.splitter.split(graph)
    return tuple(tuple(p for p in graph.trained if p.name in part) for part in members), report


def _scale_loss(graph: GraphContext, config: ProgramConfig) -> dict[str, NDArray[Any]]:
    """Multiply the loss by the scale; return the scale as a state."""
    scaler = config.scaler
    if scaler is None:
        return {}
    start = scaler.start()
    scale = ir.val(names.SCALE, ir.DataType.FLOAT, start.shape)
    graph.model.graph.inputs.append(scale)
    find_values(graph.model, graph.objective)  # raises if a rewrite lost the loss
    scaler.scale_loss(graph, scale)
    return {names.SCALE: start}


def find_values(model: ir.Model, *wanted: str) -> list[ir.Value]:
    """Values of a graph by name; raises :class:`ModelError` if a rewrite lost one."""
    found = values_by_name(model.graph)
    lost = next((name for name in wanted if name not in found), None)
    if lost is not None:
        raise ModelError(
            f"The tensor '{lost}' was lost during the conversion.",
            where=source_name(model),
            fix="Please report this.",
        )
    return [found[name] for name in wanted]
