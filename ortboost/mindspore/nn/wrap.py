"""``WithLossCell`` and ``WithEvalCell``: a network together with its loss."""

from __future__ import annotations

from typing import Any

import numpy as np

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentTypeError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.nn.loss import LossBase

__all__ = ["WithEvalCell", "WithLossCell", "network_of"]


class WithLossCell(Cell):
    """A network and its loss, to be trained.

    Args:
        backbone: The network.
        loss_fn: The loss, one of :mod:`ortboost.mindspore.nn.loss`.

    Example:
        >>> net_with_loss = WithLossCell(net, nn.MSELoss())  # doctest: +SKIP
        >>> net_with_loss(data, label)                       # doctest: +SKIP
        Tensor(1.03, dtype=float32)
    """

    @checked
    def __init__(self, backbone: Network, loss_fn: LossBase) -> None:
        super().__init__()
        self._backbone, self._loss_fn = backbone, loss_fn

    @property
    def backbone_network(self) -> Network:
        """The network without its loss."""
        return self._backbone

    @property
    def loss_fn(self) -> LossBase:
        """The loss."""
        return self._loss_fn

    def construct(self, *inputs: Any) -> Tensor:
        """The loss of a batch, by the inference graph: data of each input, then the label."""
        data, label = _split(self._backbone, inputs, "WithLossCell")
        result: Tensor = self._loss_fn(_prediction(self._backbone(*data)), label)
        return result


class WithEvalCell(Cell):
    """Loss, outputs and labels of a batch, for metrics.

    Args:
        network: The network.
        loss_fn: The loss, or ``None``: then only outputs and labels are answered.
        add_cast_fp32: Answer outputs and labels as float32.

    Example:
        >>> loss, outputs, labels = WithEvalCell(net, nn.MSELoss())(data, label)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self, network: Network, loss_fn: LossBase | None, add_cast_fp32: bool = False
    ) -> None:
        super().__init__()
        self._network, self._loss_fn, self.add_cast_fp32 = network, loss_fn, add_cast_fp32

    @property
    def backbone_network(self) -> Network:
        """The network without its loss."""
        return self._network

    @property
    def loss_fn(self) -> LossBase | None:
        """The loss."""
        return self._loss_fn

    def construct(self, *inputs: Any) -> tuple[Any, ...]:
        """Data of each input, then the label; answers ``(loss, outputs, labels)``."""
        data, label = _split(self._network, inputs, "WithEvalCell")
        outputs = self._network(*data)
        if self.add_cast_fp32:
            outputs = (
                tuple(Tensor(part, np.float32) for part in outputs)
                if isinstance(outputs, tuple)
                else Tensor(outputs, np.float32)
            )
            label = Tensor(label, np.float32)
        if self._loss_fn is None:
            return outputs, label
        loss_label = inputs[-1]
        return self._loss_fn(_prediction(outputs), loss_label), outputs, label


def network_of(owner: str, value: Any) -> Network:
    """The network in a cell that holds one.

    Raises:
        ArgumentTypeError: It holds none.
    """
    if isinstance(value, WithLossCell):
        return value.backbone_network
    if isinstance(value, Network):
        return value
    raise ArgumentTypeError(
        f"'network' is {type(value).__name__}.",
        where=owner,
        fix="Give a network loaded with ortboost.load(path), or nn.WithLossCell of one.",
    )


def _split(network: Network, inputs: tuple[Any, ...], owner: str) -> tuple[tuple[Any, ...], Any]:
    wanted = len(network.inputs) + 1
    if len(inputs) != wanted:
        raise ArgumentTypeError(
            f"{wanted} arguments are needed and {len(inputs)} were given.",
            where=f"{owner} call",
            fix=f"Give {', '.join(spec.name for spec in network.inputs)} and the label.",
        )
    return inputs[:-1], inputs[-1]


def _prediction(outputs: Any) -> Any:
    if isinstance(outputs, tuple):
        raise ArgumentTypeError(
            f"The network has {len(outputs)} outputs; a loss takes one.",
            where="loss_fn",
            fix="Cut the model to the output that the loss is taken of.",
        )
    return outputs
