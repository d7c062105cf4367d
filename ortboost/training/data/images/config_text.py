"""Image settings in the syntax of the command line, such as ``resize=256,crop=224``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from ortboost.core.errors import ConfigError, require_known
from ortboost.training.data.images.config import NORMALIZATIONS, AugmentConfig, ImageConfig

__all__ = ["IMAGE_FORM", "parse_augment", "parse_images"]

IMAGE_FORM: Final = "resize=256,crop=224,normalize=imagenet"
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
    found = _read(text, _IMAGES, "images", IMAGE_FORM)
    if "normalize" in found:
        found["mean"], found["std"] = found.pop("normalize")
    return ImageConfig(**found)


def parse_augment(text: str) -> AugmentConfig:
    """Parse the random augmentation of training images.

    Args:
        text: Settings of :class:`AugmentConfig`; ``flip`` alone means 0.5, ``resized-crop`` alone
            0.08.

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
        name, _, value = part.partition("=")
        where = f"{what} '{text}'"
        require_known(name, known, f"Unknown setting '{name}'.", where, ConfigError)
        field = name.replace("-", "_")
        if field in found:
            raise ConfigError(
                f"'{name}' is given twice.", where=where, fix="Give each setting once."
            )
        try:
            found[field] = known[name](value)
        except ValueError:
            raise ConfigError(
                f"'{name}' has no valid value ('{value}').", where=where, fix=f"Write it as {form}."
            ) from None
    return found
