"""The process that runs one model for a benchmark, and the handle that its parent holds.

Each model has a separate process. The memory allocator, page tables and runtime caches hold nothing
of another model, and the peak memory is that of one model.

The two communicate by pickles over pipes: the parent calls a method of the :class:`_Model` in the
worker process, and receives the result or the error.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from ortboost.core.errors import ModelError, OrtBoostError
from ortboost.graph.io import check_model_file, load_model
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.session import resolve_device, runtime

__all__ = ["Worker", "peak_memory", "serve", "time_runs"]

# With -I the child ignores PYTHONPATH and the current folder; it gets the parent's sys.path.
_START = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from ortboost.deploy.bench_worker import serve; serve()"
)
_PROTOCOL = 5  # avoids a second copy of arrays on reading
_PATIENCE = 5.0  # seconds to wait for a worker to exit by itself


def time_runs(
    run: Callable[[], Any], count: int, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Time each of ``count`` runs in seconds, after one run that is not counted.

    Another contestant filled the caches before: the first run of a turn is not representative.
    """
    run()
    spent = []
    for _ in range(count):
        start = clock()
        run()
        spent.append(clock() - start)
    return spent


def peak_memory() -> int:
    """The peak resident memory of this process in bytes (VmHWM).

    Where the kernel does not report it, ``ru_maxrss``, which a child inherits from its parent.
    """
    with contextlib.suppress(OSError, IndexError):
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class Worker:
    """A process that runs one model.

    Args:
        model: The file.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Intra-op threads; the runtime's choice if not given.

    Raises:
        FileError: The file is missing, or is not a model.
        ModelError: The runtime rejects it, or the process crashed on it.
        DependencyError: The device is not available.

    Example:
        >>> with Worker(Path("model.onnx")) as worker:  # doctest: +SKIP
        ...     worker.feed({"x": x})
        ...     worker.run(10)
    """

    def __init__(self, model: Path, *, device: str = "auto", threads: int | None = None) -> None:
        check_model_file(model)
        self.model = model
        # A file, not a pipe, which would block the worker when nobody reads it.
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - held open
        paths = json.dumps([str(Path(path).absolute()) for path in sys.path])
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _START, paths],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
        )
        try:
            opened = self._ask("open", str(model), device, threads)
        except BaseException as error:
            self.close()
            if isinstance(error, ModelError):
                load_model(model)  # its errors on files that are not models are clearer
            raise
        self.device: str = opened["device"]
        """``cpu`` or ``cuda``."""
        self.load_seconds: float = opened["seconds"]
        """Time to open the session, in seconds."""
        self.baseline: int = opened["baseline"]
        """Peak memory before the model was opened, in bytes: interpreter and libraries."""
        self.inputs: Sequence[TensorSpec] = opened["inputs"]
        """Inputs of the model."""

    def feed(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Set the inputs, and run once.

        Raises:
            UsageError: The runtime rejects them.
        """
        self._ask("feed", {spec.name: feeds[spec.name] for spec in self.inputs})

    def run(self, count: int) -> list[float]:
        """Time ``count`` runs; the duration of each in seconds."""
        return list(self._ask("run", count))

    def peak(self) -> int:
        """The peak resident memory of the process until now, in bytes."""
        return int(self._ask("peak"))

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

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # do not wait for a running request
            self._process.kill()
        self.close()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Call a method of the :class:`_Model` in the worker process."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        try:
            pickle.dump((name, arguments), stdin, _PROTOCOL)
            stdin.flush()
            failed, answer = pickle.load(stdout)
        except (BrokenPipeError, EOFError):
            raise self._died() from None
        if failed:
            raise answer
        return answer

    def _died(self) -> OrtBoostError:
        status = self._process.wait()
        self._log.seek(0)
        output = self._log.read().decode(errors="replace").strip().splitlines()
        how = f"signal {-status}" if status < 0 else f"status {status}"
        return ModelError(
            f"The process that ran the model ended with {how}.",
            where=f"{self.model}" + (f": {output[-1]}" if output else ""),
            fix="Signal 9 is usually a lack of memory: try a smaller batch. "
            "Otherwise the runtime crashed on this model: 'ortboost doctor' shows which one it is.",
        )


def serve() -> None:
    """Run as the worker: read requests from stdin and write answers to stdout until stdin ends."""
    # Libraries print to descriptor 1: answers keep a copy of it, and 1 becomes stderr.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    model = _Model()
    with contextlib.suppress(EOFError):
        while True:
            name, arguments = pickle.load(sys.stdin.buffer)
            try:
                answer = False, getattr(model, name)(*arguments)
            except OrtBoostError as error:
                answer = True, error
            pickle.dump(answer, answers, _PROTOCOL)
            answers.flush()


class _Model:
    """The model in the worker process."""

    def open(self, model: str, device: str, threads: int | None) -> dict[str, Any]:
        """Open a session, and return its properties for the parent."""
        runtime()  # importing it is not part of loading a model
        device = resolve_device(device)
        baseline = peak_memory()
        start = time.perf_counter()
        self._evaluator = ModelEvaluator(model, device=device, threads=threads)
        seconds = time.perf_counter() - start
        inputs = self._evaluator.inputs
        return {"device": device, "seconds": seconds, "baseline": baseline, "inputs": inputs}

    def feed(self, feeds: Mapping[str, NDArray[Any]]) -> None:
        """Store the inputs, and run once: the evaluator's errors on wrong inputs are clear."""
        self._feeds = dict(feeds)
        self._evaluator.evaluate(feeds)

    def run(self, count: int) -> list[float]:
        """Time ``count`` runs."""
        session, outputs = self._evaluator.session, list(self._evaluator.outputs)
        return time_runs(lambda: session.run(outputs, self._feeds), count)

    def peak(self) -> int:
        """See :func:`peak_memory`."""
        return peak_memory()
