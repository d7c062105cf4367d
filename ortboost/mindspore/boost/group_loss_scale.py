"""``GroupLossScaleManager``: one loss scale per group of layers.

:mod:`ortboost.core.loss_scale` has the policy, and :mod:`ortboost.boosts.group_loss_scale` the
boundaries between the groups; this module defines the groups and exposes the scales.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import nearest
from ortboost.core.field_types import Range
from ortboost.core.loss_scale import GroupedScaleConfig
from ortboost.mindspore.boost.scale_group_arguments import exact_groups, first_scales
from ortboost.mindspore.core.arguments import (
    ArgumentRuntimeError,
    ArgumentTypeError,
    ArgumentValueError,
    Count,
    CountOrZero,
    as_argument_error,
    positive,
)
from ortboost.mindspore.core.live_state import LiveState
from ortboost.mindspore.core.network import Network
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor, given_array
from ortboost.mindspore.core.traced import Traced
from ortboost.mindspore.nn.loss_scale import GroupedScaleCell
from ortboost.mindspore.nn.wrap import network_of
from ortboost.program import names

__all__ = ["GroupLossScaleManager"]

_OWNER = "GroupLossScaleManager"


class GroupLossScaleManager(GroupedScaleCell):
    """One loss scale per group of layers, updated independently.

    After every step the scale of a group that overflowed is multiplied by 2^(-1/2), those of the
    others by 2^(1/1000). Any overflow skips the update. Pass it to a training cell as
    ``scale_sense``, or to :class:`ortboost.Model` as ``loss_scale_manager``.

    The groups suffice: the graph determines where the scale must change. To specify this
    explicitly, call the manager with a tensor to mark it: see :meth:`construct`.

    Args:
        init_loss_scale: Initial scale of all groups, or a list with one per group.
        loss_scale_groups: The groups in the order of the network, input first: lists of parameters
            (or of shell-style patterns of their names) that together cover all trained ones; or a
            number of ranges of layers. It may be set later, before the training cell is made.
        min_scale: Lower bound of all scales; ``None`` for no limit, as in MindSpore.
        max_scale: Upper bound of all scales; ``None`` for no limit, as in MindSpore.

    Example:
        >>> manager = GroupLossScaleManager(4096, [])
        >>> manager.loss_scale_groups = [["conv*"], ["fc*"]]
        >>> step = BoostTrainOneStepWithLossScaleCell(net_with_loss, opt, manager)  # doctest: +SKIP
        >>> loss, overflow, loss_scale = step(images, labels)                       # doctest: +SKIP
    """

    def __init__(
        self,
        init_loss_scale: Any,
        loss_scale_groups: Any,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
    ) -> None:
        super().__init__()
        self._loss_scale = first_scales(_OWNER, init_loss_scale)
        self.loss_scale_groups = loss_scale_groups
        self.min_scale, self.max_scale = min_scale, max_scale
        self.loss_scale_number = 0
        """Number of groups; 0 until a training cell is made or the status is set."""
        self._marks: list[tuple[str, int, int]] = []
        self._marked: weakref.ref[Network] | None = None
        self._state = LiveState()
        self._followed = False
        """Whether the scales are those of a training cell, which fixes their number."""

    # ---- marks --------------------------------------------------------------------------------

    def construct(self, *args: Any) -> Any:
        """Mark a boundary between two groups.

        Call ``manager(x, layer1, layer2)`` or ``manager(net, tensor, layer1, layer2)``. The first
        form is that of MindSpore's documentation, within ``construct``: it returns `x` and has no
        effect, since the groups determine the boundaries. The second form marks a tensor of the
        network by name.

        The forward pass does not change; the gradient is multiplied by the scale of ``layer1`` over
        that of ``layer2``. If one boundary is marked, all must be: ``(i, i + 1)`` between the
        groups and ``(N, N + 1)`` at the output. ``(0, 1)`` at the input is accepted without effect,
        since no gradient goes there.

        Args:
            *args: The tensor; or the network (or a cell with it) and the name of the tensor. Then
                the group that it leaves (from 1; 0 is outside) and the group that it enters.

        Returns:
            The first argument.

        Raises:
            ArgumentValueError: The tensor is unknown, or another network was marked before.
        """
        if len(args) not in (3, 4):
            raise ArgumentTypeError(
                f"A mark needs 3 or 4 arguments, but {len(args)} were given.",
                where=_OWNER,
                fix="Write manager(x, 1, 2), or name a tensor of the network: manager(net, "
                "'tensor', 1, 2).",
            )
        given, *tensor, before, after = args
        network = network_of(_OWNER, given) if tensor else None
        if tensor:
            check_argument(_OWNER, "tensor", tensor[0], str)
        check_argument(_OWNER, "layer1", before, CountOrZero)
        check_argument(_OWNER, "layer2", after, CountOrZero)
        if network is not None:
            self._mark(network, tensor[0], before, after)
        elif not isinstance(given, Traced):  # the groups determine this boundary already
            return Tensor(given_array(_OWNER, "x", given))
        return given

    def _mark(self, network: Network, tensor: str, before: int, after: int) -> None:
        # The tensor must exist, and the group that it leaves must agree with its place.
        graph = network.model.graph
        inputs = [value.name for value in graph.inputs]
        known = [*inputs, *(output.name for node in graph for output in node.outputs)]
        if tensor not in known:
            raise ArgumentValueError(
                f"The network has no tensor '{tensor}'.",
                where=f"{_OWNER}, tensor",
                fix=nearest(tensor, [name for name in known if name]),
            )
        if (tensor in inputs) != (before == 0):
            what = "is an input of the network" if tensor in inputs else "comes out of a layer"
            raise ArgumentValueError(
                f"'{tensor}' {what}, but the mark says that it leaves group {before}.",
                where=f"{_OWNER}, layer1",
                fix="Mark inputs with 0 and 1, and outputs of group 1 with 1 and 2.",
            )
        # A network that no longer exists does not count.
        if self._marked is not None and self._marked() not in (None, network):
            raise ArgumentValueError(
                "Another network was marked before.",
                where=_OWNER,
                fix="Make a manager for each network.",
            )
        self._marked = weakref.ref(network)
        # A second mark of a tensor replaces the first.
        self._marks = [mark for mark in self._marks if mark[0] != tensor]
        self._marks.append((tensor, before, after))

    # ---- for training cells -------------------------------------------------------------------

    def policy(
        self, owner: str, network: Network, parameters: Iterable[Parameter]
    ) -> GroupedScaleConfig:
        """Get the policy for a network and its trained parameters."""
        inputs = {value.name for value in network.model.graph.inputs}
        groups = self.loss_scale_groups
        check_argument(owner, "loss_scale_groups", groups, int | list | tuple)
        if not isinstance(groups, int):
            groups = exact_groups(owner, groups, [parameter.name for parameter in parameters])
        start = self._loss_scale
        with as_argument_error(owner):
            policy = GroupedScaleConfig(
                init_scale=tuple(start) if isinstance(start, list) else start,
                groups=groups,
                min_scale=self.min_scale,
                max_scale=self.max_scale,
                marks=tuple(mark for mark in self._marks if mark[0] not in inputs),
            )
        self._followed = False  # it now belongs to this training cell
        self.set_loss_scale_status(policy.number, policy.starts().tolist())
        return policy

    def follow(self, state: LiveState) -> None:
        """Bind the manager to the scales of a training cell."""
        self._state, self._followed = state, True

    # ---- MindSpore's methods ------------------------------------------------------------------

    def get_loss_scale(self) -> float | list[float]:
        """The initial scale as given; :attr:`dynamic_loss_scale` has the current ones."""
        return self._loss_scale

    def get_update_cell(self) -> GroupLossScaleManager:
        """The manager itself."""
        return self

    @property
    def dynamic_loss_scale(self) -> tuple[Tensor, ...]:
        """Copies of the current scales, with 1 for both outsides: group `i` has index `i`."""
        one = Tensor(np.float32(1))  # the scale outside: of the loss, and before the inputs
        return (one, *(Tensor(scale) for scale in self._scales()), one)

    @checked
    def set_loss_scale_status(self, loss_scale_number: Count, init_loss_scale: Any) -> None:
        """Set the number of groups and all scales; a training cell does this when it is made.

        Args:
            loss_scale_number: Number of groups, at least 1.
            init_loss_scale: The scale of all groups, or a list with one per group.

        Raises:
            ArgumentValueError: The number differs from that of the training cell.
        """
        where = f"{_OWNER}.set_loss_scale_status"
        start = first_scales(_OWNER, init_loss_scale)
        if isinstance(start, list) and len(start) != loss_scale_number:
            raise ArgumentValueError(
                f"There are {len(start)} scales for {loss_scale_number} groups.",
                where=where,
                fix="Give one number, or one for each group.",
            )
        if self._followed and loss_scale_number != self.loss_scale_number:
            raise ArgumentValueError(
                f"The training cell has {self.loss_scale_number} groups.",
                where=f"{where}, loss_scale_number",
                fix="Give that number, or make another training cell.",
            )
        self.loss_scale_number = loss_scale_number
        if not self._followed:
            self._state = LiveState()
        scales = np.broadcast_to(np.asarray(start, np.float32), (loss_scale_number,))
        self._state.write(names.SCALE, scales)

    @checked
    def update_loss_scale_status(self, layer: int, update_ratio: Any) -> Tensor:
        """Multiply the scale of one group, in addition to the updates by steps.

        Args:
            layer: The group, from 0.
            update_ratio: The factor, above 0.

        Returns:
            The new scale, float32.

        Raises:
            ArgumentRuntimeError: There are no scales yet.
        """
        where = f"{_OWNER}.update_loss_scale_status"
        scales = self._scales()
        if not len(scales):
            raise ArgumentRuntimeError(
                "There are no scales yet.",
                where=where,
                fix="Make the training cell first, or call set_loss_scale_status.",
            )
        check_argument(where, "layer", layer, Annotated[int, Range(0, len(scales) - 1)])
        scales[layer] *= np.float32(positive(where, "update_ratio", update_ratio))
        self._state.write(names.SCALE, scales)
        return Tensor(scales[layer])

    def _scales(self) -> NDArray[np.float32]:
        """A copy of the current scales, ``[groups]``."""
        if names.SCALE not in self._state:
            return np.zeros(0, np.float32)
        return self._state.read(names.SCALE)
