"""What the tests of all CPU forms share."""

from __future__ import annotations

import platform
from collections.abc import Callable

import numpy as np
import onnx_ir as ir
import pytest
from onnx_ir.passes import common

from tests.support import run

__all__ = ["PADS", "assert_same", "needs_blocks", "operators"]

PADS = {
    "same": {"pads": (1, 1, 1, 1)},
    "valid": {},
    "one-sided": {"pads": (2, 0, 0, 1)},
    "more at the end": {"pads": (0, 1, 2, 1)},
}
"""Paddings of a convolution with 3x3 taps."""

needs_blocks = pytest.mark.skipif(
    # Not asked of `block_size`: it tries the rewrite, and a broken one would skip its own tests.
    platform.machine() not in ("x86_64", "AMD64"),
    reason="onnxruntime may have no blocked layout",
)


def operators(model: ir.Model) -> list[str]:
    """All operators, those of the blocked layout with their domain."""
    return [
        f"nchwc.{node.op_type}" if node.domain.endswith("nchwc") else node.op_type
        for node in model.graph
    ]


def assert_same(
    model: ir.Model,
    rewrite: Callable[[ir.Model], bool],
    *feeds: dict[str, np.ndarray],
    tolerance: float = 1e-5,
) -> ir.Model:
    """The rewrite fires once, and what it makes computes the same; the model made by it."""
    changed = model.clone()
    assert rewrite(changed)
    common.RemoveUnusedNodesPass()(changed)
    made = operators(changed)
    assert made != operators(model)
    assert not rewrite(changed)
    assert operators(changed) == made
    assert [v.name for v in changed.graph.outputs] == [v.name for v in model.graph.outputs]
    for batch in feeds:
        expected, found = run(model, batch), run(changed, batch)
        for name, value in expected.items():
            scale = max(1.0, float(np.abs(value).max(initial=0.0)))
            np.testing.assert_allclose(found[name], value, atol=tolerance * scale, rtol=tolerance)
    return changed
