"""The catalogue of a step graph: every input, every state tensor, every output, by name.

It is written into the ``metadata_props`` of the step graph, so that the file is self-describing,
and into the manifest of the program. See :mod:`ortboost.program.names` for the names.
"""

from __future__ import annotations

import dataclasses
import json
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.errors import FileError
from ortboost.core.field_types import check_value
from ortboost.core.field_words import UnfitError
from ortboost.core.version import __version__
from ortboost.graph.query import known_shape
from ortboost.graph.shapes.batch_axes import BatchAxis

__all__ = [
    "METADATA_KEY",
    "Catalogue",
    "StateEntry",
    "TensorSpec",
    "merged",
    "read_catalogue",
    "stamp",
]

METADATA_KEY = "ortboost.catalogue"
_VERSION = 1

_T = TypeVar("_T")


def _check(name: str, value: object, hint: Any) -> None:
    try:
        check_value(value, hint)
    except UnfitError:
        raise ValueError(f"'{name}' is {value!r}") from None


def _from_dict(kind: type[_T], data: Mapping[str, Any]) -> _T:
    """Rebuild a tensor spec or a state entry; what older versions did not write has its default."""
    found: dict[str, Any] = {}
    for item in dataclasses.fields(kind):  # type: ignore[arg-type]  # a dataclass
        if item.name not in data and item.default is not dataclasses.MISSING:
            continue
        value = data[item.name]
        _check(item.name, value, str if item.name == "dtype" else _HINTS[kind][item.name])
        value = np.dtype(value) if item.name == "dtype" else value
        found[item.name] = tuple(value) if isinstance(value, list) else value
    return kind(**found)


@dataclass(frozen=True)
class TensorSpec:
    """An input or output of a graph.

    Args:
        name: Its name.
        dtype: numpy dtype.
        shape: Lengths, names of symbolic dimensions, or ``None`` for unknown dimensions.
        classes: For labels: values must be 0 to ``classes - 1``. With others, the runtime's kernels
            read out of bounds without an error.
        ignored: For labels: the only other value allowed.
        class_axis: For labels: the class axis of the predictions.
        shifted: For labels: whether each position is compared with the next label.
        averaged: For labels: whether the loss is the mean over the labels that are not ignored.
        weights: For labels: the weights of the classes in this mean; ``None`` if all are 1.
        threshold: For labels of two classes: the prediction above which it is class 1.
        probabilities: For labels: values must be 0 to 1.
        batch_axis: For data: the batch axis, see :mod:`ortboost.graph.shapes.batch_axes`.
        rows: For token IDs and classes: values must be 0 to ``rows - 1``.
        joined: For data: axes that may have length 0, see
            :mod:`ortboost.graph.shapes.joined_axes`.
    """

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int | str | None, ...]
    classes: int | None = None
    ignored: int | None = None
    class_axis: int | None = None
    shifted: bool = False
    averaged: bool = True
    batch_axis: BatchAxis = 0
    weights: tuple[float, ...] | None = None
    rows: int | None = None
    threshold: float = 0.0
    probabilities: bool = False
    joined: tuple[int, ...] = ()

    @classmethod
    def of(cls, value: ir.Value) -> TensorSpec:
        """The spec of a graph input or output.

        Raises:
            ValueError: The type is unknown.
        """
        if value.dtype is None:
            raise ValueError(f"The type of '{value.name}' is unknown.")
        return cls(value.name or "", np.dtype(value.dtype.numpy()), known_shape(value) or ())

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        data: dict[str, Any] = {
            "name": self.name,
            "dtype": self.dtype.name,
            "shape": list(self.shape),
        }
        if self.class_axis is not None:  # only labels have one
            data |= {
                "classes": self.classes,
                "ignored": self.ignored,
                "class_axis": self.class_axis,
                "shifted": self.shifted,
                "averaged": self.averaged,
            }
        if self.batch_axis != 0:
            data["batch_axis"] = self.batch_axis
        if self.weights is not None:
            data["weights"] = list(self.weights)
        if self.rows is not None:
            data["rows"] = self.rows
        if self.threshold:
            data["threshold"] = self.threshold
        if self.probabilities:
            data["probabilities"] = True
        if self.joined:
            data["joined"] = list(self.joined)
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> TensorSpec:
        """Rebuild from :meth:`to_dict`."""
        return _from_dict(cls, data)

    def first_invalid_class(self, array: NDArray[Any]) -> int | None:
        """The first label that is not a valid class, or ``None``.

        Example:
            >>> spec = TensorSpec("labels", np.dtype("int64"), ("N",), classes=3, ignored=-1)
            >>> spec.first_invalid_class(np.array([0, 2, -1, 3]))
            3
        """
        if self.classes is None:
            return None
        invalid = (array < 0) | (array >= self.classes)
        # Valid labels are the usual case: the ignored one is looked for only if needed.
        if not invalid.any():
            return None
        if self.ignored is not None:
            invalid &= array != self.ignored
        found = array[invalid]
        return int(found.flat[0]) if found.size else None


@dataclass(frozen=True)
class StateEntry:
    """One state tensor of a step graph.

    Args:
        name: Name of the graph input with its current value.
        kind: ``parameter``, ``buffer``, ``slot``, ``scale`` or ``counter``.
        dtype: numpy dtype.
        shape: Static shape.
        next: Name of the graph output with its next value; ``None`` if a step never changes it.
        role: For parameters and buffers, see :class:`ortboost.graph.weights.parameters.Parameter`;
            for slots the name of the slot.
        sharded: Whether each of several processes holds only some of its rows. No graph changes
            such a state, and the number of rows of the graph input is open.
    """

    name: str
    kind: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    next: str | None
    role: str = ""
    sharded: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        # Written only if true, so that files without sharded states stay as they were.
        data = {**vars(self), "dtype": self.dtype.name, "shape": list(self.shape)}
        return data if self.sharded else {k: v for k, v in data.items() if k != "sharded"}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> StateEntry:
        """Rebuild from :meth:`to_dict`."""
        return _from_dict(cls, data)

    def value(self) -> ir.Value:
        """A new graph input for the current value."""
        return ir.val(self.name, ir.DataType.from_numpy(self.dtype), self.shape)


_HINTS: Final[Mapping[Any, Mapping[str, Any]]] = {
    kind: typing.get_type_hints(kind) for kind in (TensorSpec, StateEntry)
}


@dataclass(frozen=True)
class Catalogue:
    """All inputs, states and outputs of a step graph.

    Args:
        batch: Data inputs of each step, labels included.
        hyper: Hyper-parameter inputs of each step: the learning rates.
        state: The state tensors.
        outputs: Reported outputs: loss, overflow, loss_scale, with a grouped scale loss_scales, and
            metrics.
        randomness: Whether the graph draws random numbers (Dropout), so that each step requires a
            seed.
    """

    batch: tuple[TensorSpec, ...]
    hyper: tuple[TensorSpec, ...]
    state: tuple[StateEntry, ...]
    outputs: tuple[TensorSpec, ...]
    randomness: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "version": _VERSION,
            "batch": [spec.to_dict() for spec in self.batch],
            "hyper": [spec.to_dict() for spec in self.hyper],
            "state": [entry.to_dict() for entry in self.state],
            "outputs": [spec.to_dict() for spec in self.outputs],
            "randomness": self.randomness,
        }

    @classmethod
    def from_dict(
        cls, data: Mapping[str, Any], *, where: str = f"metadata '{METADATA_KEY}'"
    ) -> Catalogue:
        """Rebuild from :meth:`to_dict`.

        Args:
            data: The JSON data.
            where: The source of the data, for errors.

        Raises:
            FileError: The version is not supported, or the data is not a catalogue.
        """
        try:
            if data["version"] != _VERSION:
                raise FileError(
                    f"The step catalogue has version {data['version']}; only {_VERSION} is "
                    "supported.",
                    where=where,
                    fix="Convert the model again with this version of ortboost.",
                )
            for key in ("batch", "hyper", "state", "outputs"):
                _check(key, data[key], tuple[object, ...])
            return cls(
                tuple(TensorSpec.from_dict(spec) for spec in data["batch"]),
                tuple(TensorSpec.from_dict(spec) for spec in data["hyper"]),
                tuple(StateEntry.from_dict(entry) for entry in data["state"]),
                tuple(TensorSpec.from_dict(spec) for spec in data["outputs"]),
                bool(data["randomness"]),
            )
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise FileError(
                "The step catalogue is damaged.",
                where=f"{where}: {error!r}",
                fix="Convert the model again.",
            ) from error

    def entries(self, *kinds: str) -> tuple[StateEntry, ...]:
        """The state entries of these kinds."""
        return tuple(entry for entry in self.state if entry.kind in kinds)


def merged(catalogues: Sequence[Catalogue]) -> Catalogue:
    """Merge catalogues of graphs into that of the program: the first one, with the states of all.

    A state has a next value if any of the graphs writes it.
    """
    first = catalogues[0]
    entries: dict[str, StateEntry] = {}
    for catalogue in catalogues:
        for entry in catalogue.state:
            # A state may be written by one graph, and only read by another.
            if entry.name not in entries or entry.next is not None:
                entries[entry.name] = entry
    return dataclasses.replace(
        first,
        state=tuple(entries.values()),
        randomness=any(catalogue.randomness for catalogue in catalogues),
    )


def stamp(model: ir.Model, kind: str, catalogue: Catalogue | None = None) -> None:
    """Store the kind of a graph, and its catalogue if it has one, in its metadata."""
    model.producer_name, model.producer_version = "ortboost", __version__
    model.metadata_props["ortboost.kind"] = kind
    if catalogue is not None:
        model.metadata_props[METADATA_KEY] = json.dumps(catalogue.to_dict())


def read_catalogue(model: ir.Model) -> Catalogue:
    """Read the catalogue of a step graph from its metadata.

    Raises:
        FileError: The catalogue is missing or damaged.
    """
    text = model.metadata_props.get(METADATA_KEY)
    if text is None:
        raise FileError(
            "This ONNX file is not a step graph of ortboost.",
            where=f"metadata '{METADATA_KEY}' is missing",
            fix="Make one with 'ortboost convert'.",
        )
    try:
        data = json.loads(text)
    except ValueError as error:
        raise FileError(
            "The step catalogue is damaged.",
            where=f"metadata '{METADATA_KEY}': {error}",
            fix="Convert the model again.",
        ) from error
    return Catalogue.from_dict(data)
