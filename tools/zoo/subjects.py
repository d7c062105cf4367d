"""What the zoo is made of: torch modules with their inputs, and files that exist already."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import nn

__all__ = ["Batch", "FileSubject", "TorchSubject"]

Batch = Mapping[str, NDArray[np.generic]]


@dataclass(frozen=True)
class TorchSubject:
    """A torch module, how to feed it, and what to train it with.

    Attributes:
        name: Name in the table.
        source: Where the architecture comes from, as ``transformers`` or ``torch.nn``.
        make: Builds the module, without dropout; returns one tensor for the inputs in order.
        inputs: Makes a batch; a generator gives the numbers.
        loss: ``ce`` for cross entropy over classes, ``mse`` for the squared error.
        class_axis: Axis of the classes of the output.
        dynamic: Input name to the names of its symbolic axes.
        exporters: Exporters that are tried.
    """

    name: str
    source: str
    make: Callable[[], nn.Module]
    inputs: Callable[[np.random.Generator], Batch]
    loss: str = "ce"
    class_axis: int = 1
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    exporters: tuple[str, ...] = ("torchscript", "dynamo")


@dataclass(frozen=True)
class FileSubject:
    """An ONNX file that somebody published.

    Attributes:
        name: Name in the table.
        source: The package that it comes in.
        make: Returns the bytes of the file.
        inputs: Makes a batch.
        loss: ``ce``, ``mse`` or ``none`` for a model that is exported only.
        output: The output that the loss is taken of; the only one if not given.
        class_axis: Axis of the classes of that output.
        dims: Dimensions to fix, as ``--dim`` does.
        constants: Inputs to fix, as ``--input`` does.
    """

    name: str
    source: str
    make: Callable[[], bytes]
    inputs: Callable[[np.random.Generator], Batch]
    loss: str = "mse"
    output: str | None = None
    class_axis: int = 1
    dims: Mapping[str, int] = field(default_factory=dict)
    constants: Mapping[str, float] = field(default_factory=dict)
