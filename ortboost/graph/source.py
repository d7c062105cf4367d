"""Where a model came from, for error messages."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["named_source", "source_name"]

_SOURCE = "ortboost.source"


def source_name(model: ir.Model) -> str:
    """The path or name that the model was loaded from, for error messages."""
    return str(model.meta.get(_SOURCE, model.graph.name or "model"))


def named_source(model: ir.Model, name: str) -> ir.Model:
    """Set what :func:`source_name` returns for a model, and return the model."""
    model.meta[_SOURCE] = name
    return model
