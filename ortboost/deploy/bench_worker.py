"""The process that runs one model for a benchmark, and the handle that its parent holds.

Every model has a process of its own: what another model left in the memory allocator, in the page
tables or in the caches of a runtime is not counted, and the peak of memory is that of one model.

They talk in lines of JSON over pipes. The worker opens the model and says how long it took, is given
the file with its inputs, and then answers requests for timed runs with the seconds of each run.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core import errors
from ortboost.core.errors import ModelError, OrtBoostError
from ortboost.graph.io import load_model
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.session import resolve_device, runtime

__all__ = ["Worker", "peak_memory", "serve", "time_runs"]

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from ortboost.deploy.bench_worker import serve; serve()"
_PATIENCE = 5.0  # seconds that a worker has to leave by itself


def time_runs(
    run: Callable[[], Any], count: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Seconds of each of ``count`` runs; one more run before them is not counted.

    The caches belonged to someone else until now: the first run of a turn is of another kind.

    Args:
        run: Makes one run.
        count: Number of runs to time.
        clock: What tells the time, in seconds.
    """
    run()
    spent = []
    for _ in range(count):
        start = clock()
        run()
        spent.append(clock() - start)
    return spent


def peak_memory() -> int:
    """The most memory that this process ever held, in bytes (resident, VmHWM).

    Where the kernel does not tell, it is ``ru_maxrss``, which a child inherits from its parent.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Worker:
    """A process with one model in it.

    Args:
        model: The file.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Threads within an operator; the runtime's choice if not given.

    Raises:
        FileError: The file is missing, or is no model.
        ModelError: The runtime does not accept it, or the process died of it.
        DependencyError: The device is not there.

    Example:
        >>> with Worker(Path("model.onnx")) as worker:  # doctest: +SKIP
        ...     worker.feed({"x": x})
        ...     worker.run(10)
    """

    def __init__(self, model: Path, *, device: str = "auto", threads: int | None = None) -> None:
        self.model = model
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - held open
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-c",
                _START,
                json.dumps([str(Path(p).absolute()) for p in sys.path]),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        try:
            request = {"model": str(model), "device": device, "threads": threads}
            opened = self._ask(**request)
        except ModelError:
            self.close()
            load_model(model)  # its errors on files that are no models are clearer
            raise
        except BaseException:
            self.close()
            raise
        self.device: str = opened["device"]
        """``cpu`` or ``cuda``."""
        self.load_seconds: float = opened["seconds"]
        """Time to open the session."""
        self.baseline: int = opened["baseline"]
        """Peak of memory before the model was opened, in bytes: interpreter and libraries."""
        self.inputs = tuple(
            TensorSpec(name, np.dtype(dtype), tuple(shape))
            for name, dtype, shape in opened["inputs"]
        )
        """What the model takes."""

    def feed(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Give the inputs, and run once.

        Raises:
            UsageError: The runtime refuses them.
        """
        with tempfile.NamedTemporaryFile(suffix=".npz") as file:
            # Positions, not names: a name may hold what a file name in an archive cannot.
            np.savez(file, **{str(i): feeds[spec.name] for i, spec in enumerate(self.inputs)})  # type: ignore[arg-type]
            file.flush()
            self._ask(feeds=file.name)

    def run(self, count: int) -> list[float]:
        """Seconds of each of ``count`` runs."""
        seconds: list[float] = self._ask(run=count)["seconds"]
        return seconds

    def peak(self) -> int:
        """The most memory that the process held so far, in bytes."""
        return int(self._ask(peak=True)["peak"])

    def close(self) -> None:
        """End the process."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Worker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:  # nobody waits for a run that is under way
            self._process.kill()
        self.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise self._died()
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            kind = getattr(errors, answer["error"], OrtBoostError)
            raise kind(answer["what"], where=answer["where"], fix=answer["fix"])
        return answer

    def _died(self) -> OrtBoostError:
        status = self._process.wait()
        self._log.seek(0)
        said = self._log.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return ModelError(
            f"The process that ran the model ended with {how}.",
            where=f"{self.model}" + (f": {said[-1]}" if said else ""),
            fix="Signal 9 is usually a lack of memory: try a smaller batch. "
            "Otherwise the runtime crashed on this model: 'ortboost doctor' shows which one it is.",
        )


def serve() -> None:
    """Be the worker: requests on stdin, answers on stdout, until stdin ends."""
    # Whatever a library prints must not come between the answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    model: _Model | None = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if model is None:
                model = _Model(**request)
                answer = model.opened
            else:
                answer = model.answer(request)
        except OrtBoostError as error:
            kind = type(error).__name__
            answer = {"error": kind, "what": error.what, "where": error.where, "fix": error.fix}
        _send(answers, answer)


def _send(stream: IO[str], answer: Mapping[str, Any]) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


class _Model:
    """The model in its process."""

    def __init__(self, model: str, device: str, threads: int | None) -> None:
        runtime()  # importing it is not part of loading a model
        device = resolve_device(device)
        baseline = peak_memory()
        start = time.perf_counter()
        self._evaluator = ModelEvaluator(model, device=device, threads=threads)
        seconds = time.perf_counter() - start
        self._feeds: dict[str, NDArray[Any]] = {}
        self.opened = {
            "device": device,
            "seconds": seconds,
            "baseline": baseline,
            "inputs": [[s.name, s.dtype.name, list(s.shape)] for s in self._evaluator.inputs],
        }

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "feeds" in request:
            with np.load(request["feeds"]) as file:
                self._feeds = {
                    spec.name: file[str(i)] for i, spec in enumerate(self._evaluator.inputs)
                }
            self._evaluator.evaluate(self._feeds)  # says clearly what is wrong with them
            return {}
        if "run" in request:
            session, outputs = self._evaluator.session, list(self._evaluator.outputs)
            return {"seconds": time_runs(lambda: session.run(outputs, self._feeds), request["run"])}
        return {"peak": peak_memory()}
