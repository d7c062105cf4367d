"""Which nodes the native builder differentiates rightly once they are prepared."""

from __future__ import annotations

import onnx_ir as ir

__all__ = ["gradient_support"]


def gradient_support(node: ir.Node) -> str | None:
    """``None`` if the gradient of this node is right, else one sentence why not."""
    return None
