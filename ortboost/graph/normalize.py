"""Convert any ONNX model into the normal form that the rest of ortboost works on.

Functions are inlined, weights are not graph inputs, constants are initializers, the opset is one
that the engine supports (18 to 21 for the native one), all names are unique, and shapes are
inferred with symbolic dimensions kept.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir
from onnx_ir.passes import common

from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.bodies import own_outputs, separate_branch_names
from ortboost.graph.build import Builder, unused_name
from ortboost.graph.classic_ml import standard_norms
from ortboost.graph.normal_form.ceil_pools import leave_out_windows
from ortboost.graph.normal_form.einsum_ellipses import name_ellipses
from ortboost.graph.normal_form.empty_reductions import empty_reductions
from ortboost.graph.normal_form.fold_integers import fold_integers
from ortboost.graph.normal_form.former_operators import write_out_former_operators
from ortboost.graph.normal_form.identity_transposes import bypass_identity_transposes
from ortboost.graph.normal_form.inline_branches import inline_branches
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.normal_form.one_element_slices import gather_single_elements
from ortboost.graph.normal_form.runtime_operators import (
    OLDEST_OPSET,
    has_runtime_operators,
    oldest_opset,
    restore_runtime_domain,
    write_out_runtime_operators,
)
from ortboost.graph.normal_form.stack_sequences import stack_sequences
from ortboost.graph.normal_form.unpack_sequences import unpack_sequences
from ortboost.graph.opsets.convert_opset import convert_opset
from ortboost.graph.opsets.missing_kernels import (
    drop_flat_biases,
    newest_opset,
    replace_missing_kernels,
)
from ortboost.graph.query import constant, find_nodes, input_at, is_read, is_standard, known_shape
from ortboost.graph.shapes.declared_shapes import declared_shapes, put_aside, restore_declared
from ortboost.graph.shapes.loop_shapes import infer_loops
from ortboost.graph.shapes.shape_inference import check_lengths, infer_shapes
from ortboost.graph.shapes.static_shapes import static_shapes
from ortboost.graph.shapes.symbolic_shapes import name_lengths
from ortboost.graph.structure.dense import dense_report
from ortboost.graph.unused import remove_unused_nodes
from ortboost.graph.weights.origins import stamp_origins, tensor_origins
from ortboost.graph.weights.padding_rows import find_padding_rows, stamp_padding_rows

__all__ = ["free_weights", "name_nodes", "normalize"]

_ROUNDS = 100  # of folding and shape inference; computed padding takes one round per layer


def normalize(
    model: ir.Model,
    *,
    opsets: range,
    ir_version: int,
    keep_fused: bool = False,
    kept: Callable[[ir.Function], bool] = lambda _: False,
) -> list[Report]:
    """Normalize a model in place.

    Args:
        model: The model as loaded.
        opsets: Allowed opset versions of the standard domain. If onnxruntime runs an operator of
            the model only at older ones, the model gets such a version, see
            :mod:`ortboost.graph.opsets.missing_kernels`.
        ir_version: Newest allowed IR version.
        keep_fused: Whether operators of onnxruntime's optimizers stay, which it runs faster; see
            :mod:`ortboost.graph.normal_form.runtime_operators`.
        kept: Which functions are not inlined; they must have the model's opset, one of ``opsets``.

    Returns:
        One report for each step that changed something.

    Raises:
        ModelError: The model has no standard opset, or cannot be converted to an allowed one.
    """
    reports = [dense_report(model), inline_functions(model, kept), free_weights(model)]

    # Read what the exporter left in nodes and names, before the passes below lose it.
    origins, padding = tensor_origins(model), find_padding_rows(model)

    _lift_constants(model)
    separate_branch_names(model)
    # If nodes read an output, its declared shape is not restored: only inferred ones are reliable.
    read = {value.name or "" for value in model.graph.outputs if value.uses()}
    declared = declared_shapes(model)
    later = {name: declared.pop(name) for name in read & declared.keys()}
    reports += [drop_flat_biases(model), _unify_operators(model, opsets, keep_fused)]

    # One name for each node and value, also across subgraphs: reports and states refer to them.
    name_nodes(model)
    common.NameFixPass()(model)
    remove_unused_nodes(model)
    if model.ir_version > ir_version:
        change = f"{model.ir_version} -> {ir_version}"
        reports.append(Report("ir_version", changed={"model": change}))
    model.ir_version = ir_version

    # The weights have their final names: stamp what was read above.
    stamp_origins(model, origins)
    stamp_padding_rows(model, padding)
    put_aside(model, later)
    reports += [bypass_identity_transposes(model), empty_reductions(model)]
    _state_channels(model)

    _infer(model)
    replace_missing_kernels(model)
    while standard_norms(model):
        _infer(model)
    check_lengths(model)
    reports += [*_settle(model, keep_fused), restore_declared(model, declared)]
    return [report for report in reports if report.modified]


def _unify_operators(model: ir.Model, opsets: range, keep_fused: bool) -> Report:
    """Write the operators in one form, whatever the exporter and its opset."""
    _drop_stale_shapes(model)
    _drop_unused_statistics(model)
    _drop_idle_attributes(model)
    if not keep_fused and opsets[-1] >= OLDEST_OPSET:
        restore_runtime_domain(model)
    write_out_former_operators(model)
    report = convert_opset(model, _possible_opsets(model, opsets, keep_fused))
    if report.modified:  # the converter adds Constants, for example for axes that were attributes
        _lift_constants(model)
        _drop_stale_shapes(model)  # its inference rounds lengths otherwise than ours
    _make_axes_vectors(model)
    _give_conditions(model)
    for body in model.graph.subgraphs():
        own_outputs(body)
    return report


def _possible_opsets(model: ir.Model, opsets: range, keep_fused: bool) -> range:
    """The allowed opsets that all operators of a model support."""
    if not keep_fused and opsets[-1] >= OLDEST_OPSET and has_runtime_operators(model):
        opsets = range(max(opsets[0], oldest_opset(model)), opsets.stop)
    newest = newest_opset(model)
    if newest is None:
        return opsets
    return range(min(opsets[0], newest), min(opsets[-1], newest) + 1)


def _lift_constants(model: ir.Model) -> None:
    """Turn Constant nodes into initializers."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)


def _settle(model: ir.Model, keep_fused: bool) -> list[Report]:
    """Fold and infer until nothing changes: a constant may give a shape, a shape a constant."""
    reports: list[Report] = []
    settled = False  # nothing more can be known: then sizes that a run computes
    for _ in range(_ROUNDS):
        while (pools := leave_out_windows(model)).modified:
            reports.append(pools)
            _drop_stale_shapes(model)
            _infer(model)
        parts = unpack_sequences(model, computed=settled)
        stacks = stack_sequences(model)
        if settled and not parts.modified and not stacks.modified:
            break
        if parts.modified or stacks.modified:
            # Inference uses one name for the lengths of all elements, even if they differ.
            _drop_stale_shapes(model)
            _infer(model)
        found = [
            parts,
            stacks,
            gather_single_elements(model),
            name_ellipses(model),
            *([] if keep_fused else [write_out_runtime_operators(model)]),
            fold_integers(model),
            static_shapes(model),
            inline_branches(model),
        ]
        reports += found
        settled = not any(report.modified for report in found)
        if not settled:
            remove_unused_nodes(model)
            _infer(model)
            check_lengths(model)
    return reports


def _infer(model: ir.Model) -> None:
    """Infer shapes, and name unknown lengths."""
    infer_shapes(model)
    infer_loops(model)
    name_lengths(model)


def free_weights(model: ir.Model) -> Report:
    """Remove weights from the graph inputs, where old exporters list them, in place.

    If only some tensors are inputs, these are inputs with a default: that is worth a note.
    """
    report = Report("weights_are_not_inputs")
    weights = [value for value in model.graph.inputs if value.is_initializer()]
    report.changed = {value.name or "": "removed from the graph's inputs" for value in weights}
    if report.modified:
        if len(weights) < len(model.graph.initializers):
            report.notes.append(
                f"{count_of(len(weights), 'input')} with a default value, first "
                f"'{weights[0].name}': here it is a weight or a constant, also in exported files, "
                "and cannot be fed; remove the initializer from the file to keep the input"
            )
        common.RemoveInitializersFromInputsPass()(model)
    return report


def _drop_stale_shapes(model: ir.Model) -> None:
    """Drop inferred and declared shapes: old exporters wrote those of the batch of the trace."""
    for node in model.graph.all_nodes():
        for output in node.outputs:
            if is_standard(node):
                output.shape = None


def _drop_unused_statistics(model: ir.Model) -> None:
    """Drop unused statistics outputs: five before opset 14, but the converter expects one."""
    if model.opset_imports.get("", 14) >= 14:
        return
    for node in find_nodes(model.graph.all_nodes(), "BatchNormalization"):
        used = [i for i, out in enumerate(node.outputs) if is_read(out)]
        node.resize_outputs(max(used, default=0) + 1)


def _drop_idle_attributes(model: ir.Model) -> None:
    """Drop attributes without an effect, on which the converter or shape inference stumbles."""
    for node in find_nodes(model.graph.all_nodes(), "Pad"):
        if node.attributes.get_string("mode", "constant") != "constant":
            node.attributes.pop("value", None)
    for node in find_nodes(model.graph.all_nodes(), "BatchNormalization"):
        # With parameters of shape [channels], there are no positions to normalize separately: MXNet
        # writes such nodes after a Gemm.
        if len(known_shape(input_at(node, 1)) or ()) == 1:
            node.attributes.pop("spatial", None)
    for node in find_nodes(model.graph.all_nodes(), "AveragePool", "LpPool", "MaxPool"):
        # SAME decides the size of the output alone; shape inference rounds it up a second time, and
        # would count pads beside auto_pad, which runtimes ignore.
        mode = node.attributes.get_string("auto_pad", "NOTSET")
        if mode != "NOTSET":
            node.attributes.pop("auto_pad" if mode == "VALID" else "ceil_mode", None)
            node.attributes.pop("pads", None)


def _make_axes_vectors(model: ir.Model) -> None:
    """Give Unsqueeze a vector of axes where torch's dynamo exporter writes a single number.

    onnxruntime runs such a node, but not the Squeeze of the same axes that is its gradient.
    """
    builder = Builder(model.graph, "axes")
    for node in find_nodes(model.graph.all_nodes(), "Unsqueeze"):
        axes = constant(input_at(node, 1))
        if axes is not None and axes.ndim == 0:
            node.replace_input_with(1, builder.ints(int(axes)))


def _give_conditions(model: ir.Model) -> None:
    """Give each Loop without a condition a constant one.

    Passes of onnx_ir drop omitted inputs at the end: a Loop without states would be left with one
    input, but needs two.
    """
    builder = Builder(model.graph, "loop")
    for node in find_nodes(model.graph.all_nodes(), "Loop"):
        if input_at(node, 1) is None:
            node.resize_inputs(max(2, len(node.inputs)))  # the converter of opsets drops it, too
            node.replace_input_with(1, builder.const(True, ir.DataType.BOOL))
            # spox declares a vector in the body; onnxruntime requires the rank of the condition.
            node.attributes["body"].as_graph().inputs[1].shape = ir.Shape(())


def _state_channels(model: ir.Model) -> None:
    """Give images the number of channels that a convolution needs; optimum leaves it open."""
    for value in model.graph.inputs:
        for node, index in value.uses():
            kernel = input_at(node, 1) if is_standard(node, "Conv") and index == 0 else None
            dims, weight = known_shape(value), kernel and known_shape(kernel)
            if dims and weight and isinstance(weight[1], int) and not isinstance(dims[1], int):
                channels = weight[1] * node.attributes.get_int("group", 1)
                value.shape = ir.Shape((dims[0], channels, *dims[2:]))


def name_nodes(model: ir.Model) -> None:
    """Name nodes without a unique name after their first output; viewers show the names."""
    taken: set[str] = set()
    for node in model.graph.all_nodes():
        if not node.name or node.name in taken:
            base = next((out.name for out in node.outputs if out.name), None) or node.op_type
            node.name = unused_name(f"{base}/{node.op_type}", taken)
        taken.add(node.name)
