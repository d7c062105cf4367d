"""Assign arrays to the inputs of a model, and check that they fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ortboost.core.arrays import matches
from ortboost.core.errors import FileError, OrtBoostError, UsageError, require_known
from ortboost.training.data.batches import batch_axes
from ortboost.training.data.keys import DATA_KEYS, LABEL_KEYS
from ortboost.training.data.lazy import LazyArray, Wanted, as_array_like, fit_shape, lazy_of
from ortboost.training.data.load import SPLITS
from ortboost.training.data.values import is_labels, value_fault
from ortboost.training.protocols import Array, InputLike

__all__ = ["bind_arrays", "label_keys"]

_SUFFIXES = {"train": ("_train",), "test": ("_test", "_val"), "val": ("_val", "_test")}
_SCAN_BYTES = 1 << 33  # larger arrays are not searched for NaN


def bind_arrays(
    arrays: Mapping[str, Array],
    inputs: Sequence[InputLike],
    *,
    split: str | None = None,
    mapping: Mapping[str, str] | None = None,
    path: str | None = None,
    what: str = "data",
) -> dict[str, Array]:
    """Choose an array for each input and check that it fits.

    The array of an input is, in this order: the one that ``mapping`` specifies; the one with its
    own name; and, if it is the only labels (or the only other) input, the one with a common name
    (``y``, ``labels``, ``target``... or ``x``, ``images``, ``data``...). With a ``split``, names
    with its suffix (``x_train``; ``x_test`` or ``x_val``) take precedence over bare names.

    Axes of length one are added or dropped, and samples are flattened if the model needs vectors
    (MNIST's ``[N, 28, 28]`` fits ``[N, 1, 28, 28]`` and ``[N, 784]``); axes are never reordered.

    If the batch axis of an input is not axis 0, neither is that of its array (``[2, N, 128]`` for a
    state ``[2, batch, 128]``); for an input without a batch axis, the array is used unchanged.

    Args:
        arrays: Key to array, ``[N, ...]``, as returned by :func:`load_arrays`.
        inputs: The model's batch inputs.
        split: "train", "test", "val" or None for bare names only.
        mapping: Input name to array key (``--map x=images``: ``images`` feeds the input ``x``).
        path: The file of the arrays, for error messages.
        what: Description of the data without a path (``validation data``), for error messages.

    Returns:
        Input name to array, in the order of ``inputs``. Arrays are views (mapped ones stay mapped)
        in the dtype of the data; :func:`~ortboost.training.data.values.convert` converts them batch
        by batch.

    Raises:
        FileError: With a ``path``: an array does not fit (missing, of another split, shape, dtype,
            length, NaN, a label that is not a class).
        UsageError: The same without a ``path``; or a name in ``mapping`` or ``split`` is unknown.
    """
    binder = _Binder(arrays, inputs, split, mapping, path, what)
    keys = {spec.name: binder.choose(spec) for spec in inputs}
    binder.check_split(keys)
    bound = {spec.name: binder.fit(spec, keys[spec.name]) for spec in inputs}
    binder.check_lengths(bound)
    return bound


def label_keys(
    arrays: Mapping[str, Array], inputs: Sequence[InputLike], **arguments: Any
) -> set[str]:
    """The keys of the arrays that feed labels; arguments and errors as in :func:`bind_arrays`."""
    binder = _Binder(arrays, inputs, **arguments)
    return {binder.choose(spec) for spec in inputs if is_labels(spec)}


class _Binder:
    """The arguments of :func:`bind_arrays`, shared by its parts."""

    def __init__(
        self,
        arrays: Mapping[str, Array],
        inputs: Sequence[InputLike],
        split: str | None,
        mapping: Mapping[str, str] | None,
        path: str | None,
        what: str,
    ) -> None:
        self.what = what
        self.arrays, self.inputs, self.path = arrays, inputs, path
        self.mapping = dict(mapping or {})
        if split is not None:
            require_known(split, SPLITS, f"Unknown split '{split}'.", "split")
        self.axes = batch_axes(inputs)
        self.suffixes = (*_SUFFIXES.get(split or "", ()), "")
        self.labels = [spec.name for spec in inputs if is_labels(spec)]
        self.data = [spec.name for spec in inputs if spec.name not in self.labels]
        names = [spec.name for spec in inputs]
        for name, key in self.mapping.items():
            require_known(name, names, f"The model has no input '{name}'.", "map")
            require_known(key, arrays, f"The data has no array '{key}'.", "map")

    def error(self, what: str, key: str, fix: str) -> OrtBoostError:
        """The error for the array ``key``: a FileError if there is a file."""
        kind = FileError if self.path else UsageError
        return kind(what, where=f"{self.path or self.what}: {key}", fix=fix)

    def _misfit(self, spec: InputLike, key: str, fix: str) -> OrtBoostError:
        shape = ", ".join("?" if dim is None else str(dim) for dim in spec.shape)
        return self.error(
            f"The array '{key}' does not have the shape of the input '{spec.name}'.",
            f"array {list(self.arrays[key].shape)}, input [{shape}]",
            fix,
        )

    def choose(self, spec: InputLike) -> str:
        """The key of an input's array."""
        if spec.name in self.mapping:
            return self.mapping[spec.name]
        for suffix in self.suffixes:
            if spec.name + suffix in self.arrays:
                return spec.name + suffix
        peers, aliases = (
            (self.labels, LABEL_KEYS) if spec.name in self.labels else (self.data, DATA_KEYS)
        )
        # A key that another input uses, by name or by the mapping, is not available.
        taken = {i.name + s for i in self.inputs for s in self.suffixes} | set(
            self.mapping.values()
        )
        # A common name is unambiguous only if a single input could be meant.
        for suffix in self.suffixes if len(peers) == 1 else ():
            found = [
                key
                for key in self.arrays
                if key not in taken
                and key.endswith(suffix)
                and key[: len(key) - len(suffix)].lower() in aliases
            ]
            if len(found) > 1:
                raise self.error(
                    f"Several arrays could feed the input '{spec.name}'.",
                    f"keys {', '.join(found)}",
                    f"Select one: --map {spec.name}={found[0]}",
                )
            if found:
                return found[0]
        # Nor is one that another input uses by a common name.
        usual = {*LABEL_KEYS, *DATA_KEYS}  # suggested last: they usually belong to another input
        free = [key for key in self.arrays if key not in taken]
        free.sort(key=lambda key: key.split("_")[0].lower() in usual)
        if getattr(spec, "shifted", False):  # of a causal language model: its labels are its tokens
            tokens = [key for key, array in self.arrays.items() if array.dtype.kind in "iu"]
            free += [key for key in tokens if key in taken]
        fix = f"Add an array '{spec.name}' with one entry for each sample."
        if spec.joined:
            shape = ["N", *spec.shape[1:]]
            shape = [0 if axis in spec.joined else length for axis, length in enumerate(shape)]
            fix = f"{fix[:-1]}; it may be empty, [{', '.join(map(str, shape))}]."
        if self.path is None and len(self.arrays) == 1:  # x, y in place of (x, y)
            fix = f"Give all arrays together: ({', '.join(i.name for i in self.inputs)})."
        if free:
            fix = f"Name an array '{spec.name}', or say which one it is: "
            fix += f"--map {spec.name}={free[0]}"
        elif self.axes[spec.name] is None:
            fix = f"Add an array '{spec.name}', the same for all samples, or convert the model "
            fix += f"with its value: --input {spec.name}=VALUE"
        raise self.error(
            f"No array feeds the input '{spec.name}'.",
            f"keys {', '.join(self.arrays)}; inputs {', '.join(i.name for i in self.inputs)}",
            fix,
        )

    def fit(self, spec: InputLike, key: str) -> Array:
        """The array, viewed in the shape of the input, after all checks."""
        array, axis = self.arrays[key], self.axes[spec.name]
        if axis != 0:
            return self._fit_as_it_is(spec, key, array)
        if array.ndim == 0 or len(array) == 0:
            raise self.error(
                "An array has no samples.",
                f"'{key}' has the shape {list(array.shape)}",
                "Axis 0 is the batch axis and must not be empty; for an input that is "
                f"the same for all samples, --batch-axis {spec.name}=none.",
            )
        lazy = lazy_of(array)
        if lazy is not None:
            array = self._fit_lazy(spec, key, lazy)
        self._check_values(spec, key, array)
        shape = fit_shape(array.shape[1:], spec.shape[1:])
        if shape is None:
            labels = spec.name in self.labels
            shapes = array.shape[1:], spec.shape[1:]
            raise self._misfit(
                spec, key, self._label_fix(spec, array) if labels else _shape_fix(*shapes)
            )
        return array if shape == array.shape[1:] else array.reshape(len(array), *shape)

    def _fit_lazy(self, spec: InputLike, key: str, array: LazyArray) -> Array:
        try:
            fitted = array.fitted(tuple(spec.shape))
        except UsageError as error:
            raise self.error(error.what, error.where, error.fix) from None
        if fitted is None:
            raise self._misfit(spec, key, _shape_fix(array.shape[1:], spec.shape[1:]))
        return as_array_like(fitted)

    def _fit_as_it_is(self, spec: InputLike, key: str, array: Array) -> Array:
        """An array whose batch axis is not 0, or that has none; it must have the input's shape."""
        self._check_values(spec, key, array)
        axis = self.axes[spec.name]
        wanted = tuple(None if i == axis else dim for i, dim in enumerate(spec.shape))
        if not array.size or not matches(array.shape, wanted):
            raise self._misfit(
                spec,
                key,
                "The input is the same for all samples: provide one array of its shape."
                if axis is None
                else f"The batch axis is {axis}; specify another one with --batch-axis "
                f"{spec.name}=AXIS.",
            )
        return array

    @staticmethod
    def _label_fix(spec: InputLike, array: Array) -> str:
        if array.ndim < len(spec.shape) or (
            spec.dtype.kind == "f" and array.ndim == len(spec.shape)
        ):
            return (
                "There must be a label for each score; for class indices convert with --loss "
                "softmax-cross-entropy, without --dense-labels."
            )
        return (
            "For one-hot labels save array.argmax(axis=1), for probabilities convert with "
            "--dense-labels; otherwise reshape the array, or map another one to this input "
            "(--map INPUT=KEY)."
        )

    def _check_values(self, spec: InputLike, key: str, array: Array) -> None:
        lazy = lazy_of(array)
        # One axis: probably labels, which are searched whatever their size.
        scan = (lazy is None or not lazy.finite) and (
            array.nbytes <= _SCAN_BYTES or array.ndim == 1
        )
        fault = value_fault(spec, key, array, finite=scan)
        if fault is not None:
            raise self.error(*fault)

    def check_split(self, keys: Mapping[str, str]) -> None:
        """Check that all arrays are of one split: ``x``, ``y`` and ``x_test`` lack ``y_test``."""
        found = {  # key to suffix
            key: next(suffix for suffix in self.suffixes if key.endswith(suffix))
            for name, key in keys.items()
            if name not in self.mapping and self.axes[name] is not None
        }
        for key, suffix in found.items():
            for other, other_suffix in found.items() if suffix else ():
                # `other` without a suffix serves all splits, unless `key` exists without one, too.
                bare = key.removesuffix(suffix)
                if other_suffix != suffix and (other_suffix or bare in self.arrays):
                    raise self.error(
                        f"The arrays '{key}' and '{other}' belong to different parts of the data.",
                        f"keys {', '.join(self.arrays)}",
                        f"Add '{other.removesuffix(other_suffix)}{suffix}', or choose the arrays "
                        "with --map INPUT=KEY.",
                    )

    def check_lengths(self, bound: Mapping[str, Array]) -> None:
        """Check that all arrays have the same number of samples."""
        lengths = {
            name: array.shape[axis]
            for name, array in bound.items()
            if (axis := self.axes[name]) is not None
        }
        if len(set(lengths.values())) > 1:
            raise self.error(
                "The arrays have different numbers of samples.",
                ", ".join(f"'{name}' {length}" for name, length in lengths.items()),
                "The batch axis, usually 0, must have the same length in all arrays; "
                "specify another one, or none, with --batch-axis INPUT=AXIS.",
            )


def _shape_fix(have: tuple[int, ...], want: Wanted) -> str:
    if len(have) == 3 and matches((have[2], have[0], have[1]), want):
        return "The array is channels-last; save array.transpose(0, 3, 1, 2) (N, C, H, W)."
    if len(have) == 3 and matches((have[1], have[2], have[0]), want):
        return "The array is channels-first; save array.transpose(0, 2, 3, 1) (N, H, W, C)."
    return "Reshape the array, or map another one to this input (--map INPUT=KEY)."
