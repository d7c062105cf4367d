"""``WithLossCell`` and ``WithEvalCell``: a network and its loss."""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import numpy as np

from ortboost.core.arguments import check_argument, checked
from ortboost.mindspore.core.arguments import ArgumentTypeError
from ortboost.mindspore.core.cell import Cell, has_own_construct
from ortboost.mindspore.core.network import Network, check_count
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.mindspore.core.traced import Traced, not_one_network_and_loss
from ortboost.mindspore.nn.loss import LossBase

__all__ = ["WithEvalCell", "WithLossCell", "holds_network", "network_of", "parts_of"]


class _WithLoss(Cell):
    """Common base of both cells: a network and a loss that cannot be replaced."""

    def __init__(self, network: Network, loss_fn: LossBase | None) -> None:
        super().__init__()
        self._network, self._loss_fn = network, loss_fn

    @property
    def backbone_network(self) -> Network:
        """The network without its loss."""
        return self._network

    @property
    def loss_fn(self) -> LossBase | None:
        """The loss."""
        return self._loss_fn

    def _split(self, inputs: tuple[Any, ...]) -> tuple[tuple[Any, ...], Any]:
        """Split arguments into the data of each input, and the label."""
        check_count(f"{type(self).__name__} call", self._network, inputs, "labels")
        return inputs[:-1], inputs[-1]


class WithLossCell(_WithLoss):
    """A network and its loss, to be trained.

    Args:
        backbone: The network.
        loss_fn: The loss, one of :mod:`ortboost.mindspore.nn.loss`.

    Example:
        >>> net_with_loss = WithLossCell(net, nn.MSELoss())  # doctest: +SKIP
        >>> net_with_loss(data, label)                       # doctest: +SKIP
        Tensor(1.03, dtype=float32)
    """

    in_words: ClassVar[str] = "nn.WithLossCell of one"

    @checked
    def __init__(self, backbone: Network, loss_fn: LossBase) -> None:
        super().__init__(backbone, loss_fn)

    def construct(self, *inputs: Any) -> Tensor:
        """Compute the loss with the inference graph: data of each input, then the label."""
        data, label = self._split(inputs)
        assert self._loss_fn is not None
        result: Tensor = self._loss_fn(_prediction(self._network(*data)), label)
        return result


class WithEvalCell(_WithLoss):
    """Loss, outputs and labels of a batch, for metrics.

    Args:
        network: The network.
        loss_fn: The loss; with ``None`` only outputs and labels are returned.
        add_cast_fp32: Return outputs and labels as float32.

    Example:
        >>> loss, outputs, labels = WithEvalCell(net, nn.MSELoss())(data, label)  # doctest: +SKIP
    """

    @checked
    def __init__(
        self, network: Network, loss_fn: LossBase | None, add_cast_fp32: bool = False
    ) -> None:
        super().__init__(network, loss_fn)
        self.add_cast_fp32 = add_cast_fp32

    def construct(self, *inputs: Any) -> tuple[Any, ...]:
        """Compute ``(loss, outputs, labels)`` from the data of each input, then the label."""
        data, label = self._split(inputs)
        outputs, returned = self._network(*data), label
        if self.add_cast_fp32:
            outputs = (
                tuple(Tensor(part, np.float32) for part in outputs)
                if isinstance(outputs, tuple)
                else Tensor(outputs, np.float32)
            )
            returned = Tensor(label, np.float32)
        if self._loss_fn is None:
            return outputs, returned
        # The loss needs the label as given: class indices are integers.
        return self._loss_fn(_prediction(outputs), label), outputs, returned


def network_of(owner: str, value: Any) -> Network:
    """The network in a cell that holds one; see :func:`parts_of`."""
    return parts_of(owner, value)[0]


def parts_of(owner: str, value: Any) -> tuple[Network, LossBase | None]:
    """Get network and loss of a cell to train.

    It is a network, a :class:`WithLossCell`, or a user's cell whose ``construct`` is
    ``loss_fn(network(data), label)``. Errors name the caller, ``owner``.
    """
    if isinstance(value, WithLossCell) and not has_own_construct(value):
        return value.backbone_network, value.loss_fn
    if not isinstance(value, Network) and holds_network(value):
        return _traced_parts(value)
    check_argument(owner, "network", value, Network | WithLossCell)
    return value, None


def holds_network(value: Any) -> bool:
    """Whether it is a cell that contains a network from an ONNX file."""
    return isinstance(value, Cell) and (
        isinstance(value, Network) or any(map(holds_network, value.cells()))
    )


def _traced_parts(cell: Cell) -> tuple[Network, LossBase | None]:
    """Trace ``construct`` by calling it with placeholders."""
    owner = type(cell).__name__
    own = next((name for name, v in vars(cell).items() if isinstance(v, Parameter)), None)
    if own is not None:
        raise not_one_network_and_loss(owner, f"it has the parameter '{own}'")
    named = inspect.signature(cell.construct).parameters.values()
    if any(item.kind is item.VAR_POSITIONAL for item in named):
        raise not_one_network_and_loss(owner, "its arguments have no names")
    # Arguments with a default are neither data nor label.
    given = [Traced(owner) for item in named if item.default is item.empty]
    result = cell(*given)
    loss = result.cell if isinstance(result, Traced) else None
    if not isinstance(loss, LossBase | Network):
        raise not_one_network_and_loss(owner, f"it returns {type(result).__name__}")
    # A network alone computes its own loss, from all its inputs.
    scores, *used = (result,) if isinstance(loss, Network) else result.inputs
    if not isinstance(scores, Traced) or not isinstance(scores.cell, Network):
        raise not_one_network_and_loss(owner, "the loss is not of the network's output")
    found = [id(value) for value in (*scores.inputs, *used)]
    if found != [id(value) for value in given]:
        raise not_one_network_and_loss(
            owner, "its arguments are not data, then label, in that order"
        )
    return scores.cell, loss if isinstance(loss, LossBase) else None


def _prediction(outputs: Any) -> Any:
    if isinstance(outputs, tuple):
        raise ArgumentTypeError(
            f"The network has {len(outputs)} outputs, but a loss needs one.",
            where="loss_fn",
            fix="Cut the model to the output that the loss reads.",
        )
    return outputs
