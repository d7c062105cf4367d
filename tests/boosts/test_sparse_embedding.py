"""Sparse gradients of tables: equal to dense ones where they should be, lazy elsewhere."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import (
    Boost,
    Clip,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    GroupLossScale,
    LossScale,
    MixedPrecision,
    Recompute,
    SparseEmbedding,
)
from ortboost.boosts.base import Stage
from ortboost.core.errors import ConfigError, UsageError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, GroupedScaleConfig
from ortboost.graph.query import static_shape
from ortboost.optimizers import Adam, AdamW, Lars, Momentum, Sgd
from ortboost.program.aliasing import in_place_states
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.program.split import split_program
from ortboost.transforms.attach_loss import LossConfig
from tests.support import (
    ENGINES,
    GOLDEN,
    assert_same_bits,
    assert_three_lines,
    stepper,
    text_model,
    weights,
)

ROWS, WIDTH = 5003, 4  # a number that no other dimension has
SPARSE = SparseEmbedding(min_rows=1000)
SCALE = LossScale(DynamicScaleConfig(init_scale=2.0**10, scale_window=3))
RATE = {"learning_rate": 0.1}
TABLE = "table"


def network(body: str = "", *, table=None, head_width: int = WIDTH, inputs: str = ""):
    """Two lookups of a table, a linear layer; `body` computes `h [N, WIDTH]` instead."""
    table = weights(ROWS, WIDTH) if table is None else table
    shape = ",".join(map(str, table.shape))
    body = body or (
        "e = Gather(table, ids) s = ReduceSum<keepdims = 0>(e, axis) f = Gather(table, one) "
        "h = Add(s, f)"
    )
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,3] ids, int64[N] one, float[{shape}] table, float[{head_width},3] head,
             float[3] bias, int64[1] axis {inputs}) => (float[N,3] logits) {{
          {body} y = MatMul(h, head) logits = Add(y, bias) }}""",
        table=table,
        head=weights(head_width, 3, seed=1),
        bias=weights(3, seed=2),
        axis=np.array([1]),
    )


def built(*boosts, model=None, engine="portable", **fields):
    boosts = (LossScale(NO_SCALE), *boosts) if not scaled(boosts) else boosts
    fields = {"optimizer": Sgd(), **fields}
    return build_program(model or network(), ProgramConfig(engine=engine, boosts=boosts, **fields))


def scaled(boosts):
    return any(isinstance(boost, (LossScale, GroupLossScale)) for boost in boosts)


def batch(seed=0, size=6, low=0):
    """Indices that repeat, within a lookup and between the two."""
    rng = np.random.default_rng(seed)
    pool = rng.integers(low, ROWS, 5)
    return {
        "ids": rng.choice(pool, (size, 3)),
        "one": rng.choice(pool, size),
        "labels": rng.integers(0, 3, size),
    }


def trained(program, *, steps=4, **arguments):
    found = stepper(program, **arguments)
    for number in range(steps):
        found.step(batch(number, size=5 + number, low=-ROWS), RATE)
    return found


ONE_LOOKUP = "e = Gather(table, ids) h = ReduceSum<keepdims = 0>(e, axis)"


def assert_close(expected, found):
    """Equal but for the order of sums."""
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-6, atol=1e-7, err_msg=name)


def reports(program):
    return next(r for r in program.reports if r.rewrite == "sparse-embedding")


# ---- equal to the dense update ----------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", [True, False])
@pytest.mark.parametrize("scale", [SCALE, LossScale(NO_SCALE)], ids=["scaled", "plain"])
def test_sgd_has_the_results_of_the_dense_update(engine, check, scale):
    if not check and scale is SCALE:
        pytest.skip("a dynamic scale needs the check")
    for body in ("", ONE_LOOKUP):
        dense, sparse = (
            trained(built(scale, *b, model=network(body), engine=engine, check_finite=check))
            for b in ((), (SPARSE,))
        )
        compare = assert_close if body == "" else assert_same_bits
        compare(dense.state(), sparse.state())
        assert dense.get(TABLE).tobytes() != weights(ROWS, WIDTH).tobytes()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    "boost",
    [
        Clip("value", 0.01),
        Clip("norm", 0.1),
        Clip("global-norm", 0.1),
        GradCentralization(multiple_of=1),
        MixedPrecision("fp16", emulate=True),
        GroupLossScale(GroupedScaleConfig(2.0**10, 2)),
        GradFreeze(groups=2, sequence=(0, 1, 0)),
        Recompute(every="block"),
    ],
    ids=lambda boost: getattr(boost, "by", boost.name),
)
def test_with_other_boosts(boost, engine):
    sparse = built(boost, SPARSE, engine=engine)
    assert TABLE in reports(sparse).changed
    assert_close(trained(built(boost, engine=engine)).state(), trained(sparse).state())


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("body", "shape"),
    [
        ("e = Gather<axis = -2>(table, one) h = Identity(e)", (ROWS, WIDTH)),
        ("i = Cast<to = 6>(one) e = Gather(table, i) h = Identity(e)", (ROWS, WIDTH)),
        ("e = Gather(table, ids) h = Cast<to = 1>(e)", (ROWS,)),
        (
            "z = Constant<value = int64 {0}>() k = Gather(one, z) e = Gather(table, k) "
            "f = Gather(table, one) h = Add(f, e)",
            (ROWS, WIDTH),
        ),
        (
            "e = Gather(table, ids) s = ReduceSum<keepdims = 0>(e, axis) "
            "h = ReduceSum<keepdims = 0>(s, axis)",
            (ROWS, 2, WIDTH),
        ),
        (
            "e = Gather(table, one) k = ArgMax<axis = 1, keepdims = 0>(e) f = Gather(table, k) "
            "s = Identity(table) g = Gather(s, one) m = ArgMax<axis = 1>(g) i = Add(e, f) "
            "n = Cast<to = 1>(m) h = Add(i, n)",
            (ROWS, WIDTH),
        ),
    ],
    ids=["negative axis", "int32", "rank 1", "scalar index", "rank 3", "dependent, without loss"],
)
def test_forms_of_lookups(body, shape, engine):
    model = network(body, table=weights(*shape), head_width=3 if len(shape) == 1 else WIDTH)
    sparse = built(SPARSE, model=model, engine=engine)
    assert TABLE in reports(sparse).changed
    assert_close(trained(built(model=model, engine=engine)).state(), trained(sparse).state())


@pytest.mark.parametrize("engine", ENGINES)
def test_a_table_of_few_values_is_not_packed_with_others(engine):
    boost, model = SparseEmbedding(min_rows=1), network(table=weights(40, WIDTH))
    one, other = (stepper(built(SCALE, *b, model=model, engine=engine)) for b in ((), (boost,)))
    feeds = {k: v % 40 if k != "labels" else v for k, v in batch().items()}
    for training in (one, other):
        training.step(feeds, RATE)
    assert_close(one.state(), other.state())


# ---- lazy -------------------------------------------------------------------------------------

LAZY = {
    "momentum": (Momentum(), 0.0),
    "nesterov": (Sgd(0.5, nesterov=True), 0.1),
    "adam": (Adam(), 0.1),
    "amsgrad": (Adam(amsgrad=True), 0.0),
    "adamw": (AdamW(), 0.1),
}


@pytest.mark.parametrize("name", LAZY)
def test_only_the_rows_of_the_batch_are_updated_and_these_like_by_the_dense_update(name):
    """One step from the same state: touched rows equal the dense ones, others keep their bits."""
    optimizer, decay = LAZY[name]
    dense, sparse = (
        stepper(built(*boosts, SCALE, optimizer=optimizer, weight_decay=decay))
        for boosts in ((), (SPARSE,))
    )
    for number in range(4):
        feeds = batch(number)
        before = sparse.state()
        dense.load_state(before)
        for found in (dense, sparse):
            found.step(feeds, RATE)
        rows = np.unique([*feeds["ids"].ravel(), *feeds["one"]])
        others = np.setdiff1d(np.arange(ROWS), rows)
        for state in (TABLE, *(s for s in before if s.endswith(f"/{TABLE}"))):
            after, expected = sparse.get(state), dense.get(state)
            np.testing.assert_allclose(after[rows], expected[rows], rtol=2e-5, atol=1e-7)
            np.testing.assert_array_equal(after[others], before[state][others])
            assert (after[rows] != before[state][rows]).any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", ["sgd", "sgd_padding", "sgd_clipped", "adam", "adam_padding"])
def test_torch(name, engine):
    """``nn.Embedding(sparse=True)`` with SGD and SparseAdam, whose eps is that of ``eps_hat``."""
    with np.load(GOLDEN / "torch" / "sparse.npz") as file:
        z = dict(file)
    case = json.loads(str(z["cases"]))[name]
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,2] i, int64[N] j, float[40,3] table, float[3,2] head, int64[1] axis)
            => (float[N,2] y) {
          e = Gather(table, i) s = ReduceSum<keepdims = 0>(e, axis) f = Gather(table, j)
          h = Add(s, f) y = MatMul(h, head) }""",
        table=z["table"],
        head=z["head"],
        axis=np.array([1]),
    )
    padding = case.get("padding_idx")
    limit = case.get("clip_norm")
    program = built(
        SparseEmbedding(min_rows=1),
        *(() if limit is None else (Clip("global-norm", limit),)),
        model=model,
        engine=engine,
        loss=LossConfig("mse"),
        optimizer=Sgd() if case["optimizer"] == "SGD" else Adam(eps_hat=True),
        trainable=(TABLE,),
        padding_idx={} if padding is None else {TABLE: padding},
    )
    assert TABLE in reports(program).changed
    training = stepper(program)
    for i, j, labels in zip(z["i"], z["j"], z["labels"], strict=True):
        rate = {"learning_rate": case["arguments"]["lr"]}
        training.step({"i": i, "j": j, "labels": labels}, rate)
    assert np.abs(z[name] - z["table"]).max() > 0.01
    np.testing.assert_allclose(training.get(TABLE), z[name], rtol=1e-5, atol=1e-6)
    for slot in ("exp_avg", "exp_avg_sq"):
        if f"{name}/{slot}" in z:
            found = training.get(f"ortboost/slot/{slot}/{TABLE}")
            np.testing.assert_allclose(found, z[f"{name}/{slot}"], rtol=1e-4, atol=1e-9)


# ---- cost: nothing of the size of the table ---------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("check", [True, False])
def test_nothing_is_computed_for_the_whole_table(engine, check):
    program = built(SPARSE, engine=engine, optimizer=Adam(), weight_decay=0.1, check_finite=check)
    large = {
        node.op_type
        for node in program.step.graph.all_nodes()
        for value in node.outputs
        if ROWS in (static_shape(value) or ())
    }
    assert large == ({"If", "ScatterND", "Identity"} if check else {"ScatterND"})
    states = {e.name for e in program.catalogue.state if ROWS in e.shape}
    assert len(states) == 3
    assert states <= in_place_states(program.step, program.catalogue)
    onnx.checker.check_model(ir.to_proto(program.step), full_check=True)


@pytest.mark.parametrize("check", [True, False])
def test_in_place_and_with_two_buffers(check):
    program = built(SPARSE, optimizer=Adam(), check_finite=check)
    one, other = trained(program), trained(program, in_place=False)
    assert_same_bits(one.state(), other.state())


@pytest.mark.parametrize("engine", ENGINES)
def test_an_overflow_changes_no_bit(engine):
    training = trained(built(SPARSE, SCALE, engine=engine, optimizer=Adam()))
    training.set("head", np.full((WIDTH, 3), 1e38, np.float32))
    before = training.state()
    assert training.step(batch(), RATE).overflow
    after = training.state()
    assert_same_bits(*({k: v for k, v in s.items() if TABLE in k} for s in (before, after)))


def test_a_program_is_saved_loaded_and_resumed(tmp_path):
    program = built(SPARSE, SCALE, optimizer=Adam())
    program.save(tmp_path / "run")
    loaded = Program.load(tmp_path / "run")
    assert loaded.config == program.config
    one = trained(program)
    other = stepper(loaded)
    other.load_state(one.state())
    for training in (one, other):
        training.step(batch(9), RATE)
    assert_same_bits(one.state(), other.state())


# ---- indices ----------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_an_index_and_its_negative_form_are_one_row(engine):
    dense, sparse = (stepper(built(*b, engine=engine)) for b in ((), (SPARSE,)))
    feeds = {
        "ids": np.array([[3, 3 - ROWS, -1], [ROWS - 1, 3, 0]]),
        "one": np.array([-ROWS, 3 - ROWS]),
        "labels": np.array([0, 2]),
    }
    for training in (dense, sparse):
        training.step(feeds, RATE)
    assert_close(dense.state(), sparse.state())


@pytest.mark.parametrize("index", [ROWS, -ROWS - 1, 2 * ROWS, -2 * ROWS - 1])
def test_an_index_out_of_range_is_an_error_and_changes_nothing(index):
    training = stepper(built(SPARSE))
    before = training.state()
    feeds = batch()
    feeds["one"][2] = index
    with pytest.raises(UsageError) as caught:
        training.step(feeds, RATE)
    assert_three_lines(caught.value)
    assert_same_bits(before, training.state())


# ---- dense, with the reason -------------------------------------------------------------------

TIED = "e = Gather(table, one) t = Transpose(table) z = MatMul(e, t) h = MatMul(z, table)"


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (TIED, "' reads it too"),
        ("e = Gather(table, one) n = Abs(table) m = ReduceMean(n) h = Add(e, m)", "Abs '"),
        ("k = Constant<value = int64[2] {1, 5}>() c = Gather(table, k) "
         "m = ReduceSum(c) e = Cast<to = 1>(ids) f = ReduceSum(e, axis) g = Mul(f, m) "
         "h = Concat<axis = 1>(g, g, g, g)", "the indices of a lookup are constant"),
        ("c = Cast<to = 11>(table) e = Gather(c, one) d = Cast<to = 1>(e) f = Gather(table, one) "
         "h = Add(d, f)", "Cast '"),
        ("k = Constant<value = int64[4] {1, 0, 2, 3}>() f = Gather<axis = 1>(table, k) "
         "e = Gather(table, one) g = Gather(f, one) h = Add(e, g)", "Gather '"),
    ],
    ids=["tied", "penalty", "constant", "cast", "other axis"],
)  # fmt: skip
def test_a_table_stays_dense(body, reason):
    program = built(SPARSE, model=network(body))
    assert reason in reports(program).kept[TABLE]
    assert TABLE not in reports(program).changed
    dense = built(model=network(body))
    assert_same_bits(trained(dense).state(), trained(program).state())


def test_a_pattern_may_name_a_scalar():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[n] ids, float[9,4] table, float heat) => (float[n,4] y) {
          e = Gather(table, ids) y = Mul(e, heat) }""",
        table=weights(9, 4),
        heat=np.float32(1.5),
    )
    parameters = {"table": True, "heat": True}
    boost = SparseEmbedding(("*",), min_rows=1)
    program = built(boost, model=model, parameters=parameters)
    assert "Mul" in reports(program).kept["heat"]
    assert set(reports(program).changed) == {"table"}


def test_small_tables_stay_dense_and_patterns_choose():
    assert "has 5003 rows" in reports(built(SparseEmbedding(min_rows=6000))).kept[TABLE]
    named = reports(built(SparseEmbedding(("head", "tab*"), min_rows=1)))
    assert set(named.changed) == {TABLE}
    assert "MatMul" in named.kept["head"]
    assert not reports(built(SparseEmbedding(("bias",)))).changed
    with pytest.raises(ConfigError, match="matches no trained parameter") as caught:
        built(SparseEmbedding(("emb*",)))
    assert_three_lines(caught.value)


# ---- refusals ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Foreign(Boost):
    """A boost of another package that may read whole gradients."""

    name: ClassVar[str] = "foreign"
    stage: ClassVar[Stage] = "gradients"

    def transform_gradients(self, update, gradients):
        return gradients


class OwnOptimizer:
    """An optimizer that does not say that it is row-wise."""

    name = "own"
    slots = ()

    def update(self, b, p):
        return Sgd().update(b, p)


@pytest.mark.parametrize(
    ("boosts", "fields", "reason"),
    [
        ((), {"optimizer": Lars()}, "the optimizer 'lars' does not update each row"),
        ((), {"optimizer": OwnOptimizer()}, "the optimizer 'own' does not update each row"),
        ((Foreign(),), {}, "'foreign' uses the gradient of a whole table"),
        ((GradAccumulation(2),), {}, "each step of a window reads other rows"),
    ],
    ids=["lars", "own optimizer", "own boost", "accumulation"],
)
def test_it_is_refused(boosts, fields, reason, monkeypatch):
    from ortboost.boosts import table

    monkeypatch.setattr(table, "_TABLE", [*table._TABLE, Foreign])
    with pytest.raises(ConfigError, match=reason) as caught:
        built(SPARSE, *boosts, **fields)
    assert_three_lines(caught.value)


def test_a_boost_that_declares_it_is_accepted(monkeypatch):
    from ortboost.boosts import table

    monkeypatch.setattr(table, "_TABLE", [*table._TABLE, Foreign])
    monkeypatch.setattr(Foreign, "row_wise", True)
    assert TABLE in reports(built(SPARSE, Foreign())).changed


def test_several_processes_are_refused():
    with pytest.raises(ConfigError, match="local batch") as caught:
        split_program(built(SPARSE))
    assert_three_lines(caught.value)
