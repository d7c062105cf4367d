"""Image preprocessing settings: stored in checkpoints and exported files, and applied again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import onnx_ir as ir

from ortboost.api.run_folder import CHECKPOINTS
from ortboost.core.errors import FileError, OrtBoostError
from ortboost.core.field_types import read_config, write_config
from ortboost.core.files import read_json
from ortboost.training import Checkpoint, CheckpointStore
from ortboost.training.data.images import AugmentConfig, ImageConfig, parse_images

__all__ = ["as_images", "former_images", "images_note", "images_of", "trained_data"]

_KEY: Final = "images"
_log = logging.getLogger(__name__)


def as_images(images: ImageConfig | str | None) -> ImageConfig | None:
    """Parse preprocessing settings; see :func:`~ortboost.training.data.images.parse_images`."""
    return parse_images(images) if isinstance(images, str) else images


def images_of(
    found: Checkpoint | ir.Model | None, given: ImageConfig | str | None = None
) -> ImageConfig | None:
    """The image preprocessing stored in a checkpoint or an exported model.

    Args:
        found: The checkpoint or the model; ``None`` has no settings.
        given: Settings to use instead; the class indices of the training are kept.

    Raises:
        FileError: The settings in a model are damaged.
    """
    return _merged(as_images(given), _kept(found))


def trained_data(found: Checkpoint | None) -> Mapping[str, Any]:
    """The fingerprint of the training data in a checkpoint; empty without one."""
    data: Mapping[str, Any] = {} if found is None else found.progress.get("data", {})
    return data


def _merged(given: ImageConfig | None, kept: ImageConfig | None) -> ImageConfig | None:
    """The given settings if any, with the stored class indices unless classes are given."""
    if given is None or kept is None:
        return given or kept
    used = given if given.classes else dataclasses.replace(given, classes=kept.classes)
    fields = [item.name for item in dataclasses.fields(used)]
    if not used.crop:  # that of the input, as it was in the training
        fields.remove("crop")
    other = [name for name in fields if getattr(used, name) != getattr(kept, name)]
    if other:
        _log.warning(
            "the given image settings replace all of those of the training; they differ in %s",
            ", ".join(other),
        )
    return used


def _kept(found: Checkpoint | ir.Model | None) -> ImageConfig | None:
    if isinstance(found, Checkpoint):
        return _read(trained_data(found).get(_KEY))
    note = None if found is None else found.metadata_props.get(f"ortboost.{_KEY}")
    if note is None:
        return None
    try:
        return _read(json.loads(note))
    except (ValueError, OrtBoostError) as error:
        raise FileError(
            "Cannot read the image settings in a model.",
            where=f"metadata ortboost.{_KEY}: {note[:100]}",
            fix="Export it again, or give the settings (--images).",
        ) from error


def images_note(images: ImageConfig | None) -> dict[str, str]:
    """The metadata entry for an exported file, including the class names to label predictions."""
    return {} if images is None else {_KEY: json.dumps(write_config(images))}


def former_images(
    folder: Path, images: ImageConfig | None, augment: AugmentConfig | None
) -> tuple[ImageConfig | None, AugmentConfig | None]:
    """The settings for resuming a run: the given ones, else those of its newest checkpoint."""
    store = CheckpointStore(folder / CHECKPOINTS, writes=False)
    for step in reversed(store.steps()):
        # A damaged checkpoint is reported when it is loaded, not here.
        with contextlib.suppress(OrtBoostError, KeyError, TypeError, AttributeError):
            data: Mapping[str, Any] = read_json(store.path(step))["progress"]["data"]
            before = data.get("augment")
            if augment is None and before is not None:
                augment = read_config(AugmentConfig, before, "augment")
            return _merged(images, _read(data.get(_KEY))), augment
    return images, augment


def _read(data: Any) -> ImageConfig | None:
    return None if data is None else read_config(ImageConfig, data, _KEY)
