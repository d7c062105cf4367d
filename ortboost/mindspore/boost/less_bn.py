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

    It is independent of ``network``, from which the current weights and statistics are copied. Make
    the optimizer with the parameters of this one. Parameters keep their names; those of removed
    normalizations are removed (MindSpore keeps them unchanged). Calls and training steps run the
    same graph, including the head.

    Args:
        network: The network. A ``LessBN`` is only copied, with a head added if ``fn_flag`` is True
            and it has none. :class:`~ortboost.mindspore.boost.AutoBoost` converts in place.
        fn_flag: Convert the last fully connected layer to a full-normalization head, see
            :mod:`ortboost.boosts.full_norm_head`: its bias is dropped, and a scalar ``multiplier``
            is trained. Without such a layer nothing changes, and a note in the report says so.

    Attributes:
        reports: What was removed and what was kept, with reasons.

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
        self.training = network.training
        # Frozen parameters stay frozen.
        trained = {p.name: p.requires_grad for p in network.get_parameters()}
        for parameter in self.get_parameters():
            parameter.requires_grad = trained.get(parameter.name, parameter.requires_grad)

    @staticmethod
    def convert(network: Network, fn_flag: bool) -> tuple[Report, ...]:
        """Convert a network in place, unless it has been converted; returns what was done.

        Cells that contain the network contain the converted one afterwards, with new parameters.
        """
        if isinstance(network, LessBN) and network.fn_flag >= fn_flag:
            return ()
        converted = LessBN(network, fn_flag)
        vars(network).clear()
        vars(network).update(vars(converted))
        network.__class__ = LessBN
        return converted.reports
