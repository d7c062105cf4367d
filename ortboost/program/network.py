"""Read the network of a model file, in normal form: standard operators, stored weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import onnx_ir as ir

from ortboost.autodiff.engine import Engine
from ortboost.autodiff.portable.registry import has_own_rule, own_operators, unused_rules
from ortboost.boosts.base import GraphContext
from ortboost.core.errors import ModelError, UsageError
from ortboost.core.report import Report
from ortboost.graph.build import Builder
from ortboost.graph.classic_ml import cut_maps, require_network
from ortboost.graph.log_sigmoid import write_out_log_sigmoids
from ortboost.graph.normal_form.ceil_pools import write_out_counted_padding
from ortboost.graph.normal_form.squeezed_axes import state_squeezed_axes
from ortboost.graph.normal_form.to_float32 import to_float32
from ortboost.graph.normalize import normalize
from ortboost.graph.opsets.fast_pools import FAST_POOLS, keep_fast_pools
from ortboost.graph.opsets.missing_kernels import narrow_pools, sort_for_argmax
from ortboost.graph.query import match_names
from ortboost.graph.shapes.fix_inputs import fix_inputs
from ortboost.graph.source import source_name
from ortboost.graph.weights.separate_equals import separate_equals
from ortboost.graph.weights.store_weights import store_weights
from ortboost.graph.weights.tie_copies import tie_copies
from ortboost.graph.weights.training_traces import find_training_traces
from ortboost.program.config import ProgramConfig
from ortboost.program.rewrite_log import RewriteLog
from ortboost.transforms.batch_statistics import write_out_batch_statistics
from ortboost.transforms.new_head import new_head
from ortboost.transforms.trainable_norm import batch_norms, body_norms

__all__ = ["Network", "read_network"]


@dataclass(frozen=True)
class Network:
    """A model in normal form, without a loss.

    Args:
        model: The graph; weights are initializers.
        frozen_norm: Whether a BatchNormalization stays in inference mode.
        new_weights: Names of tensors that the file does not have: of a new head or of boosts.
        reports: Reports of all rewrites.
    """

    model: ir.Model
    frozen_norm: Callable[[ir.Node], bool]
    new_weights: frozenset[str]
    reports: tuple[Report, ...]


def read_network(
    model: ir.Model,
    config: ProgramConfig,
    engine: Engine,
    *,
    widened: Collection[ir.DataType] = (),
) -> Network:
    """Normalize a model as loaded, replace its head, and let boosts rewrite the network, in place.

    The engine decides the opset; ``widened`` are floating-point types of the model that become
    float32.

    Raises:
        ModelError: A rewrite rejects the model.
        UsageError: A name or pattern matches nothing.
    """
    opsets = engine.opsets
    for boost in config.enabled_boosts:
        opsets = boost.opsets(opsets)
    log = RewriteLog(model)
    operators = own_operators(model)
    _check_kept_functions(model, opsets, widened)
    log.add(find_training_traces(model))
    log.add(to_float32(model, widened))
    log.add(state_squeezed_axes(model))
    log.add(fix_inputs(model, config.inputs))  # early: known lengths fold into constants
    log.add(*normalize(model, opsets=opsets, ir_version=engine.ir_version, kept=_has_own_rule))
    log.add(unused_rules(operators, model))
    require_network(model)
    log.add(cut_maps(model))
    log.add(separate_equals(model))
    named = {*(config.parameters or ()), *config.trainable, *config.freeze}
    log.add(store_weights(model, keep=named))
    log.add(tie_copies(model, apart=named))
    _rename_reserved(model)
    log.add(write_out_batch_statistics(model))
    log.add(write_out_counted_padding(model))
    log.add(write_out_log_sigmoids(model))
    log.add(sort_for_argmax(model))
    log.add(narrow_pools(model))
    if FAST_POOLS in opsets and not model.functions:  # functions have an opset of their own
        log.add(keep_fast_pools(model, expand=False))
    of_file = set(model.graph.initializers)
    if config.new_head is not None:
        head = new_head(model, config.new_head, seed=config.seed, output=config.loss.output)
        of_file -= set(head.changed)
        log.add(head)
    # Changes of the network, which exports keep.
    frozen = _frozen(model, config)
    graph = GraphContext(
        model,
        output=config.loss.output,
        frozen_norm=frozen,
        new_weights=set(model.graph.initializers) - of_file,
    )
    for boost in config.enabled_boosts:
        log.add(boost.rewrite_network(graph), by=f"{boost.name}, rewrite_network")
    added = frozenset(set(model.graph.initializers) - of_file)
    return Network(model, frozen, added, tuple(log.reports))


def _has_own_rule(function: ir.Function) -> bool:
    """Whether a function is differentiated as a whole, and so not inlined before."""
    return has_own_rule(function.domain, function.name)


def _check_kept_functions(model: ir.Model, opsets: range, widened: Collection[ir.DataType]) -> None:
    """Refuse a function with a gradient rule if it has to be rewritten, which needs inlining."""
    version = model.opset_imports.get("")
    for function in filter(_has_own_rule, model.functions.values()):
        own = function.opset_imports.get("", version)
        if widened or version not in opsets or own != version:
            raise ModelError(
                f"The function {function.name} with a gradient rule would have to be converted.",
                where=f"{source_name(model)}: opset {version}, the function {own}"
                + "".join(f", {dtype.numpy().name}" for dtype in widened),
                fix=f"Export the model and its functions in one opset from {opsets[0]} to "
                f"{opsets[-1]}, in float32.",
            )


def _rename_reserved(model: ir.Model) -> None:
    """Rename tensors called ``ortboost/...``, which files written by ortboost contain."""
    prefix, graph = "ortboost/", model.graph
    visible = [v.name or "" for v in (*graph.inputs, *graph.outputs)]
    for name in visible:
        if name.startswith(prefix):
            raise ModelError(
                f"The model has an input or output '{name}'; such names are reserved.",
                where=source_name(model),
                fix="Convert the model that this file was made from.",
            )
    # Names of inner tensors are not part of the interface, so they may change.
    b = Builder(graph, "model")
    for value in list(graph.initializers.values()):
        if (value.name or "").startswith(prefix):
            graph.initializers.pop(value.name or "")
            value.name = b.unique(f"model/{value.name}")
            graph.register_initializer(value)
    for node in graph.all_nodes():
        for output in node.outputs:
            if (output.name or "").startswith(prefix):
                output.name = b.unique(f"model/{output.name}")


def _frozen(model: ir.Model, config: ProgramConfig) -> Callable[[ir.Node], bool]:
    """A test for BatchNormalization nodes that stay in inference mode, by name or parameter."""
    named: dict[str, set[str]] = {}
    for node in (*batch_norms(model), *body_norms(model)):
        labels = {node.name, *(value.name for value in node.inputs[1:] if value is not None)}
        named[node.name or ""] = {label for label in labels if label}
    unmatched = match_names(set().union(*named.values()), config.frozen_norm)[1] if named else []
    if unmatched or (config.frozen_norm and not named):
        raise UsageError(
            f"The pattern '{(unmatched or config.frozen_norm)[0]}' matches no BatchNormalization.",
            where=source_name(model),
            fix=f"Examples of nodes: {', '.join(list(named)[:3])}."
            if named
            else "The model has none: leave out --frozen-bn.",
        )
    return lambda node: bool(match_names(named[node.name or ""], config.frozen_norm)[0])
