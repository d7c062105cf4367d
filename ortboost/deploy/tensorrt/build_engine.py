"""``--build-engine``: build, compare with the ONNX file, write the engine and its metadata.

An engine belongs to one version of TensorRT and one type of GPU; the JSON file beside it names
both, with the hash of the ONNX file. Keep that file: an engine cannot be converted back.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Any

from numpy.typing import NDArray

from ortboost.core.errors import DependencyError, FileError
from ortboost.core.files import atomic_path
from ortboost.deploy.synthetic_inputs import seeded_batch
from ortboost.deploy.tensorrt.api import Toolkit, build_plan, load_toolkit
from ortboost.deploy.tensorrt.profiles import Profile, settle_profiles
from ortboost.deploy.tensorrt.session import EngineSession
from ortboost.deploy.tolerance import Tolerance, tolerance_for
from ortboost.deploy.verify import Parity, compare
from ortboost.graph.io import load_model
from ortboost.graph.query import known_shape
from ortboost.runtime.model_evaluator import ModelEvaluator

__all__ = ["EngineFile", "build_engine", "recipe"]


@dataclass(frozen=True)
class EngineFile:
    """A written engine and its size; the JSON file beside it, and the metadata there.

    ``parity`` is the comparison with the ONNX file.
    """

    path: Path
    sidecar: Path
    bytes: int
    metadata: Mapping[str, Any]
    parity: Parity

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "path": str(self.path),
            "sidecar": str(self.sidecar),
            "bytes": self.bytes,
            **self.metadata,
        }


def build_engine(
    model: str | os.PathLike[str],
    out: str | os.PathLike[str],
    profiles: Sequence[Profile] = (),
    *,
    feeds: Sequence[Mapping[str, NDArray[Any]]] | None = None,
    workspace: int | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
    major: int = 11,
    tolerance: Tolerance | None = None,
    toolkit: Toolkit | None = None,
) -> EngineFile:
    """Build an engine from an ONNX file, and compare it with the file.

    See :func:`ortboost.api.check_target.build_engine`. Without a tolerance that of fp16 is allowed:
    an engine may sum in another order and use TF32. ``major`` is that of the recipe if TensorRT is
    missing.

    Raises:
        FileError: The folder cannot be written.
    """
    # What can fail without TensorRT is checked first, so that a build of minutes is not in vain.
    source, path = Path(model), Path(out)
    graph = load_model(source, weights=False).graph
    fed = [value for value in graph.inputs if not value.is_initializer()]
    settled = settle_profiles({value.name or "": known_shape(value) for value in fed}, profiles)
    line = recipe(
        source, path, settled.values(), major=major, workspace=workspace, timing_cache=timing_cache
    )
    if not path.parent.is_dir():
        raise FileError(
            "The folder to write the engine to does not exist.",
            where=str(path.parent),
            fix="Create it, or give another path.",
        )
    kit = toolkit or _installed(source, major, line)
    cache = None if timing_cache is None else Path(timing_cache)
    timings = cache.read_bytes() if cache is not None and cache.is_file() else b""
    plan, timings = build_plan(kit, str(source), settled, workspace=workspace, timings=timings)
    parity = _compare(kit, plan, source, settled, feeds, tolerance or tolerance_for("fp16"))
    fix = "Keep more operators in FLOAT, or widen the tolerance."
    parity.require(str(path), what="The engine", fix=fix)
    metadata = {
        "tensorrt": kit.version,
        "gpu": kit.gpu,
        "compute_capability": kit.capability,
        "onnx": source.name,
        "onnx_sha256": hashlib.sha256(source.read_bytes()).hexdigest(),
        "strongly_typed": True,
        "profiles": [str(profile) for profile in settled.values()],
        "parity": parity.to_dict(),
        "recipe": recipe(source.name, path.name, settled.values(), major=kit.major),
    }
    sidecar = _write(plan, path, metadata)
    if cache is not None:
        with atomic_path(cache) as new_cache:
            new_cache.write_bytes(timings)
    return EngineFile(path, sidecar, len(plan), metadata, parity)


def _installed(source: Path, major: int, line: str) -> Toolkit:
    """TensorRT of this environment; where it is missing, the error has the command for another."""
    try:
        return load_toolkit()
    except DependencyError as error:
        raise DependencyError(
            f"No engine can be built here: {error.what[0].lower()}{error.what[1:]}",
            where=f"{error.where}; the ONNX file is {source}",
            fix=f"{error.fix}; or build it where TensorRT {major} is:\n         {line}",
        ) from error


def _write(plan: bytes, path: Path, metadata: Mapping[str, Any]) -> Path:
    """Write the engine and its JSON file, whose path is returned."""
    sidecar = path.with_name(f"{path.name}.json")
    # Both files appear together: the engine within the block of its sidecar.
    with atomic_path(sidecar) as new_sidecar:
        new_sidecar.write_text(json.dumps(metadata, indent=2) + "\n", encoding="utf-8")
        with atomic_path(path) as new_plan:
            new_plan.write_bytes(plan)
            sidecar.unlink(missing_ok=True)  # an old one must not vouch for a new engine
    return sidecar


def _compare(
    kit: Toolkit,
    plan: bytes,
    source: Path,
    profiles: Mapping[str, Profile],
    feeds: Sequence[Mapping[str, NDArray[Any]]] | None,
    tolerance: Tolerance,
) -> Parity:
    reference = ModelEvaluator(source, device="cpu")
    engine = EngineSession(kit, plan)
    if feeds is None:
        shapes = {name: profile.optimum for name, profile in profiles.items()}
        feeds = [seeded_batch(reference.inputs, shapes)]
    expected = [reference.evaluate(batch) for batch in feeds]
    actual = [engine.evaluate(batch) for batch in feeds]
    return compare(expected, actual, engine.outputs, tolerance=tolerance)


def recipe(
    model: str | os.PathLike[str],
    engine: str | os.PathLike[str],
    profiles: Iterable[Profile] = (),
    *,
    major: int = 11,
    workspace: int | None = None,
    timing_cache: str | os.PathLike[str] | None = None,
) -> str:
    """The ``trtexec`` command line that builds the same engine; arguments as :func:`build_engine`.

    The graph itself contains the precision (casts and Q/DQ pairs), so there is no precision flag.
    TensorRT 10 needs a flag for a strongly typed network; in TensorRT 11 every network is.

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
