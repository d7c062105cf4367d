"""A file that lists the parameters of a model, one name per line, and whether each is trained.

An ONNX file does not contain ``requires_grad``. :func:`write_parameters` reads it from the torch
module that was exported::

    # name requires_grad
    conv1.weight true
    head.weight
    backbone.weight false
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ortboost.core.errors import ConfigError, FileError
from ortboost.core.files import atomic_path, read_text
from ortboost.graph.io import ModelSource, load_model
from ortboost.graph.query import FLOAT_TYPES, all_tensors
from ortboost.graph.weights.origins import stamp_origins, tensor_origins
from ortboost.graph.weights.separate_equals import separate_equals
from ortboost.graph.weights.tie_copies import tie_copies

__all__ = ["read_parameters", "write_parameters"]

_WORDS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


def read_parameters(path: str | os.PathLike[str]) -> dict[str, bool]:
    """Read a list of parameters.

    Args:
        path: Text file with ``name`` or ``name requires_grad`` on each line, where
            ``requires_grad`` is ``true`` (the default) or ``false``. Empty lines and lines that
            start with ``#`` are ignored.

    Returns:
        Name to whether it is trained: ``ProgramConfig(parameters=...)``.

    Raises:
        FileError: The file cannot be read.
        ConfigError: A name is listed twice, or the list is empty.
    """
    found: dict[str, bool] = {}
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise FileError(
            "The list of parameters cannot be read.",
            where=f"{path}: {getattr(error, 'strerror', None) or error}",
            fix="Give a text file with one name per line.",
        ) from error
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        name, _, last = text.rpartition(" ")
        word = last.lower().removeprefix("requires_grad=")
        # A name may contain spaces: the last word counts only if it is a truth value.
        named = bool(name.strip()) and word in _WORDS
        name, trained = (name.strip(), _WORDS[word]) if named else (text, True)
        if name in found:
            raise ConfigError(
                f"'{name}' is listed twice.",
                where=f"{path}, line {number}",
                fix="Keep one of the lines.",
            )
        found[name] = trained
    if not found:
        raise ConfigError(
            "The list of parameters is empty.",
            where=str(path),
            fix="Write one name per line, as 'ortboost inspect MODEL --params' shows them.",
        )
    return found


def write_parameters(
    path: str | os.PathLike[str], model: ModelSource, named: Iterable[tuple[str, Any]]
) -> tuple[str, ...]:
    """List the parameters of an exported torch module by their names in the file.

    Exporters keep most names. Renamed tensors are matched by their values, also transposed.

    Args:
        path: Text file to write.
        model: The exported model.
        named: ``module.named_parameters()``.

    Returns:
        Parameters without a tensor in the file: folded into others, or not needed by the outputs.
        They are listed as comments.

    Raises:
        FileError: The model cannot be read, or the list cannot be written.

    Example:
        >>> module = torch.nn.Linear(3, 2)  # doctest: +SKIP
        >>> x = torch.ones(1, 3)  # doctest: +SKIP
        >>> torch.onnx.export(module, (x,), "net.onnx", dynamo=True)  # doctest: +SKIP
        >>> write_parameters("net.txt", "net.onnx", module.named_parameters())  # doctest: +SKIP
        ()
    """
    loaded = load_model(model)
    # As in a conversion, so that the names are those that it will use.
    stamp_origins(loaded, tensor_origins(loaded))
    separate_equals(loaded)
    tied = tie_copies(loaded).changed
    stored = {
        value.name or "": tensor.numpy()
        for value, tensor in all_tensors(loaded)
        if value.dtype in FLOAT_TYPES
    }
    parameters = {
        name: (np.asarray(tensor.detach().cpu()), bool(tensor.requires_grad))
        for name, tensor in named
    }
    # A tensor that has the name of one parameter stands for no other.
    free = {name: array for name, array in stored.items() if name not in parameters}
    lines = ["# name requires_grad"]
    lost: list[str] = []
    for name, (array, trained) in parameters.items():
        same = (other for other, values in free.items() if _equal(array, values))
        found = name if name in stored else next(same, None)
        if found is None:
            lost.append(name)
            lines.append(f"# {name} {str(trained).lower()}: not in the file")
            continue
        free.pop(found, None)
        lines.append(f"{found} {str(trained).lower()}")
        for copy in _copies(array, free):  # the exporter may store a tied weight twice
            free.pop(copy)
            lines += [
                f"# a copy of {found}, trained separately:",
                f"{copy} {str(trained).lower()}",
            ]
    lines += [f"# {copy}: {what}, trained as one" for copy, what in tied.items()]
    with atomic_path(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tuple(lost)


def _copies(array: NDArray[Any], stored: dict[str, NDArray[Any]]) -> list[str]:
    """Names of all equal tensors; none for a constant-valued array, as it may match by chance."""
    if array.size == 0 or array.min() == array.max():
        return []
    return [name for name, other in stored.items() if _equal(array, other)]


def _equal(array: NDArray[Any], other: NDArray[Any]) -> bool:
    if other.size != array.size:
        return False
    turned = array.T if array.ndim == 2 else array
    # The same order of elements in any shape (an exporter may add axes of 1), or transposed.
    return np.array_equal(other.reshape(-1), array.reshape(-1)) or (
        other.shape == turned.shape and np.array_equal(other, turned)
    )
