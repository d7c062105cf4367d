"""``ConvertModelUtils``: make a model that trains with THOR, with MindSpore's API."""

from __future__ import annotations

from typing import Any

from ortboost.mindspore.core.arguments import ArgumentValueError
from ortboost.mindspore.mixed_precision import AmpLevel
from ortboost.mindspore.nn.thor import ConvertNetUtils, thor
from ortboost.mindspore.nn.train_step import TrainStep
from ortboost.mindspore.train.model import Model

__all__ = ["ConvertModelUtils", "ConvertNetUtils"]


class ConvertModelUtils:
    """Makes a model for THOR. For compatibility: :class:`Model` itself supports THOR here."""

    @staticmethod
    def convert_to_thor_model(
        model: Model,
        network: Any,
        loss_fn: Any = None,
        optimizer: Any = None,
        metrics: Any = None,
        amp_level: AmpLevel = "O0",
        loss_scale_manager: Any = None,
        keep_batchnorm_fp32: bool = False,
    ) -> Model:
        """Make a new model of these parts if the optimizer is THOR; otherwise return ``model``.

        The parts are arguments of :class:`Model`; the network may be a training cell, which has its
        own loss, precision and loss scale.
        """
        if not isinstance(optimizer, thor):
            return model
        if isinstance(network, TrainStep):
            given = amp_level != "O0" or loss_scale_manager is not None or keep_batchnorm_fp32
            if loss_fn is not None or given:
                raise ArgumentValueError(
                    "A training cell has its own loss, precision and loss scale.",
                    where="ConvertModelUtils.convert_to_thor_model",
                    fix="Leave them out, or give the network inside of the cell.",
                )
            return Model(network, metrics=metrics)
        return Model(
            network,
            loss_fn,
            optimizer,
            metrics,
            amp_level=amp_level,
            loss_scale_manager=loss_scale_manager,
            keep_batchnorm_fp32=keep_batchnorm_fp32,
        )
