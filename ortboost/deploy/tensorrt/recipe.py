"""The ``trtexec`` command line that builds the same engine with a given version of TensorRT."""

from __future__ import annotations

import os
from collections.abc import Iterable
from shlex import quote

from ortboost.deploy.tensorrt.profiles import Profile

__all__ = ["recipe"]


def recipe(
    model: str | os.PathLike[str],
    engine: str | os.PathLike[str],
    profiles: Iterable[Profile] = (),
    *,
    major: int = 11,
    workspace: int | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
) -> str:
    """Format the command line for a machine with TensorRT.

    The graph itself contains the precision (casts and Q/DQ pairs), so there is no precision flag.
    TensorRT 10 needs a flag for a strongly typed network; in TensorRT 11 every network is.

    Args:
        model: The ONNX file.
        engine: The engine to write.
        profiles: Shapes of the dynamic inputs.
        major: Major version of TensorRT.
        workspace: Bytes of scratch memory.
        timing_cache: File with timings to start from, and to write.

    Example:
        >>> recipe("m.onnx", "m.engine", major=10)
        'trtexec --onnx=m.onnx --saveEngine=m.engine --stronglyTyped'
    """
    words = ["trtexec", f"--onnx={model}", f"--saveEngine={engine}"]
    given = list(profiles)
    for which in ("minimum", "optimum", "maximum") if given else ():  # --minShapes, --optShapes...
        shapes = (f"{p.name}:{'x'.join(map(str, getattr(p, which)))}" for p in given)
        words.append(f"--{which[:3]}Shapes={','.join(shapes)}")
    if workspace is not None:
        words.append(f"--memPoolSize=workspace:{max(workspace >> 20, 1)}M")  # in MiB
    if timing_cache is not None:
        words.append(f"--timingCacheFile={timing_cache}")
    if major <= 10:
        words.append("--stronglyTyped")
    return " ".join(quote(word) for word in words)
