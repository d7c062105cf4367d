"""Write average pools whose last window overhangs so that onnxruntime 1.19 computes them.

With ``ceil_mode=1`` the last window may extend past the padded image. The standard does not count
these positions, whether padding is counted or not; with ``count_include_pad=1``, torch's default,
onnxruntime 1.19 does: the means at the border are too small. Later versions follow the standard.
Without padding the two settings mean the same. Otherwise a Pad writes the padding out:

    AveragePool(x, pads, count_include_pad=1) = AveragePool(Pad(x, pads), count_include_pad=0)

A window that would start in the padding at the end is left out; after the Pad it would count. A
pool that may have one is not changed.

Source: https://onnx.ai/onnx/operators/onnx__AveragePool.html
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = ["write_out_counted_padding"]


def write_out_counted_padding(model: ir.Model) -> Report:
    """Let average pools with ``ceil_mode=1`` of a normalized model count no padding, in place.

    Its shapes have been inferred. The rewrite is idempotent.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[1,1,5] x) => (float[1,1,3] y) { y = AveragePool
        ...   <kernel_shape = [2], strides = [2], ceil_mode = 1, count_include_pad = 1> (x) }''')
        >>> write_out_counted_padding(model).modified
        True
    """
    rules = {"AveragePool": _average_pool}
    report = rewrite_nodes(model, "write_out_counted_padding", rules)
    report.notes += [
        f"'{name}': onnxruntime 1.19 computes too small means at its border, and it is not "
        f"rewritten, because {why}"
        for name, why in report.kept.items()
    ]
    return report


def _average_pool(site: Site) -> list[ir.Value | None] | None:
    if not site.integer("ceil_mode", 0) or not site.integer("count_include_pad", 0):
        return None
    if site.text("auto_pad", "NOTSET") != "NOTSET":
        return None  # no window overhangs
    kernel = site.integers("kernel_shape") or ()
    rank = len(kernel)
    pads = site.integers("pads") or (0,) * (2 * rank)
    site.note = "the padding of its last window is no longer counted, as the standard says"
    attributes: dict[str, Any] = dict(site.node.attributes)
    attributes.pop("count_include_pad")
    data = site.input(0)
    if any(pads):
        _refuse_windows_in_the_padding(site, kernel, pads)
        attributes.pop("pads")
        axes = site.ints(*range(2, 2 + rank))
        data = site.op("Pad", data, site.ints(*pads), None, axes, mode="constant")
    return [site.op("AveragePool", data, shape=site.node.outputs[0].shape, **attributes)]


def _refuse_windows_in_the_padding(
    site: Site, kernel: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    rank = len(kernel)
    strides = site.integers("strides") or (1,) * rank
    dilations = site.integers("dilations") or (1,) * rank
    for axis, length in enumerate(site.shape()[2 : 2 + rank]):
        reach, stride = (kernel[axis] - 1) * dilations[axis] + 1, strides[axis]
        begin, end = pads[axis], pads[rank + axis]
        # The overhanging window starts less than a stride after the last place where one fits: with
        # such a stride in the image, whatever its length.
        if not end or stride <= reach - end:
            continue
        if not isinstance(length, int):
            raise Refusal("a window may start in the padding of an image of unknown size")
        # The start of the overhanging window, counted from that of the padding.
        last = -(-(begin + length + end - reach) // stride) * stride
        if begin + length <= last < begin + length + end:
            raise Refusal("a window would start in the padding")
