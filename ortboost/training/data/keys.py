"""Common names of arrays and columns."""

from __future__ import annotations

__all__ = ["DATA_KEYS", "LABEL_KEYS"]

DATA_KEYS = ("x", "images", "image", "data", "features", "inputs", "input")
LABEL_KEYS = ("y", "labels", "label", "targets", "target")
