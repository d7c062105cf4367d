"""Compare the lengths that a conversion names with what runs give.

Each model is normalized as for training. It runs with all inner values as outputs, once with the
lengths of its batch and once with others, all different. A dimension called ``4·batch`` must then
be 4 times as long as the batch.

    .venv/bin/python -m tools.zoo.lengths runs/zoo/models/*
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import onnxruntime
from numpy.typing import NDArray

from ortboost.graph.io import load_model
from ortboost.graph.normalize import normalize
from ortboost.graph.query import known_shape

__all__ = ["compare", "length_of", "main"]

_OPSETS = range(13, 24)


def compare(
    model: ir.Model, batch: Mapping[str, NDArray[Any]], *, others: bool = False
) -> tuple[int, list[str]]:
    """Run a model and compare all known lengths of its inner values.

    Args:
        model: The model as loaded; it is rewritten.
        batch: Its inputs.
        others: Resize the inputs: each named dimension gets a length of its own.

    Returns:
        The number of lengths with a name that were compared, and one line for each that is wrong.
    """
    normalize(model, opsets=_OPSETS, ir_version=10)
    inputs = [value for value in model.graph.inputs if value.name in batch]
    shapes = {value.name or "": known_shape(value) or () for value in inputs}
    lengths = {
        dim: length
        for name, shape in shapes.items()
        for dim, length in zip(shape, batch[name].shape, strict=True)
        if isinstance(dim, str)
    }
    if others:
        lengths = {dim: n + i for i, (dim, n) in enumerate(sorted(lengths.items()), 1)}
    feeds = {
        name: np.resize(batch[name], [lengths.get(dim, dim) for dim in shape])
        for name, shape in shapes.items()
    }
    wanted = {
        value.name or "": shape
        for node in model.graph
        for value in node.outputs
        if value.name and value.dtype is not None and (shape := known_shape(value)) is not None
    }
    found = _run(model, feeds, wanted)
    named, wrong = 0, list[str]()
    for name, shape in wanted.items():
        for axis, dim in enumerate(shape):
            length = length_of(dim, lengths)
            if length is None:
                continue
            named += isinstance(dim, str)
            if length != found[name].shape[axis]:
                wrong.append(f"{name}: axis {axis} is {dim}, {length}, not {found[name].shape}")
    return named, wrong


def length_of(dim: int | str | None, lengths: Mapping[str, int]) -> int | None:
    """What a dimension stands for (see :mod:`ortboost.graph.shapes.symbolic_shapes`).

    Returns:
        The length; ``None`` for a name of the file's outputs, an invented name, or no name.
    """
    if not isinstance(dim, str) or dim in lengths:
        return lengths[dim] if isinstance(dim, str) else dim
    if "≤" in dim:
        return min(lengths[dim.partition("≤")[0]], int(dim.partition("≤")[2]))
    factors = dim.split("·")
    if not all(factor in lengths or factor.isdecimal() for factor in factors):
        return None
    return math.prod(lengths[f] if f in lengths else int(f) for f in factors)


def _run(
    model: ir.Model, feeds: Mapping[str, NDArray[Any]], names: Mapping[str, object]
) -> dict[str, NDArray[Any]]:
    """All these values in one run, without optimizations or declared shapes."""
    made = {value.name: value for node in model.graph for value in node.outputs}
    present = {value.name for value in model.graph.outputs}
    model.graph.outputs.extend(made[name] for name in names if name not in present)
    proto = ir.to_proto(model)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.type.tensor_type.ClearField("shape")
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options)
    return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))


def main(argv: Sequence[str] | None = None) -> int:
    """Print what is wrong, and how many lengths were compared."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="of tools.zoo.gather")
    total, failed = 0, 0
    for folder in parser.parse_args(argv).folders:
        if not (folder / "batch.npz").is_file():
            continue
        with np.load(folder / "batch.npz") as stored:
            batch = dict(stored)
        for others in (False, True):
            try:
                named, wrong = compare(load_model(folder / "model.onnx"), batch, others=others)
            except Exception as error:  # some files run with the lengths of their trace alone
                print(f"{folder.name}, {others=}: {str(error).splitlines()[0][:120]}")
                continue
            total, failed = total + named, failed + len(wrong)
            for line in wrong:
                print(f"{folder.name}: {line}")
    print(f"{total} lengths with a name compared, {failed} known lengths wrong")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
