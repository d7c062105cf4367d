"""Remove no-op nodes: a table of operators and the conditions under which they do nothing."""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.merge_neighbours import slice_bounds
from ortboost.graph.query import constant, known_shape, label, permutation, scalar
from ortboost.graph.rewriting import Rule, Site, rewrite_nodes
from ortboost.graph.shapes.dimensions import dimensions, same_shape, same_view

__all__ = ["drop_noops"]

_FAR = 1 << 30  # "to the end", as exporters write it
_LARGEST = 1 << 16  # elements: larger operands are weights


def drop_noops(model: ir.Model) -> Report:
    """Remove nodes that only forward an input, in place, including subgraphs.

    A node that computes an output of the model is kept if its input cannot take over the name.
    """
    rules: dict[str, Rule] = {op: _removal(find) for op, find in _PASSED_ON.items()}
    report = rewrite_nodes(model, "drop_noops", rules, subgraphs=True, bypass=True)
    # An Identity before a model output only serves to name it.
    identities = {label(node) for node in model.graph.all_nodes() if node.op_type == "Identity"}
    report.kept = {name: why for name, why in report.kept.items() if name not in identities}
    return report


def _removal(find: Finder) -> Rule:
    def rule(site: Site) -> list[ir.Value | None] | None:
        value = None if site.optional(0) is None else find(site)
        if value is None:
            return None
        site.note = f"{site.node.op_type} that does nothing"
        return [value]

    return rule


Finder = Callable[[Site], "ir.Value | None"]
"""Maps a node to the value that it forwards; ``None`` if it is not a no-op."""


def _when(condition: Callable[[Site], bool]) -> Finder:
    return lambda site: site.input(0) if condition(site) else None


def _dropout(site: Site) -> bool:
    mode = site.optional(2)
    return mode is None or scalar(mode) == 0 or scalar(site.optional(1)) == 0


def _cast_like(site: Site) -> bool:
    return site.input(0).dtype is not None and site.input(0).dtype == site.input(1).dtype


def _transpose(site: Site) -> bool:
    perm = permutation(site.node)
    return perm is not None and perm == sorted(perm)


def _view(site: Site) -> bool:
    return same_view(dimensions(site.input(0)), dimensions(site.node.outputs[0]))


def _slice(site: Site) -> bool:
    bounds, shape = slice_bounds(site.node), known_shape(site.input(0))
    if bounds is None or shape is None:
        return False
    starts, ends, axes, steps = bounds
    lengths = [n if isinstance(n := shape[axis], int) else _FAR for axis in axes]
    reach = all(end >= min(length, _FAR) for end, length in zip(ends, lengths, strict=True))
    return reach and not any(starts) and set(steps) <= {1}


def _full_of(index: int, number: int) -> Finder:
    """Match an input that is stored and has only this number."""

    def condition(site: Site) -> bool:
        array = site.array(index)
        return array is not None and bool((array == number).all())

    return _when(condition)


def _neutral(element: float, *, commutative: bool) -> Finder:
    """Find the other operand of a neutral element, if that does not broadcast it."""

    def rule(site: Site) -> ir.Value | None:
        for index in (1, 0) if commutative else (1,):
            array, other = constant(site.input(index), limit=_LARGEST), site.input(1 - index)
            if array is None or not bool((array == element).all()):
                continue
            rank = -1 if other.shape is None else len(other.shape)
            # One element cannot broadcast another operand, unless it adds dimensions.
            if (array.size == 1 and array.ndim <= rank) or same_shape(other, site.node.outputs[0]):
                return other
        return None

    return rule


def _chosen(site: Site) -> ir.Value | None:
    """The branch that a stored condition always takes, if the other two do not broadcast it."""
    condition = constant(site.input(0), limit=_LARGEST)
    if condition is None or not (condition.all() or not condition.any()):
        return None
    branch = site.input(1 if condition.all() else 2)
    return branch if same_shape(branch, site.node.outputs[0]) else None


def _first_of(*finders: Finder) -> Finder:
    return lambda site: next((v for find in finders if (v := find(site)) is not None), None)


_same_inputs: Finder = _when(lambda site: len(set(site.node.inputs)) == 1)

_PASSED_ON: dict[str, Finder] = {
    "Identity": _when(lambda _: True),
    "Dropout": _when(_dropout),
    "Cast": _when(lambda site: site.input(0).dtype == site.integer("to", 0)),
    "CastLike": _when(_cast_like),
    "Transpose": _when(_transpose),
    "Expand": _when(lambda site: same_shape(site.input(0), site.node.outputs[0])),
    **dict.fromkeys(("Reshape", "Flatten"), _when(_view)),
    "Slice": _when(_slice),
    "Pad": _full_of(1, 0),
    "Tile": _full_of(1, 1),
    **dict.fromkeys(("Concat", "Sum"), _when(lambda site: len(site.node.inputs) == 1)),
    **dict.fromkeys(("Max", "Mean", "Min"), _same_inputs),
    "And": _first_of(_same_inputs, _neutral(True, commutative=True)),
    "Or": _first_of(_same_inputs, _neutral(False, commutative=True)),
    "Where": _chosen,
    "Add": _neutral(0, commutative=True),
    "Sub": _neutral(0, commutative=False),
    "Mul": _neutral(1, commutative=True),
    "Div": _neutral(1, commutative=False),
    "Pow": _neutral(1, commutative=False),
}
