"""Random augmentation of training images: crop, flip, and colour jitter.

Draws are raw 64-bit numbers of Philox seeded with (seed, epoch, sample + 1), which numpy guarantees
to keep (NEP 19). So a sample is the same in the same epoch, whatever the number of threads or
processes, the batch size, or the step from which the run resumed.

Random resized crop (Szegedy et al., "Going deeper with convolutions", 2015, section 6): a share of
the area uniform in [least, 1] and an aspect ratio log-uniform in [3/4, 4/3], drawn again (at most
10 times) until the crop fits; after that the largest centre crop with a ratio in the range. The
crop and the colour jitter equal those of torchvision's ``RandomResizedCrop`` and ``ColorJitter``
for the same draws.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np

from ortboost.training.data.images.config import AugmentConfig

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["Draws", "crop_box", "jittered", "random_crop"]

_TRIES: Final = 10
_RATIOS: Final = (3 / 4, 4 / 3)
_NUMBERS: Final = 4 * _TRIES + 8  # an upper bound for one image


class Draws:
    """Random numbers of one sample in one epoch of a run with this seed."""

    def __init__(self, seed: int, epoch: int, sample: int) -> None:
        bits = np.random.Philox(np.random.SeedSequence([seed, epoch, sample + 1]))
        self._raw: Iterator[int] = iter(bits.random_raw(_NUMBERS).tolist())

    def uniform(self, low: float, high: float) -> float:
        """A number from ``low`` to below ``high``."""
        # The upper 53 bits: the precision of a double.
        return low + (high - low) * (next(self._raw) >> 11) * 2.0**-53

    def below(self, end: int) -> int:
        """An integer from 0 to below ``end``."""
        return min(int(self.uniform(0, end)), end - 1)


def crop_box(draws: Draws, width: int, height: int, least: float) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a random resized crop; ``least`` is a share of the area."""
    low, high = _RATIOS
    for _ in range(_TRIES):
        area = width * height * draws.uniform(least, 1.0)
        ratio = math.exp(draws.uniform(math.log(low), math.log(high)))
        wide, tall = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < wide <= width and 0 < tall <= height:
            top, left = draws.below(height - tall + 1), draws.below(width - wide + 1)
            return left, top, left + wide, top + tall
    wide, tall = min(width, round(height * high)), min(height, round(width / low))
    left, top = (width - wide) // 2, (height - tall) // 2
    return left, top, left + wide, top + tall


def random_crop(draws: Draws, image: Image, size: tuple[int, int], padding: int) -> Image:
    """A random crop, (height, width), of the zero-padded image, which is at least as large."""
    tall, wide = size
    top = draws.below(image.height + 2 * padding - tall + 1) - padding
    left = draws.below(image.width + 2 * padding - wide + 1) - padding
    return image.crop((left, top, left + wide, top + tall))  # Pillow pads with zeros


def jittered(draws: Draws, image: Image, config: AugmentConfig) -> Image:
    """Change brightness, contrast and saturation by random factors, in random order."""
    from PIL import ImageEnhance

    kinds = {
        "brightness": ImageEnhance.Brightness,
        "contrast": ImageEnhance.Contrast,
        "saturation": ImageEnhance.Color,
    }
    chosen = [(draws.uniform(0, 1), name) for name in kinds if getattr(config, name)]
    for _, name in sorted(chosen):
        spread = getattr(config, name)
        factor = draws.uniform(max(0.0, 1.0 - spread), 1.0 + spread)
        image = kinds[name](image).enhance(factor)
    return image
