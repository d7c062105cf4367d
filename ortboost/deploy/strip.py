"""Make the inference graph of a program: remove loss and labels, put the weights back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import FileError
from ortboost.core.report import Report
from ortboost.graph.unused import remove_unused_nodes
from ortboost.program.names import LOSS
from ortboost.program.program import Program

__all__ = ["inference_model"]


def inference_model(program: Program, state: Mapping[str, NDArray[Any]]) -> tuple[ir.Model, Report]:
    """Copy the evaluation graph, remove the loss, and insert the weights of the state.

    Returns:
        A new model with the inputs, outputs and symbolic dimensions of the user's model, and a
        report.

    Raises:
        FileError: The state lacks a tensor that the graph needs.
    """
    report = Report("strip_training")
    model = program.evaluation.clone()
    graph = model.graph
    # With the loss "output", an output of the user's model is the loss.
    config = program.config.loss
    own = (config.output or graph.outputs[0].name) if config.name == "output" else None
    if own != LOSS:  # else the user's model has an output of this name
        graph.outputs[:] = [value for value in graph.outputs if value.name != LOSS]
        report.changed[LOSS] = "removed with the label input" if program.labels else "removed"
    remove_unused_nodes(model)
    # Labels are removed, states become stored weights, and inputs of the user's model are kept.
    states = {entry.name for entry in program.catalogue.state}
    parameters = {state: name for name, state in program.evaluated.items()}
    inputs = []
    for value in graph.inputs:
        name = value.name or ""
        if name == program.labels:
            continue
        if name not in states:
            inputs.append(value)
            continue
        if not value.uses():
            continue
        if name not in state:
            raise FileError(
                f"The state has no tensor '{name}'.",
                where="state",
                fix="Use the state or a checkpoint of the same program.",
            )
        value.name = parameters.get(name, name)
        value.const_value = ir.tensor(state[name], name=value.name)
        report.changed[name] = "became an initializer"
    weights = [value for value in graph.inputs if value.const_value is not None]
    graph.inputs[:] = inputs
    for value in weights:
        graph.register_initializer(value)
    for key in [key for key in model.metadata_props if key.startswith("ortboost.")]:
        del model.metadata_props[key]
    return model, report
