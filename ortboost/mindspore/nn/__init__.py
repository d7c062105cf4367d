"""Training cells, losses, optimizers and learning rates with MindSpore's API.

A training cell compiles its network, loss, optimizer and scale to one step graph at its first call;
the rest are thin wrappers. docs/mindspore.md lists the differences from MindSpore.
"""

from __future__ import annotations

from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.nn.dynamic_lr import (
    cosine_decay_lr,
    exponential_decay_lr,
    inverse_decay_lr,
    natural_exp_decay_lr,
    piecewise_constant_lr,
    polynomial_decay_lr,
    warmup_lr,
)
from ortboost.mindspore.nn.learning_rate_schedule import (
    CosineDecayLR,
    ExponentialDecayLR,
    InverseDecayLR,
    LearningRateSchedule,
    NaturalExpDecayLR,
    PolynomialDecayLR,
    WarmUpLR,
)
from ortboost.mindspore.nn.loss import (
    BCEWithLogitsLoss,
    CrossEntropyLoss,
    HuberLoss,
    L1Loss,
    LossBase,
    MSELoss,
    SoftmaxCrossEntropyWithLogits,
)
from ortboost.mindspore.nn.loss_scale import DynamicLossScaleUpdateCell, FixedLossScaleUpdateCell
from ortboost.mindspore.nn.metrics import (
    MAE,
    MSE,
    Accuracy,
    Loss,
    Metric,
    Top1CategoricalAccuracy,
    Top5CategoricalAccuracy,
    TopKCategoricalAccuracy,
    get_metric_fn,
    rearrange_inputs,
)
from ortboost.mindspore.nn.optimizer import Optimizer
from ortboost.mindspore.nn.optimizers import LARS, SGD, Adam, AdamWeightDecay, Momentum
from ortboost.mindspore.nn.thor import ConvertNetUtils, thor
from ortboost.mindspore.nn.train_step import TrainOneStepCell, TrainOneStepWithLossScaleCell
from ortboost.mindspore.nn.wrap import WithEvalCell, WithLossCell

__all__ = [
    "LARS",
    "MAE",
    "MSE",
    "SGD",
    "Accuracy",
    "Adam",
    "AdamWeightDecay",
    "BCEWithLogitsLoss",
    "Cell",
    "ConvertNetUtils",
    "CosineDecayLR",
    "CrossEntropyLoss",
    "DynamicLossScaleUpdateCell",
    "ExponentialDecayLR",
    "FixedLossScaleUpdateCell",
    "HuberLoss",
    "InverseDecayLR",
    "L1Loss",
    "LearningRateSchedule",
    "Loss",
    "LossBase",
    "MSELoss",
    "Metric",
    "Momentum",
    "NaturalExpDecayLR",
    "Optimizer",
    "PolynomialDecayLR",
    "SoftmaxCrossEntropyWithLogits",
    "Top1CategoricalAccuracy",
    "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy",
    "TrainOneStepCell",
    "TrainOneStepWithLossScaleCell",
    "WarmUpLR",
    "WithEvalCell",
    "WithLossCell",
    "cosine_decay_lr",
    "exponential_decay_lr",
    "get_metric_fn",
    "inverse_decay_lr",
    "natural_exp_decay_lr",
    "piecewise_constant_lr",
    "polynomial_decay_lr",
    "rearrange_inputs",
    "thor",
    "warmup_lr",
]
