"""``OptimizerProcess``: rebuild an optimizer, optionally with centralized gradients."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ortboost.boosts.grad_centralization import CentralizeConfig, centralize
from ortboost.core.arguments import checked
from ortboost.graph.weights.parameters import find_parameters
from ortboost.mindspore.core.arguments import ArgumentValueError, Count
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.core.parameter import Parameter
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.optimizers import LARS
from ortboost.mindspore.nn.parameter_groups import check_rate, listed
from ortboost.mindspore.nn.thor import thor
from ortboost.mindspore.nn.wrap import network_of

__all__ = ["OptimizerProcess"]


class OptimizerProcess:
    """Makes an optimizer of the same kind and settings with a new state.

    It supports every optimizer of :mod:`ortboost.mindspore.nn`, including Adam and LARS (MindSpore
    only those like Momentum and SGD).

    Args:
        opt: The optimizer.

    Attributes:
        origin_params: Parameters or dicts for the new optimizer; may be replaced.

    Example:
        >>> optimizer = nn.Momentum(net.trainable_params(), 0.1, 0.9)  # doctest: +SKIP
        >>> process = OptimizerProcess(optimizer)  # doctest: +SKIP
        >>> process.add_grad_centralization(net)  # doctest: +SKIP
        >>> optimizer = process.generate_new_optimizer()  # doctest: +SKIP
    """

    @checked
    def __init__(self, opt: Optimizer) -> None:
        self.learning_rate = opt.learning_rate
        self.origin_params: Any = opt.init_params["params"]
        self._opt = opt
        self._multiple_of = opt.gc_multiple_of

    @staticmethod
    def build_params_dict(network: Cell) -> dict[int, str | None]:
        """Find why the gradients of parameters of a network cannot be centralized.

        MindSpore returns the cell of each parameter, to decide by it; here the graph shows how the
        parameter is used.

        Args:
            network: A network, or one with its loss.

        Returns:
            ``id`` of each parameter to the reason (a bias, a grouped convolution, the weight of a
            full-normalization head), ``None`` if its gradient can be centralized.
        """
        backbone = network_of("OptimizerProcess", network)
        found = find_parameters(backbone.model)
        trained = [p for p in found.values() if p.trainable]
        _, report = centralize(backbone.model, trained, CentralizeConfig(multiple_of=1))
        return {id(p): report.kept.get(p.name) for p in backbone.trainable_params()}

    @staticmethod
    def build_gc_params_group(
        params_dict: Mapping[int, str | None],
        parameters: Iterable[Mapping[str, Any]] | Iterable[Parameter],
    ) -> list[dict[str, Any]]:
        """Split groups into centralized parameters, which come first, and the rest.

        Args:
            params_dict: See :meth:`build_params_dict`.
            parameters: Dicts with ``params`` and other keys; or a list of parameters as one group.

        Returns:
            The new groups; centralized ones have ``grad_centralization: True``.
        """
        given: list[Any] = listed("OptimizerProcess.build_gc_params_group", list(parameters))
        if isinstance(given[0], Parameter):
            given = [{"params": given}]
        groups: list[dict[str, Any]] = []
        for group in given:
            if "order_params" in group:
                groups.append(dict(group))
                continue
            keys = {key: value for key, value in group.items() if key != "params"}
            parts: dict[bool, list[Parameter]] = {True: [], False: []}
            for p in group["params"]:
                # None means that nothing prevents it; what the network does not have is left alone.
                parts[params_dict.get(id(p), "not known") is None].append(p)
            if parts[True]:
                groups.append({"params": parts[True], **keys, "grad_centralization": True})
            if parts[False]:
                groups.append({"params": parts[False], **keys})
        return groups

    @checked
    def add_grad_centralization(self, network: Cell, multiple_of: Count | None = None) -> None:
        """Make the new optimizer centralize the gradients of weights.

        A plain list is converted to groups (MindSpore only warns and changes nothing).

        Args:
            network: The trained network, or one with its loss.
            multiple_of: Centralize only weights of layers whose number of inputs is a multiple of
                this; by default the value of the optimizer, 16 as in MindSpore. 1 selects every
                weight.

        Raises:
            ArgumentValueError: There are no parameters, or they belong to another network.
        """
        owner = "OptimizerProcess.add_grad_centralization"
        parameters = listed(owner, self.origin_params)
        if multiple_of is not None:
            self._multiple_of = multiple_of
        reasons = self.build_params_dict(network)
        state = network_of(owner, network).state
        other = next((p for p in _members(parameters) if p.state is not state), None)
        if other is not None:
            raise ArgumentValueError(
                f"The parameter '{other.name}' belongs to another network.",
                where=f"{owner}, network",
                fix="Give the network whose parameters the optimizer trains.",
            )
        self.origin_params = self.build_gc_params_group(reasons, parameters)

    def generate_new_optimizer(self) -> Optimizer:
        """Make the new optimizer.

        If a plain list became groups, parameters exempt from weight decay (scale and shift of
        normalizations) remain exempt; MindSpore's groups start to decay them.
        """
        owner = "OptimizerProcess.generate_new_optimizer"
        parameters = listed(owner, self.origin_params)
        split = isinstance(parameters[0], Mapping) and not self._opt.is_group
        if split and not isinstance(self._opt, LARS | thor):  # whose filters decide what decays
            parameters = [part for group in parameters for part in _with_exempt(group)]
        fresh = self._opt.renewed(parameters)
        fresh.learning_rate = check_rate(owner, self.learning_rate)
        fresh.gc_multiple_of = self._multiple_of
        return fresh


def _members(items: Iterable[Any]) -> Iterator[Parameter]:
    for item in items:
        yield from item.get("params", ()) if isinstance(item, Mapping) else (item,)


def _with_exempt(group: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Split a group into parameters that decay and those exempt in a plain list."""
    if "order_params" in group or "weight_decay" in group:
        return [dict(group)]
    exempt = [p for p in group["params"] if _is_exempt(p)]
    rest = [p for p in group["params"] if not _is_exempt(p)]
    parts = [{**group, "params": rest}] if rest else []
    return [*parts, {**group, "params": exempt, "weight_decay": 0.0}] if exempt else parts


def _is_exempt(parameter: Parameter) -> bool:
    named = "beta" in parameter.name or "gamma" in parameter.name
    return named or parameter.role in ("norm_scale", "norm_shift")
