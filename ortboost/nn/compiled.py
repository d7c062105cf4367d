"""From a training cell to a step graph: built at the first call, kept for the next ones.

What is only known at the first call: the form of the labels (they may broadcast against the
predictions) and which parameters are frozen by then. Calls of another form build another graph; the
newest weights, slots and scale go along (see :mod:`ortboost.faces.live_state`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.faces.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.faces.live_state import LiveState
from ortboost.loss_scale import ScaleConfig
from ortboost.network import Network, as_input
from ortboost.nn.loss import LossBase
from ortboost.nn.optimizer import Optimizer, exact_patterns
from ortboost.program import catalogue as names
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.program.program import Program
from ortboost.runtime.stepper import Stepper, StepResult
from ortboost.training.run_state import step_seed
from ortboost.transforms.attach_loss import LossConfig

__all__ = ["CompiledSteps"]


class CompiledSteps:
    """The step graphs of one training cell.

    Args:
        owner: Name of the training cell, for errors.
        network: The network.
        loss: Its loss; ``None`` if the model computes its own.
        optimizer: The optimizer; its parameters must be the network's.
        scale: The law of the scale.
        check_finite: Whether an overflow skips the update.
        divisor: Gradients are divided by this after un-scaling.

    Raises:
        ArgumentTypeError: ``optimizer`` is none.
        ArgumentValueError: A parameter belongs to another network.
    """

    def __init__(
        self,
        owner: str,
        network: Network,
        loss: LossBase | None,
        optimizer: Optimizer,
        scale: ScaleConfig,
        *,
        check_finite: bool,
        divisor: float,
    ) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(
                f"'optimizer' is {type(optimizer).__name__}.",
                where=owner,
                fix="Give an optimizer of ortboost.nn, for example nn.Momentum(...).",
            )
        for parameter in optimizer.parameters:
            if parameter.state is not network.state:
                raise ArgumentValueError(
                    f"The parameter '{parameter.name}' belongs to another network.",
                    where=owner,
                    fix="Make the optimizer with net.trainable_params() of this network.",
                )
        self.network, self.loss, self.optimizer = network, loss, optimizer
        self.scale, self.check_finite, self.divisor = scale, check_finite, divisor
        self.scale_state = LiveState()
        self.calls = 0
        self._built: dict[Any, tuple[Stepper, dict[str, list[str]]]] = {}

    def step(self, *inputs: Any) -> StepResult:
        """One step on a batch: data of each input of the network, then the labels.

        Raises:
            ArgumentTypeError, ArgumentValueError: The arrays do not fit.
            ArgumentRuntimeError: The list of learning rates has ended.
            ModelError: The model cannot be trained so.
        """
        data, labels = self._arrays(inputs)
        hyper = self.optimizer.rates()
        stepper = self.stepper(labels)
        feeds = dict(data)
        if labels is not None:
            feeds[stepper.program.config.loss.labels] = labels
        random = stepper.catalogue.randomness
        seed = step_seed(self.network.seed, self.calls) if random else 0
        result = stepper.step(feeds, hyper, seed=seed)
        self.calls += 1
        for state in (self.network.state, self.optimizer.state, self.scale_state):
            state.touch()
        self.optimizer.applied_steps = result.applied_steps
        return result

    def stepper(self, labels: NDArray[Any] | None) -> Stepper:
        """The compiled step for labels of this form, holding the newest state."""
        trained = tuple(p.name for p in self.optimizer.parameters if p.requires_grad)
        config = self._loss_config(labels)
        key = (trained, config.label_shape)
        if key not in self._built:
            self._built[key] = self._build(trained, config)
        stepper, names_of = self._built[key]
        self.network.state.lend(stepper, names_of["network"])
        self.optimizer.state.lend(stepper, names_of["optimizer"])
        self.scale_state.lend(stepper, names_of["scale"])
        return stepper

    def _build(
        self, trained: tuple[str, ...], loss: LossConfig
    ) -> tuple[Stepper, dict[str, list[str]]]:
        """A compiled step, and which of its states belong to whom."""
        stepper = Stepper(
            self._program(trained, loss), device=self.network.device, threads=self.network.threads
        )
        names_of: dict[str, list[str]] = {"network": [], "optimizer": [], "scale": []}
        for entry in stepper.catalogue.state:
            if entry.kind in ("parameter", "buffer"):
                names_of["network"].append(entry.name)
            elif entry.kind == "slot" or entry.name == names.STEP:
                names_of["optimizer"].append(entry.name)
            else:
                names_of["scale"].append(entry.name)
        return stepper, names_of

    def _program(self, trained: tuple[str, ...], loss: LossConfig) -> Program:
        if not trained:
            raise ArgumentValueError(
                "All parameters of the optimizer are frozen.",
                where="requires_grad",
                fix="Set requires_grad = True on those to train.",
            )
        optimizer = self.optimizer
        adapted = optimizer.adapted()
        return build_program(
            self.network.model,
            ProgramConfig(
                loss=loss,
                optimizer=optimizer.rule(),
                learning_rate="by the host",
                weight_decay=optimizer.weight_decay,
                # With LARS the filter alone says who decays.
                decay="no-norm" if adapted is None else "all",
                groups=optimizer.groups(),
                loss_scale=self.scale,
                check_finite=self.check_finite,
                gradient_divisor=self.divisor,
                adapt=adapted,
                trainable=exact_patterns(trained),
            ),
        )

    def _arrays(self, inputs: tuple[Any, ...]) -> tuple[dict[str, NDArray[Any]], Any]:
        specs = self.network.inputs
        wanted = len(specs) + (self.loss is not None)
        if len(inputs) != wanted:
            raise ArgumentTypeError(
                f"{wanted} arguments are needed and {len(inputs)} were given.",
                where="training step",
                fix=f"Give {', '.join(spec.name for spec in specs)}"
                + (" and the labels." if self.loss is not None else "."),
            )
        data = {
            spec.name: as_input(value, spec) for spec, value in zip(specs, inputs, strict=False)
        }
        return data, None if self.loss is None else self.loss.labels(inputs[-1])

    def _loss_config(self, labels: NDArray[Any] | None) -> LossConfig:
        if self.loss is None or labels is None:
            return LossConfig(name="output")
        return self.loss.config(None if self._usual(labels) else labels.shape)

    def _usual(self, labels: NDArray[Any]) -> bool:
        """Whether the shape of the labels follows from that of the prediction."""
        prediction = self.network.output_shape
        if prediction is None:
            return False
        sparse = labels.dtype == np.int64
        wanted = (prediction[0], *prediction[2:]) if sparse and len(prediction) > 1 else prediction
        return len(wanted) == len(labels.shape) and all(
            not isinstance(want, int) or want == have
            for want, have in zip(wanted, labels.shape, strict=True)
        )
