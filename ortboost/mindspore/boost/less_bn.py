"""``LessBN``: a network without redundant batch normalizations."""

from __future__ import annotations

from ortboost.boosts.full_norm_head import full_norm
from ortboost.boosts.less_bn import less_bn
from ortboost.core.arguments import checked
from ortboost.core.report import Report
from ortboost.mindspore.core.network import Network

__all__ = ["LessBN"]


class LessBN(Network):
    """A network without redundant batch normalizations, optionally with a full-normalization head.

    It shares the parameters of ``network``, as in MindSpore, but ``network`` itself keeps its
    normalizations and its head. Make the optimizer with the parameters of this one: those of
    removed normalizations are not among them (MindSpore keeps them unchanged), and the head has a
    new one. Calls and training steps run the same graph, including the head.

    Args:
        network: The network. If it is a ``LessBN`` already, the result is the same network, with a
            head added if ``fn_flag`` is True. (:class:`~ortboost.mindspore.boost.AutoBoost` instead
            converts a network in place.)
        fn_flag: Convert the last fully connected layer to a full-normalization head, see
            :mod:`ortboost.boosts.full_norm_head`: its bias is dropped, and a scalar ``multiplier``
            is trained. Without such a layer nothing changes, and a note in the report says so.

    Attributes:
        reports: What was removed and what was kept, with reasons.
        added: Names of the parameters that ``network`` did not have.

    Example:
        >>> net = LessBN(ortboost.load("models/resnet20.onnx"))  # doctest: +SKIP
        >>> opt = nn.Momentum(net.trainable_params(), 0.1, 0.9)   # doctest: +SKIP
        >>> len(net.reports[0].changed)                           # doctest: +SKIP
        11
    """

    @checked
    def __init__(self, network: Network, fn_flag: bool = False) -> None:
        model = network.to_model()
        reports: list[Report] = []
        if not isinstance(network, LessBN):
            reports.append(less_bn(model))
        if fn_flag:
            reports.append(full_norm(model, if_present=True))
        super().__init__(
            model,
            device=network.device,
            threads=network.threads,
            seed=network.seed,
            engine=network.engine,
        )
        self.reports = tuple(reports)
        self.fn_flag = fn_flag or (isinstance(network, LessBN) and network.fn_flag)
        self.training, self.precision = network.training, network.precision
        # The state is that of the network, with the multiplier of the head in addition.
        shared = network.parameters_dict()
        added = {name: p for name, p in self._parameters.items() if name not in shared}
        for name, parameter in added.items():
            if name not in network.state:  # another head of the same network may have made it
                network.state.write(name, parameter.asnumpy())
            parameter.state = network.state
        self.state = network.state
        self._parameters = {name: shared.get(name, p) for name, p in self._parameters.items()}
        self.added = frozenset(added) | (network.added if isinstance(network, LessBN) else set())

    @staticmethod
    def convert(network: Network, fn_flag: bool) -> tuple[Report, ...]:
        """Convert a network in place, unless it has been converted; returns what was done.

        Cells that contain the network contain the converted one afterwards. Parameters remain the
        same objects.
        """
        if isinstance(network, LessBN) and network.fn_flag >= fn_flag:
            return ()
        converted = LessBN(network, fn_flag)
        vars(network).update(vars(converted))
        network.__class__ = LessBN
        return converted.reports
