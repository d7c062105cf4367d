"""The boosts, one per file.

Example:
    >>> from ortboost.boosts import GradFreeze, LessBN
    >>> from ortboost.program.config import ProgramConfig
    >>> [b.name for b in ProgramConfig(boosts=(GradFreeze(p=0.4, by="cost"), LessBN())).boosts]
    ['less-bn', 'loss-scale', 'grad-freeze']
"""

from ortboost.boosts.adasum import AdaSum
from ortboost.boosts.base import Boost, GraphContext, Key, State, UpdateContext
from ortboost.boosts.clip import Clip
from ortboost.boosts.dim_reduce import DimReduce
from ortboost.boosts.ema import Ema
from ortboost.boosts.full_norm_head import FullNormHead
from ortboost.boosts.grad_accumulation import GradAccumulation
from ortboost.boosts.grad_centralization import GradCentralization
from ortboost.boosts.grad_freeze import GradFreeze
from ortboost.boosts.group_loss_scale import GroupLossScale
from ortboost.boosts.less_bn import LessBN
from ortboost.boosts.lora import Lora
from ortboost.boosts.loss_scale import LossScale
from ortboost.boosts.mixed_precision import MixedPrecision
from ortboost.boosts.recompute import Recompute
from ortboost.boosts.sparse_embedding import SparseEmbedding
from ortboost.boosts.sync_batch_norm import SyncBatchNorm
from ortboost.boosts.table import register, registered
from ortboost.boosts.thor import Thor

__all__ = [
    "AdaSum",
    "Boost",
    "Clip",
    "DimReduce",
    "Ema",
    "FullNormHead",
    "GradAccumulation",
    "GradCentralization",
    "GradFreeze",
    "GraphContext",
    "GroupLossScale",
    "Key",
    "LessBN",
    "Lora",
    "LossScale",
    "MixedPrecision",
    "Recompute",
    "SparseEmbedding",
    "State",
    "SyncBatchNorm",
    "Thor",
    "UpdateContext",
    "register",
    "registered",
]
