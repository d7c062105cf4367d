"""Image settings as text."""

from __future__ import annotations

import pytest

from ortboost.core.errors import ConfigError
from ortboost.training.data.images import (
    AugmentConfig,
    ImageConfig,
    parse_augment,
    parse_images,
)
from tests.support import assert_three_lines


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("", ImageConfig()),
        ("resize=256, crop=224", ImageConfig(resize=(256,), crop=(224, 224))),
        ("resize=32x48,crop=24x40", ImageConfig(resize=(32, 48), crop=(24, 40))),
        ("normalize=0.5:0.4:0.3/0.2", None),
        ("normalize=0.5/0.25,color=gray", ImageConfig(mean=(0.5,), std=(0.25,), color="gray")),
        (
            "normalize=imagenet,interpolation=bicubic,layout=nhwc",
            ImageConfig(
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
                interpolation="bicubic",
                layout="nhwc",
            ),
        ),
    ],
)
def test_images(text, config):
    if config is None:
        with pytest.raises(ConfigError, match="3 means and 1 standard"):
            parse_images(text)
    else:
        assert parse_images(text) == config


@pytest.mark.parametrize(
    ("text", "config"),
    [
        ("flip", AugmentConfig(flip=0.5)),
        ("resized-crop,flip=1", AugmentConfig(resized_crop=0.08, flip=1.0)),
        (
            "crop=4,brightness=0.4,contrast=0.3,saturation=0.2",
            AugmentConfig(crop=4, brightness=0.4, contrast=0.3, saturation=0.2),
        ),
    ],
)
def test_augment(text, config):
    assert parse_augment(text) == config


@pytest.mark.parametrize(
    ("parse", "text", "what"),
    [
        (parse_images, "resise=4", "Unknown setting 'resise'"),
        (parse_images, "resize=four", "'resize' has no valid value"),
        (parse_images, "resize=0", "resize"),
        (parse_images, "resize=1x2x3", "'resize' has 3 values"),
        (parse_images, "normalize=0.5", "normalize"),
        (parse_images, "normalize=0.5/0", "std"),
        (parse_images, "normalize=nan/1", "mean"),
        (parse_images, "color=blue", "color"),
        (parse_augment, "flip=2", "flip"),
        (parse_augment, "flip=", "'flip' has no valid value"),
        (parse_augment, "crop=4,resized-crop", "Both random crops"),
        (parse_augment, "resized-crop=0", "resized_crop"),
        (parse_augment, "crop", "'crop' has no valid value"),
    ],
)
def test_what_makes_no_sense(parse, text, what):
    with pytest.raises(ConfigError, match=what) as caught:
        parse(text)
    assert_three_lines(caught.value)
