"""Preprocessing and augmentation of images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds

__all__ = ["NORMALIZATIONS", "AugmentConfig", "ImageConfig"]

_Length: TypeAlias = Annotated[int, Range(1)]
_Deviation: TypeAlias = Annotated[float, Range(above=0)]
_Share: TypeAlias = Annotated[float, Range(0, 1)]
_Spread: TypeAlias = Annotated[float, Range(0)]

NORMALIZATIONS: Final = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Name to mean and standard deviation of each channel, for pixels in 0..1.

ImageNet's are those of torchvision's pretrained weights (``torchvision.models``).
"""


@dataclass(frozen=True)
class ImageConfig(Configuration):
    """Preprocessing of images; the same in training, evaluation, export and calibration.

    The steps are colour conversion, resizing, centre crop, and ``(pixel / 255 - mean) / std`` in
    float32. Without mean and std the pixels stay bytes, and are divided by 255 for a float input.

    Args:
        resize: ``(s,)`` resizes the shorter side to ``s``, ``(h, w)`` both sides. If empty, an
            image of another size than the crop is resized to the smallest size that covers it.
        crop: Height and width of the model's input; by default those of the model, if fixed.
        color: ``rgb`` or ``gray`` converts all images. ``auto`` converts none: they must match the
            channels of the input.
        layout: Order of the axes, ``nchw`` or ``nhwc``; ``auto`` infers it from the axis of the
            input with length 1 or 3.
        interpolation: Pillow's resizing filter, with its antialiasing when downscaling.
        mean: One value per channel, or one for all.
        std: One value per channel, or one for all.
        classes: Class names in the order of the class indices; by default the sorted folder names.

    Raises:
        ConfigError: A value is out of range, or only one of mean and std is set.

    Example:
        >>> ImageConfig(resize=(256,), crop=(224, 224)).crop
        (224, 224)
    """

    resize: tuple[_Length, ...] = ()
    crop: tuple[_Length, ...] = ()
    color: Literal["auto", "rgb", "gray"] = "auto"
    layout: Literal["auto", "nchw", "nhwc"] = "auto"
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos"] = "bilinear"
    mean: tuple[Annotated[float, Range()], ...] = ()
    std: tuple[_Deviation, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        check_kinds(self, "images")
        for name, lengths in (("resize", (0, 1, 2)), ("crop", (0, 2)), ("mean", (0, 1, 3))):
            if len(getattr(self, name)) not in lengths:
                raise ConfigError(
                    f"'{name}' has {len(getattr(self, name))} values.",
                    where="images",
                    fix=f"Use {' or '.join(map(str, lengths[1:]))}.",
                )
        if len(self.mean) != len(self.std):
            raise ConfigError(
                f"There are {len(self.mean)} means and {len(self.std)} standard deviations.",
                where="images, normalize",
                fix="Use the same number of each: normalize=0.5:0.5:0.5/0.2:0.2:0.2, or "
                "normalize=imagenet.",
            )


@dataclass(frozen=True)
class AugmentConfig(Configuration):
    """Random augmentation, in this order; each draw is a function of (seed, epoch, sample).

    Args:
        resized_crop: Minimum share of the area for a random crop with an aspect ratio of 3:4 to
            4:3, which is resized to the model's input; replaces resize and centre crop (Szegedy et
            al., 2015; torchvision's ``RandomResizedCrop``).
        crop: Alternatively, zero padding on each side before a random crop (He et al., 2016).
        flip: Probability of a horizontal flip.
        brightness: The factor is drawn from ``1 - brightness`` to ``1 + brightness``, at least 0.
        contrast: The same, for the difference from the mean grey.
        saturation: The same, for the difference from the greyscale image.

    Raises:
        ConfigError: A value is out of range, or both random crops are set.

    Example:
        >>> AugmentConfig(crop=4, flip=0.5).crop
        4
    """

    resized_crop: Annotated[float, Range(above=0, most=1)] | None = None
    crop: Annotated[int, Range(0)] | None = None
    flip: _Share = 0.0
    brightness: _Spread = 0.0
    contrast: _Spread = 0.0
    saturation: _Spread = 0.0

    @property
    def moves(self) -> bool:
        """Whether it moves pixels, so that labels of pixels would have to move with them."""
        return self.resized_crop is not None or self.crop is not None or self.flip > 0

    def __post_init__(self) -> None:
        check_kinds(self, "augment")
        if self.resized_crop is not None and self.crop is not None:
            raise ConfigError(
                "Both random crops are set.",
                where="augment: resized-crop and crop",
                fix="Use one of them.",
            )
