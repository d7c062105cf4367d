"""The table of operators in ``docs/trainability.md``, made from the code that decides."""

from __future__ import annotations

import inspect

from ortboost.autodiff import native_support
from ortboost.transforms.decompose import DECOMPOSITIONS

__all__ = ["support_table"]


def support_table() -> str:
    """The table in Markdown: operator, how it is trained with the native engine, remarks."""
    rows: dict[str, tuple[str, str]] = {}
    for op_type in native_support.NATIVE:
        remark = native_support.CONDITIONS.get(op_type, (None, ""))[1]
        rows[op_type] = ("native", remark)
    for op_type, rule in DECOMPOSITIONS.items():
        doc = (inspect.getdoc(rule) or "").splitlines()
        remark = doc[0] if doc else ""
        if op_type in rows:
            rows[op_type] = ("native or decomposed", rows[op_type][1])
        else:
            rows[op_type] = ("decomposed", remark)
    for op_type, reason in native_support.REFUSED.items():
        rows[op_type] = ("refused", reason)
    for op_type in native_support.NATIVE_MICROSOFT:
        rows[f"com.microsoft::{op_type}"] = ("native", "")
    lines = ["| operator | trained how | remark |", "|---|---|---|"]
    rows = {op: (how, remark.replace("|", "\\|")) for op, (how, remark) in rows.items()}
    lines += [
        f"| {op} | {how} | {remark} |".replace("|  |", "| |")
        for op, (how, remark) in sorted(rows.items())
    ]
    return "\n".join(lines) + "\n"
