"""``LessBN``: a network without the batch normalizations that its blocks make redundant."""

from __future__ import annotations

from ortboost.boosts.full_norm_head import full_norm
from ortboost.boosts.less_bn import less_bn
from ortboost.core.arguments import checked
from ortboost.core.report import Report
from ortboost.mindspore.core.network import Network

__all__ = ["LessBN"]


class LessBN(Network):
    """A network without redundant batch normalizations, and with a full-normalization head if asked.

    It is a network of its own: weights and statistics are copied from ``network`` as they are now, and
    the two know nothing of each other afterwards. Make the optimizer with the parameters of this one.
    Parameters keep their names; those of removed normalizations are gone (MindSpore keeps them and
    never changes them). Calls and training steps run the same graph, head included.

    Args:
        network: The network. One that is a ``LessBN`` already is only copied, but gets the head if
            ``fn_flag`` asks for it and it has none.
        fn_flag: Make the last fully connected layer a full-normalization head, see
            :mod:`ortboost.boosts.full_norm_head`: its bias is dropped and a number ``multiplier`` is
            trained with it. Without such a layer nothing changes, and a note in the report says so.

    Attributes:
        reports: What was removed and what was kept, each with its reason.

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
        self.training = network.training
        trained = {
            parameter.name: parameter.requires_grad for parameter in network.get_parameters()
        }
        for parameter in self.get_parameters():
            parameter.requires_grad = trained.get(parameter.name, parameter.requires_grad)
