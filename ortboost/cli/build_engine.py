"""``ortboost export --build-engine``: the options of the TensorRT engine; builds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortboost.cli.command import option
from ortboost.core.errors import UsageError

__all__ = ["EngineOptions", "build"]


@dataclass(frozen=True)
class EngineOptions:
    """The options of ``export`` that concern a TensorRT engine."""

    build_engine: bool = option(
        "Also build a TensorRT engine from the file.", "--build-engine", default=False
    )
    shape: list[str] | None = option(
        "Minimum, optimal and maximum batch size, then the other axes: x:1,8,32x3x224x224.",
        metavar="INPUT:DIMS",
    )
    workspace: int | None = option("MiB of scratch memory for the engine.", min=1)
    timing_cache: Path | None = option("TensorRT timing cache, read and updated.")

    def require(self, target: str) -> None:
        """Reject invalid combinations of options before anything is exported.

        Raises:
            UsageError: The target is not TensorRT, engine options are given without
                ``--build-engine``, or a shape is malformed.
        """
        from ortboost.api import check_target as targets

        if self.build_engine and not target.startswith(("tensorrt", "trt")):
            raise UsageError(
                "Only TensorRT has engines.",
                where=f"--build-engine --target {target}",
                fix="Add --target tensorrt.",
            )
        if not self.build_engine and (self.shape or self.workspace or self.timing_cache):
            raise UsageError(
                "--shape, --workspace and --timing-cache are options of an engine.",
                where="export",
                fix="Add --build-engine.",
            )
        if self.build_engine:
            targets.read_shapes(self.shape or ())


def build(
    result: Any,
    options: EngineOptions,
    verify: Path | None,
    split: str,
    mapping: Mapping[str, str],
) -> Any:
    """Build the engine of an exported file; ``None`` if not requested."""
    if not options.build_engine:
        return None
    from ortboost.api import check_target as targets

    return targets.build_engine(
        result.path,
        result.path.with_suffix(".engine"),
        shapes=options.shape or (),
        target=result.exported.target.name,
        precision=result.exported.precision,
        verify=verify,
        split=split,
        mapping=mapping,
        workspace=None if options.workspace is None else options.workspace << 20,
        timing_cache=options.timing_cache,
    )
