"""Constant inputs and fixed dimensions, applied to the inputs of a session."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.batch_axes import find_batch_axes
from ortboost.graph.fix_inputs import fit_inputs
from ortboost.graph.input_config import InputConfig
from ortboost.program.catalogue import TensorSpec

__all__ = ["fix_specs", "with_batch_axes"]


def fix_specs(
    specs: Sequence[TensorSpec], config: InputConfig
) -> tuple[tuple[TensorSpec, ...], dict[str, NDArray[Any]]]:
    """Split inputs into those still to be fed and the constant arrays of the others.

    Args:
        specs: The inputs of a model.
        config: Values of inputs, and lengths of open dimensions.

    Returns:
        The remaining inputs with known lengths filled in, and the constants by input name.

    Raises:
        UsageError: An input or dimension is unknown, or a value does not fit.
    """
    shapes = {spec.name: spec.shape for spec in specs}
    dtypes = {spec.name: ir.DataType.from_numpy(spec.dtype) for spec in specs}
    constants, fitted = fit_inputs(shapes, dtypes, config)
    left = tuple(
        dataclasses.replace(spec, shape=fitted[spec.name])
        for spec in specs
        if spec.name not in constants
    )
    return left, constants


def with_batch_axes(specs: Sequence[TensorSpec], config: InputConfig) -> tuple[TensorSpec, ...]:
    """Apply the given batch axes; the other inputs keep theirs.

    Raises:
        UsageError: An axis was given for an unknown input, or the input does not have it.
    """
    axes = find_batch_axes({spec.name: spec.shape for spec in specs}, None, config.batch_axes)
    return tuple(
        dataclasses.replace(spec, batch_axis=axes[spec.name])
        if spec.name in config.batch_axes
        else spec
        for spec in specs
    )
