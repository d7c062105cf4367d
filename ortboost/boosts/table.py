"""All boosts, in the order in which they act, and the registration of custom boosts.

Rewrites of the forward graph come first, then differentiation, then transformations of the
gradients, then the update; gradient freeze makes one such graph per group. The order has reasons:

- ``less-bn`` before ``full-norm-head``: both analyze the graph of the user's exporter, and the
  second adds nodes;
- ``lora`` before all boosts that look for layers: its adapters are layers, too;
- ``grad-centralization`` before ``mixed-precision``: layers are found before casts separate them.
  Within the update it acts after the weight decay, as in MindSpore's optimizers, whatever its place
  here;
- ``thor`` before ``mixed-precision`` for the same reason, and before ``clip``: the norm is that of
  the preconditioned update;
- ``mixed-precision`` before ``group-loss-scale``: the boundaries between groups have the type of
  their tensors;
- ``loss-scale`` before ``grad-accumulation``: the sum is over gradients unscaled by the scale in
  use, without micro-batches that overflowed;
- ``clip`` after ``grad-accumulation``: the norm is that of the update;
- ``sparse-embedding`` after all boosts that look for layers or insert nodes next to weights: it
  replaces tables by their rows;
- ``sync-bn`` after ``mixed-precision`` and ``group-loss-scale``, which see each normalization as
  one node;
- ``recompute`` last, hence first among the rewrites of gradients: it sees the engine's original
  graph.

Each boost declares which others it excludes, and why
(:attr:`~ortboost.boosts.base.Boost.excludes`).

To add a boost to ortboost, add a file beside this one and a line to the table. To add one from
another package, call :func:`register` before its use, or list it under the entry point
``ortboost.boosts``, so that it is found without an import; ``docs/own_boost.md`` has an example.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from typing import Any, Final, TypeVar, get_args

from ortboost.boosts.adasum import AdaSum
from ortboost.boosts.base import Boost, Stage
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
from ortboost.boosts.roles import GradientAccumulator, LineSearch, LossScaler, UpdateSplitter
from ortboost.boosts.sparse_embedding import SparseEmbedding
from ortboost.boosts.sync_batch_norm import SyncBatchNorm
from ortboost.boosts.thor import Thor
from ortboost.core.errors import ConfigError, nearest

__all__ = ["ENTRY_POINTS", "arranged", "boost_from_dict", "find_boost", "register", "registered"]

_B = TypeVar("_B", bound=type[Boost])
ENTRY_POINTS: Final = "ortboost.boosts"
"""Entry-point group of packages with boosts."""

_TABLE: list[type[Boost]] = [
    LessBN,
    FullNormHead,
    Lora,
    GradCentralization,
    Thor,
    MixedPrecision,
    LossScale,
    GroupLossScale,
    GradAccumulation,
    Clip,
    GradFreeze,
    AdaSum,
    DimReduce,
    Ema,
    SparseEmbedding,
    SyncBatchNorm,
    Recompute,
]


def registered() -> tuple[type[Boost], ...]:
    """All boosts, in the order in which they act.

    Example:
        >>> [boost.name for boost in registered()][:2]
        ['less-bn', 'full-norm-head']
    """
    _import_installed()
    return tuple(_TABLE)


@functools.cache
def _import_installed() -> None:
    """Register the boosts of installed packages, once."""
    for entry in entry_points(group=ENTRY_POINTS):
        try:
            boost = entry.load()
        except Exception as error:  # an import may raise anything
            raise ConfigError(
                "A boost of another package cannot be imported.",
                where=f"entry point {entry.name} = {entry.value}: {error!r}",
                fix="Fix that package, or uninstall it.",
            ) from error
        register(boost)


def register(boost: _B, *, after: str | None = None) -> _B:
    """Register a boost for configurations, program folders, and the command line.

    Args:
        boost: The class, a frozen dataclass; replaces a class of the same name and module.
        after: Name of the boost that it acts after; the last one if not given.

    Returns:
        The class, to allow use as a decorator.

    Raises:
        ConfigError: The name is taken or invalid, the stage is missing, or the boost ``after`` is
            unknown.
    """
    name = getattr(boost, "name", "")
    if not isinstance(name, str) or not name or set(name) & set(":=,. /") or name != _key(name):
        raise ConfigError(
            f"{name!r} is not a valid name of a boost.",
            where=f"{boost.__module__}.{boost.__qualname__}",
            fix="Give it a 'name' like gradient-noise: lower case, with hyphens between words.",
        )
    if getattr(boost, "stage", None) not in get_args(Stage):
        raise ConfigError(
            f"The boost '{name}' does not say where it acts.",
            where=f"{boost.__module__}.{boost.__qualname__}",
            fix=f"Set its class attribute 'stage' to one of {', '.join(get_args(Stage))}.",
        )
    known = {other.name: other for other in _TABLE}
    if name in known:
        old = known[name]
        if (old.__module__, old.__qualname__) != (boost.__module__, boost.__qualname__):
            raise ConfigError(
                f"The boost '{name}' already exists.",
                where=f"{boost.__module__}.{boost.__qualname__}",
                fix=f"Choose another name than that of {old.__module__}.{old.__qualname__}.",
            )
        _TABLE[_TABLE.index(old)] = boost
        return boost
    if after is None:
        _TABLE.append(boost)
    else:
        _TABLE.insert(_TABLE.index(find_boost(after)) + 1, boost)
    return boost


def find_boost(name: str) -> type[Boost]:
    """Look up a boost by name; if it is unknown, packages with boosts are imported.

    Raises:
        ConfigError: It is not registered; the message suggests the nearest.
    """
    wanted = _key(name)
    # Other packages are imported only for a name that is not ours.
    for known in (lambda: _TABLE, registered):
        for boost in known():
            if boost.name == wanted:
                return boost
    raise ConfigError(
        f"Unknown boost '{name}'.",
        where="boosts",
        fix=f"{nearest(wanted, [boost.name for boost in _TABLE])}; a custom boost must be "
        "registered first, see docs/own_boost.md.",
    )


def _key(name: str) -> str:
    """The name in the table for one that a user may have written in another way."""
    return name.replace("_", "-").lower()


def boost_from_dict(data: Mapping[str, Any]) -> Boost:
    """Rebuild a boost from its name and settings.

    Raises:
        ConfigError: The boost or a setting is unknown, or a value is invalid.

    Example:
        >>> boost_from_dict({"name": "grad-freeze", "p": 0.4, "by": "cost"}).p
        0.4
    """
    if not isinstance(data, Mapping) or not isinstance(data.get("name"), str):
        raise ConfigError(
            f"{data!r} is not a boost.",
            where="boosts",
            fix="Write its name and settings: {'name': 'grad-freeze', 'p': 0.4}.",
        )
    return find_boost(data["name"]).from_dict(data)


def arranged(boosts: Iterable[Boost]) -> tuple[Boost, ...]:
    """Sort boosts into the order in which they act.

    Raises:
        ConfigError: A boost is not registered or given twice, or two cannot be combined; the
            message says why.

    Example:
        >>> [boost.name for boost in arranged([Clip("norm", 1.0), LessBN()])]
        ['less-bn', 'clip']
    """
    found = list(boosts)
    for boost in found:
        if not isinstance(boost, Boost):
            raise ConfigError(
                f"{boost!r} is not a boost.",
                where="boosts",
                fix="Give objects, such as boosts=(LessBN(), GradFreeze(p=0.4)).",
            )
        if find_boost(boost.name) is not type(boost):
            raise ConfigError(
                f"{type(boost).__qualname__} is not the boost registered as '{boost.name}'.",
                where="boosts",
                fix="Give it a unique name, and register it.",
            )
    for one, other in itertools.combinations(found, 2):
        if one.name == other.name:
            raise ConfigError(
                f"The boost '{one.name}' is given twice.",
                where="boosts",
                fix="Give it once, with all its settings.",
            )
        declared = one.excludes.get(other.name) or other.excludes.get(one.name)
        shared = (role for role in _ONE_OF if isinstance(one, role) and isinstance(other, role))
        reason = declared or next((_ONE_OF[role] for role in shared), None)
        if reason is not None:
            raise ConfigError(
                f"'{one.name}' and '{other.name}' cannot be combined: {reason}.",
                where="boosts",
                fix=f"Leave out {one.name} or {other.name}.",
            )
    return tuple(sorted(found, key=lambda boost: _TABLE.index(type(boost))))


_ONE_OF: Final[Mapping[type[Boost], str]] = {
    LossScaler: "both scale the loss",
    GradientAccumulator: "both accumulate gradients",
    LineSearch: "both replace the optimizer",
    UpdateSplitter: "both split the update",
}
