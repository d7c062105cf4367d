"""The interface between ortboost and the engines that compute gradients.

An engine takes a forward graph and returns the same graph with an additional output ``<name>_grad``
for each requested tensor. Later stages do not depend on the engine. Engines are looked up by name
in a small table; to add one, write a class and add a line to ``_ENGINES``.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Protocol, cast, runtime_checkable

import onnx_ir as ir

from ortboost.core.errors import DependencyError, ModelError, nearest, require_known
from ortboost.core.report import Report
from ortboost.graph.query import FLOAT_TYPES, known_shape, label
from ortboost.graph.reach import reach, values_by_name
from ortboost.graph.shapes.shape_inference import infer_missing

__all__ = [
    "Engine",
    "available_engines",
    "check_opset",
    "check_request",
    "differentiate",
    "engine_names",
    "get_engine",
    "gradient_name",
    "refuse_nodes",
    "run_rewrites",
]

# In the order in which "auto" tries them: the portable engine differentiates more models, and is
# as fast on the CPU (docs/benchmarks.md); on CUDA they have not been compared.
_ENGINES = {
    "portable": "ortboost.autodiff.portable.engine:PortableEngine",
    "native": "ortboost.autodiff.native.engine:NativeEngine",
}


@runtime_checkable
class Engine(Protocol):
    """An engine that builds gradient graphs.

    Attributes:
        name: Name in the table, ``"native"``.
        opsets: Opset versions of the standard domain that it supports.
        ir_version: Newest IR version that it supports.
        fp32_operators: Operators that must stay in float32, with the reason.
    """

    name: str
    opsets: range
    ir_version: int
    fp32_operators: Mapping[str, str]

    def unavailable(self) -> DependencyError | None:
        """Why the engine cannot run here, and how to fix it; ``None`` if it can."""

    def gradient_support(self, node: ir.Node, active: Collection[str] = frozenset()) -> str | None:
        """``None`` if the node can be differentiated (perhaps after ``prepare``), else why not.

        ``active`` are the names of the values that need a gradient: some inputs cannot have one.
        """

    def prepare(self, model: ir.Model) -> list[Report]:
        """Rewrite a forward graph in place into a form that the engine differentiates correctly.

        The computed function stays the same. The rewrites are idempotent.
        """

    def differentiate(
        self, model: ir.Model, loss: str, wrt: Sequence[str], *, prepared: bool = False
    ) -> ir.Model:
        """See :func:`differentiate`; ``prepared`` models have been through :meth:`prepare`."""


def engine_names() -> list[str]:
    """Names that :func:`get_engine` knows, ``"auto"`` not included."""
    return list(_ENGINES)


def get_engine(name: str = "auto") -> Engine:
    """The first of :func:`available_engines`; the others are not loaded.

    Example:
        >>> get_engine("nativ")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.UsageError: Unknown autodiff engine 'nativ'.
          where: engine='nativ'
          fix:   did you mean 'native'? (choices: auto, portable, native)
    """
    return next(_available(name))


def available_engines(name: str = "auto") -> list[Engine]:
    """The engines that can be used, in order of preference.

    Args:
        name: ``"auto"`` for all that can run here, or a name from :func:`engine_names`.

    Raises:
        UsageError: The name is unknown.
        DependencyError: The engine (or, for ``auto``, every engine) cannot run here.
    """
    return list(_available(name))


def _available(name: str) -> Iterator[Engine]:
    choices = ["auto", *_ENGINES]
    require_known(name, choices, f"Unknown autodiff engine '{name}'.", f"engine='{name}'")
    if name != "auto":
        engine = _load(name)
        if (missing := engine.unavailable()) is not None:
            raise missing
        yield engine
        return
    reasons = []
    for known in _ENGINES:
        engine = _load(known)
        missing = engine.unavailable()
        if missing is None:
            yield engine
        else:
            reasons.append(f"{known}: {missing.what} ({missing.where}) Fix: {missing.fix}")
    if len(reasons) == len(_ENGINES):
        raise DependencyError(
            "No autodiff engine can run here.",
            where="; ".join(reasons),
            fix="Install the extra of one of them, for example pip install 'ortboost[cpu]'.",
        )


def _load(name: str) -> Engine:
    module, _, attribute = _ENGINES[name].partition(":")
    return cast("Engine", getattr(importlib.import_module(module), attribute)())


def differentiate(
    model: ir.Model, loss: str, wrt: Sequence[str], engine: str | Engine = "auto"
) -> ir.Model:
    """Build the gradient graph of a model.

    Args:
        model: Forward model with every operator differentiable by the engine (see
            :mod:`ortboost.autodiff.check` and :mod:`ortboost.autodiff.decompose`). The engine
            prepares a copy; the model itself is not changed.
        loss: Name of a float value of shape ``[]`` in the main graph.
        wrt: Names of float graph inputs (the parameters) or inner values.
        engine: Name of an engine, or an engine.

    Returns:
        A new model with the same inputs, then the same outputs in the same order, then one output
        ``<name>_grad`` for each of ``wrt``, with the shape and element type of ``<name>``.

    Raises:
        ModelError: A name is unknown, is not a float tensor, or the loss does not depend on it; or
            an operator in between has no gradient.
        DependencyError: The engine cannot run here.

    Example:
        A gradient is an output like any other::

            step = differentiate(model, "loss", ["fc.weight", "fc.bias"])
            session.run(["loss", "fc.weight_grad"], feeds)
    """
    chosen = get_engine(engine) if isinstance(engine, str) else engine
    return chosen.differentiate(model, loss, wrt)


def gradient_name(name: str) -> str:
    """Name of the gradient of the tensor ``name``."""
    return f"{name}_grad"


def check_opset(model: ir.Model, engine: str, opsets: range) -> None:
    """Refuse models of other opsets: the forms of operators differ between them.

    Raises:
        ModelError: The opset of the model is not one of ``opsets``.
    """
    version = model.opset_imports.get("")
    if version not in opsets:
        raise ModelError(
            f"The {engine} engine supports opset {opsets[0]} to {opsets[-1]}.",
            where=f"the model has opset {version}",
            fix="Normalize the model first (ortboost.graph.normalize).",
        )


def check_request(model: ir.Model, loss: str, wrt: Sequence[str]) -> None:
    """Reject invalid requests: the checks that all engines share.

    Raises:
        ModelError: See :func:`differentiate`.
    """
    graph = model.graph
    values = values_by_name(graph)
    loss_value = values.get(loss)
    if loss_value is None:
        raise ModelError(
            "The loss is not a value of the graph.",
            where=f"loss '{loss}'",
            fix=nearest(loss, [output.name or "" for output in graph.outputs]),
        )
    shape = known_shape(loss_value)
    if shape not in (None, ()) or loss_value.dtype not in (None, *FLOAT_TYPES):
        raise ModelError(
            "The loss must be a float scalar of shape [].",
            where=f"loss '{loss}' has type {loss_value.dtype} and shape {list(shape or ())}",
            fix="Reduce it with ReduceMean or ReduceSum (keepdims=0), or let ortboost attach a "
            "loss.",
        )
    _check_sources(values, graph, loss, wrt)
    # Engines rename inner values that have such a name, but not what users see.
    visible = {value.name for value in (*graph.inputs, *graph.outputs) if value.name}
    clashes = sorted(visible & {gradient_name(name) for name in (*wrt, loss)})
    if clashes:
        raise ModelError(
            "Inputs or outputs of the model have the names of gradients.",
            where=", ".join(clashes),
            fix="Rename them in the model, or remove the gradients from it first.",
        )
    unreachable = reach(model, wrt, loss).unreachable
    if unreachable:
        raise ModelError(
            "The loss does not depend differentiably on some of the tensors.",
            where=", ".join(unreachable),
            fix="Freeze them, or use an output that depends on them "
            "(they are unused, or reach it only through ArgMax, a comparison or an integer cast).",
        )


def _check_sources(
    values: Mapping[str, ir.Value], graph: ir.Graph, loss: str, wrt: Sequence[str]
) -> None:
    """Reject names that are not float inputs or inner values."""
    if not wrt:
        raise ModelError(
            "There is no tensor to differentiate with respect to.",
            where=f"loss '{loss}'",
            fix="Train at least one parameter: all are frozen, or none was found.",
        )
    repeated = sorted(name for name, count in Counter(wrt).items() if count > 1)
    if repeated:
        raise ModelError(
            "A tensor is listed twice.", where=", ".join(repeated), fix="List each tensor once."
        )
    # An initializer may be folded or merged with another one: only inputs are trained.
    inputs = {value.name for value in graph.inputs if value.name}
    sources = {n: v for n, v in values.items() if n in inputs or v.producer() is not None}
    unknown = [name for name in wrt if name not in sources]
    if unknown:
        hint = "It is a constant: make it a graph input." if unknown[0] in values else ""
        raise ModelError(
            "Gradients are requested for names that are neither graph inputs nor inner values.",
            where=", ".join(unknown),
            fix=hint or nearest(unknown[0], sources),
        )
    wrong = [n for n in wrt if sources[n].dtype is not None and sources[n].dtype not in FLOAT_TYPES]
    if wrong:
        raise ModelError(
            "Only float tensors have gradients.",
            where=", ".join(f"{name} ({sources[name].dtype})" for name in wrong),
            fix="Do not train these.",
        )


def run_rewrites(model: ir.Model, rewrites: Sequence[Callable[[ir.Model], Report]]) -> list[Report]:
    """Run rewrites in place; return the reports of those that changed or refused a node."""
    infer_missing(model)
    reports = [rewrite(model) for rewrite in rewrites]
    if any(report.modified for report in reports):
        infer_missing(model)
    return [report for report in reports if report.changed or report.kept]


def refuse_nodes(engine: str, problems: Sequence[tuple[ir.Node, str]], fix: str) -> None:
    """Raise an error if nodes between the parameters and the loss have no correct gradient.

    Raises:
        ModelError: There are problems; it lists the first of them.
    """
    if problems:
        named = [f"{label(node)} ({node.op_type}): {reason}" for node, reason in problems]
        more = f"; and {len(named) - 5} more" if len(named) > 5 else ""
        raise ModelError(
            "Operators between the parameters and the loss have no gradient in the "
            f"{engine} engine.",
            where="; ".join(named[:5]) + more,
            fix=fix,
        )
