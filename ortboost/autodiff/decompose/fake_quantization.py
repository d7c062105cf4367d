"""Fake quantization: the straight-through estimator of quantization-aware training.

Bengio, Leonard and Courville, "Estimating or propagating gradients through stochastic neurons for
conditional computation", arXiv:1308.3432; the limits are those of torch's ``fake_quantize``.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ortboost.autodiff.decompose.registry import decomposes
from ortboost.autodiff.refused import REFUSED
from ortboost.graph.formulas import Term
from ortboost.graph.query import known_shape, producer_of, source_before
from ortboost.graph.reach import STOP_MARK
from ortboost.graph.rewriting import Refusal, Site
from ortboost.graph.weights.fake_quantization import integer_range, is_fake_quantizer, settings

__all__ = ["straight_through"]


@decomposes("DequantizeLinear")
def straight_through(site: Site) -> list[ir.Value | None]:
    """The result of a fake quantizer, with the gradient of ``x`` where its integer is in range."""
    quantizer = producer_of(source_before(site.input(0), "Clip"), "QuantizeLinear")
    if quantizer is None or not is_fake_quantizer(quantizer):
        raise Refusal(REFUSED["DequantizeLinear"])
    x, (low, high) = quantizer.inputs[0], integer_range(quantizer) or (0, 0)
    assert x is not None
    scale, zero = _settings(quantizer, x)
    step, inverse, origin = (site.const(array, x.dtype) for array in (scale, 1 / scale, zero))
    stopped = Term(site, _stopped(site, x), x.shape)
    whole = (stopped / step).call("Round") + origin
    rounded = (whole.call("Max", low).call("Min", high) - origin) * step
    # As torch decides whether an integer is within the range. Symmetric observers put the largest
    # weight of each channel at its limit, 127.5 steps from zero: there, the last bit matters.
    whole = (stopped * inverse).call("Round") + origin
    inside = whole.call("Equal", whole.call("Max", low).call("Min", high))
    passed = inside.where(Term(site, x, x.shape), 0.0)
    return [(passed - _stopped(site, passed.value) + rounded).value]


def _stopped(site: Site, value: ir.Value) -> ir.Value:
    stopped = site.op("Identity", value, shape=value.shape)
    site.builder.nodes[-1].metadata_props[STOP_MARK] = "true"
    return stopped


def _settings(quantizer: ir.Node, x: ir.Value) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point, in a shape that broadcasts to ``x``."""
    found = settings(quantizer)
    assert found is not None  # otherwise it is not a fake quantizer
    scale, zero = found
    if scale.size == 1:
        return scale.reshape(()), zero.reshape(())
    shape, axis = known_shape(x), quantizer.attributes.get_int("axis", 1)
    if shape is None or scale.ndim > 1:
        raise Refusal("quantized in blocks, or of unknown rank; start from the float model")
    behind = [1] * (len(shape) - 1 - axis % len(shape))  # one number for each channel
    return scale.reshape([-1, *behind]), zero.reshape([-1, *behind])
