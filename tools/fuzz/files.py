"""Whole files of every kind that ortboost reads, and the commands that read each of them."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import importlib.util
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from ortboost import api
from ortboost.api.processes import torchrun
from ortboost.boosts.clip import ClipConfig
from ortboost.boosts.dim_reduce import DimReduce
from ortboost.boosts.thor import Thor
from ortboost.core.errors import OrtBoostError
from ortboost.core.files import read_json, write_json
from ortboost.graph.io import load_model, save_model
from ortboost.optimizers import Adam
from ortboost.program.catalogue import Catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.program import EVAL, MANIFEST, STATE, STEP, Program
from ortboost.program.split import save_split
from ortboost.program.state_file import read_tensors
from tools.fuzz.damage import damage_bytes, damage_model, damage_text

__all__ = ["COMMANDS", "damage_file", "make_files", "seal"]

_TOML = """lr = "cosine:0.1"
optimizer = "adam:beta1=0.8"
loss-scale = "dynamic:init=1024,window=5"
clip = "global-norm:1.0"
freeze = ["*.bias"]
"""
_OF_TRAINING = """epochs = 1
max-steps = 2
lr = "cosine:0.1,warmup=1"
metric = ["accuracy", "top2"]
checkpoint-every = 1
val-split = "0.25"
seed = 3
"""
_OF_EXPORT = """target = "onnxruntime"
precision = "fp16"
opset = 18
rtol = ["1e-1"]
atol = ["1e-1"]
checkpoint = "last"
"""
_LOSS = """<ir_version: 10, opset_import: ["" : 18]>
mean_square (float[N,K] scores, float[N,K] target) => (float loss) {
    d = Sub(scores, target)
    s = Mul(d, d)
    loss = ReduceMean<keepdims = 0>(s)
}"""
_BOOSTS = """{
  "boost": {"mode": "manual", "less_bn": false, "grad_freeze": true, "adasum": false},
  "common": {"gradient_split_groups": [50, 100], "device_number": 8},
  "grad_freeze": {"total_steps": 40, "freeze_p": 0.7, "freeze_type": 1, "param_groups": 2}
}
"""
_AGAIN = (
    "train {0}/NAME --data {0}/data.npz --val {0}/data.npz --batch-size 8 -q --epochs 2 "
    "--max-steps 6 --resume"
)
_FRESH = "train {0}/run --data {0}/DATA --batch-size 8 --epochs 1 --max-steps 2 --overwrite -q"
_EXPORT = "export {0}/NAME -o {0}/out.onnx -q"
_PROGRAM = (
    _AGAIN,
    _EXPORT,
    "inspect {0}/NAME --state --reports",
    "eval {0}/NAME --data {0}/data.npz -q",
    "convert {0}/NAME -o {0}/new --new-head 3 -q",
    "check {0}/NAME --for cuda",
    "compare {0}/NAME {0}/net.onnx --data {0}/data.npz",
    "inspect {0}/NAME {0}/net.onnx",
)
_GRAPH = (*_PROGRAM, "plot {0}/NAME --graph step -o {0}/step.svg", "inspect {0}/NAME/step.onnx")
_CHECKPOINT = (_AGAIN, _EXPORT, "pca {0}/NAME -o {0}/q.npy -k 1", "plot {0}/NAME -o {0}/c.png")
_RUNS = ("runs {0}/NAME --csv {0}/runs.csv", "watch {0}/NAME")
_HALF = ("inspect {0}/NAME/FILE", "plot {0}/NAME/FILE -o {0}/half.svg", "check {0}/NAME/FILE")
_DATA = (
    _FRESH,
    "eval {0}/run --data {0}/DATA -q",
    "train {0}/run --data {0}/data.npz --val {0}/DATA --batch-size 8 --epochs 1 --max-steps 1 "
    "--overwrite -q",
)
_WITH_DATA = (
    "export {0}/run -o {0}/out.onnx --precision int8 --calib {0}/DATA --verify {0}/DATA -q",
    "compare {0}/net.onnx {0}/net.onnx --data {0}/DATA",
)
_NET = (
    "convert {0}/net.onnx -o {0}/new -q",
    "export {0}/net.onnx -o {0}/o.onnx -q",
    "compare {0}/net.onnx {0}/net.onnx",
    "inspect {0}/net.onnx --params",
    "eval {0}/net.onnx --data {0}/data.npz -q",
)
PROGRAMS = ("run", "thor", "reduced", "windows", "shared")


def _of_program(name: str) -> dict[str, tuple[str, ...]]:
    lines = {
        "program.json": _PROGRAM,
        "step.onnx": _GRAPH,
        "eval.onnx": _GRAPH,
        "state.safetensors": _PROGRAM,
        "checkpoints/step-00000004.json": _CHECKPOINT,
        "checkpoints/step-00000004.safetensors": _CHECKPOINT,
        "checkpoints/step-00000002.json": (_AGAIN,),
        "checkpoints/best.json": (_AGAIN, _EXPORT),
        "log.jsonl": (_AGAIN, "plot {0}/NAME -o {0}/curves.png", *_RUNS),
        "train.lock": (_AGAIN, _RUNS[0]),
    }
    if name != "shared":  # there the update takes several graphs
        lines |= {"gradients.onnx": _HALF, "update.onnx": _HALF}
    return {
        f"{name}/{file}": tuple(line.replace("NAME", name).replace("FILE", file) for line in group)
        for file, group in lines.items()
    }


def _of_data(name: str, argument: str, *more: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(line.replace("DATA", argument) for line in (*_DATA, *more))}


_CONVERT = "convert {0}/net.onnx -o {0}/new -q"
COMMANDS: dict[str, tuple[str, ...]] = {
    **{name: lines for program in PROGRAMS for name, lines in _of_program(program).items()},
    "thor/step.1.onnx": tuple(line.replace("NAME", "thor") for line in _PROGRAM),
    "reduced/trial.onnx": tuple(line.replace("NAME", "reduced") for line in _PROGRAM),
    "windows/flush.onnx": tuple(line.replace("NAME", "windows") for line in _PROGRAM),
    "shared/accept.onnx": tuple(line.replace("NAME", "shared") for line in _PROGRAM),
    **_of_data("data.npz", "data.npz", *_WITH_DATA),
    **_of_data("packed.npz", "packed.npz", *_WITH_DATA),
    **_of_data("arrays/x.npy", "arrays"),
    **_of_data("arrays/y.npy", "arrays"),
    **_of_data("table.csv", "table.csv"),
    **_of_data("table.parquet", "table.parquet"),
    **_of_data("photos/a/1.png", "photos"),
    **_of_data("photos/b/2.jpg", "photos"),
    **_of_data("photos/b/3.webp", "photos"),
    **_of_data("idx/train-images-idx3-ubyte", "idx"),
    **_of_data("idx/train-labels-idx1-ubyte", "idx"),
    **_of_data("zipped/train-images-idx3-ubyte.gz", "zipped"),
    **_of_data("zipped/train-labels-idx1-ubyte.gz", "zipped"),
    **_of_data("cifar/data_batch_1.bin", "cifar"),
    "convert.toml": (f"{_CONVERT} --config {{0}}/convert.toml",),
    "train.toml": (_FRESH.replace("DATA", "data.npz") + " --config {0}/train.toml",),
    "export.toml": ("export {0}/run --config {0}/export.toml -o {0}/o.onnx -q",),
    "boosts.json": (f"{_CONVERT} --boost O1 --boost-config {{0}}/boosts.json",),
    "names.txt": (f"{_CONVERT} --parameters {{0}}/names.txt",),
    "basis.npy": (
        f"{_CONVERT} --boost dim-reduce:pca-mat-path={{0}}/basis.npy,n-components=2",
        f"{_CONVERT} --input x={{0}}/basis.npy",
    ),
    "loss.onnx": (f"{_CONVERT} --loss {{0}}/loss.onnx",),
    "net.onnx": _NET,
    "net.onnx.data": _NET,
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
    (folder / "convert.toml").write_text(_TOML)
    (folder / "boosts.json").write_text(_BOOSTS)
    names = [value.name for value in load_model(model).graph.initializers.values()]
    (folder / "names.txt").write_text("".join(f"{name} true\n" for name in names))
    save_model(load_model(model), folder / "net.onnx", external_data_threshold=1)
    (folder / "arrays").mkdir()
    np.save(folder / "arrays" / "x.npy", flat)
    np.save(folder / "arrays" / "y.npy", y)
    rows = [",".join([*(f"p{k}" for k in range(64)), "label"])]
    rows += [",".join([*(f"{v:.3f}" for v in a), str(b)]) for a, b in zip(flat, y, strict=True)]
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    columns = {**{f"p{k}": flat[:, k] for k in range(64)}, "label": y}
    pq.write_table(pa.table(columns), folder / "table.parquet", row_group_size=8)
    for name, pixels in zip(("a/1.png", "b/2.jpg", "b/3.webp"), x, strict=False):
        (folder / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(folder / "photos" / name)
    (folder / "cifar").mkdir()
    (folder / "cifar" / "data_batch_1.bin").write_bytes(rng.bytes(3073 * 4))
    (folder / "train.toml").write_text(_OF_TRAINING)
    (folder / "export.toml").write_text(_OF_EXPORT)
    weights = sum(value.const_value.size for value in load_model(model).graph.initializers.values())
    basis = np.linalg.qr(rng.standard_normal((weights, 4)))[0].T
    np.save(folder / "basis.npy", basis.astype(np.float32))
    (folder / "loss.onnx").write_bytes(onnx.parser.parse_model(_LOSS).SerializeToString())
    reduced = DimReduce(pca_mat_path=str(folder / "basis.npy"))
    configs = {
        "run": ProgramConfig(),
        "thor": ProgramConfig(boosts=(Thor(frequency=3),)),
        "reduced": ProgramConfig(boosts=(reduced,)),
        "windows": ProgramConfig(
            accumulate=2, optimizer=Adam(), clip=ClipConfig("global-norm", 1.0)
        ),
        "shared": ProgramConfig(boosts=(dataclasses.replace(reduced, shard=True),)),
    }
    data = {"x": flat, "labels": y}
    for name in PROGRAMS:
        api.convert(model, folder / name, configs[name])
        if name == "shared":
            _train_together(folder)
        else:
            api.train(folder / name, data, data, epochs=1, batch_size=8, checkpoint_every=2)
            save_split(Program.load(folder / name), folder / name)
        write_json(folder / name / "train.lock", {"pid": 2**22 + 1, "host": socket.gethostname()})


def _train_together(folder: Path) -> None:
    """Train in two processes, or in one where torch is missing."""
    line = "train {0}/shared --data {0}/data.npz --val {0}/data.npz --epochs 1 --batch-size 8 -q"
    words = [*line.format(folder).split(), "--checkpoint-every", "2"]
    alone = importlib.util.find_spec("torch") is None
    command = [sys.executable, "-m", "ortboost", *words] if alone else torchrun(2, words)
    subprocess.run(command, check=True)


def damage_file(path: Path, rng: np.random.Generator) -> None:
    """Damage a file: its bytes, or its structure where that is text or a model."""
    how: Callable[[bytes, np.random.Generator], bytes] = damage_bytes
    if path.suffix in (".json", ".toml", ".jsonl", ".txt") and rng.random() < 0.6:
        how = damage_text
    elif path.suffix == ".onnx" and rng.random() < 0.6:
        how = damage_model
    path.write_bytes(how(path.read_bytes(), rng))


def seal(folder: Path) -> None:
    """Recompute the checksums in the manifest of a damaged program, as an attacker could.

    Programs that cannot be read at all are left as they are.
    """
    with contextlib.suppress(OrtBoostError, KeyError, TypeError, ValueError, AttributeError):
        manifest = read_json(folder / MANIFEST)
        found = Program(
            step=load_model(folder / STEP),
            evaluation=load_model(folder / EVAL),
            catalogue=Catalogue.from_dict(manifest["catalogue"]),
            initial=read_tensors(folder / STATE),
            config=ProgramConfig.from_dict(manifest["config"]),
            engine="",
            source="",
            prediction="",
            variants={
                name: load_model(folder / file)
                for name, file in manifest["graphs"].items()
                if name not in ("step", "eval")
            },
        ).manifest()
        for key in ("fingerprint", "evaluation", "initial", "models", "settings"):
            manifest[key] = found[key]
        write_json(folder / MANIFEST, manifest)
