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

__all__ = ["find_old_resizes", "keep_positions"]

_POSITIONS_GIVEN = 11  # the opset that added the attribute


def find_old_resizes(model: ir.Model) -> set[str | None]:
    """Names of the outputs of nodes that :func:`keep_positions` has to change after a conversion.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 5, opset_import: ["" : 8]>
        ... net (float[1,1,2,2] x) => (float[1,1,4,4] y) {
        ...   y = Upsample <mode = "linear", scales = [1.0, 1.0, 2.0, 2.0]> (x) }''')
        >>> find_old_resizes(model)
        {'y'}
    """
    if model.opset_imports.get("", _POSITIONS_GIVEN) >= _POSITIONS_GIVEN:
        return set()
    nodes = [n for n in model.graph.all_nodes() if is_standard(n, "Resize", "Upsample")]
    return {node.outputs[0].name for node in nodes}


def keep_positions(model: ir.Model, outputs: set[str | None]) -> None:
    """Set the attributes of the converted nodes, in place.

    Args:
        model: The converted model.
        outputs: What :func:`find_old_resizes` gave before the conversion.

    Raises:
        ModelError: The nearest samples of a node are on both sides.
    """
    for node in model.graph.all_nodes():
        if node.outputs[0].name not in outputs or not is_standard(node, "Resize"):
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
