"""What is done to images before a model sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final, Literal, TypeAlias

from ortboost.core.errors import ConfigError
from ortboost.core.field_types import Range, check_kinds

__all__ = ["NORMALIZATIONS", "AugmentConfig", "ImageConfig"]

_Length: TypeAlias = Annotated[int, Range(1)]
_Deviation: TypeAlias = Annotated[float, Range(above=0)]
_Share: TypeAlias = Annotated[float, Range(0, 1)]
_Spread: TypeAlias = Annotated[float, Range(0)]

NORMALIZATIONS: Final = {"imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))}
"""Name to mean and standard deviation of each channel, of pixels in 0..1.

ImageNet's are those that torchvision's pretrained weights state (``torchvision.models``).
"""


@dataclass(frozen=True)
class ImageConfig:
    """How an image becomes an input; the same in training, validation, evaluation, export and calibration.

    Colour, then size, then the centre crop, then numbers: ``(pixel / 255 - mean) / std`` in
    float32. Without mean and deviation the pixels stay bytes, and are divided by 255 where the
    input is of floats.

    Args:
        resize: ``(s,)`` makes the shorter side ``s``, ``(h, w)`` both. If not given, an image that
            has not the size of the crop is made as small as still covers it.
        crop: Height and width that the model sees; its own where they are fixed.
        color: ``rgb`` or ``gray`` converts all images. ``auto`` converts none: all must have what
            the model's channels are.
        layout: Order of the axes, ``nchw`` or ``nhwc``; ``auto`` is that of the input, where its
            channels are 1 or 3.
        interpolation: Filter of the resizing, Pillow's, which widens it when an image becomes
            smaller (antialiasing).
        mean: Of each channel, or one for all.
        std: Of each channel, or one for all.
        classes: Names of the classes in the order of their numbers; names of the folders, sorted,
            if not given.

    Raises:
        ConfigError: A value is out of range, or one of mean and std is missing.

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
                    f"'{name}' has {len(getattr(self, name))} numbers.",
                    where="images",
                    fix=f"Give {' or '.join(map(str, lengths[1:]))}.",
                )
        if len(self.mean) != len(self.std):
            raise ConfigError(
                f"There are {len(self.mean)} means and {len(self.std)} standard deviations.",
                where="images, normalize",
                fix="Give as many of each: normalize=0.5:0.5:0.5/0.2:0.2:0.2, or "
                "normalize=imagenet.",
            )


@dataclass(frozen=True)
class AugmentConfig:
    """How training images vary, in this order; each draw is a function of (seed, epoch, sample).

    Args:
        resized_crop: Least share of the area that a random crop has; its sides are 3:4 to 4:3, and
            it is resized to what the model sees, in place of resize and centre crop (Szegedy et
            al., 2015; torchvision's ``RandomResizedCrop``).
        crop: Instead: zeros to put on each side before a crop at a random place (He et al., 2016).
        flip: Probability of a mirror image.
        brightness: The factor is drawn from ``1 - brightness`` to ``1 + brightness``, at least 0.
        contrast: The same, of the distance to the mean grey.
        saturation: The same, of the distance to the grey image.

    Raises:
        ConfigError: A value is out of range, or two crops are asked for.
    """

    resized_crop: Annotated[float, Range(above=0, most=1)] | None = None
    crop: Annotated[int, Range(0)] | None = None
    flip: _Share = 0.0
    brightness: _Spread = 0.0
    contrast: _Spread = 0.0
    saturation: _Spread = 0.0

    def __post_init__(self) -> None:
        check_kinds(self, "augment")
        if self.resized_crop is not None and self.crop is not None:
            raise ConfigError(
                "Two random crops are asked for.",
                where="augment: resized-crop and crop",
                fix="Give one of them.",
            )
