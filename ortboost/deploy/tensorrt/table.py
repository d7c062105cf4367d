"""What TensorRT's ONNX parser supports, by release: operators, types, restrictions, plugins.

``tools/make_trt_table.py`` generates ``trt_ops.json``, which names its sources and their commits. A
version between two recorded releases is treated as the older one.
"""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortboost.core.errors import UsageError
from ortboost.deploy.targets import Target, get_target

__all__ = ["Operator", "Release", "parse_release", "releases"]

_FILE = Path(__file__).with_name("trt_ops.json")


@dataclass(frozen=True)
class Operator:
    """The table entry of one operator.

    Args:
        supported: Whether the parser supports it.
        types: Element types by TensorRT's names (``FP32``, ``INT64``...); empty if not supported.
        limits: Restrictions as codes, for example ``constant:axes``.
    """

    supported: bool
    types: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()

    def named(self, kind: str) -> list[str]:
        """The restrictions of one kind, without the prefix ``kind:``.

        Example:
            >>> Operator(True, limits=("constant:axes", "one-output")).named("constant")
            ['axes']
        """
        return [limit.partition(":")[2] for limit in self.limits if limit.startswith(f"{kind}:")]


@dataclass(frozen=True)
class Release:
    """A version of TensorRT, as its parser's table describes the recorded ``release``."""

    major: int
    release: str

    def __str__(self) -> str:
        return f"TensorRT {self.major}"

    @property
    def opsets(self) -> tuple[int, int]:
        """The opsets in the parser's own table, both included."""
        low, high = _data()["releases"][self.release]["opset"]
        return low, high

    @property
    def guide_opset(self) -> int:
        """The newest opset in NVIDIA's "ONNX Opset Guide"; the parser's table may end earlier."""
        return max(self.opsets[1], self._target.opsets[-1])

    @property
    def ir_version(self) -> int:
        """The IR version of the ONNX release that the parser was built with."""
        return self._target.ir_version

    @property
    def _target(self) -> Target:
        return get_target(f"tensorrt={self.major}")

    def operator(self, op: str) -> Operator | None:
        """The table entry of a standard operator, or ``None``."""
        found = None
        for entry in _data()["operators"].get(op, ()):  # one for each change, the oldest first
            if _key(entry["since"]) <= _key(self.release):
                found = entry
        if found is None:
            return None
        return Operator(
            found["supported"], tuple(found.get("types", ())), tuple(found.get("limits", ()))
        )

    def plugin(self, name: str) -> tuple[str, ...] | None:
        """Versions of a plugin in this release.

        Returns:
            ``None`` if no release has the plugin, () if it was removed.
        """
        versions = _data()["plugins"].get(name)
        if versions is None:
            return None
        return tuple(versions.get(self.release, ()))


def releases() -> dict[str, dict[str, Any]]:
    """The recorded releases with their sources."""
    return dict(_data()["releases"])


def parse_release(text: str) -> Release:
    """Parse ``tensorrt``, ``tensorrt=11`` or ``trt=10.3``; without a version, the newest release.

    Raises:
        UsageError: The text is not a TensorRT version, or the table does not have it.

    Example:
        >>> parse_release("tensorrt=10.3")
        Release(major=10, release='10.1')
    """
    known = sorted(_data()["releases"], key=_key)
    matched = re.fullmatch(r"(?:tensorrt|trt)(?:=(\d+(?:\.\d+)*))?", text.strip().lower())
    fix = "Write tensorrt, tensorrt=11 or tensorrt=10; the table has " + ", ".join(known) + "."
    if matched is None:
        raise UsageError(f"'{text}' is not a version of TensorRT.", where="target", fix=fix)
    wanted = matched[1] or known[-1]
    major = int(wanted.split(".")[0])
    same = [release for release in known if int(release.split(".")[0]) == major]
    if not same:
        raise UsageError(
            f"The table has no entry for TensorRT {wanted}.", where=f"target '{text}'", fix=fix
        )
    if "." not in wanted:  # the newest of this major version
        return Release(major, same[-1])
    older = [release for release in same if _key(release) <= _key(wanted)]
    return Release(major, older[-1] if older else same[0])


def _key(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


@functools.cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(_FILE.read_text(encoding="utf-8"))
    return data
