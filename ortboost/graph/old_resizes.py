"""Keep what resizing meant before opset 11, where the converter forgets it.

Upsample (opsets 7 and 9) and Resize of opset 10 place the samples at `position / scale`. Resize of
opset 11 has an attribute for that, whose default is another rule: without it, images of a
converted model are shifted by up to half a pixel. The standard is silent about opset 10; what
counts is onnxruntime, where the nearest sample is that before the position, or that after it if
the axis shrinks.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html, ``coordinate_transformation_mode``;
``UpsampleBase`` of onnxruntime.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.errors import ModelError
from ortboost.graph.query import constant, input_at, is_standard, label
from ortboost.graph.source import source_name

__all__ = ["keep_positions"]

_POSITIONS_GIVEN = 11  # the opset that added the attribute


def keep_positions(model: ir.Model, before: int) -> None:
    """Set the attributes of the converted nodes, in place.

    Every Resize of the model is one of them: there is no other node that the converter turns into
    a Resize. Their outputs may have new names.

    Args:
        model: The converted model.
        before: Its opset before the conversion.

    Raises:
        ModelError: The nearest samples of a node are on both sides.
    """
    if before >= _POSITIONS_GIVEN:
        return
    for node in model.graph.all_nodes():
        if not is_standard(node, "Resize"):
            continue
        node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
        if node.attributes.get_string("mode", "nearest") == "nearest":
            node.attributes.add(ir.AttrString("nearest_mode", _nearest(node, model)))


def _nearest(node: ir.Node, model: ir.Model) -> str:
    found = constant(input_at(node, 2))
    scales = [] if found is None else [float(scale) for scale in found.reshape(-1)]
    # An axis that shrinks by a whole number has its samples at the positions themselves.
    if all(scale >= 1 or (1 / scale).is_integer() for scale in scales):
        return "floor"
    if all(scale <= 1 for scale in scales):
        return "ceil"
    raise ModelError(
        "A Resize that shrinks one axis and enlarges another has no newer form.",
        where=f"{source_name(model)}: '{label(node)}', scales {scales}",
        fix=f"Export the model with opset {_POSITIONS_GIVEN} or newer.",
    )
