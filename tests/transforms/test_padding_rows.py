"""Against torch's formula: lookups of padding tokens do not train their row, other uses do."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.core.errors import ConfigError, UsageError
from ortboost.core.loss_scale import NO_SCALE
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.transforms.attach_loss import LossConfig
from ortboost.transforms.padding_rows import protect_padding_rows
from ortboost.transforms.precision import PrecisionConfig
from tests.support import native_only, run, small_mlp, stepper, text_model, weights

IDS = np.array([[0, 2, 1], [3, 0, 0]])


def model(tied: bool = False):
    last = "MatMul(e, t)" if tied else "MatMul(e, h)"
    turned = "t = Transpose<perm = [1, 0]>(w)" if tied else ""
    size = 5 if tied else 2
    head = {} if tied else {"h": weights(4, 2, seed=1)}
    extra = "" if tied else ", float[4,2] h"
    return text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (int64[N,3] ids, float[5,4] w{extra}) => (float[N,3,{size}] y) {{
          e = Gather(w, ids) {turned} y = {last} }}""",
        w=np.concatenate([np.zeros((1, 4), np.float32), weights(4, 4)]),
        **head,
    )


def step(engine: str, *, tied: bool = False, **fields) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The table before and after one step with rate 1 on a mean squared error, and labels."""
    if engine == "native":
        native_only()
    config = ProgramConfig(
        loss=LossConfig("mse", reduction="sum"),
        optimizer=Sgd(),
        loss_scale=NO_SCALE,
        engine=engine,
        **fields,
    )
    program = build_program(model(tied), config)
    found = stepper(program)
    before = found.state()["w"].copy()
    labels = weights(2, 3, 5 if tied else 2, seed=7)
    found.step({"ids": IDS, "labels": labels}, {"learning_rate": 1.0})
    assert not [v.name for v in program.step.graph.inputs if "detached" in v.name]
    return before, found.state()["w"], labels


def expected(before: np.ndarray, labels: np.ndarray, *, tied: bool, padding: int | None):
    """`dL/dw` of `sum (e h - labels)^2` in float64, without lookups of the padding row."""
    w = before.astype(np.float64)
    h = w.T if tied else weights(4, 2, seed=1).astype(np.float64)
    e = w[IDS]
    g = 2 * (e @ h - labels)
    gradient = np.zeros_like(w)
    np.add.at(gradient, IDS, g @ h.T)
    if padding is not None:
        gradient[padding] = 0
    if tied:
        gradient += np.einsum("nsv,nsd->vd", g, e)
    return gradient


@pytest.mark.parametrize("engine", ["portable", "native"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("padding", [None, 0, 3])
def test_a_step(engine, tied, padding):
    """Row 0 is inferred from its zeros; the configuration overrides this."""
    fields = {} if padding == 0 else {"padding_idx": {} if padding is None else {"w": padding}}
    before, after, labels = step(engine, tied=tied, **fields)
    gradient = expected(before, labels, tied=tied, padding=padding)
    np.testing.assert_allclose(before - after, gradient, rtol=1e-5, atol=1e-5)
    assert padding is None or tied or not (before - after)[padding].any()


def test_a_lookup_in_a_table_that_mixed_precision_casts():
    """Its rows are fp16, and so is the row without a gradient, or a runtime refuses the graph."""
    config = ProgramConfig(precision=PrecisionConfig("fp16"), engine="portable")
    step_graph = build_program(model(tied=True), config).step.graph
    [lookup] = [node for node in step_graph if node.outputs[0].name == "e"]
    assert [value.dtype for value in lookup.inputs[1:]] == [ir.DataType.FLOAT16] * 2


@pytest.mark.parametrize("shape", [(4,), (4, 3), (4, 3, 2)])
@pytest.mark.parametrize("row", [0, 3])
def test_rows_of_any_shape_and_indices_from_the_end(shape, row):
    """The gradient of `sum (w[i] - 0)^2` is `2 w[i]`; index -4 is row 0, index -1 row 3."""
    inner = "".join(f",{n}" for n in shape[1:])
    table = weights(*shape)
    net = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N] ids, float[{shape[0]}{inner}] w) => (float[N{inner}] y) {{
          e = Gather(w, ids) y = Neg(e) }}""",
        w=table,
    )
    config = ProgramConfig(
        loss=LossConfig("mse", reduction="sum"),
        optimizer=Sgd(),
        loss_scale=NO_SCALE,
        trainable=("w",),
        padding_idx={"w": row},
    )
    found = stepper(build_program(net, config))
    ids = np.array([-4, 1, -1, 0, 3])
    labels = np.zeros((5, *shape[1:]), np.float32)
    loss = found.step({"ids": ids, "labels": labels}, {"learning_rate": 0.5}).loss
    np.testing.assert_allclose(loss, (table[ids] ** 2).sum(), rtol=1e-5)
    factor = np.array([2.0, 1.0, 0.0, 2.0]).reshape(-1, *[1] * (len(shape) - 1))
    factor[row] = 0
    np.testing.assert_allclose(found.state()["w"], table - factor * table, rtol=1e-5, atol=1e-6)


def test_it_is_told():
    notes = [note for report in build_program(model()).reports for note in report.notes]
    assert any("row 0 of 'w' is its padding row" in note for note in notes)


def test_a_table_that_is_not_trained():
    with pytest.raises(UsageError, match="'v' has a padding row"):
        build_program(model(), ProgramConfig(padding_idx={"v": 0}))


def test_a_table_in_which_nothing_is_looked_up():
    with pytest.raises(UsageError, match="is not used as an embedding"):
        build_program(small_mlp(), ProgramConfig(padding_idx={"w1": 0}))


def test_a_row_that_is_not_there():
    with pytest.raises(UsageError, match="has no row 5"):
        build_program(model(), ProgramConfig(padding_idx={"w": 5}))


@pytest.mark.parametrize("row", [-1, 0.5, "0"])
def test_rows_are_counted_from_zero(row):
    with pytest.raises(ConfigError):
        ProgramConfig(padding_idx={"w": row})


def test_mixed_precision_reads_the_table_through_a_cast():
    config = ProgramConfig.from_dict({"precision": {"compute": "fp16"}, "engine": "portable"})
    program = build_program(model(), config)
    changed = next(r for r in program.reports if r.rewrite == "protect_padding_rows").changed
    assert list(changed.values()) == ["row 0 of 'w' gets no gradient"]


@pytest.mark.parametrize(
    ("body", "protected"),
    [
        ("e = Gather(w, ids)", 1),
        ("i = Reshape(ids, shape) e = Gather(w, i)", 1),  # of any rank
        ("c = Identity(w) e = Gather(c, ids)", 1),
        ("e = Gather<axis = 1>(w, ids)", 0),
        ("e = Gather(v, ids)", 0),
        ("e = Gather(w, ids) f = Gather(w, ids)", 2),
    ],
)
def test_which_lookups_are_protected(body, protected):
    net = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,3] ids, int64[k] shape, float[5,4] w, float[5,4] v) => (float[] y) {{
          {body} y = ReduceSum<keepdims = 0>(e) }}"""
    )
    infer_shapes(net)
    report = protect_padding_rows(net, {"w": 0})
    assert len(report.changed) == protected
    detached = [value for value in net.graph.inputs if "detached" in value.name]
    assert len(detached) == (protected > 0)
    if protected == 1:
        feeds = {v.name: weights(5, 4, seed=i) for i, v in enumerate(net.graph.inputs[2:])}
        feeds = dict.fromkeys(feeds, feeds["w"])
        feeds |= {"ids": IDS, "shape": np.array([3, 2])}
        plain = run(net, {v.name: feeds[v.name] for v in net.graph.inputs})["y"]
        assert plain == pytest.approx(feeds["w"][IDS].sum(), rel=1e-5)
