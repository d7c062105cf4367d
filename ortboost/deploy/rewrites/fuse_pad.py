"""Merge a zero Pad into the padding of the convolution after it.

    Conv(Pad(x, p), w, pads=q) = Conv(x, w, pads=p+q)

for zeros around the image, not around samples or channels.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import constant, input_at, label, producer_of, scalar
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["fuse_pad"]


@rewrites("Conv", subgraphs=True)
def fuse_pad(site: Site) -> list[ir.Value | None] | None:
    """Fuse in place, including subgraphs; a Pad with other readers is kept."""
    node, source = site.node, site.input(0)
    pad, mode = producer_of(source, "Pad"), site.text("auto_pad", "NOTSET")
    if pad is None or pad.graph is not node.graph or mode not in ("NOTSET", "VALID"):
        return None
    if source.is_graph_output() or not all(use.node is node for use in source.uses()):
        return None
    added = _zeros(pad)
    if added is None:
        return None
    half = len(added) // 2  # begins of all axes, then ends; a Conv has those of spatial axes
    own = site.integers("pads") if mode == "NOTSET" else None  # VALID ignores the attribute
    before = list(own) if own is not None else [0] * 2 * (half - 2)
    if len(before) != 2 * (half - 2):
        return None
    sums = [a + b for a, b in zip(before, added[2:half] + added[half + 2 :], strict=True)]
    node.attributes.pop("auto_pad", None)
    node.attributes["pads"] = ir.AttrInt64s("pads", sums)
    node.replace_input_with(0, pad.inputs[0])
    site.note = f"merged with '{label(pad)}'"
    return list(node.outputs)


def _zeros(pad: ir.Node) -> list[int] | None:
    """The non-negative pads of a Pad that adds zeros to spatial axes only, else ``None``."""
    if pad.attributes.get_string("mode", "constant") != "constant":
        return None
    source = pad.inputs[0]
    if source is None or source.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE):
        return None
    pads = constant(input_at(pad, 1))
    if pads is None or pads.ndim != 1 or len(pads) < 6 or bool((pads < 0).any()):
        return None
    value = input_at(pad, 2)
    if (value is not None and scalar(value) != 0) or input_at(pad, 3) is not None:
        return None
    half = len(pads) // 2
    if pads[:2].any() or pads[half : half + 2].any():
        return None
    return [int(length) for length in pads]
