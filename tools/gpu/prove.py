"""The checks for a machine with a GPU, in one run of under ten minutes, as one JSON file.

``parity``     Losses and states of the six shipped models after a few steps, against the CPU,
               where the 16-bit formats are emulated.
``placement``  The runtime's own placement of the nodes of those steps, against
               ``ortboost check --for cuda``.
``speed``      A step of ResNet-50 and of an encoder of the size of BERT base against PyTorch AMP
               (channels_last), alternating. Both copy the batch from the host and return the
               loss. MFU: 3 times the FLOPs of the forward pass, over the time of the step and
               the peak of the device.
``capture``    Steps of the six models replayed as CUDA graphs: losses and times against the same
               steps without, and against PyTorch eager.
``resume``     A run that is killed (SIGKILL) and resumed ends with the state of an
               uninterrupted one.
``tensorrt``   A file exported for TensorRT, built and compared with ONNX Runtime: with TensorRT's
               own builder, else with the runtime's provider.

What cannot be done is in the file with the reason, and what failed with the error; the status is 1
then. With ``--device cpu`` everything runs on small networks and the CPU, so that on the machine
only the device is new.

Example::

    python -m tools.gpu.prove --device cpu -o proof.json
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.api.run_folder import load_run
from ortboost.core.errors import DependencyError
from ortboost.deploy.synthetic_inputs import synthetic_feeds
from ortboost.graph.cost import count_cost
from ortboost.graph.io import load_model, save_model
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import kernels_of
from ortboost.runtime.model_evaluator import ModelEvaluator
from ortboost.runtime.session import available_devices, runtime
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.precision import PrecisionConfig
from tools.bench.report import MODELS, ROOT, environment, write_json
from tools.bench.step import compare, random_batch

_STEPS = 4
# Of the loss, relative. TF32 has 11 bits, float16 as many, bfloat16 eight.
_TOLERANCE = {"fp32": 2e-3, "fp16": 2e-2, "bf16": 8e-2}
# Dense 16-bit TFLOP/s of tensor cores, from the data sheets.
_PEAK = {"H100": 989.0, "H200": 989.0, "A100": 312.0}
_RATE = 1e-3


class SkippedError(Exception):
    """What cannot be shown here, and why."""


class Proof:
    """The sections; each gives plain data.

    Args:
        device: ``cuda``, or ``cpu`` for a rehearsal.
        folder: For what is made on the way.
    """

    def __init__(self, device: str, folder: Path) -> None:
        self.device = device
        self.folder = folder

    # ---- numbers ------------------------------------------------------------------------------

    def parity(self) -> dict[str, Any]:
        """The device against the CPU."""
        found: dict[str, Any] = {"ok": True}
        for name in MODELS:
            for compute in ("fp32", "fp16", "bf16"):
                program = _program(_without_dropout(name), compute)
                feeds = random_batch(program, 16)
                losses, states = zip(
                    *(_run(program, feeds, device) for device in ("cpu", self.device)), strict=True
                )
                moved = _moved(program, *states)
                off = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(*losses, strict=True))
                ok = off <= (_TOLERANCE[compute] if self.device == "cuda" else 0.0)
                found[f"{name}.{compute}"] = {"ok": ok, "loss": off, "update": moved}
                found["ok"] = found["ok"] and ok
        return found

    def placement(self) -> dict[str, Any]:
        """The runtime's own placement against ours."""
        if self.device != "cuda":
            raise SkippedError("there is nothing to place on a CPU")
        from tools.gpu.placement import differences, record

        version = runtime().__version__
        kernels = kernels_of(version)
        found: dict[str, Any] = {"ok": True, "runtime": version, "table": kernels.release}
        for name in MODELS:
            path = self.folder / f"{name}.onnx"
            step = _program(ROOT / "models" / f"{name}.onnx", "fp16").step
            save_model(for_cuda(step, kernels), path)
            answer = record(str(path))
            lines = differences(load_model(path), answer, f"cuda={kernels.release}")
            found[name] = {"cpu": answer.get("cpu"), "differences": lines}
            found["ok"] = found["ok"] and not lines
        return found

    # ---- time ---------------------------------------------------------------------------------

    def speed(self) -> dict[str, Any]:
        """A step against PyTorch AMP."""
        try:
            import torch
        except ImportError:
            raise SkippedError("PyTorch is not installed") from None
        peak = next((tf for gpu, tf in _PEAK.items() if gpu in self.name()), None)
        found: dict[str, Any] = {"ok": True, "device": self.name(), "peak_tflops": peak}
        for name, batch, module, example in self._networks(torch):
            path = self.folder / f"{name}.onnx"
            _export(torch, module, example, path)
            forward = count_cost(load_model(path), batch=batch).flops if path.exists() else 0
            for compute in ("fp16", "bf16"):
                program = _program(path, compute)
                feeds = _feeds(program, example, batch)
                stepper = Stepper(program, device=self.device)
                rates = dict.fromkeys(stepper.groups, _RATE)
                times = compare(
                    {
                        "ours": lambda s=stepper, f=feeds, r=rates: s.step(f, r).loss,
                        "torch": _amp(torch, module, feeds, self.device, compute),
                    },
                    rounds=4,
                    seconds=2.0 if self.device == "cuda" else 0.2,
                )
                middle = {who: statistics.median(spent) for who, spent in times.items()}
                row: dict[str, Any] = {"batch": batch, "seconds": times}
                row["ratio"] = middle["ours"] / middle["torch"]
                if peak and forward:
                    row["mfu"] = {w: 3 * forward / t / (peak * 1e12) for w, t in middle.items()}
                found[f"{name}.{compute}"] = row
        return found

    def name(self) -> str:
        """The device, as its driver calls it."""
        if self.device == "cpu":
            return str(environment()["cpu"])
        import torch

        return str(torch.cuda.get_device_name())

    def _networks(self, torch: Any) -> list[tuple[str, int, Any, dict[str, Any]]]:
        """Name, batch, module and example inputs."""
        torch.manual_seed(0)
        if self.device == "cpu":
            from tools.export_torch import NETWORKS as SMALL
            from tools.export_torch import build

            module = build(SMALL["resnet20"])
            return [("resnet20", 8, module, {"x": torch.rand(2, 3, 32, 32)})]
        from tools.bench.networks import NETWORKS

        text = torch.randint(0, 30000, (2, 128))
        return [
            ("resnet50", 128, NETWORKS["resnet50"].make(), {"x": torch.rand(2, 3, 224, 224)}),
            ("bert_base", 64, NETWORKS["bert_base"].make(), {"tokens": text, "mask": text * 0 + 1}),
        ]

    def capture(self) -> dict[str, Any]:
        """The six shipped models with steps replayed as CUDA graphs, without, and in PyTorch."""
        found: dict[str, Any] = {"ok": True}
        for name in MODELS:
            program = _program(_without_dropout(name), "fp32")
            feeds = random_batch(program, 32)
            steps: dict[str, Callable[[], float]] = {}
            for way in ("replayed", "normal"):
                stepper = Stepper(program, device=self.device, cuda_graph=way == "replayed")
                rates = dict.fromkeys(stepper.groups, _RATE)
                steps[way] = lambda s=stepper, f=feeds, r=rates: s.step(f, r).loss
            losses = [[step() for _ in range(2 * _STEPS)] for step in steps.values()]
            off = max(abs(a - b) / max(abs(a), 1e-6) for a, b in zip(*losses, strict=True))
            with contextlib.suppress(ImportError):
                import torch

                from tools.export_torch import NETWORKS, build

                steps["torch"] = _amp(torch, build(NETWORKS[name]), feeds, self.device, "fp32")
            times = compare(steps, rounds=3, seconds=0.3 if self.device == "cuda" else 0.02)
            middle = {way: statistics.median(spent) for way, spent in times.items()}
            ok = off <= (_TOLERANCE["fp32"] if self.device == "cuda" else 0.0)
            found[name] = {"ok": ok, "distance": off, "seconds": middle}
            found["ok"] = found["ok"] and ok
        return found

    # ---- the rest -----------------------------------------------------------------------------

    def resume(self) -> dict[str, Any]:
        """Killed and resumed against undisturbed."""
        states, kills = [], 0
        for kill in (False, True):
            run = self.folder / f"run{int(kill)}"
            _program(ROOT / "models" / "lenet5.onnx", "fp32").save(run)
            if kill:
                kills = self._train_until_killed(run)
            self._train(run, "--resume" if kill else "--overwrite").wait()
            states.append(load_run(run, "last")[1])
        off = max(_distance(states[0][name], states[1][name]) for name in states[0])
        steps = [int(state["ortboost/step"]) for state in states]
        # Sums of a GPU come in no fixed order: the same numbers, not the same bits.
        ok = kills == 1 and steps[0] == steps[1] and off <= (0.05 if self.device == "cuda" else 0.0)
        return {"ok": ok, "killed": kills, "steps": steps, "distance": off}

    def _train(self, run: Path, *words: str) -> subprocess.Popen[bytes]:
        data = str(ROOT / "models" / "digits.npz")
        command = [sys.executable, "-m", "ortboost", "train", str(run)]
        command += ["--data", data, "--val", data, "--epochs", "3", "--batch-size", "32"]
        command += ["--checkpoint-every", "5", "--device", self.device, "-q", *words]
        return subprocess.Popen(command, cwd=ROOT, start_new_session=True)

    def _train_until_killed(self, run: Path) -> int:
        process = self._train(run)
        while process.poll() is None and not list(run.glob("checkpoints/step-*.json")):
            time.sleep(0.01)
        if process.poll() is not None:
            return 0
        os.killpg(process.pid, signal.SIGKILL)  # its own group: the program and its watcher
        process.wait()
        return 1

    def tensorrt(self) -> dict[str, Any]:
        """A file for TensorRT against ONNX Runtime on the CPU."""
        from ortboost.api import check
        from ortboost.api import check_target as targets
        from ortboost.api.export_model import export

        out = self.folder / "resnet20.trt.onnx"
        export(ROOT / "models" / "resnet20.onnx", out, target="tensorrt=10")
        reference = ModelEvaluator(out, device="cpu")
        name, lengths = reference.inputs[0].name, reference.inputs[0].shape[1:]
        shapes = [f"{name}:1,8,32x{'x'.join(map(str, lengths))}"]
        report = check(out, target="tensorrt=10", shapes=shapes)
        found: dict[str, Any] = {"ok": report.ok, "findings": report.to_dict()["counts"]}
        try:
            import tensorrt
        except ImportError:
            found["builder"] = None
        else:
            built = targets.build_engine(
                out, self.folder / "resnet20.engine", shapes=shapes, target="tensorrt=10"
            )
            worst = built.parity.worst.max_abs
            found["builder"] = {"tensorrt": tensorrt.__version__, "max_abs": worst}
        device = "cpu" if self.device == "cpu" else "tensorrt"
        if available_devices()[device] is not None:
            if found["builder"] is None:
                raise SkippedError(
                    "neither TensorRT nor the runtime's provider for it is installed"
                )
            return found
        try:
            subject = ModelEvaluator(out, device=device)
        except DependencyError as error:
            raise SkippedError(f"{error.what} {error.where}") from None
        feeds = synthetic_feeds(reference.inputs, batch=8)
        answers = [evaluator.evaluate(feeds) for evaluator in (reference, subject)]
        off = max(_distance(answers[0][key], answers[1][key]) for key in answers[0])
        found["provider"] = {"device": device, "distance": off}
        found["ok"] = found["ok"] and off <= (1e-2 if device == "tensorrt" else 0.0)
        return found


def _program(path: Path | ir.Model, compute: str) -> Program:
    precision = PrecisionConfig() if compute == "fp32" else PrecisionConfig(compute=compute)  # type: ignore[arg-type]
    return build_program(path, ProgramConfig(engine="portable", precision=precision))


def _run(program: Program, feeds: Mapping[str, Any], device: str) -> tuple[list[float], Any]:
    stepper = Stepper(program, device=device)
    rates = dict.fromkeys(stepper.groups, _RATE)
    losses = [stepper.step(feeds, rates, seed=step).loss for step in range(_STEPS)]
    return losses, stepper.state()


def _moved(program: Program, one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """How far the parameters are apart, all of them together, by how far they have moved.

    Not the worst of them: a bias before a batch normalization has no gradient but rounding errors.
    """
    names = [e.name for e in program.catalogue.state if e.kind == "parameter" and e.next]
    start = program.initial
    moves = [
        np.concatenate([np.ravel(np.asarray(s[n] - start[n])) for n in names]) for s in (one, other)
    ]
    return _distance(*moves)


def _without_dropout(name: str) -> ir.Model:
    """A shipped model without dropout: the masks of two devices differ."""
    model = load_model(ROOT / "models" / f"{name}.onnx")
    for node in list(model.graph):
        if node.op_type == "Dropout":
            ir.convenience.replace_all_uses_with(
                node.outputs[0], node.inputs[0], replace_graph_outputs=True
            )
            model.graph.remove(node, safe=True)
    return model


def _distance(one: Any, other: Any) -> float:
    a, b = np.asarray(one, np.float64), np.asarray(other, np.float64)
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), 1e-12)) if a.size else 0.0


def _export(torch: Any, module: Any, example: Mapping[str, Any], path: Path) -> None:
    axes = {name: {0: "batch"} for name in (*example, "logits")}
    module.eval()
    warnings.filterwarnings(
        "ignore", category=DeprecationWarning
    )  # of the exporter: it needs no onnxscript
    torch.onnx.export(
        module, tuple(example.values()), str(path), input_names=list(example),
        output_names=["logits"],
        opset_version=18, dynamic_axes=axes, dynamo=False, do_constant_folding=False,
        training=torch.onnx.TrainingMode.PRESERVE,
    )  # fmt: skip


def _feeds(program: Program, example: Mapping[str, Any], batch: int) -> dict[str, Any]:
    feeds = {}
    for name, tensor in example.items():
        one = tensor[:1].numpy()
        feeds[name] = np.ascontiguousarray(np.repeat(one, batch, axis=0))
    classes = next(spec.classes for spec in program.catalogue.batch if spec.name == program.labels)
    rng = np.random.default_rng(0)
    feeds[program.labels or "labels"] = rng.integers(0, classes or 10, batch).astype(np.int64)
    return feeds


def _amp(
    torch: Any, module: Any, feeds: Mapping[str, Any], device: str, compute: str
) -> Callable[[], float]:
    """A step of PyTorch, in 16 bits under automatic mixed precision."""
    dtype = {"fp16": torch.float16}.get(compute, torch.bfloat16)
    network = module.to(device).train()
    for part in network.modules():  # the exported network has none
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    *names, labels = feeds
    images = feeds[names[0]].ndim == 4
    if images:
        network = network.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(network.parameters(), lr=_RATE, momentum=0.9)
    scaler = torch.amp.GradScaler(device, enabled=compute == "fp16" and device == "cuda")

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        inputs = [torch.from_numpy(feeds[name]).to(device) for name in names]
        if images:
            inputs = [value.contiguous(memory_format=torch.channels_last) for value in inputs]
        with torch.autocast(device, dtype=dtype, enabled=compute != "fp32"):
            answer = network(*inputs)
        wanted = torch.from_numpy(feeds[labels]).to(device)
        loss = torch.nn.functional.cross_entropy(answer.float(), wanted)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return float(loss.item())

    return step


_SECTIONS = ("parity", "placement", "capture", "resume", "tensorrt", "speed")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("-o", "--out", type=Path, default=Path("proof.json"))
    parser.add_argument("--only", action="append", choices=_SECTIONS)
    options = parser.parse_args(argv)
    found: dict[str, Any] = {"environment": environment(), "asked_for": options.device}
    found["onnxruntime"] = runtime().__version__
    with tempfile.TemporaryDirectory(prefix="ortboost-proof-") as folder:
        proof = Proof(options.device, Path(folder))
        for section in options.only or _SECTIONS:
            started = time.perf_counter()
            try:
                found[section] = getattr(proof, section)()
            except SkippedError as reason:
                found[section] = {"ok": None, "skipped": str(reason)}
            except Exception as error:  # one section must not take the others with it
                traceback.print_exc()
                found[section] = {"ok": False, "error": f"{type(error).__name__}: {error}"}
            found[section]["took"] = time.perf_counter() - started
            write_json(options.out, found)  # what is there stays if the machine goes
            words = {True: "shown", False: "NOT shown", None: "skipped"}
            print(
                f"{section}: {words[found[section]['ok']]} ({found[section]['took']:.0f} s)",
                flush=True,
            )
    failed = [section for section in _SECTIONS if found.get(section, {}).get("ok") is False]
    print(json.dumps({"failed": failed, "out": str(options.out)}))
    return int(bool(failed))


if __name__ == "__main__":
    raise SystemExit(main())
