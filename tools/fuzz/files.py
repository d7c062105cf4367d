"""Whole files of every kind that ortboost reads, and the commands that read each of them."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

from ortboost import api
from ortboost.graph.io import load_model, save_model
from ortboost.program.config import ProgramConfig
from tools.fuzz.damage import damage_bytes, damage_model, damage_text

__all__ = ["COMMANDS", "damage_file", "make_files"]

_TOML = """epochs = 1
max-steps = 2
batch-size = 8
lr = "cosine:0.1"
optimizer = "adam:beta1=0.8"
loss-scale = "dynamic:init=1024,window=5"
clip = "global-norm:1.0"
freeze = ["*.bias"]
"""
_BOOSTS = """{
  "boost": {"mode": "manual", "less_bn": false, "grad_freeze": true, "adasum": false},
  "common": {"gradient_split_groups": [50, 100], "device_number": 8},
  "grad_freeze": {"total_steps": 40, "freeze_p": 0.7, "freeze_type": 1, "param_groups": 2}
}
"""
_TRAIN = "train {0}/run --data {0}/data.npz --val {0}/data.npz --batch-size 8 -q"
_AGAIN = f"{_TRAIN} --epochs 2 --max-steps 6 --resume"
_FRESH = "train {0}/run --data {1} --batch-size 8 --epochs 1 --max-steps 2 --overwrite -q"
_PROGRAM = (_AGAIN, "inspect {0}/run", "eval {0}/run --data {0}/data.npz -q")
_EXPORT = "export {0}/run -o {0}/out.onnx -q"
COMMANDS: dict[str, tuple[str, ...]] = {
    "run/program.json": (*_PROGRAM, _EXPORT),
    "run/step.onnx": (*_PROGRAM, "plot {0}/run --graph step -o {0}/step.svg"),
    "run/eval.onnx": (*_PROGRAM, _EXPORT),
    "run/state.safetensors": (*_PROGRAM, _EXPORT),
    "run/checkpoints/step-00000004.json": (_AGAIN, _EXPORT),
    "run/checkpoints/step-00000004.safetensors": (_AGAIN, _EXPORT),
    "run/checkpoints/step-00000002.json": (_AGAIN,),
    "run/checkpoints/best.json": (_AGAIN, _EXPORT),
    "run/log.jsonl": (_AGAIN, "plot {0}/run -o {0}/curves.png"),
    "data.npz": (_FRESH.format("{0}", "{0}/data.npz"), "eval {0}/run --data {0}/data.npz -q"),
    "packed.npz": (_FRESH.format("{0}", "{0}/packed.npz"),),
    "idx/train-images-idx3-ubyte": (_FRESH.format("{0}", "{0}/idx"),),
    "idx/train-labels-idx1-ubyte": (_FRESH.format("{0}", "{0}/idx"),),
    "zipped/train-images-idx3-ubyte.gz": (_FRESH.format("{0}", "{0}/zipped"),),
    "zipped/train-labels-idx1-ubyte.gz": (_FRESH.format("{0}", "{0}/zipped"),),
    "convert.toml": ("convert {0}/net.onnx -o {0}/new --config {0}/convert.toml -q",),
    "boosts.json": (
        "convert {0}/net.onnx -o {0}/new --boost O1 --boost-config {0}/boosts.json -q",
    ),
    "names.txt": ("convert {0}/net.onnx -o {0}/new --parameters {0}/names.txt -q",),
    "net.onnx": ("convert {0}/net.onnx -o {0}/new -q", "export {0}/net.onnx -o {0}/o.onnx -q"),
    "net.onnx.data": ("convert {0}/net.onnx -o {0}/new -q", "compare {0}/net.onnx {0}/net.onnx"),
}
"""File, relative to the folder of :func:`make_files`, to the command lines that read it."""


def make_files(folder: Path, model: Path) -> None:
    """Write one whole file of each kind.

    Args:
        folder: An empty folder.
        model: A model with one input of 64 numbers and ten classes.
    """
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (32, 8, 8)).astype(np.uint8), np.arange(32).astype(np.uint8) % 10
    flat = x.reshape(32, -1).astype(np.float32) / 255
    np.savez(folder / "data.npz", x=flat, y=y)
    np.savez_compressed(folder / "packed.npz", x=flat, y=y)
    for name, array in (("images-idx3", x), ("labels-idx1", y)):
        head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
        for kind, end in (("idx", ""), ("zipped", ".gz")):
            (folder / kind).mkdir(exist_ok=True)
            content = head + array.tobytes()
            path = folder / kind / f"train-{name}-ubyte{end}"
            path.write_bytes(gzip.compress(content) if end else content)
    (folder / "convert.toml").write_text(
        "\n".join(line for line in _TOML.splitlines() if line.split()[0] not in _OF_TRAINING)
    )
    (folder / "boosts.json").write_text(_BOOSTS)
    names = [value.name for value in load_model(model).graph.initializers.values()]
    (folder / "names.txt").write_text("".join(f"{name} true\n" for name in names))
    save_model(load_model(model), folder / "net.onnx", external_data_threshold=1)
    api.convert(model, folder / "run", ProgramConfig())
    data = {"x": flat, "labels": y}
    api.train(folder / "run", data, data, epochs=1, batch_size=8, checkpoint_every=2)


_OF_TRAINING = ("epochs", "max-steps", "batch-size")


def damage_file(path: Path, rng: np.random.Generator) -> None:
    """Damage a file: its bytes, or its structure where that is text or a model."""
    how: Callable[[bytes, np.random.Generator], bytes] = damage_bytes
    if path.suffix in (".json", ".toml", ".jsonl", ".txt") and rng.random() < 0.6:
        how = damage_text
    elif path.suffix == ".onnx" and rng.random() < 0.6:
        how = damage_model
    path.write_bytes(how(path.read_bytes(), rng))
