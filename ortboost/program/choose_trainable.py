"""The choice of trained parameters, and the report on it.

:func:`ortboost.graph.weights.parameters.find_parameters` classifies the tensors; the user overrides
it by a list of parameters, by patterns or by names. Doubtful classifications are reported with the
decision.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Mapping, Sequence

import onnx_ir as ir

from ortboost.autodiff.blockers import quantizers_between, standing_blockers
from ortboost.core.errors import ModelError, UsageError, nearest
from ortboost.core.printable import count_of, first_of
from ortboost.core.report import Report
from ortboost.graph.query import is_standard
from ortboost.graph.reach import reach
from ortboost.graph.source import source_name
from ortboost.graph.weights.origins import missing_parameters, origin_of
from ortboost.graph.weights.parameters import Parameter, match_parameters
from ortboost.graph.weights.weight_uses import weight_uses
from ortboost.program.config import ProgramConfig

__all__ = ["CHOOSE_TRAINABLE", "choose_trainable", "refuse_unknown"]

CHOOSE_TRAINABLE = "choose_trainable"
"""Name of the report; its first note gives the number of trained parameters."""

_WEIGHT = re.compile(r"\.(weight|bias)$")  # torch's names of parameters
_SMALL_SHARE = 0.5  # of all elements: a smaller share is reported unless requested


def choose_trainable(
    model: ir.Model,
    parameters: Mapping[str, Parameter],
    loss: str,
    config: ProgramConfig,
    *,
    new: Collection[str] = (),
) -> tuple[tuple[Parameter, ...], Report]:
    """Choose the trained parameters, and report why the others are not trained.

    Args:
        model: The forward graph.
        parameters: All float initializers, from
            :func:`ortboost.graph.weights.parameters.find_parameters`.
        loss: Name of the loss: parameters that it does not depend on are not trained.
        config: Gives the list ``parameters``, the patterns ``trainable``, ``freeze`` and ``adapt``,
            and the groups, and the boosts, which may freeze the network.
        new: Weights that are not the file's: of a new head, or added by boosts.

    Returns:
        The trained parameters, and the report, whose first note has the counts.

    Raises:
        UsageError: A pattern or a name matches no tensor.
        ModelError: There is nothing to train.
    """
    _refuse_unmatched(model, parameters, config)
    refuse_unknown(model, parameters, config.parameters or {})
    choice = _Choice(model, parameters, config, new)
    report = Report(CHOOSE_TRAINABLE)
    wanted = []
    for name, parameter in parameters.items():
        reason = choice.reason_against(parameter)
        if reason is None:
            # Weight decay, LARS and centralization go by the role.
            role = parameter.role if parameter.trainable else "weight"
            report.changed[name] = f"trained as {role}"
            wanted.append(dataclasses.replace(parameter, role=role))
        elif reason:
            report.kept[name] = reason
    if not config.selects:
        _refuse_without_weights(model, len(wanted))
    if not wanted:
        raise _nothing(model, parameters, config)
    trained = _reached(model, tuple(wanted), loss, config, report)
    # Notes come in the order of their weight: counts, what looks wrong, details.
    unasked = not (config.freeze or config.selects)
    decided = config.parameters is not None or bool(choice.freezing)
    doubts = [] if decided else _doubts(parameters, trained, config)
    lost = _lost(model, parameters, config)
    report.notes[:0] = [
        _counted(parameters, trained, len(doubts)),
        *(_small_share(parameters, trained) if unasked else ()),
        *_grouped(doubts),
        *(_adapters(trained) if unasked else ()),
        *lost,
    ]
    report.notes += _idle_groups(trained, config)
    report.notes += _tied(model, trained, advised=bool(lost))
    return trained, report


class _Choice:
    """What decides about each parameter: its kind, the list, the patterns, and the boosts."""

    def __init__(
        self,
        model: ir.Model,
        parameters: Mapping[str, Parameter],
        config: ProgramConfig,
        new: Collection[str],
    ) -> None:
        self.listed, self.named = config.parameters, config.trainable
        self.selected, _ = match_parameters(parameters.values(), config.trainable)
        self.frozen, _ = match_parameters(parameters.values(), config.freeze)
        self.freezing = next((b.name for b in config.enabled_boosts if b.freezes_network), "")
        self.new = new if self.freezing else ()

    def reason_against(self, parameter: Parameter) -> str | None:
        """Why a parameter is not trained, empty if obvious; ``None`` if it is trained."""
        name, new = parameter.name, parameter.name in self.new
        if name in self.frozen:
            return "frozen by pattern"
        if not self._is_possible(parameter):
            if parameter.trainable:
                return "not trained according to the list of parameters"
            worth = parameter.role == "constant" and (parameter.size > 1 or parameter.doubt)
            return f"constant: {parameter.reason}" if worth else ""
        if self.named and name not in self.selected and not new:
            return "not among the trainable patterns"
        if self.freezing and not self.named and self.listed is None and not new:
            return f"frozen by {self.freezing}"
        return None

    def _is_possible(self, parameter: Parameter) -> bool:
        """Whether it may be trained. The list decides, if there is one."""
        name = parameter.name
        if self.listed is not None:
            return self.listed.get(name, parameter.trainable and name in self.new)
        # A wildcard selects only parameters; a constant must be requested by its full name.
        requested = name in self.named and not parameter.role.startswith("running_")
        return parameter.trainable or requested


def _refuse_unmatched(
    model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig
) -> None:
    others = [pattern for group in config.groups for pattern in group.patterns]
    others += config.adapt or ()
    patterns = [*config.trainable, *config.freeze, *others]
    unmatched = match_parameters(parameters.values(), patterns)[1]
    if unmatched:
        raise UsageError(
            f"The pattern '{unmatched[0]}' matches no tensor of the model.",
            where=source_name(model),
            fix=f"Examples of names: {', '.join(list(parameters)[:4])}; "
            "list them with 'ortboost inspect MODEL --params'.",
        )


def refuse_unknown(
    model: ir.Model, parameters: Mapping[str, Parameter], listed: Mapping[str, bool]
) -> None:
    """Check a list of parameters against a model.

    Raises:
        UsageError: The list names a tensor that is not a float tensor of the model, or trains a
            running statistic.
    """
    unknown = [name for name in listed if name not in parameters]
    if unknown:
        more = f" (and {len(unknown) - 1} more)" if len(unknown) > 1 else ""
        hint = nearest(unknown[0], parameters).partition(" (choices")[0]
        raise UsageError(
            f"The list of parameters names '{unknown[0]}', which is not a float tensor of the "
            f"model{more}.",
            where=source_name(model),
            fix=(f"{hint[0].upper()}{hint[1:]} " if hint.startswith("did") else "")
            + "List them with 'ortboost inspect MODEL --params'.",
        )
    for name, yes in listed.items():
        if yes and parameters[name].role.startswith("running_"):
            raise UsageError(
                f"The list of parameters trains '{name}', a running statistic, which has no "
                "gradient.",
                where=source_name(model),
                fix=f"Omit it, or write '{name} false'.",
            )


def _refuse_without_weights(model: ir.Model, trained: int) -> None:
    """Refuse a file whose parameters are inputs; without them, any constant may seem to be one."""
    weights = [value.name for value in model.graph.inputs if _WEIGHT.search(value.name or "")]
    if len(weights) > trained:
        raise ModelError(
            f"There is nothing to train: the file has no values for '{weights[0]}', an input.",
            where=source_name(model),
            fix="Export the model with its weights (torch: export_params=True), or select what is "
            "to be trained with --trainable.",
        )


def _nothing(
    model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig
) -> ModelError:
    """The error if there is nothing to train, with a fix that depends on the configuration."""
    if config.parameters is not None and not any(config.parameters.values()):
        fix = "Mark at least one parameter in the list as trained."
    elif config.freeze or config.trainable or config.parameters is not None:
        given = {"--freeze": config.freeze, "--trainable": config.trainable}
        named = " or ".join(option for option, patterns in given.items() if patterns)
        fix = f"Loosen {named or 'the list of parameters'}; see 'ortboost inspect MODEL --params'."
    elif blocker := next(iter(standing_blockers(model, (), ())), None):  # quantized weights
        return ModelError(
            f"There is nothing to train: {blocker.reason}.",
            where=source_name(model),
            fix=blocker.fix,
        )
    elif parameters:
        fix = "See the roles of float tensors with 'ortboost inspect MODEL --params'; select "
        fix += "those to train with --trainable NAME or --parameters FILE."
    else:
        fix = "The file contains no float tensors: start from a float model with its weights."
    return ModelError("There is nothing to train.", where=source_name(model), fix=fix)


def _reached(
    model: ir.Model,
    trained: tuple[Parameter, ...],
    loss: str,
    config: ProgramConfig,
    choice: Report,
) -> tuple[Parameter, ...]:
    """Drop parameters that the loss does not depend on.

    Parameters selected by the user stay, so that the check can report why they cannot be trained.
    """
    named = match_parameters(trained, config.trainable)[0]
    unreached = set(reach(model, [p.name for p in trained], loss).unreachable) - named
    # Nothing is reached, or a quantizer is in between: the check names what blocks the gradient.
    if len(unreached) == len(trained) or any(quantizers_between(model, [*unreached], [loss])):
        return trained
    for name in (p.name for p in trained if p.name in unreached):
        choice.changed.pop(name, None)
        choice.kept[name] = "the loss does not depend on it"
    if unreached:
        choice.notes.append(
            "not trained, because the loss does not depend on them: "
            f"{count_of(len(unreached), 'tensor')}, {_shown(sorted(unreached))}"
        )
    return tuple(p for p in trained if p.name not in unreached)


def _counted(
    parameters: Mapping[str, Parameter], trained: Sequence[Parameter], doubtful: int
) -> str:
    """``trains 39,742 of 39,742 parameters in 10 tensors; ...``."""
    names = {p.name for p in trained}
    frozen = [p for p in parameters.values() if p.trainable and p.name not in names]
    constants = [p for p in parameters.values() if p.role == "constant" and p.name not in names]
    constants = [p for p in constants if p.size > 1]
    count = sum(p.size for p in trained)
    parts = [
        f"trains {count:,} of {count + sum(p.size for p in frozen):,} parameters in "
        f"{count_of(len(trained), 'tensor')}"
    ]
    if frozen:
        parts.append(f"{count_of(len(frozen), 'tensor')} frozen")
    if constants:
        elements = sum(p.size for p in constants)
        parts.append(f"{len(constants)} constant, with {elements:,} elements")
    if doubtful:
        parts.append(f"{doubtful} doubtful")
    return "; ".join(parts)


def _small_share(parameters: Mapping[str, Parameter], trained: Sequence[Parameter]) -> list[str]:
    """Note a small share of trained parameters."""
    stored = sum(p.size for p in parameters.values() if not p.role.startswith("running_"))
    count = sum(p.size for p in trained)
    if count >= _SMALL_SHARE * stored:
        return []
    return [
        f"ONLY {100 * count / stored:.2g} % of the {stored:,} float elements of the model are "
        "trained; see 'ortboost inspect MODEL --params' for the reason for each tensor"
    ]


def _doubts(
    parameters: Mapping[str, Parameter], trained: Sequence[Parameter], config: ProgramConfig
) -> list[tuple[str, str, bool]]:
    """Name, doubt, and whether it is trained, for tensors that the user has not decided on."""
    names = {p.name for p in trained}
    # In `trainable` only a full name decides, as for constants above.
    decided = {*match_parameters(parameters.values(), config.freeze)[0], *config.trainable}
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
            "--freeze NAME or --parameters FILE overrides this"
            if trained
            else "--trainable '*' --trainable NAME or --parameters FILE overrides this"
        )
        for (trained, doubt), names in groups.items()
    ]


def _adapters(trained: Sequence[Parameter]) -> list[str]:
    """Note that LoRA adapters and the weights that they adapt are trained."""
    adapters = [p.name for p in trained if "lora_" in p.name.lower()]
    if not 0 < len(adapters) < len(trained):
        return []
    return [
        f"{count_of(len(adapters), 'tensor')} of LoRA adapters: {_shown(adapters)}. The file does "
        "not say that the others are frozen, so they are trained, too; --trainable '*lora_*' "
        "trains the adapters alone"
    ]


def _lost(model: ir.Model, parameters: Mapping[str, Parameter], config: ProgramConfig) -> list[str]:
    """Notes on tensors of the torch module that no tensor of the file represents unchanged."""
    if config.parameters is not None:
        return []
    represented: set[str] = set()
    for name, parameter in parameters.items():
        value = model.graph.initializers.get(name)
        if value is not None and parameter.trainable and not parameter.doubt:
            represented.update(origin_of(value).folded_from)
    lost = [name for name in missing_parameters(model) if name not in represented]
    if not lost:
        return []
    return [
        f"not in the file by name: {count_of(len(lost), 'tensor')} of the torch module, "
        f"{_shown(lost)}; merged with an equal one and trained with it, folded into another (a "
        "BatchNormalization into its convolution), or not needed: export again with "
        "optimize=False to train the same parameters as torch"
    ]


def _idle_groups(trained: Sequence[Parameter], config: ProgramConfig) -> list[str]:
    """Notes on parameter groups without a trained parameter of their own."""
    left, idle = list(trained), []
    for group in config.groups:  # the first group that matches wins
        own, _ = match_parameters(left, group.patterns)
        left = [p for p in left if p.name not in own]
        if not own:
            idle.append(
                f"the parameter group '{group.name}' has no effect: all it matches is not trained, "
                "or in an earlier group"
            )
    return idle


def _tied(model: ir.Model, trained: Sequence[Parameter], *, advised: bool) -> list[str]:
    """Notes on layers of a fresh model tied by an exporter that stores equal tensors once.

    Only constant-valued tensors, the ones and zeros of a fresh layer, can be equal by chance; those
    of a copy of a whole layer are equal, too, but only TorchScript's folded ones lose their name. A
    tensor shared by two kinds of nodes, such as an embedding that is also the output layer, is tied
    on purpose, and so is one of torch's dynamo exporter if the file has all that the module has.
    ``advised`` says that another note advises how to export it.
    """
    tied, copies = [], []
    for parameter in trained:
        value = model.graph.initializers[parameter.name]
        if origin_of(value).kind == "folded" and len(_scopes(value)) > 1:
            copies.append(parameter.name)
            continue
        if origin_of(value).kind == "parameter" and not advised:
            continue
        uses = weight_uses(value)  # also through the Identities of the TorchScript exporter
        operators = {use.op for use in uses}
        if len(uses) > 1 and len(operators) == 1 and value.const_value is not None:
            numbers = value.const_value.numpy()
            if (numbers == numbers.flat[0]).all():
                tied.append(parameter.name)
    notes = []
    if copies:
        notes.append(
            f"{count_of(len(copies), 'tensor')}, first '{copies[0]}', read by several modules and "
            "trained as one: if they are fresh copies of a layer, as those of "
            "nn.TransformerEncoder, export again with do_constant_folding=False to separate them"
        )
    if tied:
        notes.append(
            f"{count_of(len(tied), 'tensor')} with the same value everywhere, {_shown(tied)}, "
            f"{'is' if len(tied) == 1 else 'are'} shared by several nodes and trained as one"
            + (
                ""
                if advised
                else "; if they should be separate, export again without merging equal tensors "
                "(torch.onnx.export(..., dynamo=True, optimize=False))"
            )
        )
    return notes


def _scopes(value: ir.Value) -> set[str]:
    """The torch modules that read a tensor, from the names that TorchScript gives to nodes."""
    found = set()
    for node in (usage.node for usage in value.uses()):
        if is_standard(node, "Identity"):  # TorchScript's of a tensor that equals another one
            found |= _scopes(node.outputs[0])
        elif (node.name or "").startswith("/"):
            found.add((node.name or "").rpartition("/")[0])
    return found


def _shown(names: Sequence[str]) -> str:
    return first_of([f"'{name}'" for name in names], 3)
