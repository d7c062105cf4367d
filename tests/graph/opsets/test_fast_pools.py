"""AveragePool at an opset whose kernel is fast on CPUs."""

import numpy as np
import onnx
import pytest

from ortboost.deploy.pipeline import optimize
from ortboost.deploy.targets import get_target
from ortboost.graph.opsets.fast_pools import keep_fast_pools
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from tests.deploy.rewrites.support import check, model_of, ops
from tests.support import weights

POOL = "y = AveragePool<kernel_shape = [2,2], strides = [2,2]>(g)"
TYPES = ("float[n,2,6,6] x", "float[n,2,3,3] y")
FEEDS = {"x": weights(2, 2, 6, 6)}
WRITTEN_OUT = {"Div": 1, "Erf": 1, "Add": 1, "Mul": 2, "AveragePool": 1}


def pooled_gelu():
    return model_of(f"g = Gelu(x) {POOL}", *TYPES, opset=20)


def test_a_newer_opset_is_lowered():
    model = pooled_gelu()
    report = check(keep_fast_pools, model, FEEDS)
    assert report.changed == {"model": "opset 20 -> 18, whose AveragePool is faster"}
    optimize(model, get_target("onnxruntime"))
    assert ops(model) == WRITTEN_OUT  # which the runtime fuses


@pytest.mark.parametrize("target", ["onnxruntime", "onnxruntime-gpu", "tensorrt"])
@pytest.mark.parametrize("opset", [18, 20])
def test_only_for_cpus(target, opset):
    """The opset is not raised for the Gelu, either."""
    model = pooled_gelu()
    if opset == 18:
        keep_fast_pools(model)
    optimize(model, get_target(target))
    cpu = target == "onnxruntime"
    assert model.opset_imports[""] == (18 if cpu else 20)
    assert ops(model) == (WRITTEN_OUT if cpu else {"Gelu": 1, "AveragePool": 1})


@pytest.mark.parametrize("given", [False, True])
def test_a_given_opset_and_models_without_a_pool_stay(given):
    model = (
        pooled_gelu() if given else model_of("y = Gelu(x)", "float[n] x", "float[n] y", opset=20)
    )
    optimize(model, get_target("onnxruntime"), lift=not given)
    assert model.opset_imports[""] == 20


def test_a_model_that_cannot_be_converted_keeps_its_opset():
    model = model_of(
        f"g = DFT(x, n, a) {POOL.replace('(g)', '(x)')}", "float[n,2,6,6] x, int64 n, int64 a",
        "float[n,2,3,3] y, g", opset=20, n=np.int64(6), a=np.int64(2),
    )  # fmt: skip
    report = keep_fast_pools(model)
    assert model.opset_imports[""] == 20
    assert list(report.kept) == ["model"]


@pytest.mark.parametrize(
    ("node", "opset"), [('Gelu<approximate = "tanh">(x)', 20), ("RMSNormalization(x, s)", 23)]
)
def test_an_operator_that_the_runtime_would_not_fuse_again_keeps_its_opset(node, opset):
    if onnx.defs.onnx_opset_version() < opset:
        pytest.skip("onnx is older")
    types = ("float[n,2,6,6] x, float[6] s", "float[n,2,3,3] y")
    model = model_of(f"g = {node} {POOL}", *types, opset=opset, s=weights(6))
    optimize(model, get_target("onnxruntime"))
    assert len(model.graph) == 2
    assert model.opset_imports[""] == opset


@pytest.mark.parametrize(("gelu", "opset"), [(False, 18), (True, 20)])
def test_steps_have_the_fast_kernel_unless_an_operator_would_be_written_out(gelu, opset):
    model = model_of(
        f"c = Conv(x, w) g = {'Gelu' if gelu else 'Relu'}(c) {POOL}",
        "float[n,2,6,6] x, float[2,2,1,1] w",
        "float[n,2,3,3] y", opset=20, w=weights(2, 2, 1, 1),
    )  # fmt: skip
    config = ProgramConfig.from_dict({"loss": {"name": "mse"}, "engine": "portable"})
    program = build_program(model, config)
    assert program.step.opset_imports[""] == opset
    assert program.evaluation.opset_imports[""] == opset
