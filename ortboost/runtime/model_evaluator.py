"""Run a plain inference file, with the interface of the evaluator of programs."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.arrays import as_dtype, matches
from ortboost.core.errors import UsageError
from ortboost.graph.query import format_shape
from ortboost.graph.shapes.input_config import dimension_name
from ortboost.program.catalogue import TensorSpec
from ortboost.runtime.feeds import check_token_ids, refused_batch, require_fed
from ortboost.runtime.session import open_session

__all__ = ["ModelEvaluator"]

_WORDS = "float float16 double int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool string"
_TYPES = {f"tensor({word})": ir.DataType[word.upper()].numpy() for word in _WORDS.split()}


class ModelEvaluator:
    """Runs an ONNX model with stored weights, a file or in memory, batch by batch.

    Args:
        model: The model.
        device: The device.
        threads: Number of threads; as many as there are cores if not given.
        token_rows: Input to the rows that its values select, see
            :mod:`ortboost.graph.weights.token_ids`; negative values are refused.

    Raises:
        ModelError: The runtime rejects the file.
        UsageError: The type of an input is not supported.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | ir.Model,
        *,
        device: str = "auto",
        threads: int | None = None,
        token_rows: Mapping[str, int] | None = None,
    ) -> None:
        self.session = open_session(model, device=device, threads=threads)
        rows = token_rows or {}
        self.inputs = tuple(
            dataclasses.replace(_spec(value), rows=rows.get(value.name))
            for value in self.session.get_inputs()
        )
        self.outputs = tuple(value.name for value in self.session.get_outputs())

    def evaluate(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute the outputs by name; feeds that are not inputs (labels) are ignored.

        Raises:
            UsageError: An input is missing or does not fit, or the runtime rejects the shapes.
        """
        taken: dict[str, NDArray[Any]] = {}
        for spec in self.inputs:
            require_fed(spec.name, feeds, self.inputs)
            array = feeds[spec.name]
            if spec.dtype != np.object_:  # texts
                array = as_dtype(array, spec.dtype, f"input '{spec.name}'")
            taken[spec.name] = np.asarray(array, spec.dtype, order="C")
            check_token_ids(taken[spec.name], spec)
            shape = taken[spec.name].shape
            if not matches(shape, spec.shape):
                raise UsageError(
                    f"The input '{spec.name}' does not accept an array of this shape.",
                    where=f"array {list(shape)}, input {format_shape(spec.shape)}",
                    fix="Give data of the shape of the input.",
                )
        try:
            answers = self.session.run(self.outputs, taken)
        except Exception as error:  # the bindings raise bare exceptions of many kinds
            raise refused_batch(error, taken) from error
        return dict(zip(self.outputs, answers, strict=True))


def _spec(value: Any) -> TensorSpec:
    if value.type not in _TYPES:
        raise UsageError(
            f"The input '{value.name}' has the unsupported type {value.type}.",
            where=f"input '{value.name}'",
            fix="Use a model with float, integer, bool or string inputs.",
        )
    shape = tuple(
        dim if isinstance(dim, int) else dimension_name(dim if isinstance(dim, str) else None)
        for dim in value.shape
    )
    return TensorSpec(value.name, _TYPES[value.type], shape)
