"""Data sets of :class:`ortboost.Model`: anything that provides batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.training.data.keys import LABEL_KEYS

__all__ = ["Batches"]


class Batches:
    """Iterates over a data set as tuples: an array for each input, then the labels.

    Args:
        dataset: An iterable of tuples or dicts of arrays (a list, a torch ``DataLoader``); a
            function without arguments that returns one; a source of
            :mod:`ortboost.training.data`; or a MindSpore data set.
        inputs: Names of the network's inputs, used as keys of dicts.
        where: Name of the caller, for errors.

    Raises:
        ArgumentTypeError: It is none of these.
    """

    def __init__(self, dataset: Any, inputs: Sequence[str], where: str) -> None:
        known = any(hasattr(dataset, a) for a in ("epoch", "create_tuple_iterator", "__iter__"))
        if not (known or callable(dataset)) or isinstance(dataset, str | bytes | Mapping):
            raise ArgumentTypeError(
                f"A {type(dataset).__name__} is not a data set.",
                where=where,
                fix="Give an iterable of (data, label), or a function that returns one.",
            )
        self._dataset, self._inputs, self._where = dataset, list(inputs), where
        self._used = False

    @property
    def size(self) -> int:
        """Batches per epoch; 0 if unknown."""
        dataset = self._dataset
        if hasattr(dataset, "get_dataset_size"):
            return int(dataset.get_dataset_size())
        if hasattr(dataset, "steps_per_epoch"):
            return int(dataset.steps_per_epoch or 0)
        try:
            return len(dataset)
        except TypeError:
            return 0

    def epoch(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        """Iterate over the batches of one epoch, counted from 0."""
        dataset = self._dataset
        if hasattr(dataset, "epoch"):
            items = dataset.epoch(epoch)
        elif hasattr(dataset, "create_tuple_iterator"):
            items = dataset.create_tuple_iterator(num_epochs=1)
        else:
            items = dataset() if callable(dataset) else dataset
            if items is iter(items) and not callable(dataset):
                if self._used:
                    raise ArgumentValueError(
                        "The data can be iterated only once.",
                        where=self._where,
                        fix="Give a list, or a function that returns a fresh iterator.",
                    )
                self._used = True
        for item in items:
            yield self._tuple(item)

    def _tuple(self, item: Any) -> tuple[Any, ...]:
        if isinstance(item, tuple | list):
            return tuple(item)
        if not isinstance(item, Mapping):
            raise ArgumentTypeError(
                f"A batch is a {type(item).__name__}.",
                where=self._where,
                fix="Give tuples (data, label) or dicts of arrays.",
            )
        rest = [key for key in item if key not in self._inputs]
        # All inputs by name, and at most one more array: the labels, whatever their name.
        if len(rest) == len(item) - len(self._inputs) <= 1:
            return tuple(item[name] for name in [*self._inputs, *rest])
        labels = [key for key in rest if str(key).lower() in LABEL_KEYS]
        # As many arrays as inputs and labels, under other names: the data in their order.
        if len(item) == len(self._inputs) + 1 and len(labels) <= 1:
            data = [key for key in item if key not in labels]
            return tuple(item[key] for key in [*data, *labels])
        raise ArgumentValueError(
            f"A batch has the keys {', '.join(map(str, item))}.",
            where=self._where,
            fix=f"Name them {', '.join(self._inputs)} and labels.",
        )
