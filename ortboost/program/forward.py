"""The forward graph in training mode: the network with its loss, and what is trained."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.autodiff.decompose.fourier import write_out_real_inverses
from ortboost.core.errors import ModelError, UsageError, require_known
from ortboost.core.printable import count_of, first_of
from ortboost.core.report import Report
from ortboost.graph.build import free_name
from ortboost.graph.query import format_shape, is_standard, known_shape, label, static_shape
from ortboost.graph.shapes.batch_axes import UNKNOWN, BatchAxis, model_batch_axes, row_picker
from ortboost.graph.shapes.joined_axes import joined_axes
from ortboost.graph.source import source_name
from ortboost.graph.weights.padding_rows import padding_rows
from ortboost.graph.weights.parameters import Parameter, find_parameters
from ortboost.graph.weights.token_ids import token_inputs
from ortboost.program import names
from ortboost.program.choose_trainable import choose_trainable
from ortboost.program.config import ProgramConfig
from ortboost.program.network import Network
from ortboost.program.rewrite_log import RewriteLog
from ortboost.transforms.attach_loss import AttachedLoss, attach_loss
from ortboost.transforms.dropout import dropout_to_training
from ortboost.transforms.trainable_norm import batch_norms, has_no_momentum, to_training

__all__ = ["Forward", "prepare_forward"]


@dataclass(frozen=True)
class Forward:
    """A model ready to be checked and differentiated.

    Args:
        model: The forward graph in training mode, with its loss; weights are initializers.
        loss: Names of the loss and its inputs in the graph.
        parameters: Its float tensors by name.
        trained: The trained parameters.
        next_of: Buffer to the name of its next value, computed in the forward pass.
        reports: Reports of all rewrites.
        batch_axes: Input to its batch axis, see :mod:`ortboost.graph.shapes.batch_axes`.
        padding_rows: Trained embedding table to the row that lookups do not train.
        token_rows: Input to the rows that its values select, see
            :mod:`ortboost.graph.weights.token_ids`.
        joined: Input to its axes that may have length 0, see
            :mod:`ortboost.graph.shapes.joined_axes`.
    """

    model: ir.Model
    loss: AttachedLoss
    parameters: Mapping[str, Parameter]
    trained: tuple[Parameter, ...]
    next_of: Mapping[str, str]
    reports: tuple[Report, ...]
    batch_axes: Mapping[str, BatchAxis]
    padding_rows: Mapping[str, int]
    token_rows: Mapping[str, int]
    joined: Mapping[str, tuple[int, ...]]

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks of all rewrites for the user."""
        return tuple(note for report in self.reports for note in report.notes)


def prepare_forward(network: Network, config: ProgramConfig) -> Forward:
    """Attach the loss, set training mode, and choose the trained parameters, in place.

    Raises:
        ModelError: A rewrite rejects the model, or no batch fits an input.
        UsageError: A name or pattern matches nothing.
    """
    model, log = network.model, RewriteLog(network.model, network.reports)
    _check_inputs(model)
    # The loss, with names that inputs and outputs of a step need.
    loss = attach_loss(model, config.loss)
    log.add(loss.report)
    axes, batching = _batch_axes(model, loss, config)
    log.add(batching)
    for name in _reserved(config):
        free_name(model.graph, name)
    parameters = find_parameters(model)  # as long as BatchNormalization has its original form
    # Training mode, and what is trained.
    log.add(_still_norms(model, network.frozen_norm))
    norms = to_training(model, frozen=network.frozen_norm, running_variance=config.running_variance)
    log.add(norms.report)
    parameters.update(_separated_buffers(model, parameters, norms.next_of))
    log.add(dropout_to_training(model))
    trained, choice = choose_trainable(
        model, parameters, loss.objective, config, new=network.new_weights
    )
    log.add(choice)
    parameters.update({parameter.name: parameter for parameter in trained})
    named = [parameter.name for parameter in trained]
    log.add(_moving_norms(model, norms.report, named, config))
    log.add(write_out_real_inverses(model))  # late: its matrices are not parameters
    padding, padded = _padding_rows(model, named, config)
    log.add(padded)
    return Forward(
        model,
        loss,
        parameters,
        trained,
        next_of=norms.next_of,
        reports=tuple(log.reports),
        batch_axes=axes,
        padding_rows=padding,
        token_rows=token_inputs(model),
        joined=joined_axes(model),
    )


def _check_inputs(model: ir.Model) -> None:
    """Refuse an input of unknown rank, or with an axis of length 0."""
    for value in model.graph.inputs:
        if value.is_initializer() or not value.uses():
            continue
        shape = known_shape(value)
        if shape is None or 0 in shape:
            raise ModelError(
                f"The rank of the input '{value.name}' is unknown."
                if shape is None
                else f"The input '{value.name}' has an axis of length 0: {format_shape(shape)}.",
                where=source_name(model),
                fix="Export the model with the shapes of its inputs; an axis of any length has a "
                "name instead of a length.",
            )


def _still_norms(model: ir.Model, frozen: Callable[[ir.Node], bool]) -> Report:
    """Note BatchNormalizations with a momentum of 1: their statistics would never change."""
    report = Report("momentum_of_norms")
    still = [label(n) for n in batch_norms(model) if has_no_momentum(n) and not frozen(n)]
    if still:
        report.notes.append(
            f"{count_of(len(still), 'BatchNormalization')} with a momentum of 1, first "
            f"'{still[0]}': exporters write it for torch's momentum=None, a cumulative average; "
            "the running statistics follow with 0.9 instead, and --update-bn of eval and export "
            "re-estimates them"
        )
    return report


def _moving_norms(
    model: ir.Model, norms: Report, trained: Collection[str], config: ProgramConfig
) -> Report:
    """Note that BatchNormalization with frozen weights still updates its running statistics."""
    report = Report("frozen_weights_of_norms")
    if not (config.freeze or config.selects):
        return report
    moving = [
        f"'{label(node)}'"
        for node in batch_norms(model)
        if label(node) in norms.changed
        and not {v.name for v in node.inputs[1:3] if v} & set(trained)
    ]
    if moving:
        report.notes.append(
            "BatchNormalization with frozen weights still updates its statistics, as in torch: "
            f"{first_of(moving, 1)}; use --frozen-bn PATTERN to keep them fixed"
        )
    return report


def _padding_rows(
    model: ir.Model, trained: Sequence[str], config: ProgramConfig
) -> tuple[dict[str, int], Report]:
    """The padding row of each trained table, from the configuration or else from the file."""
    if config.padding_idx is None:
        rows = {name: row for name, row in padding_rows(model).items() if name in trained}
    else:
        rows = dict(config.padding_idx)
        for name, row in rows.items():
            _check_padding_row(model, name, row, trained)
    report = Report("padding_rows")
    report.notes += [
        f"row {row} of '{name}' is its padding row (padding_idx): lookups do not train it"
        for name, row in rows.items()
    ]
    return rows, report


def _check_padding_row(model: ir.Model, name: str, row: int, trained: Sequence[str]) -> None:
    """Refuse a padding row of the user, unless the tensor is a trained table with this row."""
    where = f"padding_idx, {source_name(model)}"
    require_known(name, trained, f"'{name}' has a padding row, but is not trained.", where)
    table = model.graph.initializers[name]
    if not any(is_standard(use.node, "Gather", "Cast", "Identity") for use in table.uses()):
        raise UsageError(
            f"'{name}' has a padding row, but is not used as an embedding.",
            where=where,
            fix="Name the table of an embedding.",
        )
    length = (static_shape(table) or (0,))[0]
    if row >= length:
        raise UsageError(
            f"'{name}' has no row {row}: it has {length} rows.",
            where=where,
            fix=f"Give a row from 0 to {length - 1}.",
        )


def _batch_axes(
    model: ir.Model, loss: AttachedLoss, config: ProgramConfig
) -> tuple[dict[str, BatchAxis], Report]:
    """The batch axis of each input, and a report for the user."""
    report = Report("batch_axes")
    axes = model_batch_axes(
        model, config.inputs.batch_axes, prediction=loss.prediction, labels=loss.labels
    )
    for name, axis in axes.items():
        if axis == UNKNOWN:
            report.notes.append(
                f"the batch axis of the input '{name}' is ambiguous: data in batches need "
                f"--batch-axis {name}=AXIS, or {name}=none if it is the same for all samples"
            )
        elif axis != 0:
            report.changed[name] = "the same for all samples" if axis is None else f"axis {axis}"
    picker = row_picker(model)
    if picker is not None and not any(isinstance(axis, int) for axis in axes.values()):
        report.notes.append(
            f"'{picker}' selects rows of values computed from other inputs, like the edges of a "
            "graph: data are fed whole, one step per epoch"
        )
    elif picker is not None:
        report.notes.append(
            f"'{picker}' selects rows of values computed from other inputs: shuffled batches of "
            f"{', '.join(n for n, axis in axes.items() if axis is not None)} would separate them"
        )
    return axes, report


def _reserved(config: ProgramConfig) -> list[str]:
    """Names of inputs and outputs of a step that a model might use for its own tensors."""
    rates = [names.learning_rate_name(group.name) for group in config.groups]
    ours = [names.OVERFLOW, names.LOSS_SCALE, names.LOSS_SCALES, names.LEARNING_RATE]
    return [*ours, *rates, *config.metrics]


def _separated_buffers(
    model: ir.Model, parameters: Mapping[str, Parameter], next_of: Mapping[str, str]
) -> dict[str, Parameter]:
    """Running statistics that were separated because equal tensors were stored once."""
    found = {}
    for name in next_of:
        value = model.graph.initializers.get(name)
        if name not in parameters and value is not None and value.const_value is not None:
            shape = value.const_value.numpy().shape
            dtype = value.const_value.dtype
            why = "separated from a shared one"
            found[name] = Parameter(name, shape, dtype, "running_stat", why)
    return found
