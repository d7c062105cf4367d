"""Feed damaged files to the command line, each in a process of its own with limits.

    python -m tools.fuzz --cases 1000 --seed 1 --out runs/fuzz
    python -m tools.fuzz --what files    # programs, checkpoints, data, configurations, logs

A case passes if it ends with 0 or with a documented exit status. It fails with exit status 1 (an
unexpected exception), a signal, more than ``--seconds``, or more than ``--gigabytes``. Inputs of
failed cases are kept in ``--out`` with what was said.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ortboost.api import convert_model, export_model  # noqa: F401 - loaded once, before the forks
from ortboost.cli import main as ortboost
from tools.fuzz.damage import damage_bytes, damage_model
from tools.fuzz.files import COMMANDS, damage_file, make_files

__all__ = ["main", "run_case"]

_VERBS = ("check", "inspect", "convert", "export", "export-int8", "compare", "tensorrt")
MODELS = Path("models")


def words(verb: str, model: str, folder: str) -> list[str]:
    """The command line of a verb."""
    return {
        "check": ["check", model],
        "inspect": ["inspect", model],
        "convert": ["convert", model, "-o", f"{folder}/run", "-q"],
        "export": ["export", model, "-o", f"{folder}/out.onnx", "-q"],
        "export-int8": ["export", model, "-o", f"{folder}/out.onnx", "-q", "--target", "generic"],
        "compare": ["compare", model, model, "-q"],
        "tensorrt": ["check", model, "--for", "tensorrt=10"],
    }[verb]


def run_case(
    command: list[str], said: Path, *, seconds: float, gigabytes: float
) -> tuple[str, float]:
    """Run one command line in a forked child.

    Returns:
        ``"exit 8"``, ``"signal SIGFPE"`` or ``"hang"``, and the seconds it took.
    """
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        descriptor = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        resource.setrlimit(resource.RLIMIT_AS, (int(gigabytes * 2**30),) * 2)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        status = 1
        with contextlib.suppress(BaseException):
            status = ortboost(command)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    while time.monotonic() - started < seconds:
        gone, status = os.waitpid(child, os.WNOHANG)
        if gone:
            took = time.monotonic() - started
            if os.WIFSIGNALED(status):
                return f"signal {signal.Signals(os.WTERMSIG(status)).name}", took
            return f"exit {os.WEXITSTATUS(status)}", took
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hang", seconds


def _damaged_model(
    folder: Path, whole: Path, sources: list[Path], rng: np.random.Generator
) -> tuple[str, Path, list[str]]:
    source = sources[int(rng.integers(len(sources)))]
    damage = damage_model if rng.random() < 0.6 else damage_bytes
    verb = _VERBS[int(rng.integers(len(_VERBS)))]
    model = folder / source.name
    model.write_bytes(damage(source.read_bytes(), rng))
    return verb, model, words(verb, str(model), str(folder))


def _damaged_file(
    folder: Path, whole: Path, sources: list[Path], rng: np.random.Generator
) -> tuple[str, Path, list[str]]:
    shutil.copytree(whole, folder, dirs_exist_ok=True)
    name = list(COMMANDS)[int(rng.integers(len(COMMANDS)))]
    damage_file(folder / name, rng)
    lines = COMMANDS[name]
    line = lines[int(rng.integers(len(lines)))]
    return f"{name}, {line.split()[0]}", folder / name, line.format(folder).split()


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print how they ended; 1 if any failed."""
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description=__doc__)
    parser.add_argument("--what", choices=("models", "files"), default="models")
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--models", type=Path, default=MODELS, help="folder with whole models")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    options = parser.parse_args(arguments)
    sources = sorted(options.models.glob("**/*.onnx"))
    if not sources:
        parser.error(f"there is no .onnx file in {options.models}")
    options.out.mkdir(parents=True, exist_ok=True)
    ends: collections.Counter[str] = collections.Counter()
    failed = 0
    whole = Path(tempfile.mkdtemp(prefix="whole-"))
    if options.what == "files":
        make_files(whole, options.models / "mlp.onnx")
    begun, done = time.monotonic(), 0
    for case in range(options.cases):
        if time.monotonic() - begun > 60 * options.minutes:
            break
        done += 1
        rng = np.random.default_rng((options.seed, case))
        with tempfile.TemporaryDirectory() as folder:
            said = Path(folder, "said.txt")
            try:
                make = _damaged_file if options.what == "files" else _damaged_model
                name, damaged, command = make(Path(folder), whole, sources, rng)
            except Exception as error:  # the damage itself could not be written down
                ends[f"not made: {type(error).__name__}"] += 1
                continue
            end, took = run_case(
                command, said, seconds=options.seconds, gigabytes=options.gigabytes
            )
            ends[f"{name}: {end}"] += 1
            if end == "exit 1" or not end.startswith("exit"):
                failed += 1
                name = f"{options.seed}-{case}-{name.replace('/', '-').replace(', ', '-')}"
                shutil.copy(damaged, options.out / f"{name}{damaged.suffix}")
                text = said.read_text(errors="replace") if said.exists() else ""
                (options.out / f"{name}.txt").write_text(
                    f"{end} after {took:.1f} s\n{' '.join(command)}\n{text}"
                )
                print(f"{name}: {end}: {(text.strip().splitlines() or [''])[0][:150]}", flush=True)
    shutil.rmtree(whole)
    for end, count in sorted(ends.items()):
        print(f"{count:6d}  {end}")
    print(f"{done} cases, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
