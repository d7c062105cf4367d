"""Models to damage, of the repository and one for each operator case, and what to do with them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir

from tools import probe_cases

__all__ = ["VERBS", "make_operators", "words"]

_MORE = (
    "",
    "--loss mse",
    "--engine native",
    "--engine portable --precision bf16",
    "--precision fp16 --optimizer adam",
    "--new-head 3 --boost grad-centralization",
    "--boost less-bn --boost grad-freeze:p=0.4,groups=2",
    "--accumulate 2 --optimizer lars --clip global-norm:1",
    "--optimizer thor:frequency=2",
    "--boost recompute",
    "--boost O1 --loss-scale grouped:4096,groups=2",
    "--shift-labels --ignore-index -100",
    "--class-axis -1 --reduction sum --dry-run --explain",
    "--dim batch=2 --trainable *weight*",
)
VERBS = {
    "check": ("check {0} -q", "check {0} --engine native -q", "check {0} --for onnxruntime"),
    "check --for cuda": ("check {0} --for cuda",),
    "check --for tensorrt": (
        "check {0} --for tensorrt=10",
        "check {0} --for tensorrt=11 --fix -o {1}/out.onnx",
    ),
    "inspect": ("inspect {0} --params", "inspect {0} --layers --precision", "inspect {0} {2}"),
    "convert": tuple(f"convert {{0}} -o {{1}}/run -q {more}" for more in _MORE),
    "convert ": tuple(f"convert {{0}} -o {{1}}/run -q --loss output {more}" for more in _MORE[:6]),
    "export": ("export {0} -o {1}/out.onnx -q", "export {0} -o {1}/out.onnx -q --target generic"),
    "export --precision": (
        "export {0} -o {1}/out.onnx -q --precision fp16",
        "export {0} -o {1}/out.onnx -q --precision int8",
        "export {0} -o {1}/out.onnx -q --opset 21 --dim batch=2",
    ),
    "compare": ("compare {0} {0} -q", "compare {0} {2} -q --bisect", "compare {2} {0} -q"),
    "plot and bench": (
        *("plot {0} -o {1}/graph.svg",) * 4,
        *("plot {0} -o {1}/graph.dot --before {2}",) * 4,
        "bench {0} --iters 2 --warmup 1 --rounds 1 --loads 1 -q",  # it starts processes: seldom
    ),
}
"""Verb to its command lines, with the damaged model, a folder, and the whole model in them."""


def make_operators(folder: Path) -> None:
    """Write a model for each case of :mod:`tools.probe_cases`, with trainable weights."""
    rng = np.random.default_rng(0)
    groups = (value for name, value in sorted(vars(probe_cases).items()) if name in _GROUPS)
    for number, case in enumerate(case for group in groups for case in group()):
        model, weights, _ = case.build()
        for value in [value for value in model.graph.inputs if value.name in weights]:
            if len(model.graph.inputs) == 1 and rng.random() < 0.5:
                break  # some keep an input
            shape = value.shape.numpy() if value.shape is not None else ()
            array = rng.uniform(case.low, case.high, shape).astype(value.dtype.numpy())
            model.graph.inputs.remove(value)
            value.const_value = ir.tensor(array, name=value.name)
            model.graph.register_initializer(value)
        ir.save(model, folder / f"{number:04d}-{case.op}.onnx")


_GROUPS = (
    *("convolutions", "pools", "norms", "shapes", "resizes", "gathers", "softmaxes", "losses"),
    *("contributed", "decomposed"),
)


def words(line: str, model: Path, folder: Path, whole: Path) -> list[str]:
    """A line of :data:`VERBS` as the words of a command."""
    return [word.format(model, folder, whole) for word in line.split()]
