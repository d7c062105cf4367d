"""Images as a lazy array: decoded, resized and normalised on access.

For an image of w x h pixels and a crop of tw x th:

    colour:   unchanged, or Pillow's ``convert("RGB")``, ``convert("L")``
    size:     resize=s: the shorter side s, the longer int(s * longer / shorter); resize=HxW: both;
              no resize: unchanged if it equals the crop, else scaled to cover it, by
              max(tw / w, th / h), rounded. Pillow's ``Image.resize``, with its antialiasing
    crop:     from round((w - tw) / 2), round((h - th) / 2), half to even
    values:   (pixel / 255 - mean) / std in float32, or the bytes

This equals torchvision's ``Resize``, ``CenterCrop``, ``ToTensor`` and ``Normalize`` for a Pillow
image, bit by bit (``tools/golden/torchvision_images.py``). As there, the EXIF orientation is
ignored. Training images are augmented before the last step, see
:mod:`ortboost.training.data.images.augment`.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import numpy as np

from ortboost.core.errors import FileError, UsageError
from ortboost.training.data.images.augment import Draws, crop_box, jittered, random_crop
from ortboost.training.data.images.config import AugmentConfig, ImageConfig
from ortboost.training.data.images.stores import ArrayImages, Header, Store, header_of
from ortboost.training.data.lazy import LazyArray, Wanted, as_array_like, lazy_of
from ortboost.training.protocols import Array

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["ImageArray", "as_images"]

_KINDS: Final = {"1": "gray", "L": "gray", "RGB": "rgb", "P": "rgb"}
_CONVERTIBLE: Final = {*_KINDS, "LA", "PA", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV"}
_CHANNELS: Final = {"gray": 1, "rgb": 3}
_MODES: Final = {"gray": "L", "rgb": "RGB"}
_log = logging.getLogger(__name__)
_FIX: Final = "Set color=rgb or color=gray (--images color=rgb) to convert all images"


class ImageArray(LazyArray):
    """Images as an array ``[N, C, H, W]`` or ``[N, H, W, C]``; also ``[N, H, W]``, ``[N, H * W]``.

    The last two are for greyscale images. The shape is known after :meth:`fitted`.

    Args:
        store: The source of the images.
        config: Preprocessing of images.
        augment: Random augmentation of training images, if any.
    """

    decodes: ClassVar[bool] = True
    finite: ClassVar[bool] = True

    def __init__(self, store: Store, config: ImageConfig, augment: AugmentConfig | None = None):
        super().__init__((len(store),), np.dtype(np.float32 if config.mean else np.uint8))
        self._store, self.config, self.augment = store, config, augment
        self._epoch: tuple[int, int] | None = None
        self._kind, self._layout, self._numbers = "rgb", "nchw", _numbers(config, 3)

    def in_epoch(self, seed: int, epoch: int) -> ImageArray:
        """A view with the random augmentation of an epoch."""
        if self.augment is None:
            return self
        found = copy.copy(self)
        found._epoch = (seed, epoch)
        return found

    def fitted(self, wanted: Wanted) -> ImageArray:
        """A view with the axes, channels and size of an input; checks all known image headers.

        Raises:
            UsageError: The layout or size is ambiguous, or an image does not fit.
        """
        found, headers = copy.copy(self), self._store.headers()
        config = self.config
        found._layout = config.layout if len(wanted) == 4 else ("nhw" if len(wanted) == 3 else "n")
        if found._layout == "auto":
            found._layout = _layout(wanted)
        # None for an axis that the input lacks: of channels in "nhw", and all of them in "n".
        lengths = dict(zip(found._layout, wanted, strict=False))
        channels, height, width = (lengths.get(axis) for axis in "chw")
        flat = found._layout in ("nhw", "n")
        found._kind = _kind(config, 1 if flat else channels, headers[0])
        size = _size(config, height, width, headers)
        # One number is the shorter side: the crop must fit into a square of it.
        square = len(config.resize) == 1
        sides = config.resize * 2 if square else config.resize
        if any(have < want for have, want in zip(sides, size, strict=False)):  # () without resize
            given = "x".join(map(str, config.resize))
            raise UsageError(
                f"Images of {given} pixels do not cover a crop of {size[0]}x{size[1]}.",
                where=f"images: resize={given}",
                fix=f"Use resize={max(size) if square else f'{size[0]}x{size[1]}'} or more "
                "(--images).",
            )
        border = (self.augment and self.augment.crop) or 0
        if border >= min(size):  # a crop of the border alone
            raise UsageError(
                f"A border of {border} zeros is as large as the images, {size[0]}x{size[1]}.",
                where=f"augment: crop={border}",
                fix="Use a few pixels, such as crop=4 (--augment).",
            )
        found.config = dataclasses.replace(config, crop=size)
        for header in headers:
            found._check(header)
        number = _CHANNELS[found._kind]
        axes = {"c": number, "h": size[0], "w": size[1], "n": len(self)}
        shape: tuple[int, ...] = (len(self), size[0] * size[1])
        if found._layout != "n":
            shape = tuple(axes[axis] for axis in found._layout)
        found.shape, found._numbers = shape, _numbers(config, number)
        if found._layout == "n" and isinstance(wanted[1], int) and wanted[1] != shape[1]:
            raise UsageError(
                f"Images of {size[0]}x{size[1]} pixels do not have {wanted[1]} values.",
                where=headers[0].name,
                fix="Set the size that the model was made for, such as crop=28 (--images).",
            )
        return found

    def read(self, rows: Array) -> Array:
        """Decode and preprocess images."""
        found = np.empty((len(rows), *self.shape[1:]), self.dtype)
        for place, row in enumerate(rows.tolist()):
            found[place] = self._pixels(row).reshape(self.shape[1:])
        return found

    def checksum(self) -> int:
        """A checksum of the stored images, before preprocessing."""
        return self._store.checksum()

    def _pixels(self, row: int) -> Array:
        image = self._store.load(row)
        self._check(header_of(image, self._store.name(row)))
        if image.mode != _MODES[self._kind]:
            image = image.convert(_MODES[self._kind])
        if self._epoch is not None and self.augment is not None:
            image = self._varied(image, Draws(*self._epoch, row), self.augment)
        else:
            image = self._centre(self._resized(image))
        pixels = np.asarray(image)  # [H, W] or [H, W, C], uint8
        pixels = pixels[:, :, None] if pixels.ndim == 2 else pixels
        if self._numbers is not None:  # a table of 256 values per channel: faster than computing
            pixels = self._numbers[pixels, np.arange(pixels.shape[2])]
        return pixels.transpose(2, 0, 1) if self._layout == "nchw" else pixels

    def _varied(self, image: Image, draws: Draws, augment: AugmentConfig) -> Image:
        tall, wide = self.config.crop
        # Another order of the draws (crop, flip, colours) would change every run.
        if augment.resized_crop is not None:
            box = crop_box(draws, *image.size, augment.resized_crop)
            image = image.crop(box).resize((wide, tall), self._filter)
        elif augment.crop is not None:
            image = random_crop(draws, self._resized(image), (tall, wide), augment.crop)
        else:
            image = self._centre(self._resized(image))
        if draws.uniform(0, 1) < augment.flip:
            from PIL.Image import Transpose

            image = image.transpose(Transpose.FLIP_LEFT_RIGHT)
        return jittered(draws, image, augment)

    @property
    def _filter(self) -> Any:
        from PIL.Image import Resampling

        return Resampling[self.config.interpolation.upper()]

    def _resized(self, image: Image) -> Image:
        tall, wide = self.config.crop
        width, height = image.size
        if len(self.config.resize) == 2:
            size = self.config.resize[1], self.config.resize[0]
        elif self.config.resize:
            short = self.config.resize[0]
            if width <= height:
                size = short, int(short * height / width)
            else:
                size = int(short * width / height), short
        else:
            scale = max(wide / width, tall / height)
            size = max(wide, round(width * scale)), max(tall, round(height * scale))
        return image if size == image.size else image.resize(size, self._filter)

    def _centre(self, image: Image) -> Image:
        tall, wide = self.config.crop
        left, top = round((image.width - wide) / 2), round((image.height - tall) / 2)
        return image.crop((left, top, left + wide, top + tall))

    def _check(self, header: Header) -> None:
        """Check that an image has the expected colours."""
        kind = _KINDS.get(header.mode)
        if header.mode in _CONVERTIBLE if self.config.color != "auto" else kind == self._kind:
            return
        if header.mode not in _CONVERTIBLE:
            raise FileError(
                f"An image has pixels of more than 8 bits or of an unknown kind ({header.mode}).",
                where=header.name,
                fix="Write it with 8 bits per channel, or store arrays (.npz).",
            )
        words = {"gray": "grayscale", "rgb": "in colour"}
        raise FileError(
            f"An image is {words.get(kind or '', header.mode)}, but the input needs images "
            f"that are {words[self._kind]}.",
            where=header.name,
            fix=f"{_FIX}, or remove it from the data.",
        )


def as_images(
    arrays: Mapping[str, Array],
    labels: Collection[str],
    config: ImageConfig,
    augment: AugmentConfig | None,
    where: str,
) -> dict[str, Array]:
    """Treat uint8 arrays with the shape of images as images.

    Those that are labels are never images: resizing would mix classes.

    Raises:
        UsageError: ``augment`` is set, but there are no images, or it would move their pixels but
            not the labels of these pixels.
    """
    found = dict(arrays)
    for name, array in arrays.items():
        if isinstance(lazy_of(array), ImageArray):
            continue
        if name in labels:
            moves = augment is not None and augment.moves
            if moves and array.ndim > 2:
                raise UsageError(
                    "Images cannot be cropped or flipped at random without their labels.",
                    where=f"{where}: '{name}', {list(array.shape)}",
                    fix="Keep only brightness, contrast and saturation in --augment; or vary "
                    "images and labels in a data set of your own.",
                )
        elif ArrayImages.suits(array):
            found[name] = as_array_like(ImageArray(ArrayImages(array, name), config, augment))
    if not any(isinstance(lazy_of(array), ImageArray) for array in found.values()):
        if augment is not None:
            raise UsageError(
                "There are no images to augment.",
                where=where,
                fix="Use a folder of images or an array of bytes (uint8, [N, H, W, C]); or omit "
                "--augment.",
            )
        _log.warning(
            "%s: no images: the image settings do not apply, values are used unchanged", where
        )
    return found


def _numbers(config: ImageConfig, channels: int) -> Array | None:
    """The value of each byte in each channel, ``[256, channels]``."""
    if not config.mean:
        return None
    if len(config.mean) not in (1, channels):
        raise UsageError(
            f"There are means of {len(config.mean)} channels, but the images have {channels}.",
            where="images: normalize",
            fix="Use one number, or one per channel: normalize=0.5/0.5 (--images).",
        )
    pixels = np.arange(256, dtype=np.float32)[:, None] / np.float32(255)
    mean, std = np.array(config.mean, np.float32), np.array(config.std, np.float32)
    found: Array = np.broadcast_to((pixels - mean) / std, (256, channels))
    return found


def _layout(wanted: Wanted) -> str:
    first, last = wanted[1] in (1, 3), wanted[3] in (1, 3)
    if first == last:
        raise UsageError(
            "The channel axis of the input is ambiguous.",
            where=f"input [{', '.join(map(str, wanted))}]",
            fix="Set layout=nchw or layout=nhwc (--images).",
        )
    return "nchw" if first else "nhwc"


def _kind(config: ImageConfig, channels: int | str | None, first: Header) -> str:
    """``rgb`` or ``gray``, from the input's channels, the configuration, or the first image."""
    named = {1: "gray", 3: "rgb"}
    kind = config.color if config.color != "auto" else _KINDS.get(first.mode, "rgb")
    if isinstance(channels, int):
        wanted = named.get(channels)
        if wanted is None or (config.color != "auto" and wanted != kind):
            raise UsageError(
                f"An input of {channels} channels does not accept "
                f"{'' if wanted is None else kind + ' '}images.",
                where="images: color",
                fix="Omit color." if wanted else "Use arrays (.npz, .npy).",
            )
        return wanted
    return kind


def _size(
    config: ImageConfig, height: int | str | None, width: int | str | None, headers: Any
) -> tuple[int, int]:
    """Height and width of the crop."""
    fixed = tuple(side if isinstance(side, int) else None for side in (height, width))
    size = config.crop or (config.resize if len(config.resize) == 2 else ())
    if not config.crop and None not in fixed:
        size = fixed  # type: ignore[assignment]
    if not size:
        sizes = sorted({(header.height, header.width) for header in headers})
        if len(sizes) > 1 or config.resize:
            why = (
                "these have different sizes"
                if len(sizes) > 1
                else f"resize={config.resize[0]} sets the shorter side only"
            )
            shown = [f"{h}x{w}" for h, w in sizes[:3]] + ["..."] * (len(sizes) > 3)
            crop = config.resize[0] if config.resize else min(map(min, sizes))
            raise UsageError(
                f"The model accepts images of any size, and {why}.",
                where=f"images: {', '.join(shown)}",
                fix=f"Set the size: crop={crop} (--images).",
            )
        size = next(iter(sizes))
    if any(want is not None and want != have for want, have in zip(fixed, size, strict=True)):
        raise UsageError(
            f"The input has {'x'.join('?' if s is None else str(s) for s in fixed)} pixels, not "
            f"{size[0]}x{size[1]}.",
            where="images: crop",
            fix="Omit crop: the size is that of the input.",
        )
    return size[0], size[1]
