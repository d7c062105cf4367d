"""From a model to a program: the pipeline, one line a stage."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes import common

import ortboost
from ortboost.autodiff.check import check_trainable
from ortboost.autodiff.engine import Engine, get_engine, gradient_name
from ortboost.autodiff.reach import find_value
from ortboost.errors import ConfigError, ModelError, UsageError
from ortboost.graph.build import Builder, free_name
from ortboost.graph.io import ModelSource, load_model, source_name
from ortboost.graph.normalize import normalize
from ortboost.graph.query import Parameter, find_parameters, match_names
from ortboost.loss_scale import NoScaleConfig, initial_state
from ortboost.program import catalogue as names
from ortboost.program.catalogue import Catalogue, StateEntry, TensorSpec
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.program.step import append_update
from ortboost.report import Report
from ortboost.transforms.attach_loss import AttachedLoss, attach_loss
from ortboost.transforms.decompose import decompose
from ortboost.transforms.dropout import dropout_to_training
from ortboost.transforms.new_head import new_head
from ortboost.transforms.trainable_norm import batch_norms, to_inference, to_training

__all__ = ["Forward", "build_program", "choose_trainable", "prepare_forward"]

_SCALED_LOSS = "ortboost/scaled_loss"
_RANDOM_OPS = (
    "Bernoulli",
    "Dropout",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
)


def build_program(source: ModelSource, config: ProgramConfig | None = None) -> Program:
    """Turn a model into a training program.

    Args:
        source: Path, :class:`onnx.ModelProto` or :class:`onnx_ir.Model`.
        config: The configuration; the defaults if not given.

    Returns:
        The program, in memory; :meth:`Program.save` writes it.

    Raises:
        ModelError: The model cannot be trained so; the error lists all reasons.
        UsageError: A pattern or a name matches nothing.
        DependencyError: The engine cannot run here.

    Example:
        >>> build_program("models/mlp.onnx").catalogue.batch[0].name  # doctest: +SKIP
        'x'
    """
    config = config or ProgramConfig()
    engine = get_engine(config.engine)
    forward = prepare_forward(load_model(source), config, engine)
    model, loss, trained = forward.model, forward.loss, forward.trained
    reports = list(forward.reports)
    evaluation = model.clone()
    to_inference(evaluation)

    _refuse_blockers(forward, engine)
    wrt = [parameter.name for parameter in trained]
    reports.append(decompose(model, wrt=wrt, loss=loss.objective, engine=engine))
    raw_next = _rename_raw(model, forward.next_of)
    state = _lift_state(model, forward)
    _lift_state(evaluation, forward)
    reports += engine.prepare(model)
    step, catalogue, initial = _build_step(forward, config, engine, state, raw_next)
    _stamp(step, catalogue, "step")
    _stamp(evaluation, None, "eval")
    return Program(
        step=step,
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


@dataclass(frozen=True)
class Forward:
    """A model ready to be checked and differentiated.

    Args:
        model: The forward graph in training mode, with its loss; weights are initializers.
        loss: Where the loss is.
        parameters: Its float tensors by name.
        trained: Those that are trained.
        notes: Remarks on the choice of what is trained.
        next_of: Buffer to the value that the forward pass computes for it.
        reports: What was done so far.
    """

    model: ir.Model
    loss: AttachedLoss
    parameters: Mapping[str, Parameter]
    trained: tuple[Parameter, ...]
    notes: tuple[str, ...]
    next_of: Mapping[str, str]
    reports: tuple[Report, ...]


def prepare_forward(model: ir.Model, config: ProgramConfig, engine: Engine) -> Forward:
    """Normalize, replace the head, attach the loss, switch to training mode, choose what is trained.

    Args:
        model: The model as loaded; changed in place.
        config: The configuration.
        engine: The engine that will differentiate; it decides the opset.

    Raises:
        ModelError: A stage refuses the model.
        UsageError: A name or pattern matches nothing.
    """
    reports = normalize(model, opsets=engine.opsets, ir_version=engine.ir_version)
    _leave_prefix(model)
    if config.new_head is not None:
        reports.append(
            new_head(model, config.new_head, seed=config.seed, output=config.loss.output)
        )
    loss = attach_loss(model, config.loss)
    for name in _reserved(config):
        free_name(model.graph, name)
    parameters = find_parameters(model)
    norms = to_training(
        model, frozen=_frozen(model, config), running_variance=config.running_variance
    )
    parameters.update(_separated_buffers(model, parameters, norms.next_of))
    dropout = dropout_to_training(model)
    trained, choice = choose_trainable(model, parameters, config)
    reports += [loss.report, norms.report, dropout, choice]
    return Forward(
        model, loss, parameters, trained, tuple(choice.notes), norms.next_of, tuple(reports)
    )


def _leave_prefix(model: ir.Model) -> None:
    """Rename tensors called ``ortboost/...``, as a file of ours that comes back has them."""
    prefix, graph = "ortboost/", model.graph
    visible = [v.name or "" for v in (*graph.inputs, *graph.outputs)]
    for name in visible:
        if name.startswith(prefix):
            raise ModelError(
                f"The model has an input or output '{name}'; such names are ortboost's own.",
                where=source_name(model),
                fix="Convert the model that this file was made from.",
            )
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
    """Names of inputs and outputs of a step that a model may happen to use for its own tensors."""
    rates = [names.learning_rate_name(group.name) for group in config.groups]
    return [names.OVERFLOW, names.LOSS_SCALE, names.LEARNING_RATE, *rates, *config.metrics]


def choose_trainable(
    model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig
) -> tuple[tuple[Parameter, ...], Report]:
    """Which parameters are trained, and why the others are not.

    Args:
        model: The forward graph, for error messages.
        parameters: All float initializers, from :func:`ortboost.graph.query.find_parameters`.
        config: Patterns of ``trainable`` and ``freeze``, and the groups.

    Raises:
        UsageError: A pattern matches no tensor.
        ModelError: Nothing is left to train.
    """
    wanted, idle = match_names(parameters, config.trainable)
    frozen, idle_freeze = match_names(parameters, config.freeze)
    grouped = [pattern for group in config.groups for pattern in group.patterns]
    idle += idle_freeze + match_names(parameters, grouped)[1]
    if idle:
        raise UsageError(
            f"The pattern '{idle[0]}' matches no tensor of the model.",
            where=source_name(model),
            fix=f"Names are like {', '.join(list(parameters)[:4])}; "
            "list them with 'ortboost inspect MODEL --params'.",
        )
    report = Report("choose_trainable")
    trained = []
    for name, parameter in parameters.items():
        # A wildcard means the weights it meets; a constant has to be asked for by its full name.
        possible = parameter.trainable or (
            name in config.trainable and not parameter.role.startswith("running_")
        )
        if name in frozen:
            report.kept[name] = "frozen by pattern"
        elif possible and config.trainable and name not in wanted:
            report.kept[name] = "not among the trainable patterns"
        elif possible:
            report.changed[name] = f"trained as {parameter.role}"
            trained.append(parameter)
        elif parameter.role == "constant" and parameter.size > 1:
            report.kept[name] = f"constant: {parameter.reason}"
    report.notes += _tied_norms(model, trained)
    if not trained:
        raise ModelError(
            "There is nothing to train.",
            where=source_name(model),
            fix="Loosen --freeze or --trainable; see 'ortboost inspect MODEL --params'.",
        )
    return tuple(trained), report


def _tied_norms(model: ir.Model, trained: Sequence[Parameter]) -> list[str]:
    """Exporters that store equal tensors once tie the normalizations of a fresh model together."""
    notes = []
    for parameter in trained:
        value = model.graph.initializers[parameter.name]
        nodes = {usage.node.name for usage in value.uses()}
        if parameter.role.startswith("norm_") and len(nodes) > 1:
            notes.append(
                f"'{parameter.name}' serves {len(nodes)} normalizations and is trained as one tensor; "
                "if they were separate, export again without merging equal tensors "
                "(torch.onnx.export(..., optimize=False))"
            )
    return notes


def _separated_buffers(
    model: ir.Model, parameters: Mapping[str, Parameter], next_of: Mapping[str, str]
) -> dict[str, Parameter]:
    """Running statistics that got tensors of their own when equal ones were stored once."""
    found = {}
    for name in next_of:
        value = model.graph.initializers.get(name)
        if name not in parameters and value is not None and value.const_value is not None:
            shape = value.const_value.numpy().shape
            dtype = value.const_value.dtype
            found[name] = Parameter(
                name, shape, dtype, "running_stat", "separated from a shared one"
            )
    return found


def _frozen(model: ir.Model, config: ProgramConfig) -> Callable[[ir.Node], bool]:
    """Whether a BatchNormalization stays in inference mode, by its name or that of a parameter."""
    named: dict[str, set[str]] = {}
    for node in batch_norms(model):
        labels = {node.name, *(value.name for value in node.inputs[1:] if value is not None)}
        named[node.name or ""] = {label for label in labels if label}
    idle = match_names(set().union(*named.values()), config.frozen_norm)[1] if named else []
    if idle or (config.frozen_norm and not named):
        raise UsageError(
            f"The pattern '{(idle or config.frozen_norm)[0]}' matches no BatchNormalization.",
            where=source_name(model),
            fix=f"Nodes are like {', '.join(list(named)[:3])}." if named else "The model has none.",
        )
    return lambda node: bool(match_names(named[node.name or ""], config.frozen_norm)[0])


def _refuse_blockers(forward: Forward, engine: Engine) -> None:
    wrt = [parameter.name for parameter in forward.trained]
    found = check_trainable(forward.model, wrt=wrt, loss=forward.loss.objective, engine=engine)
    if found.blockers:
        count = len(found.blockers)
        raise ModelError(
            f"The model cannot be trained as it is: {count} {'reason' if count == 1 else 'reasons'}.",
            where="\n         ".join(f"{b.op} '{b.node}': {b.reason}" for b in found.blockers),
            fix=found.blockers[0].fix,
        )


def _lift_state(model: ir.Model, forward: Forward) -> dict[str, NDArray[Any]]:
    """Make parameters and buffers graph inputs; give back their values, trained ones first.

    Parameters that are not trained become inputs too: one state serves all graphs, and no engine
    can fold them or take two of equal value for one.
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
        tensor, value.const_value = value.const_value, None
        array = tensor.numpy()
        value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(array.shape)
        values[name] = array
        model.graph.inputs.append(value)
    return values


def _rename_raw(model: ir.Model, next_of: Mapping[str, str]) -> dict[str, str]:
    """What the forward pass computes is not yet the next state: a skipped step keeps the old one."""
    renamed = {}
    made = {output.name: output for node in model.graph for output in node.outputs}
    for buffer, name in next_of.items():
        made[name].name = renamed[buffer] = f"ortboost/raw/{buffer}"
    return renamed


def _build_step(
    forward: Forward,
    config: ProgramConfig,
    engine: Engine,
    state: Mapping[str, NDArray[Any]],
    buffers_next: Mapping[str, str],
) -> tuple[ir.Model, Catalogue, dict[str, NDArray[Any]]]:
    """Differentiate, append the update, order inputs and outputs, describe it all."""
    model, loss, trained = forward.model, forward.loss, forward.trained
    parameters, graph = forward.parameters, model.graph
    batch = [value for value in graph.inputs if value.name not in state]
    objective, scale = loss.objective, None
    initial: dict[str, NDArray[Any]] = dict(state)
    entries = [
        StateEntry(
            name,
            "buffer" if parameters[name].role.startswith("running_") else "parameter",
            array.dtype,
            array.shape,
            None,
            parameters[name].role,
        )
        for name, array in state.items()
    ]
    if not isinstance(config.loss_scale, NoScaleConfig):
        builder = Builder(graph, "ortboost/scale")
        scale = ir.Value(
            name=names.SCALE, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(())
        )
        graph.inputs.append(scale)
        unscaled = _value(model, loss.objective)
        scaled = builder.op("Mul", unscaled, scale, name=_SCALED_LOSS, shape=())
        builder.flush()
        objective = scaled.name or ""
        start = initial_state(config.loss_scale).scale
        initial[names.SCALE] = np.asarray(start, np.float32)
        entries.append(StateEntry(names.SCALE, "scale", np.dtype(np.float32), (), None))
    raw = set(buffers_next.values())
    kept = [_value(model, loss.loss), _value(model, loss.prediction)]
    kept += [output for node in graph for output in node.outputs if output.name in raw]
    graph.outputs[:] = list({id(value): value for value in kept}.values())

    step = engine.differentiate(model, objective, [p.name for p in trained])
    values = {value.name or "": value for value in (*step.graph.inputs, *step.graph.outputs)}
    parts = append_update(
        step,
        config,
        trained,
        {p.name: values[gradient_name(p.name)] for p in trained},
        {buffer: values[raw] for buffer, raw in buffers_next.items()},
        values.get(names.SCALE),
    )
    metrics = _metrics(step, config, values, loss)
    entries += parts.state
    initial.update(parts.initial)
    entries = [
        dataclasses.replace(e, next=names.next_name(e.name) if e.name in parts.next_of else None)
        for e in entries
    ]
    shown = [values[loss.loss], parts.overflow, parts.loss_scale, *metrics]
    inputs = {value.name: value for value in step.graph.inputs}
    step.graph.outputs[:] = [*shown, *(parts.next_of[e.name] for e in entries if e.next)]
    common.RemoveUnusedNodesPass()(step)  # the scaled loss itself, and what was only kept for names
    step.graph.inputs[:] = [
        *(inputs[value.name] for value in batch),
        *parts.hyper,
        *(inputs[entry.name] for entry in entries),
    ]
    catalogue = Catalogue(
        batch=tuple(_batch_input(inputs[value.name], config, loss) for value in batch),
        hyper=tuple(TensorSpec.of(value) for value in parts.hyper),
        state=tuple(entries),
        outputs=tuple(TensorSpec.of(value) for value in shown),
        randomness=any(node.op_type in _RANDOM_OPS for node in step.graph.all_nodes()),
    )
    return step, catalogue, initial


def _batch_input(value: ir.Value, config: ProgramConfig, loss: AttachedLoss) -> TensorSpec:
    spec = TensorSpec.of(value)
    if value.name != loss.labels or loss.classes is None:
        return spec
    return dataclasses.replace(spec, classes=loss.classes, ignored=config.loss.ignore_index)


def _metrics(
    step: ir.Model, config: ProgramConfig, values: Mapping[str, ir.Value], loss: AttachedLoss
) -> list[ir.Value]:
    """Metrics of the batch; they read what the forward pass made anyway."""
    if "accuracy" not in config.metrics:
        return []
    if loss.labels is None or config.loss.name != "softmax-cross-entropy" or not config.loss.sparse:
        raise ConfigError(
            "The metric 'accuracy' needs softmax cross entropy with sparse labels.",
            where="metrics",
            fix="Leave it out, or measure at validation.",
        )
    b = Builder(step.graph, "ortboost/metric")
    int64, single = ir.DataType.INT64, ir.DataType.FLOAT
    guess = b.op("ArgMax", values[loss.prediction], axis=1, keepdims=0, dtype=int64)
    right = b.op("Equal", guess, values[loss.labels], dtype=ir.DataType.BOOL)
    share = b.op("Cast", right, to=single, dtype=single)
    accuracy = b.op("ReduceMean", share, keepdims=0, name="accuracy", shape=())
    b.flush()
    return [accuracy]


def _value(model: ir.Model, name: str) -> ir.Value:
    value = find_value(model.graph, name)
    if value is None:
        raise ModelError(
            f"The tensor '{name}' was lost on the way.",
            where=source_name(model),
            fix="Report this.",
        )
    return value


def _stamp(model: ir.Model, catalogue: Catalogue | None, kind: str) -> None:
    """Say in the file itself what it is."""
    model.producer_name, model.producer_version = "ortboost", ortboost.__version__
    model.metadata_props["ortboost.kind"] = kind
    if catalogue is not None:
        model.metadata_props[names.METADATA_KEY] = json.dumps(catalogue.to_dict())
