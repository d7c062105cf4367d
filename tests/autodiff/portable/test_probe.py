"""Every operator, in its difficult forms, against central differences, with the portable engine.

Each case is correct, except for the forms that are refused.
"""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.check import find_blockers
from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import get_engine
from tests.autodiff.oracle import Case, cases, probe
from tests.support import run
from tools.probe_gradients import with_symbols

STEPS = ("Ceil", "Floor", "Hardmax", "Round", "Sign")


def refused(case: Case) -> bool:
    return case.op in STEPS or case.note.startswith(("refused ", "even size"))


CASES = [
    pytest.param(case, id=f"{number}-{case.op}-{case.note}".replace(" ", "_"))
    for number, case in enumerate(cases())
]


@pytest.mark.parametrize("case", CASES)
def test_gradient(case):
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", RuntimeWarning
        )  # the oracle overflows where the engine must not
        status, detail = probe(case, engine="portable")
    if case.op == "SoftmaxCrossEntropyLoss" and case.note == "all ignored":
        # stock runtimes return NaN, onnxruntime-training 0, like ortboost: there is no oracle
        assert status == "ok" or detail == "loss 0.0 should be nan"
    elif refused(case):
        assert status == "refused", detail
        assert "ModelError" in detail
    else:
        assert status == "ok", detail


@pytest.mark.parametrize("opset", [18, 21])
def test_a_group_normalization_of_unknown_channels(opset):
    """The opset says what scale and bias are for: groups, or from 21 on channels."""
    sizes = [(2, 4, 5), *[(2 if opset == 18 else 4,)] * 2]
    case = Case("GroupNormalization", sizes, (0, 1, 2), {"num_groups": 2}, opset=opset)
    assert probe(case, engine="portable", symbolic="each")[0] == "ok"


def gradients(model: ir.Model, wrt: list[str]) -> ir.Model:
    work, engine = model.clone(), get_engine("portable")
    decompose(work, wrt=wrt, loss="loss", engine=engine)
    return engine.differentiate(work, "loss", wrt)


def computed(model: ir.Model, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return run(model, {value.name: feeds[value.name] for value in model.graph.inputs})


@pytest.mark.parametrize("op", sorted({case.op for case in cases() if len(case.wrt) > 1}))
def test_each_gradient_alone_is_the_same_and_nothing_else_is_computed(op):
    some = [case for case in cases() if case.op == op and len(case.wrt) > 1 and not refused(case)]
    for case in some[:: -(-len(some) // 12)]:
        model, wrt, feeds = case.build()
        together = computed(gradients(model, wrt), feeds)
        for name in wrt:
            alone = gradients(model, [name])
            found = computed(alone, feeds)[f"{name}_grad"]
            expected = together[f"{name}_grad"]
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5, err_msg=case.name)
            values = [node.outputs for node in alone.graph]
            assert all(any(v.uses() or v.is_graph_output() for v in made) for made in values)


ONE_OF_EACH = {case.op: case for case in reversed(list(cases())) if not refused(case)}


@pytest.mark.parametrize("op", sorted(ONE_OF_EACH))
def test_of_an_unknown_rank_gradients_are_right_or_refused_by_name(op):
    case = ONE_OF_EACH[op]
    model, wrt, feeds = case.build()
    model = with_symbols(model, "rank")
    # The check of a model foresees whatever conversion refuses.
    blockers = find_blockers(model.clone(), wrt=wrt, engine=get_engine("portable"), loss="loss")
    if blockers:
        assert any(word in blockers[0].reason for word in ("rank", "shape", "unknown"))
        return
    found = computed(gradients(model, wrt), feeds)
    expected = computed(gradients(case.build()[0], wrt), feeds)
    for name in wrt:
        np.testing.assert_allclose(found[f"{name}_grad"], expected[f"{name}_grad"], rtol=1e-4)
