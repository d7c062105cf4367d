"""Images as inputs: the pixels of torchvision, the same for every reader."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from ortboost.core.errors import FileError, OrtBoostError, UsageError
from ortboost.training.data import ArraySource, open_source
from ortboost.training.data.images import AugmentConfig, ImageArray, ImageConfig, parse_images
from ortboost.training.data.images.augment import Draws, crop_box, jittered, random_crop
from ortboost.training.data.images.stores import ArrayImages
from ortboost.training.data.prefetch import work_ahead
from ortboost.training.data.values import convert
from ortboost.training.protocols import InputSpec
from tests.support import assert_same_bits, assert_three_lines, golden

GOLDEN = golden("images")
CASES = json.loads(str(GOLDEN["cases"]))
FLOAT, LONG = np.dtype(np.float32), np.dtype(np.int64)


def inputs(*shape):
    return [InputSpec("x", FLOAT, ("N", *shape)), InputSpec("labels", LONG, ("N",))]


def pixels(number=6, size=(10, 12, 3), seed=0):
    return np.random.Generator(np.random.PCG64(seed)).integers(
        0, 256, (number, *size), dtype=np.uint8
    )


def images(config="", *shape, data=None, augment=None):
    store = ArrayImages(pixels() if data is None else data, "x")
    return ImageArray(store, parse_images(config), augment).fitted(("N", *(shape or (3, 10, 12))))


@pytest.mark.parametrize("name", CASES)
def test_pixels_are_those_of_torchvision(name):
    source, text, shape = CASES[name]
    array = images(text, *shape, data=GOLDEN[source][None])
    assert array.shape == (1, *shape)
    assert_same_bits({"x": convert(array[[0]], FLOAT)[0]}, {"x": GOLDEN[name]})


class Given(Draws):
    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def uniform(self, low, high):
        return low + (high - low) * next(self._numbers)


def test_boxes_are_those_of_torchvision():
    for numbers, (width, height, least, *box) in zip(
        GOLDEN["uniform"].tolist(), GOLDEN["boxes"].tolist(), strict=True
    ):
        assert list(crop_box(Given(numbers), width, height, least / 1000)) == box


@pytest.mark.parametrize(("width", "height"), [(1, 1), (1, 3), (2, 1), (9, 2)])
def test_boxes_of_small_images_are_inside_and_not_empty(width, height):
    for sample in range(200):
        left, top, right, bottom = crop_box(Draws(0, 0, sample), width, height, 0.01)
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height


@pytest.mark.parametrize(
    ("config", "draw", "place"),
    [
        (AugmentConfig(brightness=0.8), 0.75, 0),
        (AugmentConfig(contrast=0.5), 0.1, 1),
        (AugmentConfig(saturation=0.7), 1.0, 2),
    ],
)
def test_colours_are_those_of_torchvision(config, draw, place):
    found = jittered(Given([0.0, draw]), Image.fromarray(GOLDEN["rgb"]), config)
    np.testing.assert_array_equal(np.asarray(found), GOLDEN["jitter"][place])


@pytest.mark.parametrize(
    ("draws", "size", "padding", "top", "left"),
    [
        ([0.0, 0.999], (4, 4), 2, 0, 5),
        ([0.999, 0.0], (4, 4), 2, 4, 0),
        ([0.999, 0.999], (3, 2), 3, 7, 9),
        ([0.5, 0.5], (4, 5), 1, 1, 1),
        ([0.999, 0.5], (1, 1), 0, 3, 2),
    ],
)
def test_a_crop_at_a_random_place_has_zeros_around(draws, size, padding, top, left):
    data = pixels(1, (4, 5, 3))[0]
    found = random_crop(Given(draws), Image.fromarray(data), size, padding)
    around = np.pad(data, [(padding, padding), (padding, padding), (0, 0)])
    wanted = around[top : top + size[0], left : left + size[1]]
    np.testing.assert_array_equal(np.asarray(found), wanted)


@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_bytes_come_back_as_they_are(layout):
    data = pixels()
    shape = (10, 12, 3) if layout == "nhwc" else (3, 10, 12)
    given = data if layout == "nhwc" else data.transpose(0, 3, 1, 2)
    array = images("", *shape, data=given)
    assert array.shape == (6, *shape)
    assert array.dtype == np.uint8
    np.testing.assert_array_equal(np.asarray(array), given)


def test_gray_images_for_a_vector():
    data = pixels(3, (4, 5))
    array = images("", 20, data=data)
    np.testing.assert_array_equal(array[:], data.reshape(3, 20))
    with pytest.raises(UsageError, match="do not have 21 values"):
        images("", 21, data=data)


AUGMENT = AugmentConfig(crop=3, flip=0.5, brightness=0.5, saturation=0.5)


def epoch(number, augment=AUGMENT, seed=3, start=0, **more):
    data = {"x": pixels(9), "y": np.arange(9)}
    source = open_source(
        data,
        inputs(3, 10, 12),
        "train",
        2,
        None,
        shuffle=True,
        seed=seed,
        images=ImageConfig(),
        augment=augment,
        **more,
    )
    return list(source.epoch(number, start))


def by_label(batches):
    found = {}
    for batch in batches:
        found |= dict(zip(batch["labels"].tolist(), batch["x"], strict=True))
    return found


def test_what_varies_is_a_function_of_seed_epoch_and_sample():
    first = by_label(epoch(1))
    for same in (epoch(1), epoch(1, part=(0, 2)) + epoch(1, part=(1, 2))):
        again = by_label(same)
        assert sorted(again) == list(range(9))
        for label, image in again.items():
            np.testing.assert_array_equal(image, first[label])
    for other in (epoch(2), epoch(1, seed=4)):
        changed = [not np.array_equal(im, first[label]) for label, im in by_label(other).items()]
        assert sum(changed) >= 8
    for part, whole in zip(epoch(1, start=3), epoch(1)[3:], strict=True):
        assert_same_bits(part, whole)


def test_every_kind_of_crop_varies_and_keeps_the_size():
    for augment in (AugmentConfig(resized_crop=0.2), AugmentConfig(crop=1), AugmentConfig(flip=1)):
        varied, plain = by_label(epoch(0, augment)), by_label(epoch(0, None))
        assert all(image.shape == (3, 10, 12) for image in varied.values())
        assert any(not np.array_equal(varied[n], plain[n]) for n in varied)
    for label, image in varied.items():
        np.testing.assert_array_equal(image, plain[label][:, :, ::-1])


def test_a_border_as_large_as_the_image_is_refused():
    images(augment=AugmentConfig(crop=9))
    with pytest.raises(UsageError, match="as large as the images, 10x12") as caught:
        images(augment=AugmentConfig(crop=10))
    assert_three_lines(caught.value)


def test_any_number_of_threads_reads_the_same():
    source = open_source(
        {"x": pixels(40), "y": np.arange(40)},
        inputs(3, 10, 12),
        "train",
        3,
        None,
        shuffle=True,
        augment=AUGMENT,
    )
    alone = list(source.epoch(5))
    for batch, other in zip(alone, work_ahead(source.tasks(5), 4, 3), strict=True):
        assert_same_bits(batch, other)


def test_what_is_held_out_does_not_vary():
    data = {"x": pixels(10), "y": np.arange(10)}
    source = open_source(data, inputs(3, 10, 12), "train", 4, None, shuffle=True, augment=AUGMENT)
    assert isinstance(source, ArraySource)
    rest, held_out = source.split(0.4)
    plain = data["x"].transpose(0, 3, 1, 2) / np.float32(255)
    for label, image in by_label(itertools.chain(held_out.epoch(0), held_out.epoch(1))).items():
        np.testing.assert_array_equal(image, plain[label])
    assert any(not np.array_equal(im, plain[n]) for n, im in by_label(rest.epoch(0)).items())


def test_the_settings_are_part_of_the_fingerprint():
    def fingerprint(config, augment):
        return open_source(
            {"x": pixels(), "y": np.arange(6)},
            inputs(3, "H", "W"),
            "train",
            2,
            None,
            images=parse_images(config),
            augment=augment,
        ).fingerprint()

    found = fingerprint("resize=12,crop=8", AUGMENT)
    assert found["images"]["crop"] == [8, 8]
    assert found["augment"]["crop"] == 3
    assert found == json.loads(json.dumps(found))
    assert found != fingerprint("resize=13,crop=8", AUGMENT)
    assert found != fingerprint("resize=12,crop=8", None)


@pytest.mark.parametrize(
    ("config", "shape", "what"),
    [
        ("crop=9x12", (3, 10, 12), "has 10x12 pixels, not 9x12"),
        ("resize=8", (3, 10, 12), "do not cover"),
        ("resize=9x20", (3, 10, 12), "do not cover"),
        ("resize=20", (3, "H", "W"), "of any size, and resize=20 sets the shorter side only"),
        ("", ("C", "H", "W"), "The channel axis of the input is ambiguous"),
        ("", (4, 10, 12), "The channel axis of the input is ambiguous"),
        ("color=gray", (3, 10, 12), "3 channels does not accept gray images"),
        ("layout=nchw", (4, 10, 12), "4 channels does not accept images"),
        ("normalize=1:2:3/1:1:1,color=gray", (1, 10, 12), "means of 3 channels"),
    ],
)
def test_settings_that_do_not_fit_the_input(config, shape, what):
    with pytest.raises(UsageError, match=what) as caught:
        images(config, *shape)
    assert_three_lines(caught.value)


def test_colour_and_gray_are_not_mixed_without_a_word():
    with pytest.raises(
        FileError, match="in colour, but the input needs images that are grayscale"
    ) as caught:
        images("", 1, 10, 12)
    assert "'x', row 0" in caught.value.where
    assert_three_lines(caught.value)
    assert images("color=gray", 1, 10, 12)[:].shape == (6, 1, 10, 12)


def test_an_open_size_is_that_of_the_images():
    array = images("", 3, "H", "W")
    assert array.shape == (6, 3, 10, 12)
    assert array.config.crop == (10, 12)


def test_images_that_are_to_vary_must_be_there():
    data = {"x": np.zeros((4, 3, 10, 12), np.float32), "y": np.zeros(4)}
    with pytest.raises(OrtBoostError, match="There are no images to augment"):
        open_source(data, inputs(3, 10, 12), "train", 2, None, augment=AUGMENT)


@pytest.mark.parametrize("dtype", ["uint8", "int64"])
def test_labels_of_pixels_are_not_images(dtype):
    """Byte labels were resized, brightened and normalised; others did not move with the image."""
    labels = np.arange(6 * 120).reshape(6, 10, 12).astype(np.uint8).astype(dtype)
    specs = [inputs(3, 10, 12)[0], InputSpec("labels", LONG, ("N", 10, 12))]

    def opened(text, augment=None):
        data = {"x": pixels(), "y": labels}
        settings = {"images": parse_images(text), "augment": augment}
        return open_source(data, specs, "train", 6, None, **settings)

    for source in (
        opened("resize=14,normalize=0.5/0.5"),
        opened("", AugmentConfig(brightness=0.9, contrast=0.5, saturation=0.5)),
    ):
        np.testing.assert_array_equal(next(source.epoch(0))["labels"], labels)
    for augment in (AUGMENT, AugmentConfig(flip=0.1), AugmentConfig(resized_crop=0.5)):
        with pytest.raises(UsageError, match="without their labels") as caught:
            opened("", augment)
        assert_three_lines(caught.value)


def test_settings_that_numbers_ignore_are_told(caplog):
    data = {"x": np.zeros((4, 3, 10, 12), np.float32), "y": np.zeros(4)}
    open_source(data, inputs(3, 10, 12), "train", 2, None, images=ImageConfig())
    assert "no images: the image settings" in caplog.text
