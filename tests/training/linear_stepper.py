"""A stepper in plain numpy for tests of the trainer: linear regression with a loss scale.

It keeps the protocols of ``ortboost.training.protocols``, has dropout-like noise from the step seed
(so that a wrong seed changes the bits), and can be told to overflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ortboost.core import loss_scale
from ortboost.core.step_result import StepResult
from ortboost.training.protocols import InputSpec

FEATURES = 3


class LinearStepper:
    """``loss = mean((x w + b - y)^2)``, SGD with momentum, float32."""

    groups = ("learning_rate", "learning_rate/bias")

    def __init__(
        self,
        scale: loss_scale.ScaleConfig = loss_scale.NO_SCALE,
        overflow: Callable[[int], bool] = lambda step: False,
        batch: int | str = "N",
    ) -> None:
        self.inputs = [
            InputSpec("x", np.dtype("float32"), (batch, FEATURES)),
            InputSpec("labels", np.dtype("float32"), (batch,)),
        ]
        self.config, self.overflow = scale, overflow
        self.w = np.zeros(FEATURES, np.float32)
        self.b = np.zeros((), np.float32)
        self.v = np.zeros(FEATURES, np.float32)
        self.scale = loss_scale.initial_state(scale)
        self.applied = 0
        self.rates: list[float] = []
        self.seen: list[float] = []
        self.seeds: list[int] = []

    def step(
        self, feeds: Mapping[str, Any], hyper: Mapping[str, float], *, seed: int
    ) -> StepResult:
        x, y = feeds["x"], feeds["labels"]
        noise = np.random.Generator(np.random.PCG64(seed)).normal(size=len(x)).astype(np.float32)
        error = x @ self.w + self.b - y + np.float32(1e-3) * noise
        self.rates.append(hyper["learning_rate"])
        self.seen.append(float(y.sum()))
        self.seeds.append(seed)
        bad = self.overflow(self.scale.cur_iter) or not bool(np.isfinite(error).all())
        self.scale = loss_scale.update(self.scale, bad, self.config)
        if not bad:
            self.v = np.float32(0.9) * self.v + 2 * x.T @ error / np.float32(len(x))
            self.w = self.w - np.float32(hyper["learning_rate"]) * self.v
            self.b = (self.b - np.float32(2 * hyper["learning_rate/bias"]) * error.mean()).astype(
                np.float32
            )
            self.applied += 1
        return StepResult(
            loss=float((error**2).mean()),
            overflow=bad,
            loss_scale=float(self.scale.scale),
            applied_steps=self.applied,
            consecutive_skips=self.scale.consecutive_skips,
            total_skips=self.scale.total_skips,
        )

    def flush(self, hyper: Mapping[str, float]) -> bool:
        return False

    def state(self, *, copy: bool = True) -> dict[str, Any]:
        return {
            "w": self.w.copy(),
            "b": self.b.copy(),
            "ortboost/slot/v/w": self.v.copy(),
            "ortboost/loss_scale": np.asarray(self.scale.scale),
            "ortboost/cur_iter": np.asarray(self.scale.cur_iter, np.int32),
            "ortboost/last_overflow_iter": np.asarray(self.scale.last_overflow_iter, np.int32),
            "ortboost/consecutive_skips": np.asarray(self.scale.consecutive_skips, np.int64),
            "ortboost/total_skips": np.asarray(self.scale.total_skips, np.int64),
            "ortboost/step": np.asarray(self.applied, np.int64),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.w, self.b = state["w"].copy(), state["b"].copy()
        self.v = state["ortboost/slot/v/w"].copy()
        self.scale = loss_scale.ScaleState(
            np.float32(state["ortboost/loss_scale"]),
            int(state["ortboost/cur_iter"]),
            int(state["ortboost/last_overflow_iter"]),
            False,
            int(state["ortboost/consecutive_skips"]),
            int(state["ortboost/total_skips"]),
        )
        self.applied = int(state["ortboost/step"])

    def nonfinite(
        self, feeds: Mapping[str, Any], hyper: Mapping[str, float], *, seed: int
    ) -> list[str]:
        assert seed == self.seeds[-1], "the diagnosis must repeat the step that failed"
        error = feeds["x"] @ self.w + self.b - feeds["labels"]
        return [] if np.isfinite(error).all() else ["error", "loss"]


class LinearEvaluator:
    """The forward pass of a :class:`LinearStepper`, with its state."""

    def __init__(self, stepper: LinearStepper) -> None:
        self.stepper = stepper
        self.sizes: list[int] = []

    def evaluate(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        prediction = feeds["x"] @ self.stepper.w + self.stepper.b
        self.sizes.append(len(prediction))
        loss = np.float32(((prediction - feeds["labels"]) ** 2).mean())
        return {"prediction": prediction, "loss": loss}


def make_data(length: int = 50, seed: int = 3) -> dict[str, Any]:
    """Samples of a noisy linear law."""
    random = np.random.default_rng(seed)
    x = random.normal(size=(length, FEATURES)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5], np.float32) + 0.25
    return {"x": x, "labels": (y + 0.01 * random.normal(size=length)).astype(np.float32)}
