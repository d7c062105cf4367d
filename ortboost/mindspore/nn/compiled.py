"""Compile a training cell to a step graph at its first call.

Only the first call shows the shape of the labels (which may broadcast against the predictions) and
which parameters are frozen. A call of another form builds another graph, which continues with the
latest weights, slots and scale (see :mod:`ortboost.mindspore.core.live_state`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.boosts.freeze_schedule import FreezeConfig
from ortboost.boosts.grad_centralization import CentralizeConfig
from ortboost.core.arrays import matches
from ortboost.core.errors import UsageError
from ortboost.core.loss_scale import NO_SCALE, GroupedScaleConfig, ScaleConfig
from ortboost.core.step_result import StepResult
from ortboost.mindspore.communication import shared_group
from ortboost.mindspore.core.arguments import (
    ArgumentRuntimeError,
    ArgumentValueError,
    NotInThisVersionError,
)
from ortboost.mindspore.core.cell import refuse_own_methods
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.network import Network, as_input, check_count
from ortboost.mindspore.nn.loss import LossBase
from ortboost.mindspore.nn.optimizer import exact_patterns
from ortboost.mindspore.nn.updates import Updates
from ortboost.program import names
from ortboost.program.build import build_program
from ortboost.program.catalogue import Catalogue
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper
from ortboost.runtime.updater import Updater
from ortboost.training.run_state import step_seed
from ortboost.transforms.attach_loss import LossConfig

__all__ = ["CompiledSteps"]

_COUNTERS = (names.STEP, names.MICRO_STEPS)  # prefixes: freeze groups have their own


class CompiledSteps:
    """The step graphs of one training cell.

    Args:
        owner: Name of the training cell, for errors.
        network: The network.
        loss: Its loss; ``None`` if the model computes its own.
        updates: The optimizer, with parameters of this network, and how it is applied.
        scale: The policy of the loss scale.
        check_finite: Whether an overflow skips the update.
        divisor: Gradients are divided by this after unscaling.
    """

    def __init__(
        self,
        owner: str,
        network: Network,
        loss: LossBase | None,
        updates: Updates,
        scale: ScaleConfig,
        *,
        check_finite: bool,
        divisor: float,
    ) -> None:
        optimizer = updates.optimizer
        for cell in (network, loss, optimizer):
            refuse_own_methods(owner, cell)
        self.owner, self.network, self.loss, self.optimizer = owner, network, loss, optimizer
        self._check_parameters()
        self.scale, self.check_finite = scale, check_finite
        # A line search compares losses with slopes, so it needs the gradients of the loss itself.
        self.divisor = divisor if updates.line_search is None else 1.0
        self.accumulate, self.freeze = updates.accumulate, updates.freeze
        self.line_search, self._order = updates.line_search, updates.order
        self.scale_state = LiveState()
        self.calls = 0
        self._built: dict[Any, tuple[Stepper | Updater, dict[str, list[str]]]] = {}
        self._last: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy compiles its own steps, which continue with the latest state."""
        return {**vars(self), "_built": {}, "_last": None}

    def step(self, *inputs: Any) -> StepResult:
        """Run one step on a batch: data of each input of the network, then the labels."""
        data, labels = self._arrays(inputs)
        rates = {names.LEARNING_RATE: 0.0}  # a line search uses none
        if self.line_search is None:
            rates = self.optimizer.rates()  # before anything changes: a list may have ended
        stepper = self.stepper(labels)
        feeds = dict(data)
        if labels is not None:
            feeds[stepper.program.config.loss.labels] = labels
        random = stepper.catalogue.randomness
        seed = step_seed(self.network.seed, self.calls) if random else 0
        try:
            result = stepper.step(feeds, rates, seed=seed)
        except UsageError as error:
            if isinstance(error, TypeError | ValueError):
                raise
            # A fix that names command-line options does not apply to a training cell.
            fix = "Give data and labels that fit the network." if "--" in error.fix else error.fix
            raise ArgumentValueError(error.what, where=error.where, fix=fix) from error
        self.calls += 1
        self._record(result.applied_steps)
        return result

    def _check_parameters(self) -> None:
        """Check that the network has the parameters of the optimizer."""
        own = {id(parameter) for parameter in self.network.get_parameters()}
        for parameter in self.optimizer.parameters:
            if id(parameter) not in own:
                raise ArgumentValueError(
                    f"The parameter '{parameter.name}' belongs to another network.",
                    where=self.owner,
                    fix="Make the optimizer with net.trainable_params() of this network, after a "
                    "LessBN, which removes parameters.",
                )

    def flush(self) -> bool:
        """Update with an incomplete window of accumulation; False if there is none."""
        if self._last is None:
            if self.calls and self.accumulate > 1:  # a copy, which may be within a window
                raise ArgumentRuntimeError(
                    "A copied training cell cannot flush before its first step.",
                    where=f"{self.owner}.flush",
                    fix="Flush the cell before it is copied, or run a step of the copy first.",
                )
            return False
        if not self._lent(self._last).flush(self.optimizer.rates()):
            return False
        self._record(self.optimizer.applied_steps + 1)
        return True

    def take(self, gradients: Mapping[str, NDArray[Any]]) -> None:
        """Add gradients that the caller computed to the window; at its end, update.

        The optimizer divides them by its ``loss_scale``; nothing else scales them.

        Args:
            gradients: Trained parameter to its gradient, float32, in its shape.
        """
        rates = self.optimizer.rates()
        key = (tuple(gradients), "given")
        if key not in self._built:
            self._built[key] = self._build_updater(key[0])
        self._last = key
        updater = self._lent(key)
        assert isinstance(updater, Updater)
        updater.step(gradients, rates)
        self._record(int(updater.get(names.STEP)))

    def _record(self, applied_steps: int) -> None:
        """Record that a step has changed the state."""
        for state in (self.network.state, self.optimizer.state, self.scale_state):
            state.touch()
        self.optimizer.applied_steps = applied_steps

    def stepper(self, labels: NDArray[Any] | None) -> Stepper:
        """The compiled step for labels of this form, with the latest state."""
        trained = tuple(p.name for p in self.optimizer.parameters if p.requires_grad)
        config = self._loss_config(labels)
        # What a step graph depends on and a user may change between two calls.
        loss = (config.label_shape, config.reduction)
        rule = (repr(self.optimizer.rule()), self.optimizer.weight_decay)
        key = (trained, loss, rule, self.network.precision)
        if key not in self._built:
            self._built[key] = self._build(trained, config)
        self._last = key
        stepper = self._lent(key)
        assert isinstance(stepper, Stepper)
        return stepper

    def _lent(self, key: Any) -> Stepper | Updater:
        """A compiled step, after the latest state was moved into it."""
        holder, names_of = self._built[key]
        self.network.state.lend(holder, names_of["network"])
        self.optimizer.state.lend(holder, names_of["optimizer"])
        self.scale_state.lend(holder, names_of["scale"])
        return holder

    def _build(
        self, trained: tuple[str, ...], loss: LossConfig
    ) -> tuple[Stepper, dict[str, list[str]]]:
        """Compile a step, and assign its states to network, optimizer and scale."""
        stepper = Stepper(
            self._program(trained, loss),
            device=self.network.device,
            threads=self.network.threads,
            group=shared_group(),
        )
        updated = [e.name for e in stepper.catalogue.entries("parameter") if e.next is not None]
        if self.line_search is not None and updated != list(self._order):
            raise ArgumentValueError(
                "The trained parameters do not match those of the components.",
                where=f"'{self.line_search.name}', trained: {', '.join(updated)}",
                fix="Set requires_grad before the optimizer is made, and do not change it.",
            )
        return stepper, _owned(stepper.catalogue)

    def _build_updater(self, trained: tuple[str, ...]) -> tuple[Updater, dict[str, list[str]]]:
        """Compile the update alone. The loss and its scale have no part in it."""
        shared = shared_group() is not None
        if shared or self.freeze is not None or self.line_search is not None:
            raise NotInThisVersionError(
                "Gradients cannot be given to this training cell.",
                where="several processes" if shared else "GradientFreeze, DimReduce",
                fix="Give None for the gradients, or call the cell itself: step(data, label).",
            )
        loss = LossConfig(name="output") if self.loss is None else self.loss.config()
        program = self._program(trained, loss, given=True)
        updater = Updater(program, device=self.network.device, threads=self.network.threads)
        return updater, _owned(updater.catalogue)

    def _program(
        self, trained: tuple[str, ...], loss: LossConfig, *, given: bool = False
    ) -> Program:
        if not trained:
            raise ArgumentValueError(
                "All parameters of the optimizer are frozen.",
                where="requires_grad",
                fix="Set requires_grad = True on the parameters to train.",
            )
        self._check_parameters()  # again: a network may be converted in place
        optimizer = self.optimizer
        division = (self.freeze,)
        if optimizer.divided_by not in (None, division):
            raise ArgumentValueError(
                "Another training cell has divided the state of this optimizer into other groups.",
                where=f"{self.owner}, {type(optimizer).__name__}",
                fix="Make an optimizer for each FreezeOpt, and for cells without one.",
            )
        optimizer.divided_by = division
        adapted = optimizer.adapted()
        return build_program(
            self.network.model,
            ProgramConfig(
                loss=loss,
                optimizer=optimizer.rule(),
                boosts=(
                    *optimizer.boosts(),
                    *([] if self.line_search is None else [self.line_search]),
                ),
                learning_rate="by the host",
                weight_decay=optimizer.weight_decay,
                # With LARS only the filter decides which parameters decay.
                decay="no-norm" if adapted is None else "all",
                groups=optimizer.groups(),
                loss_scale=NO_SCALE if given else self._scale(trained),
                check_finite=self.check_finite and not given,
                gradient_divisor=optimizer.loss_scale if given else self.divisor,
                adapt=adapted,
                trainable=exact_patterns(trained),
                accumulate=self.accumulate,
                centralize=self._centralize(trained),
                grad_freeze=self._freeze(trained),
                precision=self.network.precision,
                engine=self.network.engine,
            ),
        )

    def _centralize(self, trained: tuple[str, ...]) -> CentralizeConfig | None:
        chosen = set(self.optimizer.centralized())
        patterns = exact_patterns(name for name in trained if name in chosen)
        return CentralizeConfig(patterns, self.optimizer.gc_multiple_of) if patterns else None

    def _scale(self, trained: tuple[str, ...]) -> ScaleConfig:
        """The policy without frozen parameters, which its groups list by name."""
        policy = self.scale
        if not isinstance(policy, GroupedScaleConfig) or isinstance(policy.groups, int):
            return policy
        known = set(exact_patterns(trained))
        groups = tuple(tuple(name for name in group if name in known) for group in policy.groups)
        return dataclasses.replace(policy, groups=groups)

    def _freeze(self, trained: tuple[str, ...]) -> FreezeConfig | None:
        """The freeze configuration without parameters that are frozen anyway."""
        if self.freeze is None or self.freeze.groups is None:
            return self.freeze
        groups = tuple(
            tuple(name for name in group if name in trained) for group in self.freeze.groups
        )
        if not all(groups):
            raise ArgumentValueError(
                "All parameters of a group are frozen.",
                where=f"{self.owner}, group {groups.index(())} of FreezeOpt",
                fix="Set requires_grad = True on one of them, or leave the group out.",
            )
        return dataclasses.replace(self.freeze, groups=groups)

    def _arrays(self, inputs: tuple[Any, ...]) -> tuple[dict[str, NDArray[Any]], Any]:
        more = [] if self.loss is None else ["labels"]
        check_count("training step", self.network, inputs, *more)
        specs = self.network.inputs
        data = {
            spec.name: as_input(value, spec) for spec, value in zip(specs, inputs, strict=False)
        }
        return data, None if self.loss is None else self.loss.labels(inputs[-1])

    def _loss_config(self, labels: NDArray[Any] | None) -> LossConfig:
        if self.loss is None or labels is None:
            return LossConfig(name="output")
        if self._has_usual_shape(labels):
            return self.loss.config()
        prediction = self.network.output_shape
        if prediction is not None and not (
            self.loss.broadcasts and _broadcast(prediction, labels.shape)
        ):
            raise self.loss.misfit(prediction, labels.shape)
        return self.loss.config(labels.shape)

    def _has_usual_shape(self, labels: NDArray[Any]) -> bool:
        """Whether the labels have the shape that follows from that of the prediction."""
        prediction = self.network.output_shape
        if prediction is None:
            return False
        sparse = labels.dtype == np.int64  # class indices [N, ...] for scores [N, C, ...]
        wanted = (prediction[0], *prediction[2:]) if sparse and len(prediction) > 1 else prediction
        return matches(labels.shape, tuple(wanted))


def _broadcast(prediction: Sequence[int | str | None], labels: tuple[int, ...]) -> bool:
    """Whether the shapes may broadcast; a dimension that is no number may have any length."""
    pairs = zip(reversed(prediction), reversed(labels), strict=False)
    return all(not isinstance(a, int) or a == b or 1 in (a, b) for a, b in pairs)


def _owned(catalogue: Catalogue) -> dict[str, list[str]]:
    """The states of a compiled step that belong to the network, the optimizer and the scale."""
    found: dict[str, list[str]] = {"network": [], "optimizer": [], "scale": []}
    for entry in catalogue.state:
        if entry.sharded:  # never changes, and the processes need not hold all of it
            continue
        if entry.kind in ("parameter", "buffer"):
            found["network"].append(entry.name)
        elif entry.kind == "slot" or entry.name.startswith(_COUNTERS):
            found["optimizer"].append(entry.name)
        else:
            found["scale"].append(entry.name)
    return found
