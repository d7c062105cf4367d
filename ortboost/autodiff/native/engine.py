"""Gradients by ``GradientGraphBuilder`` of onnxruntime-training 1.19.2, without torch.

The builder is exact and fast. For some forms of operators, however, it silently returns a wrong
gradient. ``prepare`` (see :mod:`ortboost.autodiff.native.rewrites`) converts a graph into a form
for which it is correct; ``differentiate`` runs ``prepare`` again on its own copy, so that callers
cannot forget it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from ortboost.autodiff.engine import check_opset, check_request, refuse_nodes
from ortboost.autodiff.native.bindings import build_gradients, diagnose, optimize
from ortboost.autodiff.native.built_graph import (
    drop_copies,
    protect_pool_indices,
    restore,
    restore_recurrent,
    scatter_pool_gradients,
    sum_empty_batches,
)
from ortboost.autodiff.native.graph import (
    cut_stopped,
    drop_empty_inputs,
    free_gradient_names,
    join_stopped,
    lift_large_constants,
    one_use_per_node,
    own_frozen_inputs,
    part_from_copies,
    part_shapes,
    put_back,
    set_aside,
)
from ortboost.autodiff.native.rewrites import prepare
from ortboost.autodiff.native.rewrites.broadcasting import hide_uncertain_shapes, show_hidden_shapes
from ortboost.autodiff.native.rewrites.partial import partly_used_splits
from ortboost.autodiff.native.support import gradient_support
from ortboost.autodiff.roots import roots_by_selection
from ortboost.core.errors import DependencyError
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.normalize import name_nodes
from ortboost.graph.query import input_at, source_before
from ortboost.graph.reach import reach

__all__ = ["NativeEngine", "diagnose"]


class NativeEngine:
    """The engine ``"native"``; see :class:`ortboost.autodiff.engine.Engine`."""

    name = "native"
    opsets = range(18, 22)
    ir_version = 10
    fp32_operators: Mapping[str, str] = {
        "LayerNormalization": "its native gradient has no float16 kernel on the CPU, and no valid "
        "definition"
    }
    gradient_support = staticmethod(gradient_support)
    prepare = staticmethod(prepare)

    def unavailable(self) -> DependencyError | None:
        """Why onnxruntime-training cannot be used here, and how to fix it."""
        return diagnose()

    def differentiate(
        self, model: ir.Model, loss: str, wrt: Sequence[str], *, prepared: bool = False
    ) -> ir.Model:
        """Build the gradient graph; see :func:`ortboost.autodiff.engine.differentiate`."""
        if (missing := self.unavailable()) is not None:
            raise missing
        check_opset(model, self.name, self.opsets)
        check_request(model, loss, wrt)
        work = model.clone()
        inline_functions(work)
        work.ir_version = min(work.ir_version or self.ir_version, self.ir_version)
        if not prepared:
            prepare(work)

        # What depends on the request, and the forms that are left without a correct gradient.
        reached = reach(work, wrt, loss)
        roots_by_selection(work, reached.active)
        partly_used_splits(work, reached)
        fix = "Use --engine portable, freeze what comes before, or run `ortboost check`."
        refuse_nodes(self.name, list(_problems(work, wrt, loss)), fix)

        # Names, uses and shapes that the builder or its optimizer would get wrong. From here on,
        # shapes must not be inferred again: they would show those that are hidden.
        free_gradient_names(work, [*wrt, loss])
        part_shapes(work)
        one_use_per_node(work, wrt)
        hide_uncertain_shapes(work, reach(work, wrt, loss))
        part_from_copies(work, reach(work, wrt, loss).active)
        drop_empty_inputs(work)
        name_nodes(work)  # gradient nodes are named after their forward nodes

        # What the builder need not see, as its time grows with the graph.
        lifted = lift_large_constants(work)
        cut = cut_stopped(work)
        aside = set_aside(work, loss)
        optimized = optimize(work, wrt)
        own_frozen_inputs(optimized, reach(optimized, wrt, loss).active)
        result = build_gradients(optimized, loss, wrt)

        # Undo all of this. A detached value was set aside, since the loss does not need it once it
        # is cut off; it is put back before its readers are connected to it again.
        drop_copies(result)
        show_hidden_shapes(result)
        put_back(result, aside)
        join_stopped(result, cut)
        restore(result, model, wrt, lifted)
        restore_recurrent(result)

        # Gradient kernels that are unsafe as the builder writes them. The pools that are left after
        # scatter_pool_gradients are protected last.
        scatter_pool_gradients(result)
        sum_empty_batches(result)
        protect_pool_indices(result)
        return result


def _problems(model: ir.Model, wrt: Sequence[str], loss: str) -> Iterator[tuple[ir.Node, str]]:
    """The nodes on the path without a correct gradient, with the reason."""
    reached = reach(model, wrt, loss)
    for node in reached.nodes:
        reason = gradient_support(node, reached.active)
        # partly_used_splits could not replace it.
        if node.op_type == "Split" and any(o.name not in reached.active for o in node.outputs):
            reason = "only some of its outputs lead to the loss, and its sizes are not fixed"
        if node.op_type == "BatchNormalization" and _overwrites_constants(node):
            reason = "its running statistics are constants, which its kernel overwrites"
        if reason is not None:
            yield node, reason


def _overwrites_constants(node: ir.Node) -> bool:
    """Whether a BatchNormalization in training mode keeps its running statistics in constants.

    ``guarded_statistics`` copied them, but an optimizer folds the copy of a constant.
    """
    stored = (source_before(input_at(node, index), "Sum", "Identity") for index in (3, 4))
    return any(value is not None and value.is_initializer() for value in stored)
