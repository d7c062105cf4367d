"""Conversion of a model to another opset of the standard domain.

Operators whose meaning changed in a way that the converter of onnx ignores are refused. Operators
that the older opset lacks are expanded by their definitions, and those that it has with the same
meaning are left alone (:mod:`ortboost.graph.opsets.older_forms`). onnxscript converts the rest, but
it loses what resizing meant before opset 11: Upsample (opsets 7 and 9) and Resize of opset 10 place
the samples at `position / scale`. Resize of opset 11 has an attribute for that, whose default is
another rule: without it, images of a converted model are shifted by up to half a pixel. The
standard is silent about opset 10; what counts is onnxruntime, where the nearest sample is that
before the position, or that after it if the axis shrinks.

Source: https://onnx.ai/onnx/operators/onnx__Resize.html, ``coordinate_transformation_mode``;
``UpsampleBase`` of onnxruntime.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence

import onnx
import onnx_ir as ir

from ortboost.core.errors import ModelError, first_line
from ortboost.core.report import Report
from ortboost.graph.opsets.function_bodies import expand_by_definition, has_definition
from ortboost.graph.opsets.older_forms import (
    OLDER_FORMS,
    drop_new_defaults,
    means_the_same,
    newer_attribute,
)
from ortboost.graph.query import constant, find_schema, input_at, is_standard, known_shape, label
from ortboost.graph.rewriting import rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.source import source_name

__all__ = ["convert_opset", "quiet"]

_UNKNOWN = "ortboost.out_of_sight"
_MAKES_MAPS = ("ZipMap",)
# Opsets that changed what an operator computes; onnx's converter ignores these changes.
_SCAN_WITHOUT_BATCH = 9
_BATCH_NORM_PER_CHANNEL = 9
_HARDMAX_OF_ONE_AXIS = 13
_POSITIONS_OF_RESIZE = 11


def convert_opset(model: ir.Model, opsets: range) -> Report:
    """Convert the standard opset to the nearest one in ``opsets``, in place.

    Raises:
        ModelError: The model has no standard opset or an unknown one, or the conversion failed.
    """
    report = Report("convert_opset")
    version = model.opset_imports.get("")
    if version is None:
        raise ModelError(
            "The model imports no standard ONNX opset.",
            where=source_name(model),
            fix="Export it with the standard operators (domain 'ai.onnx').",
        )
    if version in opsets:
        return report
    if version > (newest := onnx.defs.onnx_opset_version()):
        raise ModelError(
            f"The model has opset {version}, which is newer than the installed onnx: {newest}.",
            where=source_name(model),
            fix=f"Upgrade onnx, or export the model with opset {opsets[0]} to {opsets[-1]}.",
        )
    _refuse_former_meanings(model, version)
    target = opsets[0] if version < opsets[0] else opsets[-1]
    fix = f"Export the model with opset {opsets[0]} to {opsets[-1]}."
    if len(opsets) == 1:
        fix = f"Keep opset {version}."
    # The converter drops this metadata: what is detached, what an exporter left out of a loss, and
    # the roles of tensors.
    known = {n.outputs[0].name: n.metadata_props for n in model.graph.all_nodes() if n.outputs}
    roles = {name: value.metadata_props for name, value in model.graph.initializers.items()}
    lacking = _unknown_operators(model, min(version, target))
    try:
        report.changed.update(_expand_newer(model, version, target).changed)
        newer = target > version
        reasons = _convert(model, target, _maps(model)) if newer else _lower(model, version, target)
    except Exception as error:
        raise ModelError(
            f"The model cannot be converted from opset {version} to {target}.",
            where=f"{source_name(model)}: {first_line(error)}",
            fix=fix,
        ) from error
    reached = model.opset_imports.get("")
    if reached != target:  # the converter gives up half-way without an error
        foreign = [op for op in lacking if find_schema(op, onnx.defs.onnx_opset_version()) is None]
        if foreign:
            raise ModelError(
                f"The file contains operators that ONNX does not have: {', '.join(foreign)}.",
                where=f"{source_name(model)}: opset {version}",
                fix="If the exporter did not know how to write them, use other layers or another "
                "exporter; if a tool such as onnxruntime's optimizer added them, use the "
                "original file.",
            )
        obstacle = _obstacle(model, version, target, lacking, reasons)
        raise ModelError(
            f"The model cannot be converted from opset {version} to {target}: the result has opset "
            f"{reached}.",
            where=f"{source_name(model)}: {obstacle}",
            fix=fix,
        )
    for name, value in model.graph.initializers.items():
        value.metadata_props.update(roles.get(name, {}))
    for node in model.graph.all_nodes():
        if node.outputs:
            node.metadata_props.update(known.get(node.outputs[0].name, {}))
        # Every Resize is a converted one: the converter turns no other node into one.
        if version < _POSITIONS_OF_RESIZE and is_standard(node, "Resize"):
            _keep_positions(node, model)
    report.changed["model"] = f"opset {version} -> {target}"
    return report


def _convert(model: ir.Model, target: int, hidden: Sequence[ir.Node]) -> list[str]:
    """Let the libraries convert all nodes except ``hidden``, in place; return why they failed."""
    from onnxscript import version_converter  # as in ortboost.graph.cost: most files need none

    with quiet("onnxscript", "onnx_ir"), _logged_reason() as reasons, _out_of_sight(model, hidden):
        version_converter.convert_version(model, target, fallback=True)
    return reasons


def _maps(model: ir.Model) -> list[ir.Node]:
    """ZipMaps: ONNX shape inference sets a map type that onnx_ir does not support."""
    return [node for node in model.graph.all_nodes() if node.op_type in _MAKES_MAPS]


def _lower(model: ir.Model, version: int, target: int) -> list[str]:
    """Convert to an older opset step by step, in place; return why the libraries failed at one.

    They convert only what changes its form: they lack adapters for most of the other operators.
    """
    infer_shapes(model)
    for opset in range(version, target, -1):
        rules = OLDER_FORMS.get(opset, {})
        for name, reason in rewrite_nodes(model, "older", rules, subgraphs=True).kept.items():
            raise ValueError(f"'{name}': {reason}")
        standard = [node for node in model.graph.all_nodes() if is_standard(node)]
        for node in standard:
            drop_new_defaults(node, opset)
        same = [node for node in standard if means_the_same(node, opset)]
        if len(same) == len(standard):
            model.opset_imports[""] = opset - 1
            continue
        reasons = _convert(model, opset - 1, [*same, *_maps(model)])
        if model.opset_imports.get("") != opset - 1:
            return reasons
        for node in filter(is_standard, model.graph.all_nodes()):
            if (newer := newer_attribute(node, opset - 1)) is not None:
                raise ValueError(f"'{newer}' of {node.op_type} '{label(node)}' is newer")
        infer_shapes(model)
    return []


def _keep_positions(node: ir.Node, model: ir.Model) -> None:
    """Set the attributes of a converted Resize; its outputs may have new names."""
    node.attributes.add(ir.AttrString("coordinate_transformation_mode", "asymmetric"))
    if node.attributes.get_string("mode", "nearest") != "nearest":
        return
    found = constant(input_at(node, 2))
    scales = [] if found is None else [float(scale) for scale in found.reshape(-1)]
    # An axis that shrinks by a whole number has its samples at the positions themselves.
    if all(scale >= 1 or (1 / scale).is_integer() for scale in scales):
        node.attributes.add(ir.AttrString("nearest_mode", "floor"))
    elif all(scale <= 1 for scale in scales):
        node.attributes.add(ir.AttrString("nearest_mode", "ceil"))
    else:
        raise ModelError(
            "A Resize that shrinks one axis and enlarges another has no newer form.",
            where=f"{source_name(model)}: '{label(node)}', scales {scales}",
            fix=f"Export the model with opset {_POSITIONS_OF_RESIZE} or newer.",
        )


def _expand_newer(model: ir.Model, version: int, target: int) -> Report:
    """Replace operators that ``target`` lacks by their definitions in the standard, in place."""
    what, report = f"not in opset {target}: expanded as defined by the standard", Report("")
    while newer := [op for op in _unknown_operators(model, target) if has_definition(op, version)]:
        infer_shapes(model)  # a definition depends on the types of the inputs
        rules = dict.fromkeys(newer, expand_by_definition)
        found = rewrite_nodes(model, "expand_newer", rules, what)
        report.changed.update(found.changed)
        if not found.changed:  # a definition may have an operator that is newer, too
            break
    return report


def _refuse_former_meanings(model: ir.Model, version: int) -> None:
    for node in model.graph.all_nodes():
        meaning = _former_meaning(node, version)
        if meaning is not None:
            since, what = meaning
            raise ModelError(
                f"{node.op_type} of opset {version} {what}; the converter treats it like that of "
                f"opset {since}, which does not.",
                where=f"{source_name(model)}: '{label(node)}'",
                fix=f"Export the model with opset {since} or newer.",
            )


def _former_meaning(node: ir.Node, version: int) -> tuple[int, str] | None:
    """The opset that changed a node's meaning, and what it was, if the converter ignores it."""
    if not is_standard(node):
        return None
    if node.op_type == "Scan" and version < _SCAN_WITHOUT_BATCH:
        return _SCAN_WITHOUT_BATCH, "scans each sample of a batch"
    if node.op_type == "BatchNormalization" and not node.attributes.get_int("spatial", 1):
        return _BATCH_NORM_PER_CHANNEL, "with spatial=0 normalizes each position separately"
    if node.op_type == "Hardmax" and version < _HARDMAX_OF_ONE_AXIS:
        shape, axis = known_shape(input_at(node, 0)), node.attributes.get_int("axis", 1)
        # From the last axis on, there is only one: both meanings agree.
        if axis != -1 and (not shape or axis % len(shape) != len(shape) - 1):
            return _HARDMAX_OF_ONE_AXIS, "joins all axes from its 'axis' on"
    return None


def _unknown_operators(model: ir.Model, version: int) -> list[str]:
    """Standard operators of the model that an opset lacks."""
    return [op for op in _operators(model) if find_schema(op, version) is None]


def _operators(model: ir.Model) -> list[str]:
    return sorted({node.op_type for node in model.graph.all_nodes() if is_standard(node)})


def _obstacle(
    model: ir.Model, version: int, target: int, lacking: list[str], reasons: list[str]
) -> str:
    """What made a conversion fail.

    Args:
        model: The model, with what could be expanded expanded.
        version: The opset that it had.
        target: The opset to reach.
        lacking: The operators of the original model that the older of both lacks.
        reasons: What the converter logged, which often names no operator.
    """
    old, new = sorted((version, target))
    left = _unknown_operators(model, old)
    if left:  # operators of an expanded definition are reported as the operator that it defines
        return f"added later: {', '.join([op for op in left if op in lacking] or lacking)}"
    used = _operators(model)
    named = [reason for reason in reasons if any(op in reason.split() for op in used)]
    schemas = {op: find_schema(op, new) for op in used}
    changed = [op for op, schema in schemas.items() if schema and schema.since_version > old]
    obstacle = named[0] if named else f"changed since opset {old}: {', '.join(changed)}"
    return obstacle + (f" (in place of {', '.join(lacking)})" if lacking else "")


@contextlib.contextmanager
def _logged_reason() -> Iterator[list[str]]:
    """Collect what onnxscript only logs: why the converter of onnx gave up."""
    logger, found = logging.getLogger("onnxscript.version_converter"), list[str]()

    def take(record: logging.LogRecord) -> bool:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:  # the message comes after the location in the library's source
            found.append(first_line(error).rpartition(" failed: ")[2])
        return False

    level = logger.level
    logger.setLevel(logging.WARNING)
    logger.addFilter(take)
    try:
        yield found
    finally:
        logger.removeFilter(take)
        logger.setLevel(level)


@contextlib.contextmanager
def _out_of_sight(model: ir.Model, nodes: Sequence[ir.Node]) -> Iterator[None]:
    """Hide nodes in unknown domains. The code inside may replace nodes and outputs."""
    domains = {f"{_UNKNOWN}.{node.domain}" for node in nodes}
    kept = {value.name: dict(value.meta) for value in model.graph.outputs}
    try:
        model.opset_imports.update(dict.fromkeys(domains, 1))
        for node in nodes:
            node.domain = f"{_UNKNOWN}.{node.domain}"
        yield
    finally:
        for domain in domains:
            model.opset_imports.pop(domain, None)
        for node in model.graph.all_nodes():
            if node.domain in domains:
                node.domain = node.domain.removeprefix(f"{_UNKNOWN}.")
        for value in model.graph.outputs:
            value.meta.update(kept.get(value.name, {}))


@contextlib.contextmanager
def quiet(*loggers: str) -> Iterator[None]:
    """Suppress warnings of libraries about problems that are handled here."""
    levels = [(logger, logger.level) for logger in map(logging.getLogger, loggers)]
    try:
        for logger, level in levels:
            logger.setLevel(max(level, logging.ERROR))
        yield
    finally:
        for logger, level in levels:
            logger.setLevel(level)
