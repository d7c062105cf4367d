"""``ParameterProcess``: parameter groups for a new optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ortboost.core.arguments import check_argument
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.parameter_groups import listed

__all__ = ["ParameterProcess"]


class ParameterProcess:
    """Makes parameter groups for a new optimizer, and numbers parameters for gradient exchange.

    Example:
        >>> new = net.trainable_params()[:2]                                # doctest: +SKIP
        >>> ParameterProcess.generate_group_params(new, net.trainable_params())  # doctest: +SKIP
        [{'params': [...]}]
    """

    def __init__(self) -> None:
        self._parameter_indices = 1

    @staticmethod
    def generate_group_params(
        parameters: Sequence[Parameter], origin_params: Any
    ) -> list[dict[str, Any]]:
        """Assign parameters to the groups of old parameters with the same names.

        Args:
            parameters: The new parameters.
            origin_params: The parameters or dicts that the old optimizer was made with.

        Returns:
            One group for a plain list. Otherwise the old groups with their keys, and the new
            parameters in the order of the old ones; ``order_params`` are ``parameters``. Parameters
            that were in no group form a group with the keys of the group that has the most keys.
            Empty groups are dropped (MindSpore keeps them, and its optimizers refuse them).

        Example:
            >>> import numpy as np
            >>> a, b = (Parameter(np.zeros(1, np.float32), name) for name in "ab")
            >>> old = [{"params": [b], "lr": 0.1}]
            >>> groups = ParameterProcess.generate_group_params([a, b], old)
            >>> [([p.name for p in group["params"]], group["lr"]) for group in groups]
            [(['b'], 0.1), (['a'], 0.1)]
        """
        origin = listed("ParameterProcess.generate_group_params", origin_params)
        if isinstance(origin[0], Parameter):
            return [{"params": list(parameters)}]
        by_name = {parameter.name: parameter for parameter in parameters}
        left = dict(by_name)
        groups: list[dict[str, Any]] = []
        richest: dict[str, Any] = {}
        for group in origin:
            if "order_params" in group:
                groups.append({"order_params": list(parameters)})
                continue
            chosen = [by_name[p.name] for p in group["params"] if p.name in by_name]
            keys = {key: value for key, value in group.items() if key != "params"}
            if chosen:
                groups.append({"params": chosen, **keys})
            for parameter in chosen:
                left.pop(parameter.name, None)
            if len(keys) > len(richest):
                richest = keys
        if left:
            groups.append({"params": list(left.values()), **richest})
        return groups

    def assign_parameter_group(
        self, parameters: Any, split_point: Sequence[int] | None = None
    ) -> Any:
        """Number the groups of parameters that MindSpore exchanges together, in ``comm_fusion``.

        The numbers start at 1 and continue over the calls on one object. They have no effect: the
        exchange of gradients forms its own groups.

        Args:
            parameters: A list or tuple of parameters.
            split_point: Indices at which a new number starts; the middle if not given.

        Returns:
            ``parameters``.
        """
        if not isinstance(parameters, list | tuple) or not parameters:
            return parameters
        owner = "ParameterProcess.assign_parameter_group"
        check_argument(owner, "split_point", split_point, Sequence[int] | None)
        points = split_point or [len(parameters) // 2]
        for index, parameter in enumerate(parameters):
            self._parameter_indices += index in points  # a new number starts here
            parameter.comm_fusion = self._parameter_indices
        return parameters
