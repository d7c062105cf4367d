r"""Reverse-mode differentiation of an ONNX graph with ortboost's own rules.

    ======================  ======================================================================
    ``prepare``             forms that rules and runtimes support: ``prepare.py``, ``rewrites/``
    ``reverse_pass``        from the loss back to the parameters, one rule per node: ``rules/``
    ``lower_losses``        losses, which the rules see as one operator, written out: ``losses.py``
    ``scatter_in_float32``  sums of 16-bit gradients
    ======================  ======================================================================

The result uses only standard operators and runs in any ONNX runtime. Source of the method: Griewank
and Walther, "Evaluating Derivatives", 2008, chapter 3.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import onnx
import onnx.parser
import onnx_ir as ir

from ortboost.autodiff.engine import check_opset, check_request, gradient_name, refuse_nodes
from ortboost.autodiff.portable.prepare import prepare
from ortboost.autodiff.portable.registry import own_operators
from ortboost.autodiff.portable.reverse_pass import gradient_support, reverse_pass
from ortboost.autodiff.portable.rewrites.scatter import scatter_in_float32
from ortboost.autodiff.portable.rules.losses import lower_losses
from ortboost.core.errors import ModelError
from ortboost.graph.build import Builder
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.reach import Reach, find_value, reach, values_by_name
from ortboost.graph.unused import remove_unused_nodes

__all__ = ["PortableEngine"]

_OLDEST, _NEWEST = 18, 26  # opsets at which all rules are tested
_FIX = (
    "Decompose them (ortboost.autodiff.decompose), register a rule "
    "(ortboost.register_gradient), or freeze the parameters before them."
)


@functools.cache
def _newest_here() -> int:
    """The newest opset that the rules and the installed onnx and onnxruntime support."""
    newest = min(_NEWEST, onnx.defs.onnx_opset_version())
    try:
        import onnxruntime
    except ImportError:
        return newest
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # No runtime says which opsets it supports: open a model of each.
    for opset in range(newest, _OLDEST, -1):
        header = f'<ir_version: 8, opset_import: ["" : {opset}]>'
        data = onnx.parser.parse_model(
            f"{header} g (float x) => (float y) {{ y = Exp(x) }}"
        ).SerializeToString()
        try:
            onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        except Exception:  # the bindings raise many types of exceptions
            continue
        return opset
    return _OLDEST


class PortableEngine:
    """The engine with ortboost's own rules; see :class:`ortboost.autodiff.engine.Engine`."""

    name = "portable"
    ir_version = 10
    fp32_operators: Mapping[str, str] = {}
    gradient_support = staticmethod(gradient_support)
    prepare = staticmethod(prepare)

    @property
    def opsets(self) -> range:
        """Opsets of the standard domain that the rules, onnx and the installed runtime support."""
        return range(_OLDEST, _newest_here() + 1)

    def unavailable(self) -> None:
        """``None``: it can always run, as it needs only onnx."""

    def differentiate(
        self, model: ir.Model, loss: str, wrt: Sequence[str], *, prepared: bool = False
    ) -> ir.Model:
        """Build the gradient graph; see :func:`ortboost.autodiff.engine.differentiate`."""
        check_opset(model, self.name, range(_OLDEST, _NEWEST + 1))
        check_request(model, loss, wrt)
        work = model.clone()
        if not prepared:
            self.prepare(work)
        reached = reach(work, wrt, loss)
        reasons = ((node, gradient_support(node, reached.active)) for node in reached.nodes)
        refuse_nodes(self.name, [(node, why) for node, why in reasons if why is not None], _FIX)
        builder = Builder(work.graph, "ortboost/grad")
        gradients = _gradients(work, reached, loss, wrt, builder)
        builder.flush()  # after the forward nodes, which they read
        lower_losses(work)  # only now: the rules see a loss as one operator
        scatter_in_float32(work)
        inline_functions(work)  # only now: a rule sees a function as one operator
        _name_results(work, wrt, gradients)
        remove_unused_nodes(work)
        return work


def _gradients(
    model: ir.Model, reached: Reach, loss: str, wrt: Sequence[str], builder: Builder
) -> dict[str, ir.Value]:
    """Value name to gradient, for all of ``wrt``."""
    loss_value = find_value(model.graph, loss)
    dtype = None if loss_value is None else loss_value.dtype
    seeds = {loss: builder.const(1.0, dtype or ir.DataType.FLOAT)}
    totals = reverse_pass(reached, seeds, wrt, builder, model.opset_imports[""])
    missing = [name for name, total in totals.items() if total is None]
    if missing:
        own = ", ".join(sorted(own_operators(model)))
        raise ModelError(
            "Some of the tensors have no gradient.",
            where=", ".join(missing),
            fix=f"Freeze them, or return gradients in the rule registered for {own}."
            if own
            else "Freeze them: the loss does not depend on them.",
        )
    return {name: total for name, total in totals.items() if total is not None}


def _name_results(model: ir.Model, wrt: Sequence[str], gradients: dict[str, ir.Value]) -> None:
    """Name the gradients and make them outputs, each a separate value."""
    graph = model.graph
    builder = Builder(graph, "ortboost/grad")
    taken: set[int] = set()
    values = values_by_name(graph)
    for name in wrt:
        value, target = gradients[name], values.get(name)
        # One gradient may belong to two tensors (x + y), or be the seed itself.
        private = value.producer() is not None and id(value) not in taken
        if not private or value.is_graph_output():
            value = builder.op("Identity", value, shape=value.shape)
        taken.add(id(value))
        target_name = gradient_name(name)
        clash = values.get(target_name)
        if clash is not None and clash is not value:
            clash.name = builder.unique(f"{target_name}/forward")
            values[clash.name] = clash
        value.name = target_name
        values[target_name] = value
        if target is not None:  # its shape may have names that the rules did not derive
            value.type, value.shape = target.type, target.shape
        graph.outputs.append(value)
    builder.flush()
