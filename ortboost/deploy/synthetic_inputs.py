"""Synthetic inputs for a comparison without data, in the ranges that the graph implies.

Integers that index the rows of a stored table (token ids) are drawn from all its rows; other
integers are zeros and ones (masks); floats are normal. A model does not state the lengths it
accepts (a reflecting Pad needs more than it adds, a vocoder whole frames): several are tried until
it runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import OrtBoostError, UsageError
from ortboost.graph.query import input_at, is_standard, static_shape
from ortboost.graph.shapes.batch_axes import UNKNOWN
from ortboost.program.catalogue import TensorSpec

__all__ = [
    "accepted_feeds",
    "input_ranges",
    "seeded_batch",
    "sized_by_layers",
    "sizes_text",
    "synthetic_feeds",
]

T = TypeVar("T")
_BATCH, _LENGTH, _IMAGE = 4, 7, 64  # all different, so that confusing two of them shows
_SIZES: Final = (
    (_LENGTH, _IMAGE),
    (_BATCH, 32),
    (16, 48),
    (64, 128),
    (256, 224),
    (512, 320),
    (1024, 416),
    (4096, 640),
    (16000, 96),
)
"""Lengths of open dimensions, and of the height and width of images, in the order tried."""
_TEXT: Final = 1024
"""The largest length of a model of tokens. It fails at every length if the lengths of its inputs
depend on each other (a mask of earlier and new tokens); attention takes memory by their square."""
_MORE: Final = 4
"""Number of further sizes to try where an output is empty or entirely NaN."""
_LARGEST: Final = 1 << 26  # elements of an input
_SAME_NUMBER = ("Identity", "Cast", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Transpose")


def input_ranges(model: ir.Model) -> dict[str, int]:
    """Map each integer input to the number of rows of the smallest table that it indexes.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["" : 18]> net (int64[n] ids, float[7,2] table)
        ...     => (float[n,2] y) { y = Gather(table, ids) }'''
        >>> input_ranges(ir.from_onnx_text(text))
        {'ids': 7}
    """
    ranges: dict[str, int] = {}
    for value in model.graph.inputs:
        pending = [value]  # its tensor, also in other shapes
        while pending:
            for usage in pending.pop().uses():
                node = usage.node
                if node.op_type == "Gather" and usage.idx == 1:
                    data, axis = node.inputs[0], node.attributes.get_int("axis", 0)
                    rows = None if data is None or data.shape is None else data.shape[axis]
                    if isinstance(rows, int) and rows > 0:
                        name = value.name or ""
                        ranges[name] = min(rows, ranges.get(name, rows))
                elif node.op_type in _SAME_NUMBER and usage.idx == 0:
                    pending.extend(node.outputs)
    return ranges


def sized_by_layers(inputs: Sequence[TensorSpec], model: ir.Model) -> list[TensorSpec]:
    """The inputs with the lengths that the layer reading them fixes: channels, features.

    Example:
        >>> text = '''<ir_version: 10, opset_import: ["" : 18]> net (float[n,c,h,w] x,
        ...     float[8,3,1,1] k) => (float[n,8,h,w] y) { y = Conv(x, k) }'''
        >>> spec = TensorSpec("x", np.dtype("float32"), ("n", "c", "h", "w"))
        >>> sized_by_layers([spec], ir.from_onnx_text(text))[0].shape
        ('n', 3, 'h', 'w')
    """
    graph_inputs = {value.name: value for value in model.graph.inputs}
    sized = []
    for spec in inputs:
        shape = list(spec.shape)
        for usage in graph_inputs[spec.name].uses() if spec.name in graph_inputs else ():
            node = usage.node
            if usage.idx or len(shape) < 2 or not is_standard(node, "Conv", "Gemm", "MatMul"):
                continue
            stored = input_at(node, 1)
            weight = None if stored is None else static_shape(stored)
            if weight is None:
                continue
            if node.op_type == "Conv":
                shape[1] = weight[1] * node.attributes.get_int("group", 1)
            elif len(weight) == 2 and not node.attributes.get_int("transA", 0):
                shape[-1] = weight[node.attributes.get_int("transB", 0)]
        sized.append(dataclasses.replace(spec, shape=tuple(shape)))
    return sized


def accepted_feeds(
    inputs: Sequence[TensorSpec],
    run: Callable[[Mapping[str, NDArray[Any]]], T],
    *,
    ranges: Mapping[str, int] | None = None,
    seed: int = 0,
) -> tuple[dict[str, NDArray[Any]], T]:
    """Find synthetic inputs that a model accepts, and return them with its outputs.

    Args:
        inputs: The inputs of the graph.
        run: Runs the model; an error means that it rejects these sizes.
        ranges: See :func:`input_ranges`.
        seed: Seed of the random generator.

    Raises:
        UsageError: It runs with none of the sizes tried.
    """
    tried: set[tuple[tuple[int, ...], ...]] = set()
    first: OrtBoostError | None = None
    incomparable: list[tuple[dict[str, NDArray[Any]], T]] = []  # it ran, but its outputs say little
    # The first open axis, if not the first of all, may be a length: the batch size may be fixed.
    guessed = any(spec.batch_axis == UNKNOWN and _batch_axis(spec) for spec in inputs)
    for length, image in _SIZES:
        length = min(length, _TEXT) if ranges else length
        for batch in (_BATCH, 1, length) if guessed else (_BATCH, 1):
            shapes = _shapes(inputs, batch=batch, length=length, image=image)
            # With several open dimensions, large lengths soon fill the memory.
            if shapes in tried or (tried and max(map(math.prod, shapes)) > _LARGEST):
                continue
            tried.add(shapes)
            feeds = _drawn(inputs, shapes, ranges, seed)
            try:
                answer = run(feeds)
            except OrtBoostError as error:
                first = first or error
                continue
            if _is_comparable(answer):
                return feeds, answer
            incomparable.append((feeds, answer))
            break  # a batch of one sample would not make an empty output comparable
        if len(incomparable) > _MORE:
            break
    if incomparable:
        return incomparable[0]
    assert first is not None
    count = len(tried)
    raise UsageError(
        "The model does not run on synthetic inputs"
        + (f": {count} sets of sizes were tried." if count > 1 else "."),
        where=str(first.where or first.what),
        fix="Give real data (--verify or --data), or what the model needs: lengths with "
        "--dim NAME=LENGTH, values of inputs with --input NAME=VALUE.",
    ) from first


def _is_comparable(answer: object) -> bool:
    """Whether every output has elements, and finite values among them."""
    outputs = answer.values() if isinstance(answer, Mapping) else ()
    arrays = (np.asarray(output) for output in outputs if not isinstance(output, (list, dict)))
    return all(a.size and (a.dtype.kind != "f" or np.isfinite(a).any()) for a in arrays)


def sizes_text(feeds: Mapping[str, NDArray[Any]]) -> str:
    """Format the shapes of a batch.

    Example:
        >>> sizes_text({"x": np.zeros([4, 3])})
        'x [4, 3]'
    """
    return ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())


def seeded_batch(
    inputs: Sequence[TensorSpec],
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Make synthetic inputs: normal floats, integers of zeros and ones, words for strings.

    ``shapes`` replaces shapes of inputs; unknown dimensions have length 4.
    """
    generator = np.random.default_rng(seed)
    made = {}
    for spec in inputs:
        dims = (shapes or {}).get(spec.name, spec.shape)
        shape = tuple(dim if isinstance(dim, int) else _BATCH for dim in dims)
        if spec.dtype.kind == "f":
            made[spec.name] = generator.standard_normal(shape).astype(spec.dtype)
        elif spec.dtype.kind == "O":  # strings
            made[spec.name] = generator.choice(["good", "very bad", ""], shape).astype(object)
        else:
            made[spec.name] = generator.integers(0, 2, shape).astype(spec.dtype)
    return made


def synthetic_feeds(
    inputs: Sequence[TensorSpec],
    *,
    ranges: Mapping[str, int] | None = None,
    seed: int = 0,
    batch: int = _BATCH,
    length: int = _LENGTH,
) -> dict[str, NDArray[Any]]:
    """Make one batch of synthetic inputs.

    Args:
        inputs: The inputs of the graph.
        ranges: See :func:`input_ranges`.
        seed: Seed of the random generator.
        batch: Length of open batch axes, and of dimensions of the same name.
        length: Length of other open dimensions.
    """
    shapes = _shapes(inputs, batch=batch, length=length, image=_IMAGE)
    return _drawn(inputs, shapes, ranges, seed)


def _shapes(
    inputs: Sequence[TensorSpec], *, batch: int, length: int, image: int
) -> tuple[tuple[int, ...], ...]:
    """A shape for each input."""
    # Lengths by name of the dimension, which inputs may share: images first, then batches.
    named: dict[str, int] = {}
    for spec in inputs:
        for axis, dim in enumerate(spec.shape):
            if isinstance(dim, str) and _is_image(spec, axis):
                named.setdefault(dim, image)
    for spec in inputs:
        counted = _batch_axis(spec)
        dim = None if counted is None else spec.shape[counted]
        if isinstance(dim, str):
            named.setdefault(dim, batch)

    def length_of(spec: TensorSpec, axis: int) -> int:
        dim = spec.shape[axis]
        if isinstance(dim, int):
            return dim
        if isinstance(dim, str) and dim in named:
            return named[dim]
        if isinstance(dim, str) and "+" in dim:  # `past_sequence_length + 1` of a decoder's mask
            parts = [part.strip() for part in dim.split("+")]
            return sum(int(p) if p.isdecimal() else named.get(p, length) for p in parts)
        if _is_image(spec, axis):
            return image
        return batch if axis == _batch_axis(spec) else length

    return tuple(tuple(length_of(spec, i) for i in range(len(spec.shape))) for spec in inputs)


def _drawn(
    inputs: Sequence[TensorSpec],
    shapes: Sequence[tuple[int, ...]],
    ranges: Mapping[str, int] | None,
    seed: int,
) -> dict[str, NDArray[Any]]:
    """Arrays of these shapes."""
    by_name = {spec.name: shape for spec, shape in zip(inputs, shapes, strict=True)}
    made = seeded_batch(inputs, by_name, seed=seed)
    # Indices of a table: other numbers than zeros and ones, from a generator of their own, so that
    # they do not change the other inputs.
    generator = np.random.default_rng(seed + 1)
    for spec in inputs:
        rows = (ranges or {}).get(spec.name)
        if rows is not None and spec.dtype.kind in "iu":
            top = min(rows, int(np.iinfo(spec.dtype).max))
            made[spec.name] = generator.integers(0, top, made[spec.name].shape).astype(spec.dtype)
    return made


def _batch_axis(spec: TensorSpec) -> int | None:
    """The batch axis; the first open axis if it is not known."""
    if spec.batch_axis == UNKNOWN:
        return next((i for i, dim in enumerate(spec.shape) if not isinstance(dim, int)), None)
    axis = spec.batch_axis if isinstance(spec.batch_axis, int) else None
    return axis if axis is not None and axis < len(spec.shape) else None


def _is_image(spec: TensorSpec, axis: int) -> bool:
    """Whether an axis is the height or width of images ``[N, C, H, W]``."""
    if spec.dtype.kind != "f" or len(spec.shape) != 4 or axis < 2:
        return False
    return not (axis == 2 and isinstance(spec.shape[3], int))  # stored keys: [N, heads, length, 64]
