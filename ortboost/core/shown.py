"""Short representations of large objects: one line, and in a notebook a small table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from html import escape

from ortboost.core.python_words import in_python

__all__ = ["Shown"]


class Shown(ABC):
    """Base of objects that are too large to print in full.

    Example:
        >>> class Box(Shown):
        ...     def _facts(self):
        ...         return {"sides": 6, "lid": None}
        >>> Box()
        <Box: sides 6>
        >>> Box()._repr_html_()
        '<table><caption>Box</caption><tr><th>sides</th><td>6</td></tr></table>'
    """

    @abstractmethod
    def _facts(self) -> Mapping[str, object]:
        """The facts to show, by name; ``None`` and empty strings are left out."""

    def _shown_facts(self) -> dict[str, str]:
        facts = self._facts().items()
        return {name: in_python(str(fact)) for name, fact in facts if fact not in (None, "")}

    def __repr__(self) -> str:
        facts = "; ".join(f"{name} {fact}" for name, fact in self._shown_facts().items())
        return f"<{type(self).__name__}: {facts}>"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td>{escape(fact)}</td></tr>"
            for name, fact in self._shown_facts().items()
        )
        return f"<table><caption>{type(self).__name__}</caption>{rows}</table>"
