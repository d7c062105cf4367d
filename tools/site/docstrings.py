"""The package's docstrings as Markdown: an extension of Griffe, which reads them for the site.

Docstrings are written for `help()` and Sphinx; mkdocstrings takes Markdown. Roles become links
where their target has a place on the site, and code elsewhere. A role whose target does not exist
is a warning, which the strict build takes for an error.
"""

from __future__ import annotations

import builtins
import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|obj):`(?P<short>~?)(?P<target>[\w.]+)`")
_LITERAL_BLOCK = re.compile(r"::$", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_OTHERS = ("onnx", "onnx_ir", "torch", "numpy")  # packages that have no pages here
_logger = griffe.get_logger("ortboost.site")


class Markdown(griffe.Extension):
    """Rewrites every docstring of the package, once it is loaded."""

    def on_package(
        self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **options: Any
    ) -> None:
        """See Griffe; called once the package is loaded, with its submodules."""
        loader.resolve_aliases(implicit=True, external=False)
        self._rewrite(pkg, loader)

    def _rewrite(self, thing: griffe.Object, loader: griffe.GriffeLoader) -> None:
        if thing.docstring is not None:
            text = _ROLE.sub(lambda role: _link(role, thing, loader), thing.docstring.value)
            text = _LITERAL_BLOCK.sub(":\n", text)
            thing.docstring.value = _EXAMPLE.sub("Examples:", text)
        if thing.is_class and "__new__" in thing.members:  # its parameters are those of the class
            thing.members.setdefault("__init__", thing.members["__new__"])
        for member in thing.members.values():
            if not member.is_alias:
                self._rewrite(member, loader)  # type: ignore[arg-type]


def _link(role: re.Match[str], thing: griffe.Object, loader: griffe.GriffeLoader) -> str:
    target = role["target"]
    path = _path(target, thing, loader)
    if path is None:
        _logger.warning(f"{thing.path}: there is no '{target}', which its docstring refers to")
    module = path in loader.modules_collection and loader.modules_collection[path].is_module
    text = target if module and not role["short"] else target.rpartition(".")[2]
    return f'<autoref identifier="{path}" optional><code>{text}</code></autoref>'


def _path(target: str, thing: griffe.Object, loader: griffe.GriffeLoader) -> str | None:
    """The full name of a target, as Python resolves it from where it is named."""
    first, dot, rest = target.partition(".")
    if first in _OTHERS:
        return target
    if first != "ortboost":
        try:
            first = thing.resolve(first)
        except griffe.NameResolutionError:
            return target if hasattr(builtins, first) else None
    path = f"{first}{dot}{rest}"
    if not path.startswith("ortboost"):
        return path  # of another package
    try:
        found = loader.modules_collection[path]
    except KeyError:
        return None
    return found.final_target.path if isinstance(found, griffe.Alias) else found.path
