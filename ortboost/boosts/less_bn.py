r"""LessBN: remove batch normalizations that the structure of a block makes redundant.

A residual block ends in `y = x + F(x)`. The normalization right before the sum sets the scale of
the added term; earlier ones in `F` set scales that the last one sets again:

    F(x) = bn3(W3 act(bn2(W2 act(bn1(W1 x)))))   ->   bn3(W3 act(W2 act(W1 x)))

The table :data:`ortboost.boosts.less_bn_patterns.BLOCKS` defines which ones are removed. A removed
normalization becomes an identity: the convolution is unchanged, and no bias is added. The
normalization before the sum and those outside of blocks are kept.

Blocks are found by structure. For an Add, both operands, in either order, are traced back to their
first common tensor, the input of the block; the block is everything between, and nothing else is
changed. For a Concat, one operand is traced back to another operand, or to a Concat of others.
MindSpore's pass counts nodes instead: it needs the main branch as the first operand, and mistakes
the normalization of the stem for one of a projecting basic block that follows it.

Source: MindSpore Boost, "LessBN", which this follows on residual networks; the card
``docs/cards/less-bn.md`` lists the exceptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx_ir as ir

from ortboost.boosts.base import Boost, GraphContext, Stage
from ortboost.boosts.less_bn_patterns import (
    BLOCKS,
    SHORTCUTS,
    Block,
    Step,
    chain,
    reads_as,
    written,
)
from ortboost.core.report import Report
from ortboost.graph.query import is_read, producer_of
from ortboost.transforms.trainable_norm import batch_norms

__all__ = ["LessBN", "less_bn"]

_ORDINALS = ("first", "second", "third")
_FOLDED = (
    "; if the network has some, its exporter folded them into the convolutions: export again "
    "without optimization (torch.onnx.export(..., dynamo=True, optimize=False))"
)


@dataclass(frozen=True)
class LessBN(Boost):
    """Remove batch normalizations that the structure of a block makes redundant.

    Example:
        >>> import ortboost as ob
        >>> program = ob.build_program("models/resnet20.onnx", ob.ProgramConfig(boosts=(LessBN(),)))
        >>> len(next(report for report in program.reports if report.rewrite == "less_bn").changed)
        11
    """

    name: ClassVar[str] = "less-bn"
    stage: ClassVar[Stage] = "forward"
    card: ClassVar[str] = "less-bn"

    def rewrite_network(self, graph: GraphContext) -> Report:
        """See :func:`less_bn`."""
        return less_bn(graph.model, frozen=graph.frozen_norm)


@dataclass(frozen=True)
class _Verdict:
    """The decision on one normalization, and its reason."""

    removed: bool
    text: str


def less_bn(model: ir.Model, *, frozen: Callable[[ir.Node], bool] = lambda _: False) -> Report:
    """Remove redundant BatchNormalization nodes, in place.

    Call it on a normalized model before its BatchNormalization nodes are switched to training mode,
    so that the parameters of removed ones never become state: gamma, beta and the statistics are
    removed from the model if nothing else reads them.

    Args:
        model: Model whose main graph is modified.
        frozen: Whether a node keeps its running statistics; such a node is kept.

    Returns:
        A report of each normalization of the main graph: removed, with its block, or kept, with the
        reason. A second call changes nothing.

    Example:
        >>> from ortboost.graph.io import load_model
        >>> model = load_model("models/resnet20.onnx")  # doctest: +SKIP
        >>> less_bn(model).changed["/layer1/layer1.0/bn1/BatchNormalization"]  # doctest: +SKIP
        "removed: first normalization of the basic block (identity) at '/layer1/layer1.0/Add'"
    """
    report = Report("less_bn")
    norms = list(batch_norms(model))
    verdicts = _decide(model.graph, norms)
    trained, parameters = False, dict[str, int]()
    for norm in norms:
        label = norm.name or norm.outputs[0].name or "?"
        verdict = verdicts.get(id(norm), _Verdict(False, "in no residual or dense block"))
        if verdict.removed and frozen(norm):
            verdict = _Verdict(False, "frozen: it keeps its running statistics")
        if not verdict.removed:
            report.kept[label] = verdict.text
            continue
        trained = trained or _has_learned(norm)
        parameters.update(_remove(model.graph, norm))
        report.changed[label] = verdict.text
    if parameters:
        report.notes.append(
            f"{len(parameters)} tensors ({sum(parameters.values())} elements) of removed "
            "normalizations are no longer part of the model"
        )
    if trained:
        report.notes.append(
            "scale and shift of removed normalizations are not at their initial values: without "
            "them a trained network computes something else, so train it again"
        )
    if not verdicts:
        missing = "no BatchNormalization" if not norms else "no known block"
        convolutions = any(node.op_type == "Conv" for node in model.graph)
        report.notes.append(
            f"less-bn removes nothing: the model has {missing}" + (_FOLDED if convolutions else "")
        )
    elif not report.changed:
        report.notes.append(
            "less-bn removes nothing: no normalization is redundant in a block that it knows; the "
            "report has the reason for each (--explain)"
        )
    return report


def _decide(graph: ir.Graph, norms: Iterable[ir.Node]) -> dict[int, _Verdict]:
    """The decisions on the normalizations that are in a block, by the ``id`` of the node."""
    verdicts: dict[int, _Verdict] = {}
    # Blocks with two branches, found from the node that joins them.
    for node in graph:
        for norm, verdict in _joined(node):
            old = verdicts.get(id(norm))
            # A block may be found from two ends: removing wins over keeping.
            if old is None or (not old.removed and verdict.removed):
                verdicts[id(norm)] = verdict
    for node in norms:  # blocks that end in a sum are already decided
        if id(node) not in verdicts:
            verdicts.update((id(norm), verdict) for norm, verdict in _linear(node))
    return verdicts


def _joined(node: ir.Node) -> Iterator[tuple[ir.Node, _Verdict]]:
    """Decide on the normalizations of the block, if any, that ends in a sum or a Concat."""
    operands = [value for value in node.inputs if value is not None]
    if node.op_type in ("Add", "Sum") and len(operands) == 2:
        yield from _residual(node, operands[0], operands[1])
    elif node.op_type == "Concat":
        yield from _dense(node, operands)


def _residual(end: ir.Node, one: ir.Value, other: ir.Value) -> Iterator[tuple[ir.Node, _Verdict]]:
    branches = _to_common_tensor(one, other)
    if branches is None:
        # An Add of a stored tensor is a bias, not a block.
        if not (one.is_initializer() or other.is_initializer()):
            text = f"the branches of '{end.name}' do not have a common input"
            for value in (one, other):
                yield from _all_kept(chain(value)[:1], text)
        return
    # Either operand may be the shortcut.
    for main, short in (branches, branches[::-1]):
        block = _find(main, "add")
        shortcut = next((name for text, name in SHORTCUTS.items() if reads_as(short, text)), None)
        if block is None or shortcut is None:
            continue
        place = f"the {block.name} ({shortcut}) at '{end.name}'"
        yield from _main_branch(block, main, place, f"it precedes '{end.name}'")
        inside = _nodes(short) | {id(end)}
        for norm in _norms(short):
            yield norm, _verdict(norm, inside, f"removed: normalization of the shortcut of {place}")
        return
    kinds = " and ".join(f"'{written(branch) or 'identity'}'" for branch in branches)
    text = f"no known block ends at '{end.name}': its branches are {kinds}"
    for branch in branches:
        yield from _all_kept(branch, text)


def _dense(end: ir.Node, operands: list[ir.Value]) -> Iterator[tuple[ir.Node, _Verdict]]:
    """Decide on a branch whose input is another operand, or a Concat of operands."""
    joined = {id(value) for value in operands}
    for operand in operands:
        steps = chain(operand)
        # The shortest end of the chain whose input is concatenated, too: y = Concat(x, F(x)), or
        # with earlier layers x = Concat(x1, x2, ...) and y = Concat(x1, x2, ..., F(x)).
        for length in range(1, len(steps) + 1):
            source = steps[length - 1].source
            parts = producer_of(source, "Concat")
            if id(source) in joined or (parts and all(id(part) in joined for part in parts.inputs)):
                block = _find(steps[:length], "concat")
                if block is not None:
                    place = f"the {block.name} at '{end.name}'"
                    yield from _main_branch(
                        block, steps[:length], place, f"the last one of {place}"
                    )
                break


def _linear(norm: ir.Node) -> Iterator[tuple[ir.Node, _Verdict]]:
    """Decide on a block without a sum that ends in a norm: a resizing inverted residual."""
    readers = {node.op_type for node in _readers(norm.outputs[0])}
    if not readers or readers - {"Conv", "Add", "Dropout"}:
        return
    # Without Identity and Dropout, as `solid` is cut by the number of steps.
    steps = [step for step in chain(norm.outputs[0]) if step.kind]
    for block in BLOCKS:
        solid = steps[: len(block.steps.split())]
        if block.end == "linear" and reads_as(solid, block.steps):
            place = f"the {block.name} (no shortcut) that ends at '{norm.name}'"
            yield from _main_branch(block, solid, place, f"the last one of {place}")


def _main_branch(
    block: Block, steps: list[Step], place: str, last: str
) -> Iterator[tuple[ir.Node, _Verdict]]:
    inside = _nodes(steps)
    for index, norm in enumerate(reversed(_norms(steps))):
        if index in block.removed:
            text = f"removed: {_ORDINALS[index]} normalization of {place}"
            yield norm, _verdict(norm, inside, text)
        elif index == block.norms - 1:
            yield norm, _Verdict(False, last)
        else:
            yield norm, _Verdict(False, f"{_ORDINALS[index]} normalization of {place}")


def _verdict(norm: ir.Node, inside: set[int], text: str) -> _Verdict:
    """Removed, unless a node outside of the block reads an output."""
    if any(map(is_read, norm.outputs[1:])):
        return _Verdict(False, "its statistics are used")
    output = norm.outputs[0]
    if output.is_graph_output() or any(id(node) not in inside for node in _readers(output)):
        return _Verdict(False, "its output is used outside of the block")
    return _Verdict(True, text)


def _readers(value: ir.Value) -> list[ir.Node]:
    """The nodes that read a value, not only its type or shape, which removal does not change."""
    return [
        use.node
        for use in value.uses()
        if use.node.op_type not in ("Shape", "Size")
        and (use.node.op_type, use.idx) != ("CastLike", 1)
    ]


def _all_kept(steps: Iterable[Step], text: str) -> Iterator[tuple[ir.Node, _Verdict]]:
    for step in steps:
        if step.kind == "bn":
            yield step.node, _Verdict(False, text)


def _to_common_tensor(one: ir.Value, other: ir.Value) -> tuple[list[Step], list[Step]] | None:
    """Both chains up to their first common tensor, the last steps first."""
    left, right = chain(one), chain(other)
    # Reversed, so that of equal values the first place is kept.
    at = {id(value): place for place, value in reversed(list(enumerate(_values(other, right))))}
    for place, value in enumerate(_values(one, left)):
        if id(value) in at:
            return left[:place], right[: at[id(value)]]
    return None


def _values(value: ir.Value, steps: list[Step]) -> list[ir.Value]:
    return [value, *(step.source for step in steps)]


def _find(steps: list[Step], end: str) -> Block | None:
    return next((b for b in BLOCKS if b.end == end and reads_as(steps, b.steps)), None)


def _nodes(steps: list[Step]) -> set[int]:
    return {id(node) for step in steps for node in step.inside}


def _norms(steps: list[Step]) -> list[ir.Node]:
    return [step.node for step in steps if step.kind == "bn"]


def _has_learned(norm: ir.Node) -> bool:
    """Whether scale and shift differ from their usual initial values, 1 and 0.

    The running statistics are not evidence: exporters run an untrained network, which changes them.
    """
    for value, fresh in zip(norm.inputs[1:3], (1.0, 0.0), strict=True):
        tensor = None if value is None else value.const_value
        if tensor is not None and not np.all(tensor.numpy() == fresh):
            return True
    return False


def _remove(graph: ir.Graph, norm: ir.Node) -> dict[str, int]:
    """Bypass a normalization, and return the removed parameters with their sizes."""
    data, parameters = norm.inputs[0], norm.inputs[1:]
    assert data is not None  # BatchNormalization has five inputs
    ir.convenience.replace_all_uses_with(norm.outputs[0], data)
    graph.remove(norm, safe=True)
    gone: dict[str, int] = {}
    for value in parameters:
        _drop(graph, value, gone)
    return gone


def _drop(graph: ir.Graph, value: ir.Value | None, gone: dict[str, int]) -> None:
    """Remove an unused initializer, or an unused copy of one."""
    if value is None or is_read(value):
        return
    node = value.producer()
    if node is not None and node.op_type == "Identity":
        source = node.inputs[0]
        graph.remove(node, safe=True)
        _drop(graph, source, gone)
    elif value.is_initializer() and value.const_value is not None:
        gone[value.name or ""] = value.const_value.size
        graph.initializers.pop(value.name or "")
