"""One model of the zoo, one engine, one runtime: what happens, as one JSON object.

It runs in a process of its own, in an environment of the project, and uses ortboost as a user
would: whatever is not one of ortboost's own errors is a defect and is recorded as ``crash``.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

import ortboost as ob
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.catalogue import StateEntry
from tools.zoo import count_nodes

__all__ = ["main"]

STEPS = 3
OVERFIT_STEPS, OVERFIT_BYTES = 40, 20_000_000
DOUBLE_SECONDS = 120
EXPORTS = (
    ("onnxruntime", "fp32"),
    ("generic", "fp32"),
    ("tensorrt", "fp32"),
    ("onnxruntime-gpu", "fp16"),
    ("tensorrt", "fp16"),
    ("generic", "bf16"),
    ("onnxruntime", "int8"),
)
Arrays = dict[str, NDArray[Any]]
Entry = Mapping[str, Any]


def guarded(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Run a stage; a refusal by name and a crash are results, too."""
    try:
        return work()
    except ob.OrtBoostError as error:
        return {"refused": " | ".join(str(error).split("\n"))[:600]}
    except Exception:
        return {"crash": traceback.format_exc()[-1200:]}


def configuration(entry: Entry, engine: str, optimizer: str, rate: float) -> ob.ProgramConfig:
    """How a model of the zoo is converted."""
    loss: dict[str, Any] = {
        "name": {"ce": "softmax-cross-entropy"}.get(entry["loss"], entry["loss"])
    }
    if entry.get("output"):
        loss["output"] = entry["output"]
    if entry["loss"] == "ce" and entry["class_axis"] != 1:
        loss["class_axis"] = entry["class_axis"]
    data: dict[str, Any] = {
        "loss": loss,
        "inputs": {"dims": entry.get("dims", {}), "values": entry.get("constants", {})},
        "optimizer": {"name": optimizer},
        "learning_rate": str(rate),
        "loss_scale": {"kind": "off"},
        "engine": engine,
    }
    return ob.ProgramConfig.from_dict(data)


def feeds_of(stepper: ob.Stepper, batch: Arrays) -> Arrays:
    """The arrays that a step takes, in its types."""
    return {spec.name: batch[spec.name].astype(spec.dtype) for spec in stepper.inputs}


def train(folder: Path, entry: Entry, engine: str) -> dict[str, Any]:
    """Three steps, against torch's weights or central differences."""
    batch = dict(np.load(folder / "batch.npz"))
    config = configuration(entry, engine, "sgd", entry["learning_rate"])
    found: dict[str, Any] = {}
    started = time.perf_counter()
    program = ob.build_program(folder / "model.onnx", config)
    found["convert_seconds"] = time.perf_counter() - started
    found["engine"] = program.engine
    found["notes"] = [note for report in program.reports for note in report.notes]
    stepper = ob.Stepper(program, device="cpu", threads=1)
    feeds = feeds_of(stepper, batch)
    rates = dict.fromkeys(stepper.groups, float(entry["learning_rate"]))
    initial = {name: value.copy() for name, value in stepper.state().items()}
    trained = [e for e in program.catalogue.state if e.kind == "parameter" and e.next is not None]
    found["trained_tensors"] = len(trained)
    found["trained_numbers"] = int(sum(np.prod(e.shape) for e in trained))
    losses = [stepper.step(feeds, rates).loss for _ in range(STEPS)]
    found["losses"] = losses
    state = stepper.state()
    if (folder / "torch.npz").exists():
        found |= against_torch(dict(np.load(folder / "torch.npz")), initial, state, trained)
        found["torch_error"] = entry.get("torch_error", 0.0)
        found["loss_error"] = max(
            abs(a - b) / max(abs(b), 1e-6) for a, b in zip(losses, entry["losses"], strict=True)
        )
    else:
        found |= central_differences(stepper, feeds, initial, trained)
    found["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return found


def against_torch(
    torch: Arrays,
    initial: Mapping[str, NDArray[Any]],
    state: Mapping[str, NDArray[Any]],
    trained: list[StateEntry],
) -> dict[str, Any]:
    """Compare trained tensors with those of torch, which are found by their first values."""
    names = [key[2:] for key in torch if key.startswith("0/")]
    free = {e.name: initial[e.name] for e in trained}
    weight_errors, update_errors, missing, idle = {}, {}, [], []
    total = np.sqrt(
        sum(float(np.sum((torch[f"{STEPS}/{n}"] - torch[f"0/{n}"]) ** 2.0)) for n in names)
    )
    for name in names:
        first, last = torch[f"0/{name}"], torch[f"{STEPS}/{name}"]
        place = next((k for k, v in free.items() if _same(v, first) is not None), None)
        moved = float(np.linalg.norm(last - first))
        if place is None:
            (missing if moved else idle).append(name)
            continue
        turned = _same(free.pop(place), first)
        ours = state[place].reshape(first.shape) if turned is False else state[place].T
        ours = np.float64(ours)
        weight_errors[name] = float(
            np.linalg.norm(ours - last) / max(float(np.linalg.norm(last)), 1e-12)
        )
        floor = max(1e-3 * total / np.sqrt(len(names)), 1e-12)
        update_errors[name] = float(np.linalg.norm(ours - last) / max(moved, floor))
    worst = max(weight_errors, key=weight_errors.__getitem__, default="")
    off = max(update_errors, key=update_errors.__getitem__, default="")
    return {
        "oracle": "torch",
        "compared": len(weight_errors),
        "weight_error": weight_errors.get(worst),
        "worst_weight": worst,
        "update_error": update_errors.get(off),
        "worst_update": off,
        "not_trained": missing,
        "without_gradient": idle,
        "not_of_torch": sorted(free),
    }


def _same(ours: NDArray[Any], first: NDArray[Any]) -> bool | None:
    """Whether a tensor is one of torch: ``False`` unchanged, ``True`` transposed, else ``None``."""
    if ours.size != first.size:
        return None
    if np.array_equal(ours.reshape(-1), first.reshape(-1)):
        return False
    if ours.ndim == 2 and ours.shape == first.shape[::-1] and np.array_equal(ours.T, first):
        return True
    return None


def central_differences(
    stepper: ob.Stepper,
    feeds: Arrays,
    initial: Mapping[str, NDArray[Any]],
    trained: list[StateEntry],
) -> dict[str, Any]:
    """The slope of the step's own loss along its gradient, as a whole and tensor by tensor.

    With `g` the gradient (the move of a step with the rate 1) and `d = g / |g|`, the slope
    `(L(w + e d) - L(w - e d)) / 2e` has to be `|g|`. Float32 leaves about two digits; of several
    `e` the best counts.
    """
    one = dict.fromkeys(stepper.groups, 1.0)
    none = dict.fromkeys(stepper.groups, 0.0)
    stepper.load_state(initial)
    base = stepper.step(feeds, one).loss
    after = stepper.state()
    gradient = {e.name: np.float64(initial[e.name]) - after[e.name] for e in trained}
    norms = {name: float(np.linalg.norm(g)) for name, g in gradient.items()}
    ranked = sorted(norms, key=norms.__getitem__, reverse=True)
    whole = float(np.sqrt(sum(n * n for n in norms.values())))
    if not np.isfinite(whole) or whole == 0:
        return {"oracle": "differences", "gradient_norm": whole, "slope_error": None}

    def loss_at(names: list[str], size: float, norm: float) -> float:
        state = dict(initial)
        for name in names:
            state[name] = (initial[name] + size * gradient[name] / norm).astype(np.float32)
        stepper.load_state(state)
        return stepper.step(feeds, none).loss

    def error(names: list[str]) -> float:
        norm = float(np.sqrt(sum(norms[n] ** 2 for n in names)))
        found = []
        for share in (3e-2, 1e-2, 1e-3, 1e-4, 1e-5):
            size = share * max(abs(base), 1e-3) / norm
            slope = (loss_at(names, size, norm) - loss_at(names, -size, norm)) / (2 * size)
            found.append(abs(slope - norm) / norm)
        return min(found)

    single = {n: error([n]) for n in ranked[:6] if norms[n] > 1e-2 * whole}
    worst = max(single, key=single.__getitem__, default="")
    return {
        "oracle": "differences",
        "gradient_norm": whole,
        "slope_error": error(ranked),
        "worst_slope": worst,
        "worst_slope_error": single.get(worst),
        "zero_gradients": sum(n == 0 for n in norms.values()),
        "probes": {n: [norms[n], _probe(gradient[n])] for n in ranked},
    }


def double(folder: Path, entry: Entry) -> dict[str, Any]:
    """The slopes in float64; see :mod:`tools.zoo.double`."""
    from tools.zoo.double import slopes_in_double

    config = configuration(entry, "portable", "sgd", 1.0)
    batch = dict(np.load(folder / "batch.npz"))
    return slopes_in_double(str(folder / "model.onnx"), config, batch, DOUBLE_SECONDS)


def _probe(gradient: NDArray[Any]) -> float:
    """One number that two engines must agree about: the product with fixed random signs."""
    signs = np.random.default_rng(0).choice([-1.0, 1.0], gradient.size)
    return float(gradient.reshape(-1) @ signs)


def overfit(folder: Path, entry: Entry, engine: str) -> dict[str, Any]:
    """Many steps with Adam on one batch: the loss has to fall."""
    if (folder / "model.onnx").stat().st_size > OVERFIT_BYTES:
        return {"skipped": "large"}
    batch = dict(np.load(folder / "batch.npz"))
    program = ob.build_program(folder / "model.onnx", configuration(entry, engine, "adam", 3e-3))
    stepper = ob.Stepper(program, device="cpu", threads=1)
    feeds, rates = feeds_of(stepper, batch), dict.fromkeys(stepper.groups, 3e-3)
    losses = [stepper.step(feeds, rates).loss for _ in range(OVERFIT_STEPS)]
    return {"first": losses[0], "last": losses[-1]}


def export(folder: Path, entry: Entry, target: str, precision: str) -> dict[str, Any]:
    """Export the file unchanged and compare its outputs with the original in onnxruntime."""
    batch = dict(np.load(folder / "batch.npz"))
    with tempfile.TemporaryDirectory() as place:
        out = Path(place) / "model.onnx"
        data = folder / "batch.npz"
        started = time.perf_counter()
        result = ob.export(
            folder / "model.onnx", out, target=target, precision=precision, device="cpu",
            calibration=data if precision == "int8" else None,
            inputs=InputConfig(entry.get("dims", {}), entry.get("constants", {})),
        )  # fmt: skip
        found: dict[str, Any] = {"seconds": time.perf_counter() - started}
        proto = onnx.load(out)
        found["nodes"], found["bytes"] = count_nodes(proto), out.stat().st_size
        found["domains"] = sorted(
            {n.domain for n in proto.graph.node if n.domain not in ("", "ai.onnx")}
        )
        found["notes"] = list(result.notes)[:5]
        onnx.checker.check_model(str(out), full_check=True)
        if precision in ("fp32", "int8"):  # a CPU has no kernels for the others, or other numbers
            found["error"] = difference(folder / "model.onnx", out, batch)
    return found


def difference(one: Path, other: Path, batch: Arrays) -> float:
    """The largest difference of an answer, over the largest answer."""
    answers, names = [], None
    for path in (one, other):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = names or [o.name for o in session.get_outputs()]
        wanted = [i.name for i in session.get_inputs()]
        answers.append(session.run(names, {n: batch[n] for n in wanted}))
    worst = 0.0
    for a, b in zip(*answers, strict=True):
        if not isinstance(a, np.ndarray) or a.dtype.kind not in "fiub":
            worst = max(worst, float(str(a) != str(b)))
            continue
        a, b = np.float64(a), np.float64(b)
        top = max(float(np.abs(a[np.isfinite(a)]).max(initial=0.0)), 1e-6)
        off = np.abs(a - b)[np.isfinite(a)].max(initial=0.0)
        worst = max(worst, float(off) / top)
    return worst


def check_tensorrt(folder: Path) -> dict[str, Any]:
    """Findings of the check for TensorRT."""
    done = subprocess.run(
        [sys.executable, "-m", "ortboost", "check", str(folder / "model.onnx"), "--for", "tensorrt=10", "--json"],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    if done.returncode not in (0, 4):
        return {"crash" if done.returncode == 1 else "refused": done.stderr[-400:]}
    return {"status": done.returncode, "findings": len(json.loads(done.stdout).get("findings", []))}


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.zoo.measure", description=__doc__.splitlines()[0]
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--engine", default="portable")
    parser.add_argument(
        "--stage", choices=("train", "double", "overfit", "export", "tensorrt"), default="train"
    )
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    entry = json.loads((arguments.folder / "entry.json").read_text())
    folder, engine = arguments.folder, arguments.engine
    if arguments.stage == "export":
        found = {
            f"{t} {p}": guarded(lambda t=t, p=p: export(folder, entry, t, p)) for t, p in EXPORTS
        }
    else:
        stages = {
            "double": lambda: double(folder, entry),
            "train": lambda: train(folder, entry, engine),
            "overfit": lambda: overfit(folder, entry, engine),
            "tensorrt": lambda: check_tensorrt(folder),
        }
        found = guarded(stages[arguments.stage])
    sys.stdout.flush()
    os.write(1, b"\n" + json.dumps(found).encode() + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
