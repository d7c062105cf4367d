"""``AdaSum``: combine the updates of several servers in a custom training loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ortboost.boosts.adasum import AdaSum as AdaSumBoost
from ortboost.core.arguments import checked
from ortboost.mindspore.communication import get_group_size, get_rank, shared_group
from ortboost.mindspore.core.arguments import (
    ArgumentValueError,
    Count,
    CountOrZero,
    as_argument_error,
)
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.core.tensor import Tensor
from ortboost.runtime.adasum import SharedAdaSum

__all__ = ["AdaSum"]


class AdaSum:
    """AdaSum between servers of ``device_number`` processes; see :mod:`ortboost.boosts.adasum`.

    In a program, the boost ``adasum`` does the same within its steps.

    Args:
        rank: Rank of this process.
        device_number: Processes per server.
        group_number: Number of servers, a power of two from 2 on.
        parameter_tuple: The parameters.

    Raises:
        ArgumentValueError: The numbers do not match the processes.
        ArgumentRuntimeError: The processes are not connected.
    """

    @checked
    def __init__(
        self,
        rank: CountOrZero,
        device_number: Count,
        group_number: Count,
        parameter_tuple: Sequence[Parameter],
    ) -> None:
        if (rank, device_number * group_number) != (get_rank(), get_group_size()):
            raise ArgumentValueError(
                f"Process {rank} of {group_number} servers of {device_number} is not this one.",
                where=f"AdaSum, process {get_rank()} of {get_group_size()}",
                fix="Give get_rank(), and numbers whose product is get_group_size().",
            )
        group = shared_group()
        if group is None:
            raise ArgumentValueError(
                "The processes run in stand-alone mode.",
                where="AdaSum",
                fix="Call set_auto_parallel_context(parallel_mode='data_parallel') first.",
            )
        self._names = [parameter.name for parameter in parameter_tuple]
        with as_argument_error("AdaSum"):
            self._joined = SharedAdaSum(AdaSumBoost(device_number), group)

    def __call__(
        self,
        delta_weights: Sequence[Tensor],
        parameters: Sequence[Parameter],
        old_parameters: Sequence[Tensor],
    ) -> None:
        """Set the parameters to their old values minus the combined updates.

        Args:
            delta_weights: Old minus new weights of this server.
            parameters: The parameters, in the order of the constructor.
            old_parameters: Their values before the update.
        """
        names = [parameter.name for parameter in parameters]
        if names != self._names or not len(names) == len(delta_weights) == len(old_parameters):
            raise ArgumentValueError(
                "The parameters differ from those that AdaSum was made with, or in number from the "
                "updates or old values.",
                where="AdaSum call",
                fix="Give the same parameters in the same order, with a delta and an old value for "
                "each.",
            )
        deltas = [np.asarray(delta, np.float32) for delta in delta_weights]
        joined = self._joined.join(dict(zip(names, deltas, strict=True)))
        for name, parameter, old in zip(self._names, parameters, old_parameters, strict=True):
            parameter.set_data(Tensor(np.asarray(old, np.float32) - joined[name]))
