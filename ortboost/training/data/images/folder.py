"""Image folders with one folder per class: ``DIR/cat/1.png``, as in torchvision's ``ImageFolder``.

The classes are the sorted names of the folders. The files of a class, including those in
subfolders, are ordered by path. ``DIR/train`` and ``DIR/val`` (or ``test``, ``validation``) are
used as splits if all folders have such names. Hidden folders (``.ipynb_checkpoints``) and
``__MACOSX``, which other programs leave behind, are neither classes nor searched.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np

from ortboost.core.errors import FileError, require_known
from ortboost.core.printable import count_of
from ortboost.training.data.images.array import ImageArray
from ortboost.training.data.images.config import AugmentConfig, ImageConfig
from ortboost.training.data.images.stores import FileImages
from ortboost.training.data.keys import SPLIT_NAMES
from ortboost.training.data.lazy import as_array_like
from ortboost.training.protocols import Array

__all__ = ["find_images", "load_images"]

SUFFIXES: Final = frozenset(
    {".bmp", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"}
)
# In lower case: names of splits, and other usual ones, which are hardly those of classes.
_SPLITS: Final = {name for names in SPLIT_NAMES.values() for name in names}
_LIKE_SPLITS: Final = _SPLITS | {"dev", "eval", "holdout", "testing", "training", "valid"}
_log = logging.getLogger(__name__)


def find_images(folder: Path, split: str) -> Path | None:
    """The folder with the class folders, or None if none of them has images.

    Raises:
        FileError: It is unknown whether the folders are classes or splits.
    """
    names = _folders(folder)
    if names and _SPLITS.issuperset(names):
        chosen = next((name for name in SPLIT_NAMES[split] if name in names), None)
        return None if chosen is None else find_images(folder / chosen, split)
    if not any(_is_image(os.path.basename(f)) for name in names for f in _files(folder / name)):
        return None
    doubtful = [name for name in names if name.lower() in _LIKE_SPLITS]
    if len(doubtful) > 1:  # a single one may well be a class: a train, a test
        raise FileError(
            f"The folders {' and '.join(doubtful[:3])} could be classes or splits.",
            where=str(folder),
            fix="Name the splits train, val and test, without other folders beside them; or pass "
            "one of them: "
            f"{folder / doubtful[0]}.",
        )
    return folder


def _folders(folder: Path) -> list[str]:
    return sorted(e.name for e in os.scandir(folder) if e.is_dir() and not _is_left_over(e.name))


def _files(folder: Path) -> Iterator[str]:
    """The files of a folder and its subfolders, links to folders included, in order."""

    def walk() -> Iterator[tuple[str, list[str]]]:
        for root, folders, files in os.walk(folder, followlinks=True):
            yield root, files
            # A link to a folder above would never end.
            above = f"{os.path.realpath(root)}/"
            folders[:] = [
                name
                for name in folders
                if not _is_left_over(name)
                and not above.startswith(f"{os.path.realpath(os.path.join(root, name))}/")
            ]

    for root, files in sorted(walk()):
        yield from (os.path.join(root, file) for file in sorted(files))


def load_images(
    folder: Path, config: ImageConfig, augment: AugmentConfig | None = None
) -> dict[str, Array]:
    """The images of a folder with one folder per class, and their class indices.

    The classes of the configuration, if set, define the class indices.

    Returns:
        ``images``, an :class:`ImageArray`, and ``labels``, int64.

    Raises:
        FileError: A file is not an image, a folder is empty or not a known class, or there is only
            one class.
    """
    classes = _folders(folder)
    if not config.classes and len(classes) < 2:
        raise FileError(
            f"There is only one class of images, '{classes[0]}'.",
            where=str(folder),
            fix="Use one folder per class: DIR/cat/1.png, DIR/dog/2.png.",
        )
    numbers = {name: number for number, name in enumerate(config.classes or classes)}
    paths, labels, others = list[str](), list[int](), 0
    for name in classes:
        what = f"The folder '{name}' is not a class of the training."
        require_known(name, numbers, what, str(folder / name), FileError)
        files = list(_files(folder / name))
        found = [file for file in files if _is_image(os.path.basename(file))]
        others += len(files) - len(found)
        if not found:
            raise FileError(
                f"The folder of the class '{name}' has no images.",
                where=str(folder / name),
                fix=f"Fill or remove it; the image formats are {', '.join(sorted(SUFFIXES))}.",
            )
        paths += found
        labels += [numbers[name]] * len(found)
    if others:
        _log.warning("%s: skipped %s of another format", folder, count_of(others, "file"))
    named = dataclasses.replace(config, classes=config.classes or tuple(classes))
    images = ImageArray(FileImages(paths, folder), named, augment)
    return {"images": as_array_like(images), "labels": np.array(labels, np.int64)}


def _is_left_over(name: str) -> bool:
    return name.startswith(".") or name == "__MACOSX"


def _is_image(name: str) -> bool:
    return not name.startswith(".") and os.path.splitext(name)[1].lower() in SUFFIXES
