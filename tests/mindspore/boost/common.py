"""What the tests of the boost faces share."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortboost import nn
from ortboost.mindspore.core.network import Network, load
from tests.mindspore.nn import golden
from tests.support import model_path, text_model, weights


def with_loss(net: Network) -> nn.WithLossCell:
    return nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))


def momentum(net: Network, **more: Any) -> nn.Momentum:
    return nn.Momentum(net.trainable_params(), 0.05, 0.9, **more)


def train(step: Any, name: str, count: int) -> None:
    for x, labels in golden.batches(name, count):
        step(x, labels)


def mixed_net() -> Network:
    """A grouped and a plain convolution with 16 and 3 input channels, a normalization, a head."""
    return load(
        text_model(
            """<ir_version: 10, opset_import: ["" : 18]>
            net (float[batch,3,6,6] x, float[16,3,3,3] "first.weight", float[16] "bn.gamma",
                 float[16] "bn.beta", float[16] "bn.mean", float[16] "bn.var",
                 float[16,1,3,3] "deep.weight", float[8,16,1,1] "last.weight",
                 float[5,8] "fc.weight", float[5] "fc.bias") => (float[batch,5] logits) {
              [first] a = Conv<pads = [1, 1, 1, 1]>(x, "first.weight")
              [bn] b = BatchNormalization(a, "bn.gamma", "bn.beta", "bn.mean", "bn.var")
              [deep] c = Conv<pads = [1, 1, 1, 1], group = 16>(b, "deep.weight")
              [last] d = Conv(c, "last.weight")
              [pool] e = GlobalAveragePool(d)
              [flat] f = Flatten(e)
              [fc] logits = Gemm<transB = 1>(f, "fc.weight", "fc.bias")
            }""",
            **{
                "first.weight": weights(16, 3, 3, 3, seed=1),
                "bn.gamma": 1 + 0.1 * weights(16, seed=2),
                "bn.beta": weights(16, seed=3),
                "bn.mean": weights(16, seed=4),
                "bn.var": 1 + np.abs(weights(16, seed=5)),
                "deep.weight": weights(16, 1, 3, 3, seed=6),
                "last.weight": weights(8, 16, 1, 1, seed=7),
                "fc.weight": weights(5, 8, seed=8),
                "fc.bias": weights(5, seed=9),
            },
        ),
        threads=1,
    )


def resnet() -> Network:
    return load(model_path("resnet_bottleneck"), threads=1)


def names(parameters: Any) -> list[str]:
    return [parameter.name for parameter in parameters]
