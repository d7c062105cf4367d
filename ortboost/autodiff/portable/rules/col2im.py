r"""Assembly of blocks into an image, like torch's ``fold``.

Shapes: blocks `x` ``[N, C K, B]`` with `K` positions in a block and `B` blocks, image `y` ``[N, C,
L...]``, `g` like `y`. Source: ONNX, operator Col2Im,
https://onnx.ai/onnx/operators/onnx__Col2Im.html.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.graph.query import constant, fixed_lengths, known_shape

__all__: list[str] = []


@refuses("Col2Im")
def _block_unknown(node: ir.Node) -> str | None:
    known = node.inputs[2] is not None and constant(node.inputs[2]) is not None
    return None if known else "the shape of its blocks is not constant"


@register("Col2Im")
def col2im(b: Backward) -> Gradients:
    """`y` sums all block positions that map to it: `gx` extracts those blocks from `g`.

    That is a convolution of each channel separately, with the identity matrix as its weight.
    """
    g, x, block = b.gradient(), b.input(0), b.array(2)
    if block is None:  # checked by the condition
        raise TypeError("Col2Im without constant blocks")
    lengths = [int(length) for length in block.reshape(-1)]
    places, spatial = int(np.prod(lengths)), len(lengths)
    image = fixed_lengths((known_shape(g) or ())[2:])
    if image is not None and len(image) == spatial:
        plane = b.ints(-1, 1, *image)
    else:
        plane = b.op("Concat", b.ints(-1, 1), b.shape_of(g, 2), axis=0)
    unit = b.const(np.eye(places).reshape(places, 1, *lengths))
    blocks = b.op(
        "Conv",
        b.op("Reshape", g, plane),
        unit,
        strides=list(b.integers("strides") or (1,) * spatial),
        dilations=list(b.integers("dilations") or (1,) * spatial),
        pads=list(b.integers("pads") or (0,) * 2 * spatial),
    )
    return [b.op("Reshape", blocks, b.shape_of(x), shape=x.shape)]
