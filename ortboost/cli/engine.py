"""``ortboost export --build-engine``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["EngineOptions", "build"]


@dataclass(frozen=True)
class EngineOptions:
    """The options of ``export`` that are about an engine.

    Args:
        wanted: Build one.
        shapes: Shape profiles.
        workspace: MiB of scratch memory.
        timing_cache: File with timings.
    """

    wanted: bool
    shapes: tuple[str, ...]
    workspace: int | None
    timing_cache: Path | None

    def require(self, target: str) -> None:
        """Refuse what makes no sense, before anything is exported.

        Raises:
            UsageError: An engine of another target, options without an engine, or a shape that is not
                of the form.
        """
        from ortboost.api import check_target as targets
        from ortboost.core.errors import UsageError

        if self.wanted and not target.startswith(("tensorrt", "trt")):
            raise UsageError(
                "Only TensorRT has engines.",
                where=f"--build-engine --target {target}",
                fix="Add --target tensorrt.",
            )
        if not self.wanted and (self.shapes or self.workspace or self.timing_cache):
            raise UsageError(
                "--shape, --workspace and --timing-cache are about an engine.",
                where="export",
                fix="Add --build-engine.",
            )
        if self.wanted:
            targets.read_shapes(self.shapes)


def build(
    result: Any,
    options: EngineOptions,
    verify: Path | None,
    split: str,
    mapping: Mapping[str, str],
) -> Any:
    """Build the engine of an exported file; ``None`` if none is wanted."""
    if not options.wanted:
        return None
    from ortboost.api import check_target as targets

    return targets.build_engine(
        result.path,
        result.path.with_suffix(".engine"),
        shapes=options.shapes,
        target=result.exported.target.name,
        precision=result.exported.precision,
        verify=verify,
        split=split,
        mapping=mapping,
        workspace=None if options.workspace is None else options.workspace << 20,
        timing_cache=options.timing_cache,
    )
