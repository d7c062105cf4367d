"""Write a graph to a file only after a trial file has run and passed the comparison.

If the comparison fails, nothing is written, and the error names the rewrite that is the cause.
"""

from __future__ import annotations

import dataclasses
import math
import os
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import ModelError, OrtBoostError, ParityError, first_line
from ortboost.core.files import temporary_folder, writable_path
from ortboost.deploy.export import Exported
from ortboost.deploy.pipeline import Step
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Difference, Parity, compare
from ortboost.graph.io import save_model
from ortboost.runtime.session import open_session, runtime
from ortboost.runtime.session_errors import TooNewError
from ortboost.runtime.wrong_fusions import wrong_optimizers
from ortboost.transforms.precision import emulate_precision

__all__ = ["faulty_step", "write_verified"]

Batch: TypeAlias = Mapping[str, NDArray[Any]]
Batches: TypeAlias = Sequence[Batch]
Watch: TypeAlias = Callable[[int, Batch], None]

_BASE = "the graph before any rewrite"
_ROUNDING = (
    "no rewrite alone: without onnxruntime's optimizations the model itself differs too much: it "
    "amplifies rounding errors, or an optimization is wrong"
)
_AMPLIFIED = 10
"""A difference up to this times the effect of rounding the inputs alone counts as rounding: in a
deep model every layer rounds."""
_AVOID = (
    "Report the model to onnxruntime; sessions whose graph_optimization_level is ORT_DISABLE_ALL "
    "run it as it is written."
)


def write_verified(
    exported: Exported,
    path: str | os.PathLike[str],
    *,
    expected: Batches,
    feeds: Batches,
    device: str = "cpu",
    tolerance: Tolerance | None = None,
    watch: Watch | None = None,
    judge: Callable[[Parity], Parity] | None = None,
) -> Parity:
    """Write the graph to a temporary file, run and compare that, and only then write the target.

    Args:
        exported: The graph.
        path: The target file, unchanged if the comparison fails.
        expected: Outputs of the trained program, one mapping per batch.
        feeds: The inputs they were computed from.
        device: Where to run the file.
        tolerance: The allowed difference; ``Tolerance()`` if not given.
        watch: Called with the index of each batch and the outputs of the temporary file.
        judge: Called with the comparison before it decides; may accept outputs by its own
            criteria, or raise to reject the file.

    Returns:
        The comparison; it is also recorded in the file's ``metadata_props``.

    Raises:
        ParityError: An output is beyond the tolerance; the message names the rewrite at fault.
        FileError: The folder cannot be written.
    """
    target = writable_path(path)
    tolerance = tolerance or Tolerance()
    original = exported.base or exported.model  # a rewrite must not lose an output
    outputs = [value.name or "" for value in original.graph.outputs]
    tolerance.check(outputs)
    with temporary_folder(target.parent) as scratch:
        # The CPU computes 16-bit operators in float32 and does not round in between: an overflow
        # would go unnoticed. There the graph runs with every 16-bit tensor rounded explicitly.
        low = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}.get(exported.precision)
        trial = _Trial(
            scratch / target.name,
            expected,
            feeds,
            outputs,
            tolerance,
            device,
            emulated=low if device == "cpu" else None,
            # For a GPU, int8 products follow the standard exactly: CPU kernels may saturate.
            exact=exported.precision == "int8" and not exported.target.cpu,
            # Users of onnxruntime run every fusion; TensorRT has none of those that are wrong.
            disabled=() if exported.target.guards_pads else None,
        )
        if trial.emulated is ir.DataType.FLOAT16:  # first check that the file itself runs
            plain = dataclasses.replace(trial, emulated=None)
            first = dataclasses.replace(plain, expected=expected[:1], feeds=feeds[:1])
            first.require(exported, target, judge=judge)
        parity = trial.require(exported, target, watch, judge)
    exported.model.metadata_props["ortboost.parity"] = parity.summary
    save_model(exported.model, target)
    return parity


@dataclass(frozen=True)
class _Trial:
    """How a graph is run, on which batches, and the expected outputs."""

    path: Path  # of the temporary file
    expected: Batches
    feeds: Batches
    outputs: Sequence[str]
    tolerance: Tolerance
    device: str
    emulated: ir.DataType | None  # round every tensor of this type explicitly
    exact: bool  # compute quantized operators as the standard defines them, without fusions
    disabled: Sequence[str] | None  # optimizers of the runtime; None: those known to be wrong
    optimize: bool = True  # by the runtime

    def compare(self, model: ir.Model, watch: Watch | None = None) -> Parity:
        answers = self._run(model, watch)
        return compare(self.expected, answers, self.outputs, tolerance=self.tolerance)

    def _run(self, model: ir.Model, watch: Watch | None) -> Iterator[Batch]:
        if self.emulated is not None:
            model = model.clone()
            emulate_precision(model, self.emulated)
        save_model(model, self.path)  # the runtime reads the file itself, whatever its size
        session = open_session(
            self.path,
            device=self.device,
            fuse_quantized=not self.exact,
            disabled=self.disabled,
            optimize=self.optimize,
        )
        # The feeds are those of the float32 program; the file may have float16 inputs, or fewer.
        inputs = {value.name: value.type for value in session.get_inputs()}
        for number, feed in enumerate(self.feeds):
            given = {
                name: array.astype(np.float16) if inputs[name] == "tensor(float16)" else array
                for name, array in feed.items()
                if name in inputs
            }
            try:
                found = session.run(list(self.outputs), given)
            except Exception as error:  # the bindings raise bare exceptions of many kinds
                raise ModelError(
                    "onnxruntime cannot run the exported graph.",
                    where=first_line(error),
                    fix="Export with --no-optimize to see whether a rewrite is the cause.",
                ) from error
            answer = dict(zip(self.outputs, found, strict=True))
            if watch is not None:
                watch(number, answer)
            yield answer

    def require(
        self,
        exported: Exported,
        path: Path,
        watch: Watch | None = None,
        judge: Callable[[Parity], Parity] | None = None,
    ) -> Parity:
        """Compare, and raise if it fails, or if a rewrite made a graph that the runtime rejects."""
        try:
            parity = self.compare(exported.model, watch)
        except TooNewError:  # the opset is at fault, not a rewrite
            raise
        except ModelError as error:
            cause, fix = self.cause(exported)
            if cause is None or cause == _BASE:
                raise
            raise ParityError(
                f"The exported graph cannot be run. The cause is {cause}.",
                where=f"{path}: {error.where}",
                fix=f"Nothing was written. {fix or 'Export with --no-optimize, and report it.'}",
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
            cause, fix = self._rounding(exported, parity.worst) or self.cause(exported)
            parity.require(str(path), cause, fix=fix)
        return parity

    def _rounding(self, exported: Exported, bad: Difference) -> tuple[str, str] | None:
        """Cause and fix if the model itself turns rounding errors into such a difference.

        Every kernel rounds its result; here only the inputs change, by one unit in the last place.
        """
        if exported.precision != "fp32":
            return None
        nudged = [{name: _nudged(array) for name, array in feed.items()} for feed in self.feeds]
        try:
            plain = list(self._run(exported.model, None))
            changed = dataclasses.replace(self, feeds=nudged)._run(exported.model, None)
            noise = compare(plain, changed, [bad.output]).worst.max_abs
        except OrtBoostError:
            return None
        if not bad.max_abs <= _AMPLIFIED * noise < math.inf:
            return None
        return (
            "rounding, which this model amplifies: changing its inputs in their last bit changes "
            f"the output by {noise:.2g}",
            "If the outputs need not be more exact than that, give "
            f"--atol {2 * bad.max_abs:.1g}; or give real samples with --verify.",
        )

    def cause(self, exported: Exported) -> tuple[str | None, str | None]:
        """The cause of the difference, as text, and the fix; ``None`` if unknown."""
        base, is_single = exported.base, exported.precision == "fp32"
        if is_single and (found := self._of_runtime(exported.model)):
            return found, _AVOID
        if base is None or not exported.steps:
            return None, None
        if is_single and self._passes(base) and not self._passes(base, optimize=False):
            return _ROUNDING, None
        name = faulty_step(base, exported.steps, self._passes)
        return f"the rewrite '{name}'" if name else _BASE, None

    def _of_runtime(self, model: ir.Model) -> str | None:
        """The optimization of the runtime without which the graph passes, if there is one."""
        if not self._passes(model, optimize=False):
            return None
        version = runtime().__version__
        for name in wrong_optimizers(model, version):
            if self._passes(model, disabled=[name]):
                return f"the fusion '{name}' of onnxruntime {version}"
        return f"an optimization of onnxruntime {version}"

    def _passes(self, model: ir.Model, **changes: Any) -> bool:
        try:
            return dataclasses.replace(self, **changes).compare(model).ok
        except OrtBoostError:  # a graph that cannot be run fails, too
            return False


def _nudged(array: NDArray[Any]) -> NDArray[Any]:
    """The array with every finite float moved towards zero by one unit in the last place."""
    if array.dtype not in (np.float32, np.float64):
        return array
    moved: NDArray[Any] = np.nextafter(array, np.zeros((), array.dtype))
    return np.where(np.isfinite(array), moved, array)


def faulty_step(base: ir.Model, steps: Sequence[Step], passes: Callable[[ir.Model], bool]) -> str:
    """Find the rewrite that breaks a graph, by bisection; the result of all steps fails.

    Returns:
        The name of the first step after which the graph fails, assuming that it then keeps failing;
        an empty string if ``base``, the graph before all steps, itself fails.
    """

    def passes_after(count: int) -> bool:
        model = base.clone()
        try:
            for step in steps[:count]:
                step.apply(model)
            return passes(model)
        except OrtBoostError:  # a graph that cannot be run fails, too
            return False

    if not passes_after(0):
        return ""
    if passes_after(len(steps) - 1):  # usually it is the last, the conversion to a lower precision
        return steps[-1].name
    counts = range(1, len(steps))
    return steps[bisect_left(counts, True, key=lambda count: not passes_after(count))].name
