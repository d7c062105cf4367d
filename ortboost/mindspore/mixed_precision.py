"""``auto_mixed_precision``, ``custom_mixed_precision`` and their lists of operators.

They set the precision of the *training steps* of a network. Its parameters, its updates and its
inference graph (calls of the network, ``predict``, evaluation, export) stay in float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import onnx

from ortboost.core.arguments import checked
from ortboost.mindspore.core.arguments import ArgumentValueError
from ortboost.mindspore.core.cell import Cell
from ortboost.mindspore.nn.wrap import network_of
from ortboost.transforms.precision import PrecisionConfig, precision_for_level
from ortboost.transforms.precision.policy import FP32_OPERATORS, LOW_PRECISION_OPERATORS

__all__ = [
    "AmpLevel",
    "auto_mixed_precision",
    "custom_mixed_precision",
    "dtype_name",
    "get_black_list",
    "get_white_list",
]

AmpLevel: TypeAlias = Literal["O0", "O1", "O2", "O3", "auto"]
"""Mixed-precision levels, see :mod:`ortboost.transforms.precision.policy`."""
_DTYPES: Final[dict[str, Literal["fp16", "bf16"]]] = {"float16": "fp16", "bfloat16": "bf16"}


@checked
def auto_mixed_precision(
    network: Cell,
    amp_level: AmpLevel = "O0",
    dtype: Any = "float16",
    *,
    keep_batchnorm_fp32: bool | None = None,
) -> Cell:
    """Make the training steps of a network compute in a lower precision.

    Args:
        network: The network, or a :class:`ortboost.mindspore.nn.WithLossCell` of it; modified in
            place.
        amp_level: ``O0`` to ``O3`` or ``auto``, see :mod:`ortboost.transforms.precision.policy`.
        dtype: ``float16`` or ``bfloat16``, by name or as a numpy type.
        keep_batchnorm_fp32: Overrides the rules of O2 and O3 for normalizations.

    Returns:
        The network.

    Raises:
        ArgumentValueError: The level or type is unknown.

    Example:
        >>> net = auto_mixed_precision(ob.load("models/lenet5.onnx"), "O2")  # doctest: +SKIP
    """
    backbone = network_of("auto_mixed_precision", network)
    compute = _compute(dtype)
    if amp_level != "O0":
        backbone.precision = precision_for_level(amp_level, keep_batchnorm_fp32, compute)
    return network


@checked
def custom_mixed_precision(
    network: Cell,
    *,
    white_list: Sequence[str] | None = None,
    black_list: Sequence[str] | None = None,
    dtype: Any = "float16",
) -> Cell:
    """Make only some operators compute in a lower precision.

    MindSpore uses classes of cells; a network from ONNX consists of operators, selected by name.

    Args:
        network: As for :func:`auto_mixed_precision`.
        white_list: Operators that compute in the lower precision; all others stay in float32.
        black_list: Operators that stay in float32; all others do not. Give either list.
        dtype: As for :func:`auto_mixed_precision`.

    Raises:
        ArgumentValueError: Neither or both lists are given, an operator is unknown, or the network
            has none of the white list.

    Example:
        >>> custom_mixed_precision(net, white_list=[*get_white_list(), "Relu"])  # doctest: +SKIP
    """
    backbone = network_of("custom_mixed_precision", network)
    compute = _compute(dtype)
    if (white_list is None) == (black_list is None):
        raise ArgumentValueError(
            "Either 'white_list' or 'black_list' is needed.",
            where="custom_mixed_precision",
            fix="Give one of the two.",
        )
    present = sorted({node.op_type for node in backbone.model.graph})
    for name in (*(white_list or ()), *(black_list or ())):
        if name not in {*present, *_listed_operators()}:
            raise ArgumentValueError(
                f"Unknown operator '{name}'.",
                where="custom_mixed_precision",
                fix=f"The network has {', '.join(present)}.",
            )
    if white_list is None:
        kept = tuple(name for name in present if name in set(black_list or ()))
        backbone.precision = PrecisionConfig(
            compute, policy="all", keep_batchnorm=False, keep_fp32=kept
        )
        return network
    low = tuple(name for name in present if name in set(white_list))
    if not low:
        raise ArgumentValueError(
            "No operator of the network is in the white list.",
            where="custom_mixed_precision, white_list",
            fix=f"The network has {', '.join(present)}.",
        )
    kept = tuple(name for name in present if name not in low)
    backbone.precision = PrecisionConfig(compute, force_low=low, keep_fp32=kept)
    return network


def get_white_list() -> list[str]:
    """A copy of the list of operators in lower precision at the levels O1 and auto."""
    return list(LOW_PRECISION_OPERATORS)


def get_black_list() -> list[str]:
    """A copy of the list of operators that stay in float32 at the levels O1 and auto."""
    return list(FP32_OPERATORS)


def _listed_operators() -> set[str]:
    """Operators of ONNX, and those of onnxruntime that the lists name."""
    return {
        *(schema.name for schema in onnx.defs.get_all_schemas()),
        *LOW_PRECISION_OPERATORS,
        *FP32_OPERATORS,
    }


def dtype_name(dtype: Any) -> str:
    """The name of an element type, which may already be a name."""
    if isinstance(dtype, str):
        return dtype
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        return str(dtype)


def _compute(dtype: Any) -> Literal["fp16", "bf16"]:
    name = dtype_name(dtype)
    if name not in _DTYPES:
        raise ArgumentValueError(
            f"'dtype' is {dtype!r}.", where="dtype", fix="Give 'float16' or 'bfloat16'."
        )
    return _DTYPES[name]
