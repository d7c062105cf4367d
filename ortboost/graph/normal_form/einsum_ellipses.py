"""Write the ellipses of an Einsum as letters where they stand for different numbers of axes.

torch aligns them at the end, as in broadcasting, and both of its exporters copy the equation of
``torch.einsum("...ij,...j->...i", weight, x)``. ONNX requires as many axes in each operand:
no runtime opens such a file, and its shapes cannot be inferred.
"""

from __future__ import annotations

import string

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import find_nodes, known_shape, label

__all__ = ["name_ellipses"]

_DOTS = "..."


def name_ellipses(model: ir.Model) -> Report:
    """Rewrite the equations in place, where all ranks are known and no axis is broadcast.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[3,4] w, float[n,4] x) => (float[n,3] y) {
        ...   [e] y = Einsum<equation = "...ij,...j->...i">(w, x) }''')
        >>> print(name_ellipses(model))
        einsum_ellipses: 1 changed, 0 kept
          e: '...ij,...j->...i' becomes 'ij,aj->ai'
    """
    report = Report("einsum_ellipses")
    for node in find_nodes(model.graph.all_nodes(), "Einsum"):
        before = node.attributes.get_string("equation", "").replace(" ", "")
        after = _with_letters(before, [known_shape(value) for value in node.inputs])
        if after is not None:
            node.attributes["equation"] = ir.AttrString("equation", after)
            report.changed[label(node)] = f"'{before}' becomes '{after}'"
    return report


def _with_letters(equation: str, shapes: list[tuple[int | str | None, ...] | None]) -> str | None:
    """The equation with letters; ``None`` if it is valid, or cannot be written so."""
    left, arrow, right = equation.partition("->")
    names = left.split(",")
    if len(names) != len(shapes):
        return None
    if not arrow:  # implicit: the letters that occur once, in alphabetical order
        right = _DOTS + "".join(c for c in sorted(set(left) - set(".,")) if left.count(c) == 1)
    open_ = [(name, shape) for name, shape in zip(names, shapes, strict=True) if _DOTS in name]
    if any(shape is None for _, shape in open_):
        return None
    widths = {len(shape or ()) - len(name) + len(_DOTS) for name, shape in open_}
    free = [letter for letter in string.ascii_lowercase if letter not in equation]
    width = max(widths, default=0)
    if len(widths) < 2 or min(widths) < 0 or width > len(free):
        return None
    letters, lengths, written = "".join(free[:width]), dict[str, set[int]](), []
    for name, shape in zip(names, shapes, strict=True):
        own = len(shape or ()) - len(name) + len(_DOTS)
        axes = letters[width - own :] if _DOTS in name and own else ""
        written.append(name.replace(_DOTS, axes))
        start = name.find(_DOTS)
        for letter, dim in zip(axes, (shape or ())[start : start + own], strict=False):
            if isinstance(dim, int):
                lengths.setdefault(letter, set()).add(dim)
    if any(len(found) > 1 for found in lengths.values()):
        return None
    return f"{','.join(written)}->{right.replace(_DOTS, letters)}"
