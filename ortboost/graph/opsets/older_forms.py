"""Which nodes the next older opset has with the same meaning, and rules for some that it lacks.

Most versions of an operator only accept more types. The converter of onnx nevertheless needs an
adapter for each, and gives up at the first one that is missing.
"""

from __future__ import annotations

from typing import Any, Final

import onnx_ir as ir

from ortboost.graph.query import constant, find_schema, subgraphs
from ortboost.graph.rewriting import Refusal, Rule, Site

__all__ = ["OLDER_FORMS", "drop_new_defaults", "means_the_same", "newer_attribute"]

_COMPARABLE: Final = 11
"""The first opset to compare with: before, axes and indices could not be negative."""

# What newer versions added; the default is what the operator did before.
_ADDED = frozenset(
    "allowzero antialias batch_dims block_size ceil_mode dilations end keep_aspect_ratio_policy "
    "layout noop_with_empty_axes num_outputs output_dtype precision reduction round_mode saturate "
    "seed select_last_index start training_mode value_float value_floats value_int value_ints "
    "value_string value_strings".split()
)
# Values that older attributes have since an opset.
_NEW_VALUES: Final = {"half_pixel_symmetric": 19, "max": 18, "min": 18, "wrap": 19}


def drop_new_defaults(node: ir.Node, version: int) -> None:
    """Drop attributes that the next older opset lacks and that have their default, in place."""
    new, old = find_schema(node.op_type, version), find_schema(node.op_type, version - 1)
    if new is None or old is None:
        return
    for name in _ADDED & (new.attributes.keys() - old.attributes.keys()):
        given = node.attributes.get(name)
        if given is not None and given.value == _default(new.attributes[name]):
            del node.attributes[name]


def newer_attribute(node: ir.Node, version: int) -> str | None:
    """An attribute that an opset lacks, or its value; the converter of onnx leaves both in."""
    schema = find_schema(node.op_type, version)
    known = node.attributes if schema is None else schema.attributes
    newer = (n for n, a in node.attributes.items() if n not in known or _has_newer(a, version))
    return next(newer, None)


def _has_newer(attribute: ir.Attr, version: int) -> bool:
    """Whether an opset lacks the value of an attribute."""
    value = attribute.value
    return isinstance(value, str) and _NEW_VALUES.get(value, 0) > version


def means_the_same(node: ir.Node, version: int) -> bool:
    """Whether a node of an opset is valid in the next older one, and means the same there."""
    new, old = find_schema(node.op_type, version), find_schema(node.op_type, version - 1)
    if new is None or old is None or version <= _COMPARABLE:
        return False
    if new.since_version == version and not (
        _same_attributes(node, new, old)
        and _same_values(node.inputs, old.inputs)
        and _same_values(node.outputs, old.outputs)
    ):
        return False
    return all(means_the_same(inner, version) for graph in subgraphs(node) for inner in graph)


def _same_attributes(node: ir.Node, new: Any, old: Any) -> bool:
    if "axis" in old.attributes.keys() - new.attributes.keys():
        return False  # DFT, whose input has another default
    for name, attribute in new.attributes.items():
        former, given = old.attributes.get(name), node.attributes.get(name)
        if former is None:
            if given is not None or name not in _ADDED:
                return False
            continue
        if given is None and _default(former) != _default(attribute):
            return False
        if given is not None and _has_newer(given, new.since_version - 1):
            return False
    return True


def _same_values(values: Any, formals: Any) -> bool:
    """Whether the older version allows this number of inputs or outputs, and these types."""
    types: dict[str, ir.DataType] = {}
    for place, value in enumerate(values):
        formal = formals[min(place, len(formals) - 1)]
        if place >= len(formals) and formal.option.name != "Variadic":
            return False
        if value is None:
            if formal.option.name == "Single":
                return False
            continue
        if not isinstance(value.type, ir.TensorType):
            return False
        if f"tensor({value.type.dtype.name.lower()})" not in formal.types:
            return False
        if formal.is_homogeneous and types.setdefault(formal.type_str, value.dtype) != value.dtype:
            return False
    return True


def _default(attribute: Any) -> Any:
    proto = attribute.default_value
    return ir.serde.deserialize_attribute(proto).value if proto.type else None


def _constant(site: Site) -> list[ir.Value | None] | None:
    """A number in an attribute (opset 12): a tensor."""
    value = site.node.outputs[0]
    array = None if "value" in site.node.attributes else constant(value)
    return None if array is None else [site.const(array, value.dtype)]


def _softmax(site: Site) -> list[ir.Value | None] | None:
    """Over one axis (opset 13): over the last one, before which there was only one meaning."""
    node, axis, last = site.node, site.axis(), site.rank() - 1
    node.attributes.add(ir.AttrInt64("axis", last))
    if axis == last:
        return None
    x, out = site.input(0), node.outputs[0]
    order = [
        last if place == axis else axis if place == last else place for place in range(last + 1)
    ]
    shape = [site.shape()[place] for place in order]
    node.replace_input_with(0, site.op("Transpose", x, shape=shape, perm=order))
    inner = site.op(node.op_type, node.inputs[0], shape=shape, axis=last)
    return [site.op("Transpose", inner, shape=out.shape, perm=order)]


def _reshape(site: Site) -> None:
    """``allowzero`` (opset 14): without an effect if the shape has no zeros."""
    wanted = site.array(1)
    if wanted is not None and 0 not in wanted:
        site.node.attributes.pop("allowzero", None)


def _shape(site: Site) -> list[ir.Value | None] | None:
    """A part of a shape (opset 15): a Slice of the whole."""
    start, end = (site.node.attributes.get(name) for name in ("start", "end"))
    if start is None and end is None:
        return None
    whole = site.op("Shape", site.input(0), dtype=ir.DataType.INT64, shape=[site.rank()])
    bounds = site.ints(start.as_int() if start else 0), site.ints(end.as_int() if end else 2**31)
    return [site.op("Slice", whole, *bounds, dtype=ir.DataType.INT64)]


def _split(site: Site) -> list[ir.Value | None] | None:
    """A number of parts (opset 18): their lengths."""
    count, length = site.integer("num_outputs", 0), site.shape()[site.axis(default=0)]
    if not count or not isinstance(length, int):
        return None
    part = -(-length // count)
    site.node.resize_inputs(2)
    site.node.replace_input_with(1, site.ints(*[part] * (count - 1), length - part * (count - 1)))
    del site.node.attributes["num_outputs"]
    return list(site.node.outputs)


def _grid_sample(site: Site) -> None:
    """Volumes, and modes with names for them (opset 20)."""
    if site.rank() != 4:
        raise Refusal("before opset 20, GridSample supports only two spatial axes")
    mode = site.node.attributes.get_string("mode", "linear")
    former = {"linear": "bilinear", "cubic": "bicubic"}.get(mode, mode)
    site.node.attributes.add(ir.AttrString("mode", former))


OLDER_FORMS: Final[dict[int, dict[str, Rule]]] = {
    12: {"Constant": _constant},
    13: dict.fromkeys(("Hardmax", "LogSoftmax", "Softmax"), _softmax),
    14: {"Reshape": _reshape},
    15: {"Shape": _shape},
    18: {"Split": _split},
    20: {"GridSample": _grid_sample},
}
"""Opset to the operators with another form in the one before."""
