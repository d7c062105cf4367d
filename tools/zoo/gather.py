"""Gather the models of the zoo, with torch's weights after three steps for torch modules.

Each entry becomes a folder:

- ``model.onnx``, as its exporter or its publisher wrote it;
- ``entry.json``: source, exporter, opset, loss, learning rate, and the nodes that onnxslim and
  onnxsim leave;
- ``batch.npz``: a batch with its ``labels``;
- ``torch.npz``: for each torch parameter its first value and that after three steps of plain
  gradient descent in float64; how far float32 is off in torch itself stands in ``entry.json``.

Nothing of it is committed. Run it in an environment of its own, see ``README.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tools.zoo import count_nodes
from tools.zoo.files import file_subjects
from tools.zoo.networks import SUBJECTS
from tools.zoo.published import timm_subjects, transformers_subjects
from tools.zoo.subjects import Batch, FileSubject, TorchSubject

__all__ = ["main"]

STEPS = 3
_RIVALS = {
    "onnxslim": "import sys, onnxslim; onnxslim.slim(sys.argv[1], sys.argv[2])",
    "onnxsim": (
        "import sys, onnx, onnxsim; m, ok = onnxsim.simplify(sys.argv[1]); "
        "assert ok; onnx.save(m, sys.argv[2])"
    ),
}


def subjects() -> list[TorchSubject | FileSubject]:
    """Everything that is in the zoo."""
    published = [*transformers_subjects(), *timm_subjects()]
    return [*SUBJECTS, *published, *file_subjects()]


def _randomize(module: nn.Module) -> None:
    """Give every tensor values of its own: ones and zeros would be stored once by an exporter."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter += 0.05 * torch.randn_like(parameter)
        for embedding in (m for m in module.modules() if isinstance(m, nn.Embedding)):
            if embedding.padding_idx is not None:  # as every initialization leaves it
                embedding.weight[embedding.padding_idx] = 0


def _settle(module: nn.Module, batch: dict[str, torch.Tensor]) -> None:
    """Let the running statistics be those of the batch: a deep network explodes with others."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.momentum = 1.0
    if norms:
        module.train()
        with torch.no_grad():
            module(*batch.values())
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum


def _loss(subject: TorchSubject, answer: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if subject.loss == "mse":
        return nn.functional.mse_loss(answer, labels)
    axis = subject.class_axis % answer.ndim
    return nn.functional.cross_entropy(answer.movedim(axis, 1), labels)


def _labels(
    subject: TorchSubject | FileSubject, answer: torch.Tensor | np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    if subject.loss == "mse":
        return rng.standard_normal(tuple(answer.shape)).astype(np.float32)
    if isinstance(answer, np.ndarray) and answer.dtype.kind in "iu":  # class numbers come first
        return rng.permutation(answer)
    axis = subject.class_axis % answer.ndim
    shape = [n for i, n in enumerate(answer.shape) if i != axis]
    return rng.integers(0, answer.shape[axis], shape)


def _dropouts_off(module: nn.Module) -> None:
    for part in module.modules():
        if isinstance(part, nn.modules.dropout._DropoutNd):
            part.p = 0.0


def _export(
    module: nn.Module, subject: TorchSubject, exporter: str, batch: dict[str, torch.Tensor]
) -> bytes:
    names = list(batch)
    arguments = tuple(batch.values())
    if exporter == "dynamo":
        shapes = tuple(dict(subject.dynamic.get(name, {})) for name in names)
        try:
            return _dynamo(module, arguments, names, (shapes,) if _is_variadic(module) else shapes)
        except Exception:
            return _dynamo(module, arguments, names, None)
    file = io.BytesIO()
    answer = module(*arguments)
    axes = {name: dict(axes) for name, axes in subject.dynamic.items()}
    if axes:
        axes["answer"] = {i: f"out{i}" for i in range(answer.ndim)} if answer.ndim else {}
    torch.onnx.export(
        module, arguments, file, dynamo=False, opset_version=17, do_constant_folding=False,
        input_names=names, output_names=["answer"], dynamic_axes=axes or None,
    )  # fmt: skip
    return file.getvalue()


def _dynamo(
    module: nn.Module, arguments: tuple[torch.Tensor, ...], names: list[str], shapes: object
) -> bytes:
    program = torch.onnx.export(
        module, arguments, dynamo=True, optimize=False, opset_version=18, verbose=False,
        input_names=names, output_names=["answer"], dynamic_shapes=shapes,
    )  # fmt: skip
    assert program is not None
    return program.model_proto.SerializeToString()


def _rate(
    module: nn.Module, subject: TorchSubject, batch: dict[str, torch.Tensor], labels: torch.Tensor
) -> tuple[float, tuple[torch.Tensor | None, ...]]:
    """A learning rate with which a step moves the weights by a half percent, and the gradients."""
    look = copy.deepcopy(module).train()
    parameters = [p for p in look.parameters() if p.requires_grad]
    loss = _loss(subject, look(*batch.values()), labels)
    grads = torch.autograd.grad(loss, parameters, allow_unused=True)
    size = torch.sqrt(sum((p.detach() ** 2).sum() for p in parameters))
    slope = torch.sqrt(sum((g**2).sum() for g in grads if g is not None))
    return min(float(f"{0.005 * size / max(slope, 1e-6):.2g}"), 0.5), grads


def _steps(
    module: nn.Module, subject: TorchSubject, batch: dict[str, torch.Tensor],
    labels: torch.Tensor, steps: int, rate: float,
) -> list[float]:  # fmt: skip
    """Plain gradient descent in training mode; the loss before each step."""
    module.train()
    optimizer = torch.optim.SGD([p for p in module.parameters() if p.requires_grad], lr=rate)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = _loss(subject, module(*batch.values()), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def _is_variadic(module: nn.Module) -> bool:
    return type(module).__name__ == "OneOutput"


def gather_torch(subject: TorchSubject, exporter: str, folder: Path) -> None:
    """Export a torch module and record three steps of it."""
    rng = np.random.default_rng(7)
    torch.manual_seed(0)
    module = subject.make()
    _randomize(module)
    _dropouts_off(module)
    arrays = {name: np.asarray(a, order="C") for name, a in subject.inputs(rng).items()}
    batch = {name: torch.from_numpy(array) for name, array in arrays.items()}
    _settle(module, batch)
    module.eval()
    with torch.no_grad():
        answer = module(*batch.values())
    labels = _labels(subject, answer, rng)
    with contextlib.redirect_stdout(io.StringIO()):
        data = _export(module, subject, exporter, batch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(data)
    said = _answer(folder / "model.onnx", arrays, None)
    if np.abs(said - answer.numpy()).max() > 1e-3 * max(1.0, float(answer.abs().max())):
        raise RuntimeError("the exported file answers differently from torch")

    target = torch.from_numpy(labels)
    rate, grads = _rate(module, subject, batch, target)
    single = copy.deepcopy(module)
    _steps(single, subject, batch, target, STEPS, rate)
    exact = copy.deepcopy(module).double()
    wide = {n: x.double() if x.is_floating_point() else x for n, x in batch.items()}
    losses = _steps(
        exact, subject, wide, target.double() if subject.loss == "mse" else target, STEPS, rate
    )
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    last = {n: p.detach() for n, p in exact.named_parameters()}
    narrow = {n: p.detach().double() for n, p in single.named_parameters()}
    error = max(
        float((narrow[n] - last[n]).norm() / last[n].norm().clamp_min(1e-12)) for n in parameters
    )
    np.savez(folder / "batch.npz", **arrays, labels=labels)
    np.savez(
        folder / "torch.npz",
        **{f"0/{n}": p.detach().numpy() for n, p in parameters.items()},
        **{f"{STEPS}/{n}": last[n].numpy() for n in parameters},
    )
    unused = [n for (n, _), g in zip(parameters.items(), grads, strict=True) if g is None]
    _describe(folder, subject.name, subject.source, exporter, {
        "loss": subject.loss, "class_axis": subject.class_axis, "learning_rate": rate,
        "losses": losses, "torch_error": error, "unused": unused,
        "dynamic": bool(subject.dynamic),
    })  # fmt: skip


def gather_file(subject: FileSubject, folder: Path) -> None:
    """Write a published file and a batch for it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.onnx").write_bytes(subject.make())
    batch = {
        n: np.asarray(a, order="C") for n, a in subject.inputs(np.random.default_rng(7)).items()
    }
    answer = _answer(folder / "model.onnx", batch, subject.output)
    if subject.loss != "none" and isinstance(answer, np.ndarray):
        batch["labels"] = _labels(subject, answer, np.random.default_rng(8))
    np.savez(folder / "batch.npz", **batch)
    _describe(folder, subject.name, subject.source, "", {
        "loss": subject.loss, "class_axis": subject.class_axis, "output": subject.output,
        "dims": dict(subject.dims), "constants": dict(subject.constants), "learning_rate": 1e-3,
    })  # fmt: skip


def _answer(path: Path, batch: Batch, output: str | None) -> object:
    """Run the untouched file on a batch."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return session.run([output or session.get_outputs()[0].name], dict(batch))[0]


def _describe(folder: Path, name: str, source: str, exporter: str, more: dict[str, object]) -> None:
    proto = onnx.load(folder / "model.onnx", load_external_data=False)
    opset = next((o.version for o in proto.opset_import if o.domain in ("", "ai.onnx")), 0)
    symbolic = any(d.dim_param for i in proto.graph.input for d in i.type.tensor_type.shape.dim)
    entry = {"name": name, "source": source, "exporter": exporter, "opset": opset,
             "symbolic": symbolic, "nodes": count_nodes(proto), **more}  # fmt: skip
    (folder / "entry.json").write_text(json.dumps(entry, indent=1))


def rivals(folder: Path, limit: float) -> None:
    """Let onnxslim and onnxsim optimize a model, each in a process of its own."""
    path = folder / "entry.json"
    entry = json.loads(path.read_text())
    entry["rivals"] = {}
    for name, code in _RIVALS.items():
        out = folder / f"{name}.onnx"
        try:
            subprocess.run([sys.executable, "-c", code, str(folder / "model.onnx"), str(out)],
                           check=True, capture_output=True, timeout=limit)  # fmt: skip
            proto = onnx.load(out)
            domains = {n.domain for n in proto.graph.node if n.domain not in ("", "ai.onnx")}
            entry["rivals"][name] = {"nodes": count_nodes(proto), "bytes": out.stat().st_size,
                                     "other_domains": sorted(domains)}  # fmt: skip
        except (subprocess.SubprocessError, OSError) as error:
            entry["rivals"][name] = {"error": type(error).__name__}
        out.unlink(missing_ok=True)
    path.write_text(json.dumps(entry, indent=1))


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tools.zoo.gather", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=Path("runs/zoo/models"))
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--again", action="store_true", help="those that are there, too")
    parser.add_argument("--seconds", type=float, default=120, help="limit for each rival")
    arguments = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    logging.disable(logging.ERROR)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    failed = 0
    for subject in subjects():
        if arguments.only and subject.name not in arguments.only:
            continue
        exporters = subject.exporters if isinstance(subject, TorchSubject) else ("",)
        for exporter in exporters:
            label = f"{subject.name}.{exporter}" if exporter else subject.name
            folder = arguments.out / label
            if not arguments.again and (folder / "entry.json").is_file():
                continue
            try:
                if isinstance(subject, TorchSubject):
                    gather_torch(subject, exporter, folder)
                else:
                    gather_file(subject, folder)
                rivals(folder, arguments.seconds)
                print("ok  ", label, flush=True)
            except Exception as error:
                failed += 1
                text = (str(error).strip() or type(error).__name__).splitlines()[0][:160]
                print("FAIL", label, type(error).__name__, text, flush=True)
                folder.mkdir(parents=True, exist_ok=True)
                (folder / "failed.txt").write_text(f"{type(error).__name__}: {text}\n")
    print(f"{failed} could not be gathered")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
