"""The logarithm of a sigmoid as ``-softplus(-x)``.

``torch.nn.functional.logsigmoid`` is computed in this way, but both of torch's exporters write
Sigmoid and Log. onnxruntime's Sigmoid is off by some percent from -15 on and 0 from -18 on, so that
the loss would be infinite and its gradient not a number.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import producer_of
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["write_out_log_sigmoids"]


@rewrites("Log", what="-softplus(-x) of a sigmoid")
def write_out_log_sigmoids(site: Site) -> list[ir.Value | None] | None:
    """Replace each logarithm of a Sigmoid, in place; other readers of the Sigmoid keep it."""
    sigmoid = producer_of(site.input(0), "Sigmoid")
    if sigmoid is None or sigmoid.inputs[0] is None:
        return None
    x = sigmoid.inputs[0]
    form = {"dtype": x.dtype, "shape": x.shape}
    return [site.op("Neg", site.op("Softplus", site.op("Neg", x, **form), **form), **form)]
