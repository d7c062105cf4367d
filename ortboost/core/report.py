"""Reports of rewrites: what was changed, what was kept, and why, as data and as text."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Report"]


@dataclass
class Report:
    """The report of a rewrite.

    Args:
        rewrite: Name of the rewrite, the same as of its module (``attach_loss``).
        changed: Name of a node or tensor to the change made.
        kept: Name of a node or tensor that was considered but not changed, to the reason.
        notes: Remarks that do not concern a single node.
        table: Name of a node or tensor to its figures, by column name; all rows have the same
            columns.

    Example:
        >>> report = Report("fold_bn")
        >>> report.changed["bn1"] = "folded into conv1"
        >>> report.kept["bn2"] = "conv2.weight is shared"
        >>> print(report)
        fold_bn: 1 changed, 1 kept
          bn1: folded into conv1
          bn2: kept, conv2.weight is shared
    """

    rewrite: str
    changed: dict[str, str] = field(default_factory=dict)
    kept: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    table: dict[str, dict[str, str | int | None]] = field(default_factory=dict)

    @property
    def modified(self) -> bool:
        """Whether the rewrite changed the model."""
        return bool(self.changed)

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Report:
        """Rebuild a report from :meth:`to_dict`."""
        given = (dict(data["changed"]), dict(data["kept"]), list(data["notes"]))
        return cls(data["rewrite"], *given, dict(data.get("table", {})))  # older ones have none

    def __str__(self) -> str:
        lines = [f"{self.rewrite}: {len(self.changed)} changed, {len(self.kept)} kept"]
        lines += [f"  {name}: {what}" for name, what in self.changed.items()]
        lines += [f"  {name}: kept, {why}" for name, why in self.kept.items()]
        lines += [f"  {note}" for note in self.notes]
        return "\n".join(lines)
