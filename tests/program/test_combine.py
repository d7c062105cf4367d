"""Every pair of boosts trains, resumes bit for bit and exports; or is refused."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from ortboost.autodiff.native.engine import NativeEngine
from ortboost.boosts import (
    AdaSum,
    Clip,
    DimReduce,
    Ema,
    FullNormHead,
    GradAccumulation,
    GradCentralization,
    GradFreeze,
    GroupLossScale,
    LessBN,
    Lora,
    LossScale,
    MixedPrecision,
    Recompute,
    SparseEmbedding,
    SyncBatchNorm,
    Thor,
    registered,
)
from ortboost.core.errors import ConfigError
from ortboost.core.loss_scale import NO_SCALE, DynamicScaleConfig, GroupedScaleConfig
from ortboost.deploy.export import export_model
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from tests.support import (
    assert_same_bits,
    assert_three_lines,
    batch_for,
    run,
    stepper,
    text_model,
    weights,
)

BOOSTS = {
    boost.name: boost
    for boost in (
        LessBN(),
        Recompute(every="block"),
        FullNormHead(),
        Lora(rank=2, alpha=2),
        LossScale(DynamicScaleConfig(init_scale=2.0**14, scale_window=2)),
        MixedPrecision("fp16", emulate=True),
        GroupLossScale(GroupedScaleConfig(2.0**10, 3)),
        GradAccumulation(2),
        Clip("global-norm", 1.0),
        GradCentralization(),
        GradFreeze(groups=3, sequence=(0, 1, 2, 1)),
        Thor(frequency=4, distribute_inverses=True),
        AdaSum(group_size=1),
        SyncBatchNorm(),
        DimReduce("basis.npy", alpha=0.05, shard=True),  # made by `build`
        Ema(0.9),
        SparseEmbedding(),  # has its own tests with tables
    )
}
NAMES = [boost.name for boost in registered()]
PAIRS = list(itertools.combinations(NAMES, 2))
EXCLUDED = {
    frozenset({"loss-scale", "group-loss-scale"}),
    frozenset({"thor", "grad-freeze"}),
    frozenset({"ema", "adasum"}),
    frozenset({"thor", "group-loss-scale"}),
    *(
        frozenset({"dim-reduce", name})
        for name in (
            *("grad-freeze", "grad-accumulation", "group-loss-scale", "adasum", "clip"),
            *("grad-centralization", "thor", "sparse-embedding", "sync-bn", "ema"),
        )
    ),
    *(frozenset({"sparse-embedding", name}) for name in ("grad-accumulation", "thor", "adasum")),
    frozenset({"adasum", "sync-bn"}),
}
RATE = {"learning_rate": 0.05}


def network():
    """A stem, a residual block and a linear layer; 16 channels, for the rule of centralization."""
    channels = {
        f"{name}{key}": value
        for seed, name in enumerate(("s", "a", "b"))
        for key, value in {
            "w": weights(16, 3 if name == "s" else 16, 3, 3, seed=seed, scale=0.2),
            "g": 1 + weights(16, seed=seed + 10, scale=0.1),
            "h": weights(16, seed=seed + 20, scale=0.1),
            "m": np.zeros(16, np.float32),
            "v": np.ones(16, np.float32),
        }.items()
    }
    inputs = ", ".join(
        f"float[16,{3 if name == 's' else 16},3,3] {name}w, "
        + ", ".join(f"float[16] {name}{key}" for key in "ghmv")
        for name in "sab"
    )
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,3,6,6] x, {inputs}, float[4,16] fw, float[4] fb)
            => (float[batch,4] logits) {{
          [stem] c0 = Conv<pads = [1, 1, 1, 1]>(x, sw)
          [bn0] n0 = BatchNormalization(c0, sg, sh, sm, sv)
          [relu0] r0 = Relu(n0)
          [conv1] c1 = Conv<pads = [1, 1, 1, 1]>(r0, aw)
          [bn1] n1 = BatchNormalization(c1, ag, ah, am, av)
          [relu1] r1 = Relu(n1)
          [conv2] c2 = Conv<pads = [1, 1, 1, 1]>(r1, bw)
          [bn2] n2 = BatchNormalization(c2, bg, bh, bm, bv)
          [add] s = Add(n2, r0)
          [relu2] r2 = Relu(s)
          [pool] p = GlobalAveragePool(r2)
          [flat] f = Flatten(p)
          [fc] logits = Gemm<transB = 1>(f, fw, fb)
        }}""",
        fw=weights(4, 16, seed=5),
        fb=weights(4, seed=6),
        **channels,
    )


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Components are read from the working directory."""
    monkeypatch.chdir(tmp_path)


def build(names, engine="portable"):
    boosts = tuple(BOOSTS[name] for name in names)
    if not {"loss-scale", "group-loss-scale"} & set(names):
        boosts += (LossScale(NO_SCALE),)
    if "dim-reduce" in names and not any(frozenset(names) >= pair for pair in EXCLUDED):
        others = build([name for name in names if name != "dim-reduce"], engine)
        size = sum(math.prod(e.shape) for e in others.catalogue.entries("parameter") if e.next)
        np.save("basis.npy", np.linalg.qr(weights(size, 8, seed=3))[0].T)
    return build_program(network(), ProgramConfig(engine=engine, boosts=boosts))


def test_every_boost_of_the_table_is_tested():
    assert set(BOOSTS) == set(NAMES)
    for name in NAMES:
        assert [boost.name for boost in build((name,)).config.enabled_boosts] == [name]


# Two minutes with each runtime: `make test` tries one engine with each.
@pytest.mark.parametrize("engine", ["portable" if NativeEngine().unavailable() else "native"])
@pytest.mark.parametrize("pair", [(name,) for name in NAMES] + PAIRS, ids="+".join)
def test_it_trains_and_resumes_and_exports_or_is_refused(pair, engine, tmp_path):
    if frozenset(pair) in EXCLUDED:
        with pytest.raises(ConfigError, match="cannot be combined") as caught:
            build(pair, engine)
        assert_three_lines(caught.value)
        return
    program = build(pair, engine)
    program.save(tmp_path)
    training = stepper(program)
    batch = batch_for(program, 8)
    losses = [training.step(batch, RATE).loss for _ in range(9)]
    assert losses[-1] < losses[0]

    # stopped in the middle, and resumed as by another process
    resumed = stepper(Program.load(tmp_path))
    resumed.load_state(training.state())
    for again in (training, resumed):
        for seed in range(5):
            again.step(batch_for(program, 8, seed=seed), RATE)
        again.flush(RATE)
    assert_same_bits(training.state(), resumed.state())

    exported = export_model(program, training.state()).model
    assert not any(
        "ortboost" in (node.name or "") for node in exported.graph if node.op_type == "If"
    )
    assert [value.name for value in exported.graph.inputs] == ["x"]
    expected = training.evaluator().evaluate(batch)["logits"]
    found = run(exported, {"x": batch["x"]})["logits"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pair_that_is_excluded_is_refused_with_its_reason(monkeypatch):
    monkeypatch.setattr(Clip, "excludes", {"less-bn": "a reason"})
    with pytest.raises(ConfigError, match="a reason") as caught:
        build(("less-bn", "clip"))
    assert_three_lines(caught.value)
