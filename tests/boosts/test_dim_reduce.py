"""DimReduce against a numpy replay, mostly in float64: trials, BFGS, momentum, resuming."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from ortboost.boosts import Clip, DimReduce
from ortboost.core.errors import ConfigError, FileError
from ortboost.core.loss_scale import DynamicScaleConfig, FixedScaleConfig
from ortboost.optimizers import Sgd
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper
from ortboost.transforms.loss_config import LossConfig
from tests.support import assert_three_lines, small_convnet, small_mlp, text_model, weights

FEATURES, HIDDEN = 10, 8
LENGTH = HIDDEN * FEATURES + HIDDEN + 3 * HIDDEN + 3


def basis(tmp_path, k=6, length=LENGTH, orthonormal=True, seed=0):
    rows = np.random.default_rng(seed).standard_normal((k, length))
    rows = np.linalg.qr(rows.T)[0].T if orthonormal else rows / 9
    path = tmp_path / f"p{k}.npy"
    np.save(path, rows.astype(np.float32))
    return str(path)


def program(path, scale=None, model=None, **settings):
    scale = scale or DynamicScaleConfig(init_scale=64.0, scale_window=1000)
    config = ProgramConfig(engine="portable", loss_scale=scale)
    boost = DimReduce(path, **settings)
    return build_program(model or small_mlp(FEATURES, HIDDEN), config.with_boosts(boost))


def batch(seed, size=16):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((size, FEATURES)).astype(np.float32)
    return {"x": x, "labels": np.abs(x[:, :3]).argmax(axis=1)}


class Replay:
    """The published formulas in float64, with loss and gradient of a plain two-layer network."""

    names = ("w1", "b1", "w2", "b2")

    def __init__(self, initial, p, boost):
        self.shapes = [initial[name].shape for name in self.names]
        self.w = np.concatenate([initial[name].ravel() for name in self.names]).astype(np.float64)
        self.p, self.boost, k = p.astype(np.float64), boost, len(p)
        self.b, self.last, self.sk, self.m = (
            boost.first * np.eye(k),
            np.zeros(k),
            np.zeros(k),
            0 * self.w,
        )
        self.started, self.rates = False, []

    def loss(self, w, feeds):
        w1, b1, w2, b2 = (
            part.reshape(shape)
            for part, shape in zip(
                np.split(w, np.cumsum([np.prod(s) for s in self.shapes])[:-1]),
                self.shapes,
                strict=True,
            )
        )
        x, rows = feeds["x"].astype(np.float64), np.arange(len(feeds["x"]))
        h = x @ w1.T + b1
        z = np.maximum(h, 0) @ w2.T + b2
        z = z - z.max(1, keepdims=True)
        logs = z - np.log(np.exp(z).sum(1, keepdims=True))
        loss, shares = -logs[rows, feeds["labels"]].mean(), np.exp(logs)
        dz = shares.copy()
        dz[rows, feeds["labels"]] -= 1
        dz /= len(x)
        dh = (dz @ w2) * (h > 0)
        parts = (dh.T @ x, dh.sum(0), dz.T @ np.maximum(h, 0), dz.sum(0))
        return loss, np.concatenate([part.ravel() for part in parts])

    def step(self, feeds):
        s = self.boost
        old, g = self.loss(self.w, feeds)
        gk, b = self.p @ g, self.b
        if self.started:
            y = gk - self.last
            d = y @ self.sk
            if d > 1e-20:
                t = np.eye(len(gk)) - np.outer(y, self.sk) / d
                b = t.T @ b @ t + np.outer(self.sk, self.sk) / d
        self.started = True
        dk = -b @ gk
        rate = 0.0
        for tried in (1.0, s.rho):
            if (
                old + s.sigma * tried * gk @ dk
                > self.loss(self.w + tried * self.p.T @ dk, feeds)[0]
            ):
                rate = tried
                self.b, self.last, self.sk = b, gk, tried * dk
                break
        self.rates.append(rate)
        self.m = s.gamma * self.m + g - self.p.T @ gk
        self.w = self.w - s.alpha * self.m + rate * self.p.T @ dk
        return old


@pytest.mark.parametrize(
    ("k", "settings"),
    [
        (1, {}),
        (6, {}),
        (6, {"alpha": 0.0}),
        (6, {"alpha": 0.05, "gamma": 0.5, "rho": 0.3}),
        (20, {"sigma": 0.9}),
        (6, {"first": 0.1}),
        (40, {"n_components": 12}),
    ],
)
@pytest.mark.parametrize("orthonormal", [True, False])
def test_as_replayed(tmp_path, k, settings, orthonormal):
    built = program(basis(tmp_path, k, orthonormal=orthonormal), **settings)
    boost = built.config.line_search
    replay = Replay(built.initial, built.initial["ortboost/dim_reduce/basis"], boost)
    stepper = Stepper(built, threads=1)
    for step in range(10):
        feeds = batch(step % 3)
        assert stepper.step(feeds, {"learning_rate": 7.0}).loss == pytest.approx(
            replay.step(feeds), abs=2e-5
        )
    w = np.concatenate([stepper.get(name).ravel() for name in Replay.names])
    start = np.concatenate([built.initial[name].ravel() for name in Replay.names])
    assert np.abs(w - replay.w).max() <= 1e-5
    assert np.abs(w - start).max() > 1e-3
    assert max(replay.rates) > 0


@pytest.mark.parametrize("alpha", [0.0, 0.001])
def test_one_process_has_all_rows(tmp_path, alpha):
    """With one process, shard changes no bit."""
    path = basis(tmp_path, 5)
    first, second = (
        Stepper(program(path, alpha=alpha, shard=shard), threads=1) for shard in (False, True)
    )
    for step in range(10):
        results = [s.step(batch(step), {"learning_rate": 0.1}) for s in (first, second)]
        assert results[0].loss == results[1].loss
        assert results[0].metrics == results[1].metrics
    one, other = first.state(), second.state()
    assert {*other} - {*one} == {"ortboost/dim_reduce/rows"}
    sharded = {entry.name for entry in second.catalogue.state if entry.sharded}
    assert sharded == {"ortboost/dim_reduce/basis", "ortboost/dim_reduce/rows"}
    assert all(np.array_equal(one[name], other[name]) for name in one)


def test_only_the_step_reads_the_components(tmp_path):
    built = program(basis(tmp_path, 5))
    readers = [
        name
        for name in built.graphs
        if any(e.name == "ortboost/dim_reduce/basis" for e in built.catalogue_of(name).state)
    ]
    assert readers == ["step"]


def test_all_three_ends_of_the_line_search_come_up(tmp_path):
    built = program(basis(tmp_path, 20, orthonormal=False), sigma=0.6)
    replay = Replay(
        built.initial, built.initial["ortboost/dim_reduce/basis"], built.config.line_search
    )
    stepper = Stepper(built, threads=1)
    for step in range(25):
        replay.w = np.concatenate([stepper.get(name).ravel() for name in Replay.names]).astype(
            float
        )
        replay.step(batch(step % 2))
        found = stepper.step(batch(step % 2), {"learning_rate": 1.0})
        assert found.metrics["rate"] == replay.rates[-1]
        w = np.concatenate([stepper.get(name).ravel() for name in Replay.names])
        assert np.abs(w - replay.w).max() <= 1e-4
    assert set(replay.rates) == {0.0, 0.55, 1.0}


def test_the_scale_changes_nothing(tmp_path):
    path, found = basis(tmp_path), []
    for scale in (1.0, 1024.0):
        stepper = Stepper(program(path, FixedScaleConfig(scale)), threads=1)
        for step in range(5):
            stepper.step(batch(step), {"learning_rate": 1.0})
        found.append(stepper.get("w1"))
    np.testing.assert_allclose(*found, rtol=0, atol=1e-6)


def test_an_overflow_moves_nothing(tmp_path):
    stepper = Stepper(program(basis(tmp_path)), threads=1)
    stepper.step(batch(0), {"learning_rate": 1.0})
    before = stepper.state()
    bad = batch(1)
    bad["x"][0] = np.inf
    assert stepper.step(bad, {"learning_rate": 1.0}).overflow
    moved = {n for n, v in stepper.state().items() if not np.array_equal(v, before[n])}
    assert moved == {
        "ortboost/loss_scale", "ortboost/good_steps", "ortboost/last_skipped",
        "ortboost/consecutive_skips", "ortboost/total_skips",
    }  # fmt: skip


def test_trials_leave_running_statistics_alone(tmp_path):
    from ortboost.optimizers import Sgd

    model, length = small_convnet(), 4 * 9 + 4 + 4 + 12 + 3
    reduced = program(basis(tmp_path, 4, length), model=model)
    plain = build_program(small_convnet(), ProgramConfig(engine="portable", optimizer=Sgd()))
    feeds = {
        "x": np.random.default_rng(0).standard_normal((8, 1, 6, 6)).astype(np.float32),
        "labels": np.arange(8) % 3,
    }
    one, other = Stepper(reduced, threads=1), Stepper(plain, threads=1)
    one.step(feeds, {"learning_rate": 1.0})
    other.step(feeds, {"learning_rate": 1.0})
    for name in ("mean", "var"):
        np.testing.assert_array_equal(one.get(name), other.get(name))
        assert not np.array_equal(one.get(name), plain.initial[name])


def test_resumed_to_the_same_bits_from_a_folder(tmp_path):
    built = program(basis(tmp_path))
    built.save(tmp_path / "run")
    (tmp_path / "p6.npy").unlink()  # the program has its own
    loaded = Program.load(tmp_path / "run")
    assert loaded.config == built.config
    one, other = Stepper(built, threads=1), Stepper(loaded, threads=1)
    for step in range(4):
        one.step(batch(step), {"learning_rate": 1.0})
    other.load_state(one.state())
    for step in range(4, 8):
        assert one.step(batch(step), {"learning_rate": 1.0}).loss == (
            other.step(batch(step), {"learning_rate": 1.0}).loss
        )
    for name, value in one.state().items():
        np.testing.assert_array_equal(value, other.state()[name])


def test_what_does_not_go_together(tmp_path):
    path = basis(tmp_path)
    config = ProgramConfig(engine="portable", boosts=(DimReduce(path),))
    with pytest.raises(ConfigError, match="cannot be combined"):
        config.with_boosts(Clip("norm", 1.0))
    with pytest.raises(ConfigError, match="requires the gradient of the mean loss"):
        dataclasses.replace(config, loss=LossConfig(reduction="sum"))


@pytest.mark.parametrize("what", ["missing", "length", "few", "nan", "text"])
def test_files_that_do_not_fit(tmp_path, what):
    path = basis(tmp_path)
    if what == "missing":
        path += ".no"
    elif what == "length":
        path = basis(tmp_path, 7, LENGTH - 1)
    elif what == "nan":
        np.save(path, np.full((3, LENGTH), np.nan, np.float32))
    elif what == "text":
        (tmp_path / "p6.npy").write_text("no array")
    with pytest.raises(FileError) as caught:
        program(path, n_components=9 if what == "few" else 0)
    assert_three_lines(caught.value)
    assert "ortboost pca" in caught.value.fix


def test_a_table_with_a_padding_row(tmp_path):
    """A trial reads the table itself: only what is differentiated reads a copy."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N,3] ids, float[5,4] w, float[4,2] h) => (float[N,3,2] y)
        { e = Gather(w, ids) y = MatMul(e, h) }""",
        w=weights(5, 4),
        h=weights(4, 2, seed=1),
    )
    feeds = {"ids": np.array([[0, 2, 1], [3, 0, 0]]), "labels": weights(2, 3, 2, seed=7)}
    plain = ProgramConfig(
        loss=LossConfig("mse"), optimizer=Sgd(), loss_scale=FixedScaleConfig(1.0), engine="portable"
    )
    plain = dataclasses.replace(plain, padding_idx={"w": 0})
    path = basis(tmp_path, length=28)
    reduced = plain.with_boosts(DimReduce(path, alpha=0.0, first=0.1))
    states = []
    for config in (plain, reduced):
        training = Stepper(build_program(model.clone(), config), device="cpu", threads=1)
        states.append(np.concatenate([training.get(name).ravel() for name in "wh"]))
        training.step(feeds, dict.fromkeys(training.groups, 1.0))
        states.append(np.concatenate([training.get(name).ravel() for name in "wh"]))
    gradient = states[0] - states[1]
    assert not gradient[:4].any()  # the padding row
    assert gradient.any()
    p = np.load(path)
    np.testing.assert_allclose(states[3], states[0] - 0.1 * p.T @ (p @ gradient), rtol=1e-4)
