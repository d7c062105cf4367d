"""Preparation of a forward graph for differentiation, and choice of the trained parameters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.autodiff.decompose.fourier import write_out_real_inverses
from ortboost.autodiff.engine import Engine
from ortboost.boosts.base import GraphContext
from ortboost.core.errors import ModelError, UsageError, nearest
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.batch_axes import UNKNOWN, BatchAxis, model_batch_axes, row_picker
from ortboost.graph.build import Builder, free_name
from ortboost.graph.ceil_pools import write_out_counted_padding
from ortboost.graph.checked_rewrites import check_rewritten
from ortboost.graph.classic_ml import cut_maps, require_network
from ortboost.graph.fix_inputs import fix_inputs
from ortboost.graph.normalize import normalize
from ortboost.graph.padding_rows import padding_rows
from ortboost.graph.parameters import Parameter, find_parameters
from ortboost.graph.query import is_standard, label, match_names, static_shape
from ortboost.graph.reach import dropped_detaches, stops_gradient
from ortboost.graph.separate_equals import separate_equals
from ortboost.graph.source import source_name
from ortboost.graph.store_weights import store_weights
from ortboost.graph.tie_copies import tie_copies
from ortboost.program import catalogue as names
from ortboost.program.choose_trainable import choose_trainable
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import AttachedLoss, attach_loss
from ortboost.transforms.batch_statistics import write_out_batch_statistics
from ortboost.transforms.dropout import dropout_to_training
from ortboost.transforms.new_head import new_head
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
        batch_axes: Input to its batch axis, see :mod:`ortboost.graph.batch_axes`.
        padding_rows: Trained embedding table to the row that lookups do not train.
    """

    model: ir.Model
    loss: AttachedLoss
    parameters: Mapping[str, Parameter]
    trained: tuple[Parameter, ...]
    next_of: Mapping[str, str]
    reports: tuple[Report, ...]
    batch_axes: Mapping[str, BatchAxis]
    padding_rows: Mapping[str, int]

    @property
    def notes(self) -> tuple[str, ...]:
        """The remarks of all rewrites for the user."""
        return tuple(note for report in self.reports for note in report.notes)


def prepare_forward(model: ir.Model, config: ProgramConfig, engine: Engine) -> Forward:
    """Normalize, replace the head, attach the loss, set training mode, choose trained parameters.

    Args:
        model: The model as loaded; changed in place.
        config: The configuration.
        engine: The engine that will differentiate; it decides the opset.

    Raises:
        ModelError: A stage rejects the model.
        UsageError: A name or pattern matches nothing.
    """
    # The network as a user would read it: standard operators, sizes as numbers, weights as tensors.
    opsets = engine.opsets
    for boost in config.enabled_boosts:
        opsets = boost.opsets(opsets)
    detached = _detached(model)
    fixed = fix_inputs(model, config.inputs)  # first: known lengths fold into constants
    reports = [fixed, *normalize(model, opsets=opsets, ir_version=engine.ir_version)]
    require_network(model)
    check_rewritten(model, "normalize")
    cut = cut_maps(model)
    if cut.modified:
        reports.append(cut)
    separated = _applied(separate_equals, model)
    stored = _applied(store_weights, model)
    named = {*(config.parameters or ()), *config.trainable, *config.freeze}
    tied = tie_copies(model, apart=named)
    check_rewritten(model, "tie_copies")
    _leave_prefix(model)
    written = _applied(write_out_batch_statistics, model)
    pools = _applied(write_out_counted_padding, model)
    some = [r for r in (separated, written, pools) if r.changed or r.kept or r.notes]
    reports += [detached, stored, tied, *some]
    if config.new_head is not None:
        reports.append(
            new_head(model, config.new_head, seed=config.seed, output=config.loss.output)
        )
        check_rewritten(model, "new_head")
    # Changes of the network, which exports keep.
    frozen = _frozen(model, config)
    network = GraphContext(model, output=config.loss.output, frozen_norm=frozen)
    found = []
    for boost in config.enabled_boosts:
        found.append(boost.rewrite_network(network))
        check_rewritten(model, f"{boost.name}, rewrite_network")
    reports += [report for report in found if report is not None]
    # The loss, with names that inputs and outputs of a step need.
    loss = attach_loss(model, config.loss)
    check_rewritten(model, "attach_loss")
    axes, batching = _batch_axes(model, loss, config)
    for name in _reserved(config):
        free_name(model.graph, name)
    parameters = find_parameters(model)  # as long as BatchNormalization has its original form
    # Training mode, and what is trained.
    still = _still_norms(model, frozen)
    norms = to_training(model, frozen=frozen, running_variance=config.running_variance)
    parameters.update(_separated_buffers(model, parameters, norms.next_of))
    dropout = dropout_to_training(model)
    check_rewritten(model, "to_training")
    trained, choice = choose_trainable(model, parameters, loss.objective, config)
    parameters.update({parameter.name: parameter for parameter in trained})
    reports += [loss.report, batching, still, norms.report, dropout, choice]
    moving = _moving_norms(model, norms.report, {parameter.name for parameter in trained}, config)
    reports.append(moving)
    inverses = _applied(write_out_real_inverses, model)  # late: its matrices are no parameters
    reports += [inverses] if inverses.modified else []
    padding = _padding_rows(model, [parameter.name for parameter in trained], config)
    padded = Report("padding_rows")
    padded.notes += [
        f"row {row} of '{name}' is its padding row (padding_idx): lookups do not train it"
        for name, row in padding.items()
    ]
    reports.append(padded)
    return Forward(
        model,
        loss,
        parameters,
        trained,
        next_of=norms.next_of,
        reports=tuple(reports),
        batch_axes=axes,
        padding_rows=padding,
    )


def _applied(rewrite: Callable[[ir.Model], Report], model: ir.Model) -> Report:
    report = rewrite(model)
    check_rewritten(model, rewrite.__name__)
    return report


def _detached(model: ir.Model) -> Report:
    """What becomes of values that the torch module detaches."""
    report = Report("detached_values")
    for node in model.graph.all_nodes():
        if stops_gradient(node):
            report.changed[node.outputs[0].name or ""] = "detached in torch: gets no gradient"
    dropped = sorted(dropped_detaches(model.graph))
    if dropped:
        report.notes.append(
            f"the torch module detaches {count_of(len(dropped), 'value')} "
            f"({', '.join(dropped[:3])}), but the exporter dropped this: gradients flow through; "
            "export again with optimize=False to stop them as torch does"
        )
    return report


def _still_norms(model: ir.Model, frozen: Callable[[ir.Node], bool]) -> Report:
    """Note BatchNormalizations whose momentum says that their statistics never move."""
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
    if not (config.freeze or config.trainable or config.parameters is not None):
        return report
    moving = [
        label(node)
        for node in batch_norms(model)
        if label(node) in norms.changed
        and not {v.name for v in node.inputs[1:3] if v} & set(trained)
    ]
    if moving:
        report.notes.append(
            "BatchNormalization with frozen weights still updates its statistics, as in torch: "
            f"'{moving[0]}'"
            + (f" and {len(moving) - 1} more" if len(moving) > 1 else "")
            + "; use --frozen-bn PATTERN to keep them fixed"
        )
    return report


def _padding_rows(model: ir.Model, trained: Sequence[str], config: ProgramConfig) -> dict[str, int]:
    """The padding row of each trained table, from the configuration or else from the file."""
    if config.padding_idx is None:
        return {name: row for name, row in padding_rows(model).items() if name in trained}
    for name, row in config.padding_idx.items():
        if name not in trained:
            raise UsageError(
                f"'{name}' has a padding row, but is not trained.",
                where=f"padding_idx, {source_name(model)}",
                fix=nearest(name, trained),
            )
        table = model.graph.initializers[name]
        if not any(is_standard(use.node, "Gather", "Cast", "Identity") for use in table.uses()):
            raise UsageError(
                f"'{name}' has a padding row, but is not used as an embedding.",
                where=f"padding_idx, {source_name(model)}",
                fix="Name the table of an embedding.",
            )
        length = (static_shape(table) or (0,))[0]
        if row >= length:
            raise UsageError(
                f"'{name}' has no row {row}: it has {length} rows.",
                where=f"padding_idx, {source_name(model)}",
                fix=f"Give a row from 0 to {length - 1}.",
            )
    return dict(config.padding_idx)


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


def _leave_prefix(model: ir.Model) -> None:
    """Rename tensors called ``ortboost/...``, which files written by ortboost contain."""
    prefix, graph = "ortboost/", model.graph
    visible = [v.name or "" for v in (*graph.inputs, *graph.outputs)]
    for name in visible:
        if name.startswith(prefix):
            raise ModelError(
                f"The model has an input or output '{name}'; such names are reserved.",
                where=source_name(model),
                fix="Convert the model that this file was made from.",
            )
    # Inner names are nobody's interface.
    b = Builder(graph, "model")
    for value in list(graph.initializers.values()):
        if (value.name or "").startswith(prefix):
            graph.initializers.pop(value.name or "")
            value.name = b.unique(f"model/{value.name}")
            graph.register_initializer(value)
    for node in graph.all_nodes():
        for output in node.outputs:
            if (output.name or "").startswith(prefix):
                output.name = b.unique(f"model/{output.name}")


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


def _frozen(model: ir.Model, config: ProgramConfig) -> Callable[[ir.Node], bool]:
    """A test for BatchNormalization nodes that stay in inference mode, by name or parameter."""
    named: dict[str, set[str]] = {}
    for node in batch_norms(model):
        labels = {node.name, *(value.name for value in node.inputs[1:] if value is not None)}
        named[node.name or ""] = {label for label in labels if label}
    unmatched = match_names(set().union(*named.values()), config.frozen_norm)[1] if named else []
    if unmatched or (config.frozen_norm and not named):
        raise UsageError(
            f"The pattern '{(unmatched or config.frozen_norm)[0]}' matches no BatchNormalization.",
            where=source_name(model),
            fix=f"Examples of nodes: {', '.join(list(named)[:3])}."
            if named
            else "The model has none.",
        )
    return lambda node: bool(match_names(named[node.name or ""], config.frozen_norm)[0])
