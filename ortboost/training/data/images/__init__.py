"""Images as data: preprocessing, random augmentation, and storage."""

from __future__ import annotations

from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.images.config import (
    AugmentConfig,
    ImageConfig,
    parse_augment,
    parse_images,
)

__all__ = ["AugmentConfig", "ImageArray", "ImageConfig", "parse_augment", "parse_images"]
