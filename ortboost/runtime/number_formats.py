"""Probe how a device handles 16-bit formats, by running small graphs.

Each graph computes `(1 + e) - 1` after a matrix product, with `1 + e` between two values of the
format. This answers two questions:

- Are there kernels, or does the session fail to open?
- Is the sum rounded to the format (the result is 0), or does the runtime compute in float32 without
  rounding (the result is `e`)?
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.runtime.session import open_session

__all__ = ["FORMATS", "FormatSupport", "probe_format"]

FORMATS: Final = {"fp16": ir.DataType.FLOAT16, "bf16": ir.DataType.BFLOAT16}
"""Format name to element type."""

_OPSET = 18
# A quarter of the distance between 1 and the next value.
_STEP: Final = {"fp16": 2.0**-12, "bf16": 2.0**-10}


@dataclass(frozen=True)
class FormatSupport:
    """How a device handles a format.

    Args:
        runs: Whether there are kernels.
        rounds: Whether values between two operators are rounded to the format.
    """

    runs: bool
    rounds: bool

    @property
    def text(self) -> str:
        """A short description."""
        if not self.runs:
            return "no kernels"
        return (
            "computed and rounded"
            if self.rounds
            else "computed in float32, not rounded between nodes"
        )


def probe_format(name: str, device: str) -> FormatSupport:
    """Probe how a device handles ``fp16`` or ``bf16``.

    Example:
        >>> probe_format("bf16", "cpu").text
        'no kernels'
    """
    to = int(FORMATS[name])
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : {_OPSET}]>
        probe (float[1,1] x, float[1,1] e) => (float[1,1] y) {{
          xs = Cast<to = {to}>(x)
          es = Cast<to = {to}>(e)
          p = MatMul(xs, xs)
          s = Add(p, es)
          d = Sub(s, xs)
          y = Cast<to = 1>(d)
        }}"""
    )
    one, step = np.ones((1, 1), np.float32), np.full((1, 1), _STEP[name], np.float32)
    try:
        (answer,) = open_session(model, device=device, threads=1).run(None, {"x": one, "e": step})
    except Exception:  # no kernels; the bindings raise bare exceptions of many kinds
        return FormatSupport(runs=False, rounds=False)
    return FormatSupport(runs=True, rounds=float(answer[0, 0]) == 0.0)
