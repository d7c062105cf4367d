"""Selection of the autodiff engine for a model: the first one available that supports it.

``auto`` tries the engines in the order of :mod:`ortboost.autodiff.engine` and selects the first
without blockers: the portable one, or the native one for a model with an operator that only it
supports.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.autodiff.check import Blocker, find_blockers
from ortboost.autodiff.engine import Engine, available_engines
from ortboost.core.errors import ModelError
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.query import FLOAT_TYPES
from ortboost.program.config import ProgramConfig
from ortboost.program.forward import Forward, prepare_forward
from ortboost.program.network import read_network

__all__ = ["Chosen", "choose_engine", "refuse_blockers"]


@dataclass(frozen=True)
class Chosen:
    """An engine, and the forward graph prepared for it.

    Args:
        engine: The engine.
        forward: The forward graph.
        blockers: What prevents training.
    """

    engine: Engine
    forward: Forward
    blockers: tuple[Blocker, ...]


def choose_engine(source: ModelSource, config: ProgramConfig) -> Chosen:
    """Prepare a copy of a model for the first engine that can differentiate it.

    An ``engine`` of the configuration other than ``auto`` is the only candidate. If every engine
    has blockers, the result is the first engine with its blockers.

    Raises:
        DependencyError: No engine can run here.
        FileError: The file is not a readable model.
        ModelError: No engine can prepare the model.
        UsageError: A name or pattern matches nothing.
    """
    first: Chosen | None = None
    refused: ModelError | None = None
    for engine in available_engines(config.engine):
        try:
            chosen = _prepared(source, config, engine)
        except ModelError as error:
            refused = refused or error
            continue
        if not chosen.blockers:
            # No note for the preferred engine.
            return chosen if first is None and refused is None else _noted(chosen, first, refused)
        first = first or chosen
    if refused is not None and first is None:
        raise refused
    assert first is not None  # available_engines() returns at least one, or raises
    return first


def refuse_blockers(chosen: Chosen, source: ModelSource, config: ProgramConfig) -> None:
    """Raise an error with all reasons if a model cannot be trained.

    Raises:
        ModelError: There are blockers.
    """
    blockers = chosen.blockers
    if not blockers:
        return
    fix = blockers[0].fix
    if config.engine != "auto":
        # Another engine is the simpler way out, if there is one.
        other = _better(source, config)
        fix = f"Use --engine {other}, which can differentiate it." if other else fix
    raise ModelError(
        f"The model cannot be trained as it is: {count_of(len(blockers), 'reason')}.",
        where="\n         ".join(f"{b.op} '{b.node}': {b.reason}" for b in blockers),
        fix=fix,
    )


def _prepared(source: ModelSource, config: ProgramConfig, engine: Engine) -> Chosen:
    forward = prepare_forward(read_network(load_model(source), config, engine), config)
    # Only now it is known what is trained: a frozen part in float16 keeps its type.
    types = {parameter.dtype for parameter in forward.trained}
    others = types & {*FLOAT_TYPES} - {ir.DataType.FLOAT}
    if others:
        network = read_network(load_model(source), config, engine, widened=others)
        forward = prepare_forward(network, config)
    wrt = [parameter.name for parameter in forward.trained]
    objective = forward.loss.objective
    blockers = find_blockers(
        forward.model, wrt=wrt, loss=objective, engine=engine, selected=config.selects
    )
    return Chosen(engine, forward, blockers)


def _noted(chosen: Chosen, first: Chosen | None, refused: ModelError | None) -> Chosen:
    """Note why the preferred engine was not selected."""
    why = str(refused.what) if refused is not None else ""
    if first is not None:
        blocker = first.blockers[0]
        why = f"{first.engine.name}: {blocker.op} '{blocker.node}': {blocker.reason}"
    note = f"the {chosen.engine.name} engine is used; {why}"
    report = Report("choose_engine", notes=[note])
    forward = dataclasses.replace(chosen.forward, reports=(report, *chosen.forward.reports))
    return dataclasses.replace(chosen, forward=forward)


def _better(source: ModelSource, config: ProgramConfig) -> str | None:
    """The name of another engine without blockers, if there is one."""
    try:
        chosen = choose_engine(source, dataclasses.replace(config, engine="auto"))
    except ModelError:
        return None
    return None if chosen.blockers else chosen.engine.name
