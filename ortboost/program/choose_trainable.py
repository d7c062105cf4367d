"""The choice of what is trained, and what is said about it.

The graph proposes (:func:`ortboost.graph.parameters.find_parameters`), the user disposes: by a list of
parameters, by patterns, by names. Whatever the file leaves open is named, with what was decided.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from ortboost.core.errors import ModelError, UsageError, nearest
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.io import source_name
from ortboost.graph.origins import lost_parameters, origin_of
from ortboost.graph.parameters import Parameter
from ortboost.graph.query import match_names
from ortboost.graph.reach import reach
from ortboost.program.config import ProgramConfig

__all__ = ["CHOOSE_TRAINABLE", "choose_trainable", "refuse_unknown"]

CHOOSE_TRAINABLE = "choose_trainable"
"""Name of the report; its first note says how much is trained."""

_FEW = 0.5  # of all numbers: a smaller share that nobody asked for is told


def choose_trainable(
    model: ir.Model, parameters: Mapping[str, Parameter], loss: str, config: ProgramConfig
) -> tuple[tuple[Parameter, ...], Report]:
    """Which parameters are trained, and why the others are not.

    Args:
        model: The forward graph.
        parameters: All float initializers, from :func:`ortboost.graph.parameters.find_parameters`.
        loss: Name of the loss: what it does not depend on is not trained.
        config: The list ``parameters``, patterns of ``trainable``, ``freeze`` and ``adapt``, and the
            groups.

    Returns:
        The parameters that are trained, and the report. Its first note counts.

    Raises:
        UsageError: A pattern or a name matches no tensor.
        ModelError: Nothing is left to train.
    """
    _refuse_idle(model, parameters, config)
    refuse_unknown(model, parameters, config.parameters or {})
    wanted, _ = match_names(parameters, config.trainable)
    frozen, _ = match_names(parameters, config.freeze)
    report = Report(CHOOSE_TRAINABLE)
    trained = []
    for name, parameter in parameters.items():
        # A wildcard means the weights it meets; a constant has to be asked for by its full name.
        possible = parameter.trainable or (
            name in config.trainable and not parameter.role.startswith("running_")
        )
        if config.parameters is not None:
            possible = config.parameters.get(name, False)
        if name in frozen:
            report.kept[name] = "frozen by pattern"
        elif possible and config.trainable and name not in wanted:
            report.kept[name] = "not among the trainable patterns"
        elif possible:
            chosen = parameter
            if not parameter.trainable:
                chosen = dataclasses.replace(parameter, role="weight")
            report.changed[name] = f"trained as {chosen.role}"
            trained.append(chosen)
        elif parameter.trainable:
            report.kept[name] = "not trained according to the list of parameters"
        elif parameter.role == "constant" and (parameter.size > 1 or parameter.doubt):
            report.kept[name] = f"constant: {parameter.reason}"
    if not trained:
        raise _nothing(model, parameters, config)
    chosen_ones = _reached(model, tuple(trained), loss, config, report)
    doubts = [] if config.parameters is not None else _doubts(parameters, chosen_ones, config)
    report.notes[:0] = [
        _counted(parameters, chosen_ones, len(doubts)),
        *_few(parameters, chosen_ones, config),
        *_grouped(doubts),
        *_lost(model, parameters, config),
    ]
    report.notes += _tied(model, chosen_ones)
    return chosen_ones, report


def _refuse_idle(
    model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig
) -> None:
    others = [pattern for group in config.groups for pattern in group.patterns]
    others += config.adapt or ()
    idle = match_names(parameters, [*config.trainable, *config.freeze, *others])[1]
    if idle:
        raise UsageError(
            f"The pattern '{idle[0]}' matches no tensor of the model.",
            where=source_name(model),
            fix=f"Names are like {', '.join(list(parameters)[:4])}; "
            "list them with 'ortboost inspect MODEL --params'.",
        )


def refuse_unknown(
    model: ir.Model, parameters: Mapping[str, Parameter], listed: Mapping[str, bool]
) -> None:
    """Hold a list of parameters against a model.

    Raises:
        UsageError: It names what is no float tensor, or wants a running statistic trained.
    """
    unknown = [name for name in listed if name not in parameters]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        hint = nearest(unknown[0], parameters).partition(" (choices")[0]
        raise UsageError(
            f"The list of parameters names '{unknown[0]}', which is no float tensor of the model{more}.",
            where=source_name(model),
            fix=(f"{hint[0].upper()}{hint[1:]} " if hint.startswith("did") else "")
            + "List them with 'ortboost inspect MODEL --params'.",
        )
    for name, yes in listed.items():
        if yes and parameters[name].role.startswith("running_"):
            raise UsageError(
                f"The list of parameters names '{name}', a running statistic: no gradient moves it.",
                where=source_name(model),
                fix=f"Leave it out, or write '{name} false'.",
            )


def _nothing(
    model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig
) -> ModelError:
    """Why nothing is left, by what was asked for."""
    if config.parameters is not None and not any(config.parameters.values()):
        fix = "Let the list of parameters name one that is trained."
    elif config.freeze or config.trainable or config.parameters is not None:
        given = {"--freeze": config.freeze, "--trainable": config.trainable}
        named = " or ".join(option for option, patterns in given.items() if patterns)
        fix = f"Loosen {named or 'the list of parameters'}; see 'ortboost inspect MODEL --params'."
    elif parameters:
        fix = "See 'ortboost inspect MODEL --params' for what each float tensor is taken for; name "
        fix += "those to train with --trainable NAME or --parameters FILE."
    else:
        fix = "The file holds no float tensors: start from a float model with its weights."
    return ModelError("There is nothing to train.", where=source_name(model), fix=fix)


def _reached(
    model: ir.Model,
    trained: tuple[Parameter, ...],
    loss: str,
    config: ProgramConfig,
    choice: Report,
) -> tuple[Parameter, ...]:
    """Leave out parameters of other outputs: the loss depends on them in no way.

    What the user named himself stays, so that the check can say why it cannot be trained.
    """
    named = match_names([p.name for p in trained], config.trainable)[0]
    idle = set(reach(model, [p.name for p in trained], loss).unreachable) - named
    if len(idle) == len(trained):
        return trained
    for name in (p.name for p in trained if p.name in idle):
        choice.changed.pop(name, None)
        choice.kept[name] = "the loss does not depend on it"
    if idle:
        choice.notes.append(
            f"not trained, because the loss does not depend on them: {count_of(len(idle), 'tensor')}, "
            f"{_shown(sorted(idle))}"
        )
    return tuple(p for p in trained if p.name not in idle)


def _counted(
    parameters: Mapping[str, Parameter], trained: Sequence[Parameter], doubtful: int
) -> str:
    """``trains 39,742 of 39,742 numbers in 10 tensors; ...``."""
    names = {p.name for p in trained}
    frozen = [p for p in parameters.values() if p.trainable and p.name not in names]
    constants = [p for p in parameters.values() if p.role == "constant" and p.name not in names]
    constants = [p for p in constants if p.size > 1]
    count = sum(p.size for p in trained)
    parts = [
        f"trains {count:,} of {count + sum(p.size for p in frozen):,} numbers in "
        f"{_tensors(len(trained))}"
    ]
    if frozen:
        parts.append(f"{_tensors(len(frozen))} frozen")
    if constants:
        numbers = sum(p.size for p in constants)
        parts.append(f"{len(constants)} constant, with {numbers:,} numbers")
    if doubtful:
        parts.append(f"{doubtful} doubtful")
    return "; ".join(parts)


def _few(
    parameters: Mapping[str, Parameter], trained: Sequence[Parameter], config: ProgramConfig
) -> list[str]:
    """A small share is told, where nobody asked for it."""
    if config.freeze or config.trainable or config.parameters is not None:
        return []
    stored = sum(p.size for p in parameters.values() if not p.role.startswith("running_"))
    count = sum(p.size for p in trained)
    if count >= _FEW * stored:
        return []
    return [
        f"ONLY {100 * count / stored:.2g} % of the {stored:,} float numbers of the model are trained; "
        "'ortboost inspect MODEL --params' says why for each tensor"
    ]


def _doubts(
    parameters: Mapping[str, Parameter], trained: Sequence[Parameter], config: ProgramConfig
) -> list[tuple[str, str, bool]]:
    """Name, doubt and whether it is trained, of what the user has not decided."""
    names = {p.name for p in trained}
    decided = {*match_names(parameters, config.freeze)[0], *config.trainable}
    return [
        (p.name, p.doubt, p.name in names)
        for p in parameters.values()
        if p.doubt and p.name not in decided and (p.name in names or not p.trainable)
    ]


def _grouped(doubts: Iterable[tuple[str, str, bool]]) -> list[str]:
    """One note for all tensors with the same doubt."""
    groups: dict[tuple[bool, str], list[str]] = {}
    for name, doubt, trained in doubts:
        groups.setdefault((trained, doubt), []).append(name)
    return [
        f"doubtful and {'trained' if trained else 'NOT trained'}: {_shown(names)} ({doubt}); "
        + (
            "--freeze NAME or --parameters FILE says otherwise"
            if trained
            else "--trainable '*' --trainable NAME or --parameters FILE says otherwise"
        )
        for (trained, doubt), names in groups.items()
    ]


def _lost(model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig) -> list[str]:
    """Parameters of the torch module which no tensor of the file stands for as they were."""
    if config.parameters is not None:
        return []
    standing: set[str] = set()
    for name, parameter in parameters.items():
        value = model.graph.initializers.get(name)
        if value is not None and parameter.trainable and not parameter.doubt:
            standing.update(origin_of(value).made_of)
    lost = [name for name in lost_parameters(model) if name not in standing]
    if not lost:
        return []
    return [
        f"{len(lost)} parameter{'s' * (len(lost) > 1)} of the torch module not in the file by name: "
        f"{_shown(lost)}; shared with another module, folded into another tensor (a BatchNormalization "
        "into its convolution: export again with optimize=False to train what torch trains), or not needed "
        "by the outputs"
    ]


def _tied(model: ir.Model, trained: Sequence[Parameter]) -> list[str]:
    """Exporters that store equal tensors once tie the layers of a fresh model together.

    Only tensors of one number throughout, the ones and zeros of a fresh layer, can be equal by chance.
    One tensor in two kinds of nodes, an embedding that is the output layer too, is meant so.
    """
    tied = []
    for parameter in trained:
        value = model.graph.initializers[parameter.name]
        nodes = {usage.node.name for usage in value.uses()}
        operators = {usage.node.op_type for usage in value.uses()}
        if len(nodes) > 1 and len(operators) == 1 and value.const_value is not None:
            numbers = value.const_value.numpy()
            if (numbers == numbers.flat[0]).all():
                tied.append(parameter.name)
    if not tied:
        return []
    return [
        f"{_tensors(len(tied))} of one number throughout, {_shown(tied)}, "
        "serve several nodes and are trained as one each; if they were separate, export again without "
        "merging equal tensors (torch.onnx.export(..., dynamo=True, optimize=False))"
    ]


def _tensors(count: int) -> str:
    return f"{count} tensor{'' if count == 1 else 's'}"


def _shown(names: Sequence[str]) -> str:
    listed = ", ".join(f"'{name}'" for name in names[:3])
    return f"{listed} and {len(names) - 3} more" if len(names) > 3 else listed
