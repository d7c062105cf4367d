"""Gradients by ``GradientGraphBuilder`` of onnxruntime-training 1.19.2, without torch.

The only file that imports ``onnxruntime.capi._pybind_state``. The builder is exact and fast, and it
has traps: operators whose gradient is silently wrong in some forms. ``prepare`` (see
:mod:`ortboost.autodiff.native.rewrites`) brings every graph into a form where it is right;
``differentiate`` runs it again on its copy, so that no caller can forget it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
import onnx_ir as ir

from ortboost.autodiff.engine import check_request
from ortboost.autodiff.native import rewrites, support
from ortboost.autodiff.native.graph import (
    drop_copies,
    drop_empty_inputs,
    free_gradient_names,
    lift_large_constants,
    one_use_per_node,
    own_frozen_inputs,
    part_shapes,
    protect_pool_indices,
    protect_running_statistics,
    put_back,
    restore,
    scatter_pool_gradients,
    set_aside,
    sum_empty_batches,
    unique_node_names,
)
from ortboost.autodiff.native.rewrites.broadcasting import (
    hide_uncertain_shapes,
    show_hidden_shapes,
)
from ortboost.autodiff.native.rewrites.partial import partly_used_splits
from ortboost.core.errors import DependencyError, ModelError
from ortboost.core.report import Report
from ortboost.graph.query import label
from ortboost.graph.reach import reach

__all__ = ["Diagnosis", "NativeEngine", "diagnose"]

VERSION = "1.19.2"
_WHEELS = ("onnxruntime-training-cpu", "onnxruntime-training")
# Distributions that all install the same `onnxruntime` folder.
_OWNERS = (
    *_WHEELS,
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-rocm",
    "onnxruntime-migraphx",
    "onnxruntime-qnn",
    "onnxruntime-azure",
    "ort-nightly",
    "ort-nightly-gpu",
)
_NEWEST_PYTHON = (3, 12)
_MAX_BYTES = 2**31 - 2**20


@dataclass(frozen=True)
class Diagnosis:
    """Why the native engine cannot run.

    Args:
        what: What is wrong, one sentence.
        where: The packages that were found.
        fix: The commands that mend it.
    """

    what: str
    where: str
    fix: str


@dataclass(frozen=True)
class _Bindings:
    """The two things that are taken from the C bindings, and the session options they need."""

    builder: Callable[..., Any]
    optimize: Callable[..., bytes]
    options: Callable[[], Any]


def diagnose() -> Diagnosis | None:
    """Look for the right wheel, alone in its folder; ``None`` if all is well."""
    found = {}
    for owner in _OWNERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[owner] = importlib.metadata.version(owner)
    where = ", ".join(f"{name} {version}" for name, version in found.items()) or "no onnxruntime"
    install = (
        f"pip install {_WHEELS[0]}=={VERSION}  (or 'ortboost[cpu]'; with a GPU 'ortboost[cuda]')"
    )
    if sys.version_info[:2] > _NEWEST_PYTHON:  # nothing that pip could install
        return Diagnosis(
            "There is no onnxruntime-training for this Python.",
            f"Python {platform.python_version()}, {where}",
            "Use --engine portable, or Python 3.10 to 3.12 with 'ortboost[cpu]'.",
        )
    if len(found) > 1:
        keep = next((wheel for wheel in reversed(_WHEELS) if wheel in found), _WHEELS[0])
        return Diagnosis(
            "Several onnxruntime wheels share one folder and overwrite each other.",
            where,
            f"pip uninstall -y {' '.join(found)} && "
            f"pip install --force-reinstall --no-deps {keep}=={VERSION}",
        )
    try:
        _bindings()
    except ImportError as error:
        if not found:
            return Diagnosis("onnxruntime-training is not installed.", where, install)
        owner = next(iter(found))
        if owner not in _WHEELS:
            return Diagnosis(
                "The installed onnxruntime cannot make gradients.",
                where,
                f"pip uninstall -y {owner} && {install}",
            )
        return Diagnosis(
            f"onnxruntime-training is damaged ({str(error).splitlines()[0]}).",
            where,
            f"pip install --force-reinstall --no-deps {owner}=={VERSION}",
        )
    version = getattr(importlib.import_module("onnxruntime"), "__version__", None)
    if version != VERSION:
        return Diagnosis(
            f"The native engine is made for onnxruntime-training {VERSION}, this is {version}.",
            where,
            f"pip install --force-reinstall --no-deps {next(iter(found), _WHEELS[0])}=={VERSION}",
        )
    return None


def _bindings() -> _Bindings:
    # Deferred, so that `import ortboost` works without any runtime.
    from onnxruntime.capi import _pybind_state as state

    try:
        return _Bindings(
            state.GradientGraphBuilder, state.get_optimized_model, state.SessionOptions
        )
    except AttributeError as error:  # a stock build, or two wheels over each other
        raise ImportError(str(error)) from error


class NativeEngine:
    """The engine ``"native"``; see :class:`ortboost.autodiff.engine.Engine`."""

    name = "native"
    opsets = range(18, 22)
    ir_version = 10
    fp32_operators: Mapping[str, str] = dict.fromkeys(
        ("LayerNormalization", "SimplifiedLayerNormalization"),
        "its native gradient has no float16 kernel on the CPU, and no valid definition",
    )

    def unavailable(self) -> str | None:
        """Why onnxruntime-training cannot be used here, and the cure."""
        found = diagnose()
        return None if found is None else f"{found.what} ({found.where}) Cure: {found.fix}"

    def require(self) -> None:
        """Raise with the cure if onnxruntime-training cannot be used here.

        Raises:
            DependencyError: It is missing, damaged, of the wrong version, or shares its folder.
        """
        found = diagnose()
        if found is not None:
            raise DependencyError(found.what, where=found.where, fix=found.fix)

    def gradient_support(self, node: ir.Node) -> str | None:
        """``None`` if the builder has a right gradient for the node once it is prepared."""
        return support.gradient_support(node)

    def prepare(self, model: ir.Model) -> list[Report]:
        """Mend in place what the builder would get wrong or stumble over."""
        return rewrites.prepare(model)

    def differentiate(self, model: ir.Model, loss: str, wrt: Sequence[str]) -> ir.Model:
        """Make the gradient graph; see :func:`ortboost.autodiff.engine.differentiate`."""
        self.require()
        version = model.opset_imports.get("")
        if version not in self.opsets:
            raise ModelError(
                f"The native engine takes opset {self.opsets[0]} to {self.opsets[-1]}.",
                where=f"the model has opset {version}",
                fix="Normalize the model first (ortboost.graph.normalize).",
            )
        check_request(model, loss, wrt)
        work = model.clone()
        work.ir_version = min(work.ir_version or self.ir_version, self.ir_version)
        self.prepare(work)
        partly_used_splits(work, reach(work, wrt, loss))
        _refuse_unsupported(self, work, wrt, loss)
        free_gradient_names(work, [*wrt, loss])
        part_shapes(work)
        one_use_per_node(work, wrt)
        hide_uncertain_shapes(work, reach(work, wrt, loss))
        shared = own_frozen_inputs(work, reach(work, wrt, loss).active)
        drop_empty_inputs(work)
        unique_node_names(work)
        lifted = lift_large_constants(work, shared)
        aside = set_aside(work, loss)
        result = ir.from_proto(onnx.load_from_string(_build(work, loss, wrt)))
        drop_copies(result)
        show_hidden_shapes(result)
        put_back(result, aside)
        restore(result, model, wrt, lifted)
        protect_running_statistics(result)
        scatter_pool_gradients(result)
        sum_empty_batches(result)
        protect_pool_indices(result)
        return result


# What must not carry a gradient: operator to inputs and outputs, with the reason.
_INERT = {
    "BatchNormalization": ((), (1, 2), "its running statistics have no gradient"),
    "Pow": ((1,), (), "the exponent has no gradient; use a constant one"),
    "SoftmaxCrossEntropyLoss": ((2,), (), "the class weights have no gradient"),
}


def _refuse_unsupported(
    engine: NativeEngine, model: ir.Model, wrt: Sequence[str], loss: str
) -> None:
    """Never build a gradient that is known to be wrong.

    Raises:
        ModelError: Naming all nodes on the path that have no right gradient.
    """
    reached = reach(model, wrt, loss)
    problems = []
    for node in reached.nodes:
        reason = engine.gradient_support(node)
        inputs, outputs, inert = _INERT.get(node.op_type, ((), (), ""))
        touched = [node.inputs[i] for i in inputs if i < len(node.inputs)] + [
            node.outputs[i] for i in outputs if i < len(node.outputs)
        ]
        if reason is None and any(v is not None and v.name in reached.active for v in touched):
            reason = inert
        if node.op_type == "Split" and any(o.name not in reached.active for o in node.outputs):
            reason = "only some parts of it lead to the loss, and its sizes are not fixed"
        if reason is not None:
            problems.append(f"{label(node)} ({node.op_type}): {reason}")
    if problems:
        more = f"; and {len(problems) - 5} more" if len(problems) > 5 else ""
        raise ModelError(
            "Operators between the parameters and the loss have no gradient in the native engine.",
            where="; ".join(problems[:5]) + more,
            fix="Decompose them first (ortboost.autodiff.decompose), or run `ortboost check`.",
        )


def _build(model: ir.Model, loss: str, wrt: Sequence[str]) -> bytes:
    """Call the two C++ functions, translating their complaints."""
    proto = ir.to_proto(model)
    if proto.ByteSize() > _MAX_BYTES:
        raise ModelError(
            "The graph is larger than 2 GB.",
            where=f"{proto.ByteSize()} bytes",
            fix="Keep large tensors as graph inputs, not as constants.",
        )
    bindings = _bindings()
    options = bindings.options()
    options.log_severity_level = 3  # the builder's own warnings name nodes the user never saw
    names = set(wrt)
    with _translated(model, wrt):
        optimized = bindings.optimize(proto.SerializeToString(), names, options)
        builder = bindings.builder(optimized, {loss}, names, loss, options)
        builder.build()
        built: bytes = builder.get_model()
    return built


_MESSAGES: tuple[tuple[str, str, str], ...] = (
    (
        r"gradient builder has not been registered: (\S+)",
        "The operator {0} has no gradient in the native engine.",
        "Decompose it first (ortboost.autodiff.decompose), or freeze the parameters before it.",
    ),
    (
        r"Cannot compute the partial derivative for '([^']*)'",
        "The loss does not depend differentiably on '{0}'.",
        "Freeze it: it is unused, or behind an ArgMax, a comparison or an integer cast.",
    ),
    (
        r"Duplicate definition of name \(([^)]*)\)",
        "Two values of the gradient graph would be called '{0}'.",
        "Rename the tensor in the model; names that end in '_grad' are taken.",
    ),
    (
        r"GradientBuilder is not implemented for CUDA Pow's input exponent",
        "The exponent of a Pow would need a gradient.",
        "Use a constant exponent, or freeze the parameter that it is made of.",
    ),
    (
        r"Pad gradient currently supports constant mode only",
        "A Pad with mode 'reflect', 'edge' or 'wrap' has no gradient in the native engine.",
        "Decompose it first (ortboost.autodiff.decompose), or pad with zeros.",
    ),
    (
        r"GetIndexFromName|does not exist in the graph",
        "There is control flow (If, Loop, Scan) between the parameters and the loss.",
        "Export the model without control flow, or freeze the parameters before it.",
    ),
    (
        r"failed to find NodeArg by name: (\S+)_grad",
        "'{0}' got no gradient.",
        "Freeze it: only float tensors on a differentiable path can be trained.",
    ),
    (
        r"till opset (\d+)",
        "The model's opset is newer than the native engine knows (up to {0}).",
        "Normalize the model first (ortboost.graph.normalize).",
    ),
    (
        r"Unsupported model IR version: (\d+), max",
        "The model's IR version {0} is newer than the native engine knows.",
        "Normalize the model first (ortboost.graph.normalize).",
    ),
    (
        r"i < node_->(?:Out|In)putDefs\(\)\.size\(\)",
        "A node lacks an optional input or output that its gradient needs.",
        "Give LayerNormalization its bias and three outputs, Dropout its mask; please report this.",
    ),
)


@contextlib.contextmanager
def _translated(model: ir.Model, wrt: Sequence[str]) -> Iterator[None]:
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        text = str(error).strip()
        where = f"model '{model.graph.name}', {len(wrt)} tensors to differentiate for"
        for pattern, what, fix in _MESSAGES:
            match = re.search(pattern, text)
            if match:
                culprit = _nodes_of(model, match.group(1)) if match.groups() else ""
                raise ModelError(
                    what.format(*match.groups()), where=culprit or where, fix=fix
                ) from error
        raise ModelError(
            "onnxruntime-training cannot make the gradient graph.",
            where=f"{where}: {text[-400:]}",
            fix="Run `ortboost check` on the model; if it finds nothing, please report this.",
        ) from error


def _nodes_of(model: ir.Model, op_type: str) -> str:
    names = [node.name or "?" for node in model.graph if node.op_type == op_type]
    return f"{op_type}: {', '.join(names[:5])}{'...' if len(names) > 5 else ''}" if names else ""
