"""Preprocessing and augmentation of images, also as text: ``resize=256,crop=224``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

from ortboost.core.arguments import Configuration
from ortboost.core.errors import ConfigError, require_known
from ortboost.core.field_types import Range, check_kinds

__all__ = ["NORMALIZATIONS", "AugmentConfig", "ImageConfig", "parse_augment", "parse_images"]

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


_IMAGE_FORM: Final = "resize=256,crop=224,normalize=imagenet"
_AUGMENT_FORM: Final = "resized-crop=0.08,flip=0.5 or crop=4,flip,brightness=0.4"


def _lengths(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split("x"))


def _square(text: str) -> tuple[int, ...]:
    found = _lengths(text)
    return found * 2 if len(found) == 1 else found


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(float(part) for part in text.split(":"))


def _normalization(text: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    if text in NORMALIZATIONS:
        return NORMALIZATIONS[text]
    mean, _, std = text.partition("/")
    return _numbers(mean), _numbers(std)


_IMAGES: Final[Mapping[str, Callable[[str], Any]]] = {
    "resize": _lengths,
    "crop": _square,
    "color": str,
    "layout": str,
    "interpolation": str,
    "normalize": _normalization,
}
_AUGMENT: Final[Mapping[str, Callable[[str], Any]]] = {
    "resized-crop": lambda text: float(text or 0.08),
    "crop": int,
    "flip": lambda text: float(text or 0.5),
    "brightness": float,
    "contrast": float,
    "saturation": float,
}


def parse_images(text: str) -> ImageConfig:
    """Parse the preprocessing of images.

    Args:
        text: Settings of :class:`ImageConfig`: ``resize=256`` (shorter side) or ``resize=32x48``
            (height, width), ``crop=224``, ``color=rgb``, ``layout=nhwc``,
            ``interpolation=bicubic``, ``normalize=imagenet`` or ``normalize=MEAN/STD``, with one
            number or one per channel: ``normalize=0.5:0.5:0.5/0.2:0.2:0.2``.

    Raises:
        ConfigError: A name is unknown, or a value is invalid.

    Example:
        >>> parse_images("resize=40,crop=32x32,normalize=0.5/0.25").mean
        (0.5,)
    """
    found = _read(text, _IMAGES, "images", _IMAGE_FORM)
    if "normalize" in found:
        found["mean"], found["std"] = found.pop("normalize")
    return ImageConfig(**found)


def parse_augment(text: str) -> AugmentConfig:
    """Parse the random augmentation of training images, the settings of :class:`AugmentConfig`.

    ``flip`` alone means 0.5, ``resized-crop`` alone 0.08.

    Raises:
        ConfigError: A name is unknown, or a value is invalid.

    Example:
        >>> parse_augment("crop=4,flip").flip
        0.5
    """
    return AugmentConfig(**_read(text, _AUGMENT, "augment", _AUGMENT_FORM))


def _read(
    text: str, known: Mapping[str, Callable[[str], Any]], what: str, form: str
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, given, value = part.partition("=")
        where = f"{what} '{text}'"
        require_known(name, known, f"Unknown setting '{name}'.", where, ConfigError)
        field = name.replace("-", "_")
        if field in found:
            raise ConfigError(
                f"'{name}' is given twice.", where=where, fix="Give each setting once."
            )
        wrong = ConfigError(
            f"'{name}' has no valid value ('{value}').", where=where, fix=f"Write it as {form}."
        )
        if given and not value:  # without the sign, some have a usual value
            raise wrong
        try:
            found[field] = known[name](value)
        except ValueError:
            raise wrong from None
    return found
