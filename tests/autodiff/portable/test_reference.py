"""The gradient graph itself, run by the reference evaluator of ``onnx`` in float64.

A second oracle: in double precision, a rule is accurate to seven digits or wrong.
"""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import get_engine
from tests.autodiff.numeric import evaluate, numeric_gradients
from tests.autodiff.oracle import Case, cases
from tests.autodiff.portable.test_probe import refused

_ALGEBRA = frozenset(
    "Abs Acos Acosh Add Asin Asinh Atan Atanh Cast CastLike Celu Clip Cos Cosh CumSum Det Div "
    "Dropout Elu Erf Exp Gelu HardSigmoid HardSwish Identity LeakyRelu Log LogSoftmax Max Mean "
    "Min Mish Mod Mul Neg NegativeLogLikelihoodLoss PRelu Pow Reciprocal ReduceL1 ReduceL2 "
    "ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
    "ReduceSumSquare Relu Selu Shrink Sigmoid Sin Sinh Resize Softmax SoftmaxCrossEntropyLoss "
    "Softplus Softsign Sqrt Sub Sum Tan Tanh ThresholdedRelu Where BiasGelu FastGelu "
    "QuickGelu".split()
)
# Cases in which the reference evaluator is wrong: it overflows, divides by 0, or ignores -1.
_ITS_FAULT = {
    ("LogSoftmax", "large"),
    ("NegativeLogLikelihoodLoss", "ignore mean"),
    ("SoftmaxCrossEntropyLoss", "all ignored"),
}


def fits(case: Case) -> bool:
    return not (
        case.domain
        or case.op == "Dropout"
        # it places pixels by float64 scales, the kernels by float32; see
        # tests/autodiff/decompose/test_resize.py
        or case.op == "Resize"
        or refused(case)
        or (case.op, case.note) in _ITS_FAULT
        or case.op not in _ALGEBRA
    )


@pytest.mark.parametrize("op_type", sorted({case.op for case in cases() if fits(case)}))
def test_algebra_in_double_precision(op_type):
    engine = get_engine("portable")
    for case in cases():
        if case.op != op_type or not fits(case):
            continue
        model, wrt, feeds = case.build()
        work = model.clone()
        decompose(work, wrt=wrt, loss="loss", engine=engine)
        result = engine.differentiate(work, "loss", wrt)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = evaluate(result, feeds, [f"{name}_grad" for name in wrt])
            expected = numeric_gradients(model, "loss", wrt, feeds)
        for name, gradient in zip(wrt, found, strict=True):
            scale = 1 + np.abs(expected[name])
            assert gradient.shape == expected[name].shape, case.name
            assert np.all(np.abs(gradient - expected[name]) < 5e-7 * scale), case.name
