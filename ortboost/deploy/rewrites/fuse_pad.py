"""A Pad with zeros before a convolution is part of its padding.

    Conv(Pad(x, p), w, pads=q) = Conv(x, w, pads=p+q)

for zeros around the image, not around samples or channels.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.deploy.rewrites.helpers import constant, is_standard, label, number

__all__ = ["fuse_pad"]


def fuse_pad(model: ir.Model) -> Report:
    """Fuse, in place, subgraphs included; a Pad that something else reads too stays."""
    report = Report("fuse_pad")
    for node in list(model.graph.all_nodes()):
        source = node.inputs[0] if is_standard(node, "Conv") else None
        pad = None if source is None else source.producer()
        graph = node.graph
        if source is None or pad is None or graph is None or pad.graph is not graph:
            continue
        if node.attributes.get_string("auto_pad", "NOTSET") not in ("NOTSET", "VALID"):
            continue
        if source.is_graph_output() or not all(use.node is node for use in source.uses()):
            continue
        added = _zeros(pad)
        if added is None:
            continue
        half = len(added) // 2
        own = node.attributes.get_ints("pads", None)
        if own is not None and node.attributes.get_string("auto_pad", "NOTSET") == "VALID":
            own = None  # VALID does not look at them
        before = list(own) if own is not None else [0] * 2 * (half - 2)
        if len(before) != 2 * (half - 2):
            continue
        sums = [a + b for a, b in zip(before, added[2:half] + added[half + 2 :], strict=True)]
        node.attributes.pop("auto_pad", None)
        node.attributes["pads"] = ir.AttrInt64s("pads", sums)
        node.replace_input_with(0, pad.inputs[0])
        graph.remove(pad, safe=True)
        report.changed[label(node)] = f"takes in '{label(pad)}'"
    return report


def _zeros(pad: ir.Node) -> list[int] | None:
    """The padding of a Pad that puts zeros around the image alone, never less than nothing."""
    if not is_standard(pad, "Pad") or pad.attributes.get_string("mode", "constant") != "constant":
        return None
    source = pad.inputs[0]
    if source is None or source.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    pads = constant(pad.inputs[1]) if len(pad.inputs) > 1 else None
    if pads is None or pads.ndim != 1 or len(pads) < 6 or bool((pads < 0).any()):
        return None
    value = pad.inputs[2] if len(pad.inputs) > 2 else None
    axes = pad.inputs[3] if len(pad.inputs) > 3 else None
    if (value is not None and number(value) != 0) or axes is not None:
        return None
    half = len(pads) // 2
    if pads[:2].any() or pads[half : half + 2].any():
        return None
    return [int(length) for length in np.asarray(pads)]
