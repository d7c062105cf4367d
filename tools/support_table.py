"""The table of operators in ``docs/trainability.md``, generated from the code."""

from __future__ import annotations

import inspect

from ortboost.autodiff.decompose import DECOMPOSITIONS
from ortboost.autodiff.native import support
from ortboost.autodiff.portable.registry import rules
from ortboost.autodiff.portable.rewrites.functions import EXPANDED
from ortboost.autodiff.refused import REFUSED

__all__ = ["support_table"]

_RECURRENT = ("GRU", "LSTM", "RNN")
_COLUMNS = ("operator", "native engine", "portable engine", "remark")


def support_table() -> str:
    """The table in Markdown: operator, support by each engine, remarks."""
    portable = {f"{domain}::{op_type}" if domain else op_type for domain, op_type in rules()}
    microsoft = {f"com.microsoft::{op_type}" for op_type in support.NATIVE_MICROSOFT}
    known = {
        *support.NATIVE,
        *REFUSED,
        *microsoft,
        *DECOMPOSITIONS,
        *portable,
        *EXPANDED,
    }
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for op_type in sorted(known):
        cells = (
            op_type,
            _native(op_type, microsoft),
            _portable(op_type, portable),
            _remark(op_type),
        )
        text = f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"
        lines.append(text.replace("|  |", "| |"))
    return "\n".join(lines) + "\n"


def _native(op_type: str, microsoft: set[str]) -> str:
    if op_type in support.NATIVE or op_type in microsoft:
        return "yes, or decomposed" if op_type in DECOMPOSITIONS else "yes"
    return "decomposed" if op_type in DECOMPOSITIONS else "refused"


def _portable(op_type: str, rules: set[str]) -> str:
    if op_type in _RECURRENT:
        return "as a Scan"
    if op_type in EXPANDED:
        return "its definition"
    if op_type in rules:
        return "yes, or decomposed" if op_type in DECOMPOSITIONS else "yes"
    return "decomposed" if op_type in DECOMPOSITIONS else "refused"


def _remark(op_type: str) -> str:
    if op_type in support.CONDITIONS:
        return f"native: {support.CONDITIONS[op_type][1]}"
    if op_type in support.NATIVE:
        return ""
    if op_type in DECOMPOSITIONS:
        return (inspect.getdoc(DECOMPOSITIONS[op_type]) or "").partition("\n")[0]
    if op_type in REFUSED:
        return REFUSED[op_type]
    return ""


if __name__ == "__main__":
    print(support_table(), end="")
