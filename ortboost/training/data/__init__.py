"""Data: files to arrays, arrays to inputs, inputs to batches.

::

    arrays = load_arrays("train.npz")
    bound = bind_arrays(arrays, stepper.inputs, split="train", path="train.npz")
    source = ArraySource(bound, 64, shuffle=True, seed=1, drop_last=True, inputs=stepper.inputs)
    for batch in prefetch(source.epoch(0)): ...
"""

from __future__ import annotations

from ortboost.training.data.batches import batch_axes, batch_length, pad_batch, static_batch
from ortboost.training.data.bind import bind_arrays
from ortboost.training.data.iterables import IterableSource
from ortboost.training.data.load import load_arrays
from ortboost.training.data.open import open_source
from ortboost.training.data.prefetch import prefetch
from ortboost.training.data.sources import ArraySource, Source

__all__ = [
    "ArraySource",
    "IterableSource",
    "Source",
    "batch_axes",
    "batch_length",
    "bind_arrays",
    "load_arrays",
    "open_source",
    "pad_batch",
    "prefetch",
    "static_batch",
]
