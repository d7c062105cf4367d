"""Write pools with ``ceil_mode=1`` in forms that all runtimes compute alike.

A window that would start in the padding at the end is left out, as torch and onnxruntime do (and
the standard says since opset 22); onnxruntime 1.19, and the shape inference of older opsets, count
it. Where the size of the image is known, such a pool gets pads that make ``ceil_mode`` unnecessary.

With ``ceil_mode=1`` the last window may extend past the padded image. The standard does not count
these positions, whether padding is counted or not; with ``count_include_pad=1``, torch's default,
onnxruntime 1.19 does: the means at the border are too small. Later versions follow the standard.
Without padding the two settings mean the same. Otherwise a Pad writes the padding out:

    AveragePool(x, pads, count_include_pad=1) = AveragePool(Pad(x, pads), count_include_pad=0)

After the Pad, a window that starts in the padding at the end would count. A pool that may have one
is not changed.

Source: https://onnx.ai/onnx/operators/onnx__AveragePool.html
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.query import known_shape
from ortboost.graph.rewriting import Refusal, Site, rewrite_nodes

__all__ = [
    "leave_out_windows",
    "pads_without_ceil",
    "window_of",
    "write_out_counted_padding",
]


def leave_out_windows(model: ir.Model) -> Report:
    """Leave out windows that start in the padding, in the first pool that has some, in place.

    The shapes after that pool were inferred with the window: infer them again, and repeat until
    nothing changes.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[1,1,7] x) => (float[1,1,4] y) { y = MaxPool
        ...   <kernel_shape = [2], strides = [2], pads = [1, 1], ceil_mode = 1> (x) }''')
        >>> leave_out_windows(model).modified
        True
    """
    changed = False

    def rule(site: Site) -> list[ir.Value] | None:
        nonlocal changed
        found = None if changed else _without_windows_in_the_padding(site)
        changed = found is not None
        return found

    what = "without windows that start in the padding, which only some runtimes leave out"
    rules = dict.fromkeys(("AveragePool", "LpPool", "MaxPool"), rule)
    return rewrite_nodes(model, "leave_out_windows", rules, what, subgraphs=True)


def _without_windows_in_the_padding(site: Site) -> list[ir.Value] | None:
    if not site.integer("ceil_mode", 0) or site.text("auto_pad", "NOTSET") != "NOTSET":
        return None
    window, lengths = window_of(site), (known_shape(site.input(0)) or ())[2:]
    starts = [_starts_in_the_padding(n, window, axis) for axis, n in enumerate(lengths)]
    if not any(starts):
        return None
    pads = pads_without_ceil(lengths, window)
    if pads is None:  # the last windows of the other axes are not known
        return _cut_to_the_last_window(site, window, lengths, starts)
    attributes: dict[str, Any] = {**site.node.attributes, "pads": pads}
    attributes.pop("ceil_mode")
    data, overhang = site.input(0), [a - b for a, b in zip(pads, window["pads"], strict=True)]
    if any(overhang) and site.integer("count_include_pad", 0):  # only this padding is counted
        axes = site.ints(*range(2, 2 + len(lengths)))
        data = site.op("Pad", data, site.ints(*window["pads"]), None, axes, mode="constant")
        attributes |= {"pads": overhang, "count_include_pad": 0}
    return _pooled(site, data, attributes)


def _cut_to_the_last_window(
    site: Site,
    window: Mapping[str, list[int]],
    lengths: Sequence[int | str | None],
    starts: Sequence[bool],
) -> list[ir.Value] | None:
    """Drop the pads, and then the pixels, that only a window that starts in the padding covers."""
    pads, ends = list(window["pads"]), dict[int, int]()
    for axis, length in enumerate(lengths):
        if starts[axis] and isinstance(length, int):
            space, last = _room(length, window, axis)
            surplus, end = space - last + window["strides"][axis], len(pads) // 2 + axis
            pads[end] -= (cut := min(surplus, pads[end]))
            if surplus > cut:
                ends[2 + axis] = length - surplus + cut
    data = site.input(0)
    if ends and len(site.node.outputs) > 1:
        return None  # the indices are those of the whole image
    if ends:
        begins = site.ints(*(0 for _ in ends))
        data = site.op("Slice", data, begins, site.ints(*ends.values()), site.ints(*ends))
    return _pooled(site, data, {**site.node.attributes, "pads": pads})


def _pooled(site: Site, data: ir.Value, attributes: Mapping[str, Any]) -> list[ir.Value]:
    pooled, *indices = site.ops(site.node.op_type, data, count=len(site.node.outputs), **attributes)
    for value in indices:
        value.type = ir.TensorType(ir.DataType.INT64)
    return [pooled, *indices]


def window_of(site: Site) -> dict[str, list[int]]:
    """The attributes of the window of a pool, with their defaults."""
    kernel = list(site.integers("kernel_shape") or ())
    return {
        "kernel_shape": kernel,
        "strides": list(site.integers("strides") or [1] * len(kernel)),
        "dilations": list(site.integers("dilations") or [1] * len(kernel)),
        "pads": list(site.integers("pads") or [0] * (2 * len(kernel))),
    }


def _room(length: int, window: Mapping[str, list[int]], axis: int) -> tuple[int, int]:
    """Room beyond the first window of an axis, and the start of the last one with ``ceil_mode``."""
    pads, stride = window["pads"], window["strides"][axis]
    reach = (window["kernel_shape"][axis] - 1) * window["dilations"][axis] + 1
    space = length + pads[axis] + pads[len(pads) // 2 + axis] - reach
    return space, -(-space // stride) * stride


def _starts_in_the_padding(
    length: int | str | None, window: Mapping[str, list[int]], axis: int
) -> bool:
    """Whether the last window of an axis starts after the image and its leading padding."""
    if not isinstance(length, int):
        return False
    return _room(length, window, axis)[1] >= length + window["pads"][axis]


def pads_without_ceil(
    lengths: Sequence[int | str | None], window: Mapping[str, list[int]]
) -> list[int] | None:
    """The pads that make ``ceil_mode`` unnecessary, ``None`` for an image of unknown size.

    The last window may extend past the end, unless it starts in the padding there.
    """
    pads = list(window["pads"])
    for axis, length in enumerate(lengths):
        if not isinstance(length, int):
            return None
        space, last = _room(length, window, axis)
        if _starts_in_the_padding(length, window, axis):
            last -= window["strides"][axis]
        pads[len(pads) // 2 + axis] += max(last - space, 0)
    return pads


def write_out_counted_padding(model: ir.Model) -> Report:
    """Set ``count_include_pad=0`` in average pools with ``ceil_mode=1``, in place.

    Their padding becomes a Pad. The model is normalized, and its shapes have been inferred. The
    rewrite is idempotent.

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
        f"'{name}': onnxruntime 1.19 computes means that are too small at its border; it is "
        f"not rewritten, because {why}"
        for name, why in report.kept.items()
    ]
    return report


def _average_pool(site: Site) -> list[ir.Value | None] | None:
    if not site.integer("ceil_mode", 0) or not site.integer("count_include_pad", 0):
        return None
    if site.text("auto_pad", "NOTSET") != "NOTSET":
        return None  # no window overhangs
    pads = window_of(site)["pads"]
    site.note = "the padding of its last window is no longer counted, as the standard says"
    attributes: dict[str, Any] = dict(site.node.attributes)
    attributes.pop("count_include_pad")
    data = site.input(0)
    if any(pads):
        _refuse_windows_in_the_padding(site)
        attributes.pop("pads")
        axes = site.ints(*range(2, 2 + len(pads) // 2))
        data = site.op("Pad", data, site.ints(*pads), None, axes, mode="constant")
    return [site.op("AveragePool", data, shape=site.node.outputs[0].shape, **attributes)]


def _refuse_windows_in_the_padding(site: Site) -> None:
    window = window_of(site)
    rank = len(window["kernel_shape"])
    for axis, length in enumerate(site.shape()[2:]):
        reach = (window["kernel_shape"][axis] - 1) * window["dilations"][axis] + 1
        end = window["pads"][rank + axis]
        # The overhanging window starts less than a stride after the last place where one fits. If
        # the stride is at most `reach - end`, that is before the padding for images of any length.
        if end and window["strides"][axis] > reach - end and not isinstance(length, int):
            raise Refusal("a window may start in the padding of an image of unknown size")
