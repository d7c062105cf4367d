"""Conversion of ``auto_pad`` of convolutions and pools, and of Pad's axes, to explicit ``pads``.

The native builder passes ``auto_pad`` on to ConvGrad, MaxPoolGrad and AveragePoolGrad, which read
out of bounds: errors far above 1 that vary from run to run. It ignores the axes of a Pad, and so
does the optimizer of onnxruntime (1.19 to 1.31) when it moves a Transpose through one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Rule, Site, rewrite_nodes

__all__ = ["explicit_padding", "same_pads", "transposed_padding"]


def explicit_padding(model: ir.Model) -> Report:
    """Replace ``auto_pad`` and ``output_shape``, and the axes of Pad, by ``pads``, in place.

    ``SAME_*`` of Conv, MaxPool and AveragePool with a stride above 1 requires fixed spatial
    dimensions, and so does the ``output_shape`` of a ConvTranspose.
    """
    explicit = (_window, "auto_pad replaced by pads")
    rules: dict[str, tuple[Rule, str]] = {
        **dict.fromkeys(("Conv", "MaxPool", "AveragePool"), explicit),
        "ConvTranspose": (_window, "auto_pad or output_shape replaced by pads"),
        "Pad": (_pad, "pads extended to all axes"),
    }
    return rewrite_nodes(model, "explicit_padding", rules)


def _pad(site: Site) -> list[ir.Value | None] | None:
    """Extend pads of some axes to all axes; computed pads are gathered from their vector."""
    if site.optional(3) is None:
        return None
    axes, rank = site.array(3), site.rank()
    if axes is None:
        raise Refusal("its axes are not constant; export with fixed axes")
    pads, order = site.array(1), {int(a) % rank: k for k, a in enumerate(axes.reshape(-1))}
    # For each entry of the new pads, begins then ends, its index in the given ones.
    indices = [order.get(axis) for axis in range(rank)]
    indices += [None if index is None else index + axes.size for index in indices]
    if pads is not None:
        all_pads = site.ints(*(0 if index is None else int(pads[index]) for index in indices))
    else:  # append a zero to the vector for the other axes
        longer = site.op("Concat", site.input(1), site.ints(0), axis=0, dtype=ir.DataType.INT64)
        chosen = site.ints(*(2 * axes.size if index is None else index for index in indices))
        all_pads = site.op("Gather", longer, chosen)
    mode = site.text("mode", "constant")
    return [site.op("Pad", site.input(0), all_pads, site.optional(2), mode=mode)]


def _window(site: Site) -> Sequence[ir.Value] | None:
    """Write the padding of a convolution or pool, or its output shape, as ``pads``."""
    node = site.node
    if site.text("auto_pad", "NOTSET") == "NOTSET" and not site.integers("output_shape"):
        return None
    attributes: dict[str, Any] = {**node.attributes}
    if node.op_type == "ConvTranspose":
        attributes["pads"], attributes["output_padding"] = transposed_padding(site)
    else:
        attributes["pads"] = same_pads(site)
    for name in ("auto_pad", "output_shape"):
        attributes.pop(name, None)
    outputs = site.ops(node.op_type, *node.inputs, count=len(node.outputs), **attributes)
    # The indices of a MaxPool are int64; a new output has the type of the first input.
    for new, old in zip(outputs[1:], node.outputs[1:], strict=True):
        new.type = old.type
    return outputs


def transposed_padding(site: Site) -> tuple[list[int], list[int]]:
    """The pads of a transposed convolution, all begins, then all ends, and its output padding.

    The output has the length ``output_shape``, or ``in * stride`` for ``SAME_*``. Of an odd total,
    runtimes cut the larger half at the end for ``SAME_UPPER``, else at the beginning. Where
    ``output_shape`` is longer than what the kernel covers, the rest is at the end.
    """
    mode, wanted = site.text("auto_pad", "NOTSET"), site.integers("output_shape")
    spatial = site.rank() - 2
    extra = list(site.integers("output_padding") or (0,) * spatial)
    if not wanted and mode in ("NOTSET", "VALID"):
        return list(site.integers("pads") or [0] * (2 * spatial)), extra
    kernel = (known_shape(site.input(1)) or (None,) * (2 + spatial))[2:]
    strides = site.integers("strides") or (1,) * spatial
    dilations = site.integers("dilations") or (1,) * spatial
    if not wanted and any(extra):
        raise Refusal("output_padding beside auto_pad: runtimes disagree; export with pads")
    totals = []
    for axis in range(spatial):
        length, size = kernel[axis], site.shape()[2 + axis]
        if not isinstance(length, int) or (wanted and not isinstance(size, int)):
            raise Refusal("its pads depend on a size that is not fixed; export with pads")
        total = (length - 1) * dilations[axis] + 1 - strides[axis] + extra[axis]
        if wanted and isinstance(size, int):
            total += size * strides[axis] - wanted[axis - spatial]
        if total < 0 and not wanted:
            raise Refusal("its output is larger than what the kernel covers; export with pads")
        extra[axis] += max(-total, 0)
        totals.append(max(total, 0))
    return _halves(totals, mode), extra


def same_pads(site: Site) -> list[int]:
    """The pads equivalent to ``auto_pad``: all begins, then all ends.

    With ``o = ceil(in / stride)`` the total is ``max((o - 1) * stride + (k - 1) * dilation + 1 -
    in, 0)``; an odd pixel goes to the end for ``SAME_UPPER`` and to the beginning for
    ``SAME_LOWER``.
    """
    spatial = site.rank() - 2
    kernel = site.integers("kernel_shape")
    if kernel is None:
        weight = known_shape(site.input(1)) or ()
        kernel = tuple(dim for dim in weight[2:] if isinstance(dim, int))
    if len(kernel) != spatial:
        raise Refusal("its kernel shape is unknown; give the shapes of the model's inputs")
    mode = site.text("auto_pad", "NOTSET")
    if mode == "VALID":
        return [0] * (2 * spatial)
    if mode == "NOTSET":
        return list(site.integers("pads") or [0] * (2 * spatial))
    strides = site.integers("strides") or (1,) * spatial
    dilations = site.integers("dilations") or (1,) * spatial
    if site.node.op_type != "Conv" and any(dilation > 1 for dilation in dilations):
        raise Refusal(f"dilations beside auto_pad={mode}: runtimes disagree; export with pads")
    totals = []
    for axis in range(spatial):
        reach = (kernel[axis] - 1) * dilations[axis]
        size = site.shape()[2 + axis]
        if strides[axis] == 1:  # as many windows as pixels, whatever the size
            total = reach
        elif isinstance(size, int):
            steps = -(-size // strides[axis])
            total = max((steps - 1) * strides[axis] + reach + 1 - size, 0)
        else:
            raise Refusal(
                f"auto_pad={mode} with stride {strides[axis]} depends on the image size, which is "
                "not fixed; export with explicit pads, or with fixed height and width"
            )
        totals.append(total)
    return _halves(totals, mode)


def _halves(totals: Sequence[int], mode: str) -> list[int]:
    small, large = [n // 2 for n in totals], [n - n // 2 for n in totals]
    return small + large if mode == "SAME_UPPER" else large + small
