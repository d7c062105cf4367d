r"""Splitting of a step graph for several processes: gradients, and update.

Each process has a part of the batch, and gradients are summed between two graphs::

    gradients.onnx    forward and backward:  batch, states -> loss, metrics, X_grad
    update.onnx       unscale, check, gate, boosts, optimizer, scale:  X_grad, states -> next states

Both are slices of the step graph with the same computations, and share its state. The values at the
cut, and how the processes exchange them:

- ``X_grad`` of each trained parameter, still scaled, is summed over the processes. All see the same
  sum, so that all detect an inf of any process and skip the same step;
- batch means that boosts use besides gradients (``ortboost/batch_mean/...``, the factors of THOR)
  are averaged;
- the indicators of overflow in a scale group above (``ortboost/incoming``) and in the running
  statistics (``ortboost/statistics``) are summed, too;
- raw running statistics (``ortboost/raw/...``) stay in their process, as in torch's
  DistributedDataParallel.

Exchange points (``ortboost/exchange/...``, :mod:`ortboost.boosts.sync_batch_norm`,
:mod:`ortboost.boosts.dim_reduce` and :mod:`ortboost.boosts.thor`) are cut within their graph: the
value of the process is the output ``X/cut``, the sum over the processes the input ``X``.
:mod:`ortboost.program.segments` finds an order. Those that no gradient depends on belong to
``update``, or to the flush graph; :func:`cut_exchanges` cuts them when it is opened.

With gradient accumulation, gradients are exchanged once per window: ``X_grad`` stays in its
process, only the means and the sums of the finite check are exchanged in each step, and the flush
graph makes the update after the sums of the window have been reduced.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import onnx_ir as ir

from ortboost.autodiff.engine import gradient_name
from ortboost.boosts.adasum import AdaSum
from ortboost.boosts.grad_accumulation import GradAccumulation
from ortboost.boosts.roles import LineSearch
from ortboost.core.errors import ConfigError, ModelError
from ortboost.core.printable import first_of
from ortboost.graph.build import detach
from ortboost.graph.io import save_model
from ortboost.graph.query import subgraphs
from ortboost.graph.reach import ancestors
from ortboost.graph.unused import remove_unused_nodes
from ortboost.program import names
from ortboost.program.catalogue import Catalogue, StateEntry, TensorSpec, read_catalogue, stamp
from ortboost.program.gradients import INCOMING, STATISTICS, ZEROS
from ortboost.program.program import Program

__all__ = [
    "GRADIENTS_GRAPH",
    "UPDATE_GRAPH",
    "SplitStep",
    "cut_exchanges",
    "cut_name",
    "save_split",
    "slice_step",
    "split_program",
    "split_step",
]

GRADIENTS_GRAPH, UPDATE_GRAPH = "gradients", "update"
_OF_UPDATE = (names.OVERFLOW, names.LOSS_SCALE, names.LOSS_SCALES)


@dataclass(frozen=True)
class SplitStep:
    """The two graphs of a step; each contains its own catalogue.

    Args:
        gradients: Forward and backward pass; its outputs include the cut values.
        update: The rest; its batch inputs are the cut values.
        summed: Cut values that are summed over the processes, each weighted by its share of the
            batch.
        averaged: Cut values that are averaged over the processes, weighted by their shares of the
            elements that the loss averages.
        checks: Scalars that are summed without weights: zero, or NaN.
        kept: Cut values that stay in their process; gradients among them are weighted, too.
        exchanged: Values that are summed within ``gradients``.
    """

    gradients: ir.Model
    update: ir.Model
    summed: tuple[TensorSpec, ...]
    averaged: tuple[TensorSpec, ...]
    checks: tuple[TensorSpec, ...]
    kept: tuple[TensorSpec, ...]
    exchanged: tuple[TensorSpec, ...] = ()


def cut_name(name: str) -> str:
    """The name of the output that holds a value where the input ``name`` has replaced it."""
    return f"{name}/cut"


def split_program(program: Program) -> dict[str, SplitStep]:
    """Split all step graphs of a program, by the name of the step graph.

    Raises:
        ConfigError: A boost accumulates gradients in an unsupported way, or requires one process.
        ModelError: The program was written by an older version, without the names needed to split
            it.

    Example:
        >>> split_program(program)["step"].summed[0].name  # doctest: +SKIP
        'fc1.weight_grad'
    """
    accumulator = program.config.accumulator
    joins = any(isinstance(boost, AdaSum) for boost in program.config.enabled_boosts)
    if accumulator is not None and not isinstance(accumulator, GradAccumulation):
        raise ConfigError(
            f"The boost '{accumulator.name}' accumulates gradients in an unsupported way.",
            where="several processes",
            fix="Use grad-accumulation, or train with one process.",
        )
    for boost in program.config.enabled_boosts:
        if boost.needs_one_process is not None:
            raise ConfigError(
                boost.needs_one_process,
                where=f"boost '{boost.name}', several processes",
                fix=f"Remove {boost.name}, or train with one process.",
            )
    return {
        name: split_step(
            model,
            accumulates=accumulator is not None,
            joins=joins,
            search=program.config.line_search,
        )
        for name, model in program.graphs.items()
        if name.partition(".")[0] == names.STEP_GRAPH
    }


def save_split(program: Program, folder: str | os.PathLike[str]) -> list[Path]:
    """Write the two graphs of each step, for use in other programs without ortboost.

    The files are ``gradients.onnx`` and ``update.onnx`` (``gradients.1.onnx``, ... with gradient
    freeze) in the folder, for example that of the program.

    Raises:
        FileError: The files cannot be written.
        ConfigError: See :func:`split_program`; or a boost exchanges values within a step, which
            two graphs cannot.
        ModelError: See :func:`split_program`.
    """
    written = []
    for name, split in split_program(program).items():
        inside = [spec.name for spec in split.exchanged] + _exchange_points(split.update)
        if inside:
            raise ConfigError(
                "The processes exchange values within a step, for which two graphs are not enough.",
                where=first_of(inside, 1),
                fix="Remove sync-bn, shard of dim-reduce and distribute_inverses of thor, or train "
                "with ortboost.",
            )
        for kind, model in ((GRADIENTS_GRAPH, split.gradients), (UPDATE_GRAPH, split.update)):
            path = Path(folder) / f"{name.replace(names.STEP_GRAPH, kind, 1)}.onnx"
            save_model(model, path)
            written.append(path)
    return written


def split_step(
    step: ir.Model,
    *,
    accumulates: bool = False,
    joins: bool = False,
    search: LineSearch | None = None,
) -> SplitStep:
    """Split one step graph; it is not changed.

    Args:
        step: The step graph.
        accumulates: Whether gradients are accumulated over a window, so that the flush graph makes
            the update.
        joins: Whether only some processes sum their gradients (AdaSum), while all skip the same
            steps: the finite check is cut, too.
        search: The boost that replaces the optimizer: the value that processes exchange for it
            instead of the gradients is cut.

    Raises:
        ModelError: See :func:`split_program`.
    """
    catalogue = read_catalogue(step)
    made = {o.name: o for node in step.graph for o in node.outputs if o.name}
    values = _values_to_cut(made, catalogue, accumulates=accumulates, joins=joins, search=search)
    cut = [*values.gradients, *values.means, *values.zeros, *values.raw]
    gradients, exchanged = _gradients_graph(step, catalogue, made, cut)
    update = _update_graph(step, catalogue, made, cut)
    specs = _specs(gradients.graph.outputs)
    kept = [*values.gradients, *values.raw] if accumulates else values.raw
    return SplitStep(
        gradients,
        update,
        summed=tuple(specs[name] for name in values.gradients if name not in kept),
        averaged=tuple(specs[name] for name in values.means),
        checks=tuple(specs[name] for name in values.zeros),
        kept=tuple(specs[name] for name in kept),
        exchanged=exchanged,
    )


def _gradients_graph(
    step: ir.Model, catalogue: Catalogue, made: Mapping[str, ir.Value], cut: Sequence[str]
) -> tuple[ir.Model, tuple[TensorSpec, ...]]:
    """All that the cut values and the reported outputs need; and its exchange points."""
    shown = [spec.name for spec in catalogue.outputs if spec.name not in _OF_UPDATE]
    early = ancestors([made[name] for name in (*cut, *shown)])
    points = [name for name in _exchange_points(step) if made[name].producer() in early]
    graph = slice_step(step, [*shown, *cut, *points], points)
    received = _specs(graph.graph.inputs)
    exchanged = tuple(received[name] for name in points)
    own = dataclasses.replace(
        catalogue,
        batch=(*catalogue.batch, *exchanged),
        hyper=(),
        state=_read(graph, [dataclasses.replace(e, next=None) for e in catalogue.state]),
        outputs=tuple(_specs(graph.graph.outputs).values()),
    )
    stamp(graph, GRADIENTS_GRAPH, own)
    return graph, exchanged


def _update_graph(
    step: ir.Model, catalogue: Catalogue, made: Mapping[str, ir.Value], cut: Sequence[str]
) -> ir.Model:
    """The rest of the step, from the cut values on."""
    # With accumulation, what the second `If` writes is left to the flush graph.
    gate = next((node for node in step.graph if node.name == "ortboost/apply"), None)
    entries = tuple(
        dataclasses.replace(entry, next=None)
        if entry.next and gate is not None and made[entry.next].producer() is gate
        else entry
        for entry in catalogue.state
    )
    shown = tuple(spec for spec in catalogue.outputs if spec.name in _OF_UPDATE)
    written = [entry.next for entry in entries if entry.next]
    graph = slice_step(step, [*(spec.name for spec in shown), *written], cut)
    read = _specs(graph.graph.inputs)
    # The update must not depend on the batch except by the cut values.
    stray = next((spec.name for spec in catalogue.batch if spec.name in read), None)
    if stray is not None:
        raise _not_split(stray)
    own = dataclasses.replace(
        catalogue,
        batch=tuple(read[name] for name in cut if name in read),
        hyper=tuple(spec for spec in catalogue.hyper if spec.name in read),
        state=_read(graph, entries),
        outputs=shown,
        randomness=False,
    )
    stamp(graph, UPDATE_GRAPH, own)
    return graph


def _specs(values: Iterable[ir.Value]) -> dict[str, TensorSpec]:
    return {spec.name: spec for spec in map(TensorSpec.of, values)}


class _Cut(NamedTuple):
    """Names of the values between the two graphs: gradients, means, checks, raw statistics."""

    gradients: list[str]
    means: list[str]
    zeros: list[str]
    raw: list[str]


def _values_to_cut(
    made: Mapping[str, ir.Value],
    catalogue: Catalogue,
    *,
    accumulates: bool,
    joins: bool,
    search: LineSearch | None,
) -> _Cut:
    """See :func:`split_step`; raises :class:`ModelError` if the step lacks one of the names."""
    entries = catalogue.entries("parameter")
    gradients = [gradient_name(entry.name) for entry in entries if entry.next is not None]
    if search is not None:  # the step does not change the parameters
        found = [name for name in (gradient_name(e.name) for e in entries) if name in made]
        gradients = [search.exchanged] if search.exchanged else found
        joins = joins or search.exchanged is not None
    # If the processes do not all have the same summed gradients, each checks its own, and the
    # results of the checks are summed.
    own = (INCOMING, STATISTICS)
    checks = (ZEROS, *own) if accumulates or joins else own
    zeros = [name for name in made if name.startswith(checks)]
    means = [name for name in made if name.startswith(names.BATCH_MEAN)]
    raw = [name for name in made if name.startswith(names.RAW)]
    missing = next((name for name in gradients if name not in made), None)
    checked = any(entry.name == names.TOTAL_SKIPS for entry in catalogue.state)
    if missing is not None or (checked and (accumulates or joins) and not zeros):
        raise _not_split(missing or ZEROS)
    return _Cut(gradients, means, zeros, raw)


def cut_exchanges(model: ir.Model) -> tuple[ir.Model, tuple[TensorSpec, ...]]:
    """Cut a copy of an update or flush graph at its exchange points.

    It has one more input and output for each point, also in its catalogue. The points are returned,
    too.
    """
    points = _exchange_points(model)
    if not points:
        return model, ()
    outputs = [value.name or "" for value in model.graph.outputs]
    cut = slice_step(model, [*outputs, *points], points)
    received = _specs(cut.graph.inputs)
    found = tuple(received[name] for name in points)
    catalogue = read_catalogue(model)
    catalogue = dataclasses.replace(
        catalogue,
        batch=(*catalogue.batch, *found),
        outputs=(
            *catalogue.outputs,
            *(dataclasses.replace(spec, name=cut_name(spec.name)) for spec in found),
        ),
    )
    stamp(cut, UPDATE_GRAPH, catalogue)
    return cut, found


def _exchange_points(model: ir.Model) -> list[str]:
    made = (output.name or "" for node in model.graph for output in node.outputs)
    return [name for name in made if name.startswith(names.EXCHANGED)]


def slice_step(step: ir.Model, outputs: Sequence[str], cut: Sequence[str] = ()) -> ir.Model:
    """Keep the nodes that the outputs need; cut values and written states are inputs."""
    model = step.clone()
    graph = model.graph
    made = {o.name: o for node in graph for o in node.outputs if o.name}
    inputs = []
    for name in cut:
        old = made[name]
        # Readers get an input of the old name; what computed it keeps an output of another.
        new = ir.Value(name=name, type=old.type, shape=old.shape)
        old.name = cut_name(name)
        old.replace_all_uses_with(new)
        inputs.append(new)
    graph.inputs.extend(inputs)
    graph.outputs[:] = [made[name] for name in outputs]
    # The pass for unused nodes is not enough: it counts reads by branches of removed nodes.
    needed = ancestors(graph.outputs)
    unread = [node for node in graph if node not in needed]
    for node in unread:
        for inner in (node, *(n for part in subgraphs(node) for n in part.all_nodes())):
            detach(inner)
    graph.remove(unread)
    remove_unused_nodes(model)  # and the constants
    # A state that is only written stays an input: the catalogue lists those.
    written = {name.removeprefix(names.next_name("")) for name in outputs}
    used = {id(value) for node in graph.all_nodes() for value in node.inputs}
    graph.inputs[:] = [v for v in graph.inputs if id(v) in used or v.name in written]
    return model


def _read(model: ir.Model, entries: Sequence[StateEntry]) -> tuple[StateEntry, ...]:
    """The states that a graph reads or writes."""
    read = {value.name for value in model.graph.inputs}
    return tuple(entry for entry in entries if entry.name in read)


def _not_split(name: str) -> ModelError:
    return ModelError(
        "The step cannot be split between gradients and update.",
        where=f"tensor '{name}'",
        fix="Convert the model again with this version of ortboost; if the error persists, please "
        "report it.",
    )
