"""Access to the C bindings of onnxruntime-training and its gradient builder.

This is the only file that imports ``onnxruntime.capi._pybind_state``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import platform
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir

from ortboost.core.errors import DependencyError, ModelError, first_line

__all__ = ["VERSION", "build_gradients", "diagnose", "optimize"]

VERSION = "1.19.2"

_WHEELS = ("onnxruntime-training-cpu", "onnxruntime-training")
# Distributions that install the same `onnxruntime` folder.
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
_MAX_BYTES = 2**31 - 2**20  # protobuf writes less than 2 GiB


def diagnose() -> DependencyError | None:
    """Check that the required wheel is installed and the only one in its folder; ``None`` if so."""
    found = {}
    for owner in _OWNERS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[owner] = importlib.metadata.version(owner)
    where = ", ".join(f"{name} {version}" for name, version in found.items()) or "no onnxruntime"
    install = (
        f"pip install {_WHEELS[0]}=={VERSION}  (or 'ortboost[cpu]'; with a GPU 'ortboost[cuda]')"
    )
    if sys.version_info[:2] > _NEWEST_PYTHON:  # pip has no wheel to install
        return DependencyError(
            "onnxruntime-training does not support this Python version.",
            where=f"Python {platform.python_version()}, {where}",
            fix="Use --engine portable, or Python 3.10 to 3.12 with 'ortboost[cpu]'.",
        )
    # Before the import: two wheels overwrite each other's files, and either may seem to work.
    if len(found) > 1:
        keep = next((wheel for wheel in reversed(_WHEELS) if wheel in found), _WHEELS[0])
        return DependencyError(
            "Several onnxruntime wheels share one folder and overwrite each other.",
            where=where,
            fix=f"pip uninstall -y {' '.join(found)} && "
            f"pip install --force-reinstall --no-deps {keep}=={VERSION}",
        )
    try:
        _bindings()
    except ImportError as error:
        if not found:
            return DependencyError(
                "onnxruntime-training is not installed.", where=where, fix=install
            )
        owner = next(iter(found))
        if owner not in _WHEELS:
            return DependencyError(
                "The installed onnxruntime cannot compute gradients.",
                where=where,
                fix=f"pip uninstall -y {owner} && {install}",
            )
        return DependencyError(
            f"onnxruntime-training is damaged ({first_line(error)}).",
            where=where,
            fix=f"pip install --force-reinstall --no-deps {owner}=={VERSION}",
        )
    version = getattr(importlib.import_module("onnxruntime"), "__version__", None)
    if version != VERSION:
        return DependencyError(
            f"The native engine requires onnxruntime-training {VERSION}, but {version} is "
            "installed.",
            where=where,
            fix="pip install --force-reinstall --no-deps "
            f"{next(iter(found), _WHEELS[0])}=={VERSION}",
        )
    return None


def _bindings() -> Any:
    """The module of the C bindings, with a gradient builder."""
    # Imported late, so that `import ortboost` works without any runtime.
    from onnxruntime.capi import _pybind_state as state

    try:
        _ = state.GradientGraphBuilder, state.get_optimized_model
    except AttributeError as error:  # a stock build, or two overlapping wheels
        raise ImportError(str(error)) from error
    return state


def optimize(model: ir.Model, wrt: Sequence[str]) -> ir.Model:
    """The graph after the optimizer that runs before the gradient builder: nodes may be fused.

    Raises:
        ModelError: The graph is too large, or the runtime rejects it.
    """
    proto = ir.to_proto(model)
    if proto.ByteSize() > _MAX_BYTES:
        raise ModelError(
            "The graph is larger than 2 GB.",
            where=f"{proto.ByteSize()} bytes",
            fix="Keep large tensors as graph inputs, not as constants.",
        )
    bindings = _bindings()
    with _rejections(model, wrt):
        optimized = bindings.get_optimized_model(
            proto.SerializeToString(), set(wrt), _options(bindings)
        )
    return ir.from_proto(onnx.load_from_string(optimized))


def build_gradients(model: ir.Model, loss: str, wrt: Sequence[str]) -> ir.Model:
    """Run the gradient builder on an optimized graph; the result computes the gradients as well.

    Raises:
        ModelError: The builder rejects the graph.
    """
    bindings, names = _bindings(), set(wrt)
    proto = ir.to_proto(model).SerializeToString()
    with _rejections(model, wrt):
        builder = bindings.GradientGraphBuilder(proto, {loss}, names, loss, _options(bindings))
        builder.build()
        return ir.from_proto(onnx.load_from_string(builder.get_model()))


def _options(bindings: Any) -> Any:
    options = bindings.SessionOptions()
    options.log_severity_level = 3  # the builder's warnings refer to internal nodes
    return options


@contextlib.contextmanager
def _rejections(model: ir.Model, wrt: Sequence[str]) -> Iterator[None]:
    """Report an exception of the bindings as a :class:`ModelError`."""
    try:
        yield
    except (RuntimeError, IndexError, ValueError) as error:
        # What the builder is known to refuse is refused before (support.py, engine.py).
        raise ModelError(
            "onnxruntime-training cannot build the gradient graph.",
            where=f"model '{model.graph.name}', gradients of {len(wrt)} tensors: "
            f"{str(error).strip()[-400:]}",
            fix="Run `ortboost check` on the model; if it finds nothing, please report this.",
        ) from error
