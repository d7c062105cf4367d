"""MindSpore Boost's API.

Each boost is a rewrite or a form of the step graph (:mod:`ortboost.transforms`,
:mod:`ortboost.program`); the classes here are thin wrappers. docs/mindspore.md and the cards in
docs/cards list the differences.
"""

from __future__ import annotations

from ortboost.mindspore.boost.adasum import AdaSum
from ortboost.mindspore.boost.auto_boost import AutoBoost
from ortboost.mindspore.boost.dim_reduce import DimReduce
from ortboost.mindspore.boost.freeze_opt import FreezeOpt
from ortboost.mindspore.boost.grad_accumulation import GradientAccumulation
from ortboost.mindspore.boost.grad_freeze import GradientFreeze, freeze_cell
from ortboost.mindspore.boost.group_loss_scale import GroupLossScaleManager
from ortboost.mindspore.boost.less_bn import LessBN
from ortboost.mindspore.boost.optimizer_process import OptimizerProcess
from ortboost.mindspore.boost.parameter_process import ParameterProcess
from ortboost.mindspore.boost.train_step import (
    BoostTrainOneStepCell,
    BoostTrainOneStepWithLossScaleCell,
)

__all__ = [
    "AdaSum",
    "AutoBoost",
    "BoostTrainOneStepCell",
    "BoostTrainOneStepWithLossScaleCell",
    "DimReduce",
    "FreezeOpt",
    "GradientAccumulation",
    "GradientFreeze",
    "GroupLossScaleManager",
    "LessBN",
    "OptimizerProcess",
    "ParameterProcess",
    "freeze_cell",
]
