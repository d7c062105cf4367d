"""The logarithms of a sigmoid and of its complement as ``-softplus(-x)`` and ``-softplus(x)``.

``torch.nn.functional.logsigmoid`` is computed in this way, but both of torch's exporters write
Sigmoid and Log. TorchScript's also writes ``log(1 - sigmoid(x))``, in
``binary_cross_entropy_with_logits``, and the dynamo one in ``binary_cross_entropy``. onnxruntime's
Sigmoid is off by some percent from -15 on and 0 from -18 on, and 1 from 17 on, so that the loss
would be infinite and its gradient not a number.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import constant, known_shape, producer_of, source_before
from ortboost.graph.rewriting import Site, rewrites

__all__ = ["write_out_log_sigmoids"]


@rewrites("Log", what="softplus of a sigmoid")
def write_out_log_sigmoids(site: Site) -> list[ir.Value | None] | None:
    """Replace each logarithm of a Sigmoid, in place; other readers of the Sigmoid keep it."""
    source = site.input(0)
    complement = _complement(source)
    sigmoid = producer_of(source if complement is None else complement, "Sigmoid")
    if sigmoid is None or sigmoid.inputs[0] is None:
        return None
    x = sigmoid.inputs[0]
    form = {"dtype": x.dtype, "shape": x.shape}
    if complement is None:
        x = site.op("Neg", x, **form)
    return [site.op("Neg", site.op("Softplus", x, **form), **form)]


def _complement(value: ir.Value) -> ir.Value | None:
    """What a value is 1 minus, also as `(-s) + 1`, as the dynamo exporter writes `log1p(-s)`."""
    difference, total = producer_of(value, "Sub"), producer_of(value, "Add")
    if difference is not None:
        one, subtracted = difference.inputs
    elif total is not None and (negative := producer_of(total.inputs[0], "Neg")) is not None:
        one, subtracted = total.inputs[1], negative.inputs[0]
    else:
        return None
    array = constant(source_before(one, "CastLike"), limit=1)
    rank = len(known_shape(subtracted) or ())  # 1 must not add axes
    is_one = array is not None and array.tolist() in (1, [1]) and array.ndim <= rank
    return subtracted if is_one else None
