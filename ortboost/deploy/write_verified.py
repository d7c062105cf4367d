"""Write a graph to a file only after a trial file has run and passed the comparison.

If the comparison fails, nothing is written, and the error names the rewrite that is the cause.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import FileError, ModelError, ParityError
from ortboost.core.files import temporary_folder
from ortboost.deploy.bisect import guilty_step
from ortboost.deploy.export import Exported
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Parity, compare
from ortboost.graph.io import save_model
from ortboost.runtime.session import TooNewError, open_session
from ortboost.transforms.precision import emulate_precision

__all__ = ["write_verified"]

Batch: TypeAlias = Mapping[str, NDArray[Any]]
Batches: TypeAlias = Sequence[Batch]
Watch: TypeAlias = Callable[[int, Batch], None]

_BASE = "the graph before any rewrite"


def write_verified(
    exported: Exported,
    path: str | os.PathLike[str],
    *,
    expected: Batches,
    feeds: Batches,
    device: str = "cpu",
    rtol: float = 1e-3,
    atol: float = 1e-4,
    tolerance: Tolerance | None = None,
    watch: Watch | None = None,
    judge: Callable[[Parity], Parity] | None = None,
) -> Parity:
    """Write the graph to a temporary file, run and compare that, and only then write the target.

    Args:
        exported: The graph.
        path: The target file.
        expected: Outputs of the trained program, one mapping per batch.
        feeds: The inputs they were computed from.
        device: Where to run the file.
        rtol: Relative tolerance.
        atol: Absolute tolerance.
        tolerance: Replaces ``rtol`` and ``atol``.
        watch: Called with the index of each batch and the outputs of the temporary file.
        judge: Called with the comparison before it decides; may accept outputs by its own
            criteria, or raise to reject the file.

    Returns:
        The comparison; it is also recorded in the file's ``metadata_props``.

    Raises:
        ParityError: An output is beyond the tolerance; ``path`` is unchanged. The message names the
            rewrite that is the cause.
        FileError: The folder cannot be written.
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileError(
            "The folder to export to does not exist.",
            where=str(target.parent),
            fix="Create it, or give another path.",
        )
    tolerance = tolerance or Tolerance(rtol, atol)
    outputs = [value.name or "" for value in exported.model.graph.outputs]
    tolerance.check(outputs)
    with temporary_folder(target.parent) as workshop:
        file = workshop / target.name
        # For a GPU, int8 products follow the standard exactly: CPU kernels may saturate.
        exact = exported.precision == "int8" and not exported.target.cpu
        run = _runner(exported.precision, file, outputs, device, exact)
        if exported.precision == "fp16" and device == "cpu":
            # The comparison uses an emulation; first check that the file itself runs and is
            # correct.
            plain = _runner("fp32", file, outputs, device)
            _Trial(plain, expected[:1], feeds[:1], outputs, tolerance).require(exported, target)
        trial = _Trial(run, expected, feeds, outputs, tolerance)
        parity = trial.require(exported, target, watch, judge)
    exported.model.metadata_props["ortboost.parity"] = parity.summary
    save_model(exported.model, target)
    return parity


_Run: TypeAlias = Callable[[ir.Model, Batches], Iterator[Batch]]


@dataclass(frozen=True)
class _Trial:
    """A way to run a graph, the input batches, and the expected outputs."""

    run: _Run
    expected: Batches
    feeds: Batches
    outputs: Sequence[str]
    tolerance: Tolerance

    def compare(self, model: ir.Model, watch: Watch | None = None) -> Parity:
        def answers() -> Iterator[Batch]:
            for number, answer in enumerate(self.run(model, self.feeds)):
                if watch is not None:
                    watch(number, answer)
                yield answer

        return compare(self.expected, answers(), self.outputs, tolerance=self.tolerance)

    def require(
        self,
        exported: Exported,
        path: Path,
        watch: Watch | None = None,
        judge: Callable[[Parity], Parity] | None = None,
    ) -> Parity:
        """Compare, and raise if it fails.

        Raises:
            ParityError: An output is beyond the tolerance, or a rewrite made a graph that the
                runtime rejects.
        """
        try:
            parity = self.compare(exported.model, watch)
        except TooNewError:
            raise
        except ModelError as error:
            guilty = self.guilty(exported)
            if guilty is None or guilty == _BASE:
                raise
            raise ParityError(
                f"The exported graph cannot be run. The cause is {guilty}.",
                where=f"{path}: {error.where}",
                fix="Nothing was written. Export with --no-optimize, and report it.",
            ) from error
        if not parity.samples:
            raise ParityError(
                "There was no data to compare the export with.",
                where=str(path),
                fix="Give data with --verify, at least one sample.",
            )
        if judge is not None:
            parity = judge(parity)
        if not parity.ok:
            parity.require(str(path), self.guilty(exported))
        return parity

    def guilty(self, exported: Exported) -> str | None:
        """The cause of the difference, as text; ``None`` if unknown."""
        if exported.base is None or not exported.steps:
            return None
        right = guilty_step(exported.base, exported.steps, lambda model: self.compare(model).ok)
        return f"the rewrite '{right}'" if right else _BASE


def _runner(
    precision: str, path: Path, outputs: Sequence[str], device: str, exact: bool = False
) -> _Run:
    """Return the function that runs a graph for the comparison.

    The CPU computes 16-bit operators in float32 and does not round in between: an overflow would go
    unnoticed. There the graph runs with every 16-bit tensor rounded explicitly.
    """
    low = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}.get(precision)

    def run(model: ir.Model, feeds: Batches) -> Iterator[Batch]:
        if low is not None and device == "cpu":
            model = model.clone()
            emulate_precision(model, low)
        return _answers(model, path, feeds, outputs, device, exact)

    return run


def _answers(
    model: ir.Model,
    path: Path,
    feeds: Batches,
    outputs: Sequence[str],
    device: str,
    exact: bool,
) -> Iterator[Batch]:
    """Save a graph and run it; the runtime reads the file itself, whatever its size."""
    save_model(model, path)
    session = open_session(path, device=device, fuse_quantized=not exact, every_fusion=True)
    inputs = {value.name: value.type for value in session.get_inputs()}
    for feed in feeds:
        given = {
            name: array.astype(np.float16) if inputs[name] == "tensor(float16)" else array
            for name, array in feed.items()
            if name in inputs
        }
        try:
            answers = session.run(list(outputs), given)
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise ModelError(
                "onnxruntime cannot run the exported graph.",
                where=str(error).strip().splitlines()[0],
                fix="Export with --no-optimize to see whether a rewrite is the cause.",
            ) from error
        yield dict(zip(outputs, answers, strict=True))
