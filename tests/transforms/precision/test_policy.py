"""The classes of operators against PyTorch's lists for automatic mixed precision."""

from __future__ import annotations

import json

import pytest

from ortboost.core.errors import ConfigError
from ortboost.program.config import ProgramConfig
from ortboost.transforms.precision import PrecisionConfig, classify, precision_for_level
from tests.support import assert_three_lines

# torch.amp, "Autocast Op Reference": the name there, and the ONNX operator it exports to.
AUTOCASTS_TO_FLOAT16 = {
    "conv1d, conv2d, conv3d": "Conv",
    "conv_transpose2d": "ConvTranspose",
    "linear, addmm, addmv": "Gemm",
    "matmul, bmm, mm, mv": "MatMul",
    "scaled_dot_product_attention": "Attention",
    "einsum (by bmm)": "Einsum",
}
AUTOCASTS_TO_FLOAT32 = {
    "acos": "Acos",
    "asin": "Asin",
    "cosh": "Cosh",
    "cumprod": "CumProd",
    "cumsum": "CumSum",
    "exp, expm1": "Exp",
    "group_norm": "GroupNormalization",
    "layer_norm": "LayerNormalization",
    "log, log10, log1p, log2": "Log",
    "log_softmax": "LogSoftmax",
    "nll_loss": "NegativeLogLikelihoodLoss",
    "norm": "ReduceL2",
    "pow": "Pow",
    "prod": "ReduceProd",
    "reciprocal": "Reciprocal",
    "sinh": "Sinh",
    "softmax": "Softmax",
    "softplus": "Softplus",
    "sum": "ReduceSum",
    "tan": "Tan",
}
# Without a counterpart among torch's functions: operators that runtimes fuse, and of ONNX alone.
MORE_PRODUCTS = ("DeformConv", "FusedConv", "FusedGemm", "FusedMatMul", "MultiHeadAttention")
MORE_IN_FLOAT32 = (
    "Acosh AffineGrid Atanh BatchNormalization DFT DequantizeLinear Det GRU GlobalAveragePool "
    "GlobalLpPool GridSample GroupNorm Hardmax InstanceNormalization LRN LSTM LpNormalization "
    "LpPool MeanVarianceNormalization NonMaxSuppression QuantizeLinear RMSNormalization RNN Range "
    "ReduceL1 ReduceLogSum ReduceLogSumExp ReduceMean ReduceSumSquare RoiAlign STFT "
    "SimplifiedLayerNormalization SkipLayerNormalization SkipSimplifiedLayerNormalization "
    "SoftmaxCrossEntropyLoss Sqrt"
).split()
NEITHER = ("Add", "Relu", "Mul", "Sigmoid", "Tanh", "MaxPool", "Reshape", "Concat", "Gelu")


@pytest.mark.parametrize("op", [*AUTOCASTS_TO_FLOAT16.values(), *MORE_PRODUCTS])
def test_products_are_low(op):
    assert classify(op)[0] == "low"


@pytest.mark.parametrize("op", [*AUTOCASTS_TO_FLOAT32.values(), *MORE_IN_FLOAT32])
def test_sums_and_wide_ranges_are_float32(op):
    assert classify(op)[0] == "fp32"
    assert classify(op)[1]


@pytest.mark.parametrize("op", NEITHER)
def test_the_others_follow(op):
    assert classify(op)[0] == "free"


def test_the_policy_all_is_for_everything_but_losses_and_norms():
    assert classify("Softmax", "all")[0] == "low"
    assert classify("BatchNormalization", "all")[0] == "fp32"
    assert classify("LayerNormalization", "all")[0] == "fp32"
    assert classify("BatchNormalization", "all", keep_batchnorm=False)[0] == "low"
    assert classify("SoftmaxCrossEntropyLoss", "all", keep_batchnorm=False)[0] == "fp32"


@pytest.mark.parametrize(
    ("level", "compute", "policy", "keep"),
    [
        ("O0", "fp32", "autocast", True),
        ("O1", "fp16", "autocast", True),
        ("O2", "fp16", "all", True),
        ("O3", "fp16", "all", False),
        ("auto", "fp16", "autocast", True),
    ],
)
def test_levels(level, compute, policy, keep):
    found = precision_for_level(level)
    assert (found.compute, found.policy, found.keep_batchnorm) == (compute, policy, keep)
    if level in ("O2", "O3"):
        assert precision_for_level(level, not keep).keep_batchnorm == (not keep)
        assert precision_for_level(level, compute="bf16").compute == "bf16"


@pytest.mark.parametrize(
    "fields",
    [
        {"compute": "fp61"},
        {"compute": "fp16", "policy": "some"},
        {"compute": "fp16", "keep_fp32": "conv*"},
        {"compute": "fp16", "emulate": "yes"},
        {"emulate": True},
        {"force_low": ("Conv",)},
    ],
)
def test_refused_configurations(fields):
    with pytest.raises(ConfigError) as raised:
        PrecisionConfig(**fields)
    assert_three_lines(raised.value)
    if "compute" not in fields:  # the option's name, which differs from that of the field
        assert raised.value.what.startswith(f"--{next(iter(fields)).replace('_', '-')} has no")


def test_a_level_that_there_is_not():
    with pytest.raises(ConfigError, match="O4"):
        precision_for_level("O4")


def test_the_configuration_goes_through_json():
    config = ProgramConfig(
        precision=PrecisionConfig("bf16", "all", False, keep_fp32=("a*",), emulate=True)
    )
    assert ProgramConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    with pytest.raises(ConfigError, match="computes"):
        ProgramConfig.from_dict({"precision": {"computes": "fp16"}})
    with pytest.raises(ConfigError, match=r"PrecisionConfig is needed"):
        ProgramConfig(precision="fp16")
    without = {key: value for key, value in config.to_dict().items() if key != "precision"}
    assert ProgramConfig.from_dict(without).precision == PrecisionConfig()
