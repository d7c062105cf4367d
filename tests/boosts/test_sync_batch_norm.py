"""Batch statistics over several parts: the gradients and statistics of the whole batch."""

from __future__ import annotations

import itertools

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.boosts import LossScale, SyncBatchNorm
from ortboost.boosts.base import GraphContext
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, FixedScaleConfig
from ortboost.graph.shapes.shape_inference import infer_missing
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.segments import cut_segments, order_exchanges
from ortboost.program.split import cut_name, save_split, split_program
from ortboost.transforms.trainable_norm import to_training
from tests.support import (
    ENGINES,
    assert_three_lines,
    batch_for,
    model_path,
    run,
    session,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.05}


def program_of(model, *boosts, engine="portable", **fields):
    scaled = () if any(isinstance(b, LossScale) for b in boosts) else (LossScale(NO_SCALE),)
    return build_program(model, ProgramConfig(engine=engine, boosts=(*scaled, *boosts), **fields))


def flat_network(mean: float = 0.0):
    """BatchNormalization of rank 2, then of rank 4, with a residual connection around it."""
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,16] x, float[16,16] w, float[16] s, float[16] b, float[16] m, float[16] v,
             float[4] s2, float[4] b2, float[4] m2, float[4] v2, float[3,16] fw, float[16] c)
        => (float[batch,3] logits) {
          [fc] h = Gemm<transB = 1>(x, w, c)
          [bn] n = BatchNormalization<epsilon = 0.001>(h, s, b, m, v)
          [relu] r = Relu(n)
          shape = Constant<value_ints = [-1, 4, 2, 2]>()
          [square] q = Reshape(r, shape)
          [bn2] n2 = BatchNormalization(q, s2, b2, m2, v2)
          [add] a = Add(n2, q)
          [flat] f = Flatten(a)
          [out] logits = Gemm<transB = 1>(f, fw)
        }""",
        w=weights(16, 16),
        c=np.full(16, mean, np.float32),
        s=1 + weights(16, seed=1, scale=0.1),
        b=weights(16, seed=2),
        m=weights(16, seed=3),
        v=1 + np.abs(weights(16, seed=4)),
        s2=1 + weights(4, seed=5, scale=0.1),
        b2=weights(4, seed=6),
        m2=weights(4, seed=7),
        v2=1 + np.abs(weights(4, seed=8)),
        fw=weights(3, 16, seed=9),
    )


_BATCHES = 3
MODELS = {
    "convnet": small_convnet,
    "two ranks": flat_network,
    "resnet20": lambda: str(model_path("resnet20")),
}


def of_parts(program, parts):
    """Run the segments on all parts, with sums in between as several processes make them.

    Returns:
        The gradients of the whole batch, the statistics of each part, and the number of exchanges.
    """
    split = split_program(program)["step"]
    points = [spec.name for spec in split.exchanged]
    levels = order_exchanges(split.gradients, points)
    ends = [[cut_name(name) for name in level] for level in levels]
    segments = cut_segments(split.gradients, [*ends, []], draws_first=False)
    number = sum(len(part["labels"]) for part in parts)
    shares = [len(part["labels"]) / number for part in parts]
    have = [{**program.initial, **part} for part in parts]
    for segment, level in zip(segments, [*levels, []], strict=True):
        for value in segment.model.graph.inputs:  # the native engine leaves types to the runtime
            if value.type is None:
                value.type = ir.TensorType(ir.DataType.from_numpy(have[0][value.name].dtype))
        opened = session(segment.model)
        wanted = [value.name for value in opened.get_outputs()]
        read = [value.name for value in opened.get_inputs()]
        for values in have:
            values |= zip(wanted, opened.run(wanted, {n: values[n] for n in read}), strict=True)
        for name in level:
            gradient = name.startswith(names.EXCHANGED_GRADIENT)
            factors = shares if gradient else [1.0] * len(parts)
            own = [values[cut_name(name)] for values in have]
            total = sum(f * value for f, value in zip(factors, own, strict=True))
            for values, factor in zip(have, factors, strict=True):
                values[name] = total / factor
    gradients = {
        spec.name: sum(f * v[spec.name].astype(float) for f, v in zip(shares, have, strict=True))
        for spec in split.summed
    }
    raw = [spec.name for spec in split.kept if spec.name.startswith(names.RAW)]
    return gradients, [{name: values[name] for name in raw} for values in have], len(levels)


def assert_close(found, expected, bound=1e-5):
    """Relative to the largest number of each tensor, if it is above 1."""
    assert found.keys() == expected.keys()
    apart = {n: np.abs(found[n] - v).max() / max(np.abs(v).max(), 1.0) for n, v in expected.items()}
    assert max(apart.values()) < bound, max(apart.items(), key=lambda pair: pair[1])


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *itertools.product(("convnet", "two ranks"), ((4, 4), (7, 1), (5, 2, 1))),
        ("resnet20", (5, 2, 1)),
    ],
)
def test_parts_together_give_the_gradients_of_the_whole_batch(name, engine, sizes):
    scale = LossScale(FixedScaleConfig(8.0))
    plain = program_of(MODELS[name](), scale, engine=engine)
    program = program_of(MODELS[name](), scale, SyncBatchNorm(), engine=engine)
    whole = split_program(plain)["step"]
    read = {value.name for value in whole.gradients.graph.inputs}
    ends = np.cumsum((0, *sizes))
    # The input of a Relu may be so close to 0 that the order of a sum, which depends on the
    # processor, decides on its sign, and so on a whole term of the gradient. Not in every batch.
    for seed in range(_BATCHES):
        batch = batch_for(program, sum(sizes), seed)
        expected = run(
            whole.gradients, {n: v for n, v in {**plain.initial, **batch}.items() if n in read}
        )
        parts = [{n: v[a:b] for n, v in batch.items()} for a, b in itertools.pairwise(ends)]
        gradients, statistics, _ = of_parts(program, parts)
        for found in statistics:
            assert_close(
                found, {n: v for n, v in expected.items() if n.startswith(names.RAW)}, 1e-6
            )
        try:
            assert_close(gradients, {spec.name: expected[spec.name] for spec in whole.summed})
        except AssertionError:
            if seed == _BATCHES - 1:
                raise
        else:
            break


def test_layers_side_by_side_share_an_exchange():
    """21 normalizations, two of them beside others: 19 exchanges forward and 19 backward."""
    program = program_of(MODELS["resnet20"](), SyncBatchNorm())
    split = split_program(program)["step"]
    points = [spec.name for spec in split.exchanged]
    levels = order_exchanges(split.gradients, points)
    assert len(points) == 5 * 21  # two sums and their gradients, the numbers
    assert len(levels) == 38
    assert sorted(name for level in levels for name in level) == sorted(points)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", MODELS)
def test_one_process_trains_as_without(name, engine):
    programs = [program_of(MODELS[name](), *b, engine=engine) for b in ((), (SyncBatchNorm(),))]
    plain, synced = (stepper(program) for program in programs)
    for seed in range(3):
        batch = batch_for(programs[0], 8, seed=seed)
        synced.load_state(plain.state())
        losses = [one.step(batch, RATE).loss for one in (plain, synced)]
        assert losses[0] == pytest.approx(losses[1], abs=1e-6)
        assert_close(synced.state(), plain.state(), 1e-3)  # rounding may turn a ReLU


def test_a_mean_that_is_large_costs_no_digits():
    """The mean is 1000 times the deviation, so that float32 sums of squares would have no digit."""
    model = flat_network(mean=1000.0)
    plain, program = program_of(model.clone()), program_of(model, SyncBatchNorm())
    batch = batch_for(program, 8)
    read = {value.name for value in plain.step.graph.inputs}
    feeds = {**plain.initial, **batch, "learning_rate": np.zeros((), np.float32)}
    expected = run(plain.step, {n: v for n, v in feeds.items() if n in read})
    parts = [{n: v[:3] for n, v in batch.items()}, {n: v[3:] for n, v in batch.items()}]
    _, statistics, _ = of_parts(program, parts)
    for found in statistics:
        for name, value in found.items():
            np.testing.assert_allclose(
                value, expected[names.next_name(name.removeprefix(names.RAW))], 1e-5, 1e-5
            )


@pytest.mark.parametrize("kind", ["unbiased", "onnx"])
def test_the_running_variance_counts_the_elements_of_all_parts(kind):
    program = program_of(small_convnet(), SyncBatchNorm(), running_variance=kind)
    batch = batch_for(program, 3)
    convolved = run(_until_norm(), {"x": batch["x"], "cw": program.initial["cw"]})["c"]
    variance = convolved.transpose(1, 0, 2, 3).reshape(4, -1).var(1, ddof=int(kind == "unbiased"))
    parts = [{n: v[:1] for n, v in batch.items()}, {n: v[1:] for n, v in batch.items()}]
    _, statistics, _ = of_parts(program, parts)
    for found in statistics:
        expected = 0.9 * program.initial["var"] + 0.1 * variance
        np.testing.assert_allclose(found[f"{names.RAW}var"], expected, rtol=1e-5)


def _until_norm():
    return ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,1,6,6] x, float[4,1,3,3] cw) => (float[batch,4,6,6] c) {
          c = Conv<pads = [1, 1, 1, 1]>(x, cw) }"""
    )


def test_structure():
    model = small_convnet()
    infer_missing(model)
    to_training(model)
    graph = GraphContext(model)
    report = SyncBatchNorm().rewrite_decomposed(graph)
    assert list(report.changed) == ["bn"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    once = [node.name for node in model.graph]
    assert not SyncBatchNorm().rewrite_decomposed(graph).modified
    assert [node.name for node in model.graph] == once
    program = program_of(small_convnet(), SyncBatchNorm())
    onnx.checker.check_model(ir.to_proto(program.step))
    points = [
        node for node in program.step.graph if node.outputs[0].name.startswith(names.EXCHANGED)
    ]
    assert [node.op_type for node in points] == ["Identity"] * 5
    assert [value.name for value in program.step.graph.inputs] == [
        value.name for value in program_of(small_convnet()).step.graph.inputs
    ]


def test_frozen_layers_keep_their_statistics():
    program = program_of(small_convnet(), SyncBatchNorm(), frozen_norm=("bn",))
    assert not split_program(program)["step"].exchanged
    reports = {report.rewrite: report for report in program.reports}
    assert reports["sync_batch_norm"].notes == ["no BatchNormalization is in training mode"]


def test_without_running_statistics_it_is_refused():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4,2,2] x, float[4] s, float[4] b, float[3,16] w) => (float[batch,3] y) {
          axes = Constant<value_ints = [0, 2, 3]>()
          mean = ReduceMean<keepdims = 0>(x, axes)
          square = Mul(x, x)
          var = ReduceMean<keepdims = 0>(square, axes)
          [norm] n = BatchNormalization<training_mode = 1>(x, s, b, mean, var)
          f = Flatten(n)
          y = Gemm<transB = 1>(f, w)
        }""",
        s=np.ones(4, np.float32),
        b=np.zeros(4, np.float32),
        w=weights(3, 16),
    )
    with pytest.raises(ConfigError, match="'norm' cannot be synchronized: it has no running") as e:
        program_of(model, SyncBatchNorm())
    assert_three_lines(e.value)


def test_two_graphs_are_not_enough_for_a_step(tmp_path):
    with pytest.raises(ConfigError, match="exchange values within") as caught:
        save_split(program_of(small_convnet(), SyncBatchNorm()), tmp_path)
    assert_three_lines(caught.value)
    assert save_split(program_of(small_mlp(), SyncBatchNorm()), tmp_path)
