"""Common names of arrays, columns and splits."""

from __future__ import annotations

from typing import Final

__all__ = ["DATA_KEYS", "LABEL_KEYS", "SPLIT_NAMES"]

DATA_KEYS = ("x", "images", "image", "data", "features", "inputs", "input")
LABEL_KEYS = ("y", "labels", "label", "targets", "target")

SPLIT_NAMES: Final = {
    "train": ("train",),
    "test": ("test", "val", "validation"),
    "val": ("val", "validation", "test"),
}
"""Split to the names that data may have for it; the first one that exists is used."""
