"""Feed damaged files to the command line, each in a fork of its own with limits.

    python -m tools.fuzz --cases 10000 --seed 1 --out runs/fuzz
    python -m tools.fuzz --what files    # programs, checkpoints, data, configurations, logs

A case passes if it ends with 0, or with a documented exit status and an error of three lines. It
fails with exit status 1 (an unexpected exception), a traceback, a signal, more than ``--seconds``,
or more than ``--gigabytes``. Inputs of failed cases are kept in ``--out`` with what was said.
``--only SEED-CASE`` repeats one.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import os
import re
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ortboost.cli import main as ortboost
from tools.fuzz.damage import damage_bytes, damage_model
from tools.fuzz.files import COMMANDS, PROGRAMS, damage_file, make_files, seal
from tools.fuzz.forks import preload, run_case
from tools.fuzz.models import VERBS, make_operators, words

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[2]
_KINDS = ("models", "operators", "files")
_RESULTS = ("exit 4", "exit 5")  # `check` found blockers, `compare` a difference
_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Sources:
    """What is damaged: models by kind, and a folder with files of the other kinds."""

    models: dict[str, list[Path]]
    files: Path


@dataclass
class Found:
    """How the cases ended."""

    ends: collections.Counter[str] = field(default_factory=collections.Counter)
    faults: dict[str, list[str]] = field(default_factory=dict)

    def add(self, case: str, name: str, end: str, said: str) -> bool:
        """Count a case; whether it failed."""
        self.ends[f"{name}: {end}"] += 1
        fault = _fault(end, said)
        if fault is not None:
            self.faults.setdefault(_NUMBER.sub("N", fault), []).append(case)
        return fault is not None


def _fault(end: str, said: str) -> str | None:
    first = (said.strip().splitlines() or [""])[0][:120]
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    if end == "exit 1" or not end.startswith("exit"):
        return f"{end}: {(errors or [first])[-1][:120]}"
    if "Traceback (most recent call last)" in said:
        return f"a traceback: {said.strip().splitlines()[-1][:120]}"
    reported = end in ("exit 0", *_RESULTS) or (errors and "\n  fix: " in said)
    return None if reported else f"{end} without an error: {first}"


def _damaged_model(
    kind: str, sources: Sources, folder: Path, rng: np.random.Generator
) -> tuple[str, Path, list[str]]:
    models = sources.models[kind]
    source = models[int(rng.integers(len(models)))]
    structure = rng.random() < 0.8
    verb = list(VERBS)[int(rng.integers(len(VERBS)))]
    line = VERBS[verb][int(rng.integers(len(VERBS[verb])))]
    model = folder / "damaged.onnx"
    model.write_bytes((damage_model if structure else damage_bytes)(source.read_bytes(), rng))
    name = f"{kind}, {'structure' if structure else 'bytes'}, {line.split()[0]}"
    return name, model, words(line, model, folder, source)


def _damaged_file(
    sources: Sources, folder: Path, rng: np.random.Generator
) -> tuple[str, Path, list[str]]:
    name = list(COMMANDS)[int(rng.integers(len(COMMANDS)))]
    program = name.partition("/")[0]
    left_out = {item for item in PROGRAMS if item not in (program, "run")}
    shutil.copytree(
        sources.files,
        folder,
        dirs_exist_ok=True,
        ignore=lambda _, items: [item for item in items if item in left_out],
    )
    damage_file(folder / name, rng)
    sealed = program in PROGRAMS and rng.random() < 0.6
    if sealed:
        seal(folder / program)
    line = COMMANDS[name][int(rng.integers(len(COMMANDS[name])))]
    case = re.sub(r"^(thor|reduced|windows|shared)/", "run/", name)
    case = f"{case}{', sealed' if sealed else ''}, {line.split()[0]}"
    return case, folder / program, line.format(folder).split()


def _warm(folder: Path, kinds: list[str]) -> None:
    """Make the whole files, and run what the cases run."""
    make_files(folder / "files", ROOT / "models" / "mlp.onnx")
    shutil.copytree(folder / "files", folder / "warm")
    if "operators" in kinds:
        make_operators(folder / "operators")
    model = ROOT / "models" / "mlp.onnx"
    with (
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        for lines in VERBS.values():
            ortboost(words(lines[0], model, folder, model))
        for name in ("run/step.onnx", "data.npz", "run/log.jsonl"):
            for line in COMMANDS[name]:
                ortboost(line.format(folder / "warm").split())


def _one(options: argparse.Namespace, sources: Sources, case: int, found: Found) -> None:
    rng = np.random.default_rng((options.seed, case))
    kind = options.what[int(rng.integers(len(options.what)))]
    with tempfile.TemporaryDirectory() as temporary:
        folder, said = Path(temporary, "case"), Path(temporary, "said.txt")
        folder.mkdir()
        if kind == "files":
            name, damaged, command = _damaged_file(sources, folder, rng)
        else:
            name, damaged, command = _damaged_model(kind, sources, folder, rng)
        limits = {"seconds": options.seconds, "gigabytes": options.gigabytes}
        curves = command[0] != "train" or "log.jsonl" in name
        end, took = run_case(command, said, **limits, curves=curves)
        text = said.read_text(errors="replace") if said.exists() else ""
        if options.only:
            print(text)
        number = f"{options.seed}-{case}"
        if found.add(number, name, end, text):
            kept = options.out / number
            if end == "exit 1":  # again, for its traceback
                again = [*command, "-vv"]
                run_case(again, said, **limits, curves=curves)
                text = said.read_text(errors="replace")
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            (shutil.copytree if damaged.is_dir() else shutil.copy)(damaged, kept / damaged.name)
            (kept / "said.txt").write_text(f"{end} after {took:.1f} s\n{' '.join(command)}\n{text}")
            print(f"{number}, {name}: {_fault(end, text)}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the cases and print how they ended; 1 if any failed."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.fuzz",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--what", choices=_KINDS, nargs="+", default=_KINDS)
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="SEED-CASE", help="this case, and what it prints")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin none after")
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--gigabytes", type=float, default=4)
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"))
    options = parser.parse_args(arguments)
    if options.only:
        options.seed, options.first = map(int, options.only.split("-"))
        options.cases = 1
    begun, found, done = time.monotonic(), Found(), 0
    with tempfile.TemporaryDirectory(prefix="whole-") as temporary:
        whole = Path(temporary)
        for kind in ("files", "operators"):
            (whole / kind).mkdir()
        preload(functools.partial(_warm, whole, options.what))
        golden = (ROOT / "tests" / "golden" / name for name in ("exports", "torch_layers"))
        folders = (ROOT / "models", *golden)
        models = {
            "models": sorted(path for folder in folders for path in folder.glob("*.onnx")),
            "operators": sorted((whole / "operators").glob("*.onnx")),
        }
        sources = Sources(models, whole / "files")
        print(f"ready after {time.monotonic() - begun:.1f} s", flush=True)
        for case in range(options.first, options.first + options.cases):
            if time.monotonic() - begun > 60 * options.minutes:
                break
            done += 1
            _one(options, sources, case, found)
            if done % 500 == 0:
                spent = time.monotonic() - begun
                print(
                    f"{done} cases in {spent:.0f} s, {sum(map(len, found.faults.values()))} failed",
                    flush=True,
                )
    for end, count in sorted(found.ends.items()):
        print(f"{count:6d}  {end}")
    for fault, cases in sorted(found.faults.items(), key=lambda item: -len(item[1])):
        print(f"{len(cases):6d} failed  {fault}  ({', '.join(cases[:5])})")
    failed = sum(map(len, found.faults.values()))
    print(f"{done} cases in {time.monotonic() - begun:.0f} s, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
