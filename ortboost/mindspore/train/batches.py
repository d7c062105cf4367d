"""Data sets of :class:`ortboost.Model`: anything that provides batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortboost.mindspore.core.arguments import ArgumentTypeError, ArgumentValueError
from ortboost.training.data.iterables import Epochs
from ortboost.training.data.keys import LABEL_KEYS

__all__ = ["Batches"]


class Batches(Epochs):
    """Iterates over a data set as tuples: an array for each input, then the labels.

    Args:
        dataset: An iterable of tuples or dicts of arrays (a list, a torch ``DataLoader``); a
            function without arguments that returns one; a source of
            :mod:`ortboost.training.data`; or a MindSpore data set.
        inputs: Names of the network's inputs, used as keys of dicts.
        where: Name of the caller, for errors.
    """

    def __init__(self, dataset: Any, inputs: Sequence[str], where: str) -> None:
        known = any(hasattr(dataset, a) for a in ("epoch", "create_tuple_iterator", "__iter__"))
        if not (known or callable(dataset)) or isinstance(dataset, str | bytes | Mapping):
            raise ArgumentTypeError(
                f"A {type(dataset).__name__} is not a data set.",
                where=where,
                fix="Give an iterable of (data, label), or a function that returns one.",
            )
        super().__init__(dataset, where)
        self._inputs = list(inputs)

    @property
    def size(self) -> int:
        """Batches per epoch; 0 if unknown."""
        if hasattr(self._data, "get_dataset_size"):
            return int(self._data.get_dataset_size())
        return int(getattr(self._data, "steps_per_epoch", self.steps_per_epoch) or 0)

    def epoch(self, epoch: int) -> Iterator[tuple[Any, ...]]:
        """Iterate over the batches of one epoch, counted from 0."""
        if hasattr(self._data, "epoch"):
            items = self._data.epoch(epoch)
        elif hasattr(self._data, "create_tuple_iterator"):
            items = self._data.create_tuple_iterator(num_epochs=1)
        else:
            items = self.items(epoch)
        for item in items:
            yield self._tuple(item)

    def _tuple(self, item: Any) -> tuple[Any, ...]:
        if isinstance(item, tuple | list):
            return tuple(item)
        if not isinstance(item, Mapping):
            raise ArgumentTypeError(
                f"A batch is a {type(item).__name__}.",
                where=self._what,
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
            where=self._what,
            fix=f"Name them {', '.join(self._inputs)} and labels.",
        )
