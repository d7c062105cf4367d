"""Folders of images: classes, files, and what is wrong with one of them."""

from __future__ import annotations

import struct
import sys
import zlib

import numpy as np
import pytest
from PIL import Image

from ortboost.core.errors import DependencyError, FileError
from ortboost.training.data import load_arrays, open_source
from ortboost.training.data.images import ImageConfig, parse_augment, parse_images
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

SPECS = [
    InputSpec("x", np.dtype(np.float32), ("N", 3, 6, 6)),
    InputSpec("labels", np.dtype(np.int64), ("N",)),
]


def picture(path, size=(6, 6), mode="RGB", seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = len(Image.new(mode, (1, 1)).getbands())
    data = np.random.Generator(np.random.PCG64(seed)).integers(
        0, 256, (size[1], size[0], channels), dtype=np.uint8
    )
    Image.fromarray(data[:, :, 0] if channels == 1 else data).save(path)
    return data


@pytest.fixture
def folder(tmp_path):
    for seed, name in enumerate(("dog/b.png", "cat/2.png", "cat/10.bmp", "cat/more/1.png")):
        picture(tmp_path / name, seed=seed)
    return tmp_path


def source(path, **arguments):
    return open_source(path, SPECS, "train", 2, None, **arguments)


def test_classes_are_sorted_and_so_are_files(folder):
    found = source(folder)
    batches = list(found.epoch(0))
    assert np.concatenate([batch["labels"] for batch in batches]).tolist() == [0, 0, 0, 1]
    assert found.images.classes == ("cat", "dog")
    names = ("cat/10.bmp", "cat/2.png", "cat/more/1.png", "dog/b.png")
    wanted = [np.asarray(Image.open(folder / name)) for name in names]
    pixels = np.concatenate([batch["x"] for batch in batches])
    np.testing.assert_array_equal(pixels, np.stack(wanted).transpose(0, 3, 1, 2) / np.float32(255))


def test_what_is_no_image_is_left_out_and_told(folder, caplog):
    (folder / "cat" / "notes.txt").write_text("x")
    (folder / "cat" / ".hidden.png").write_text("x")
    assert source(folder).length == 4
    assert "skipped 2 files of another format" in caplog.text


def test_classes_that_were_trained_keep_their_numbers(folder):
    known = ImageConfig(classes=("ape", "cat", "dog"))
    labels = np.concatenate([batch["labels"] for batch in source(folder, images=known).epoch(0)])
    assert labels.tolist() == [1, 1, 1, 2]
    with pytest.raises(FileError, match="'dog' is not a class of the training") as caught:
        source(folder, images=ImageConfig(classes=("cat", "dogs")))
    assert "did you mean 'dogs'" in caught.value.fix
    assert_three_lines(caught.value)


def test_splits_are_folders_too(folder, tmp_path_factory):
    parent = tmp_path_factory.mktemp("both")
    names = ("train/a/1.png", "train/b/2.png", "val/a/3.png", "val/b/4.png", "val/b/5.png")
    for seed, name in enumerate(names):
        picture(parent / name, seed=seed)
    assert len(load_arrays(parent, split="train")["labels"]) == 2
    assert len(load_arrays(parent, split="test")["labels"]) == 3


@pytest.mark.parametrize(
    "names",
    [("train", "valid"), ("Train", "Test"), ("training", "testing"), ("train", "val", "extra")],
)
def test_folders_that_may_be_splits_are_not_taken_for_classes(tmp_path, names):
    for name in names:
        picture(tmp_path / name / "a" / "1.png")
        picture(tmp_path / name / "b" / "2.png")
    with pytest.raises(FileError, match="could be classes or splits") as caught:
        source(tmp_path)
    assert_three_lines(caught.value)


def test_a_train_may_be_a_class(folder):
    picture(folder / "train" / "1.png")
    assert source(folder).images.classes == ("cat", "dog", "train")


def test_folders_that_other_programs_leave_behind_are_no_classes(folder):
    picture(folder / ".ipynb_checkpoints" / "1.png")
    picture(folder / "__MACOSX" / "cat" / "2.png")
    picture(folder / "cat" / ".ipynb_checkpoints" / "2-checkpoint.png")
    found = source(folder)
    assert (found.length, found.images.classes) == (4, ("cat", "dog"))


def test_links_to_folders_are_followed_but_not_in_a_circle(folder, tmp_path_factory):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    picture(elsewhere / "1.png")
    (folder / "dog" / "link").symlink_to(elsewhere)
    (folder / "dog" / "above").symlink_to(folder / "dog")
    (folder / "cat" / "above").symlink_to("..")
    assert load_arrays(folder)["labels"].tolist() == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("kind", ["ppm", "png"])
def test_colours_of_16_bits_are_not_cut_to_8(folder, kind):
    path = folder / "dog" / f"deep.{kind}"
    if kind == "ppm":
        path.write_bytes(b"P6 6 6 65535\n" + bytes(range(216)))
    else:
        rows = b"".join(b"\0" + bytes(range(36)) for _ in range(6))
        header = struct.pack(">IIBBBBB", 6, 6, 16, 2, 0, 0, 0)
        chunks = [(b"IHDR", header), (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
        path.write_bytes(
            b"\x89PNG\r\n\x1a\n"
            + b"".join(
                struct.pack(">I", len(data))
                + name
                + data
                + struct.pack(">I", zlib.crc32(name + data))
                for name, data in chunks
            )
        )
    for settings in (None, ImageConfig(color="rgb")):
        with pytest.raises(FileError, match=r"more than 8 bits .*RGB;16") as caught:
            source(folder, images=settings)
        assert caught.value.where == str(path)


def bad(folder, kind):
    path = folder / "dog" / "bad.png"
    if kind == "gray":
        picture(path, mode="L")
    elif kind == "16 bits":
        Image.fromarray(np.zeros((6, 6), np.uint16)).save(path)
    elif kind == "transparent":
        picture(path, mode="RGBA")
    elif kind.startswith("cut"):  # its header is whole
        path = path.with_suffix(f".{kind.removeprefix('cut ')}")
        picture(path, size=(60, 60))
        path.write_bytes(path.read_bytes()[:3000])
    elif kind == "bomb":
        Image.new("1", (20_000, 20_000)).save(path)
    else:
        path.write_bytes(b"no image" * 9)
    return path


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("gray", "An image is grayscale, but the input needs images that are in colour"),
        ("16 bits", "pixels of more than 8 bits"),
        ("transparent", "An image is RGBA"),
        ("bomb", "more pixels than Pillow decodes"),
        ("text", "cannot be read"),
        ("cut png", "cannot be read"),
        ("cut jpg", "cannot be read"),
    ],
)
def test_a_bad_file_is_named_before_anything_is_decoded(folder, kind, what):
    path = bad(folder, kind)
    with pytest.raises(FileError, match=what) as caught:
        source(folder)
    assert str(path) in caught.value.where
    assert_three_lines(caught.value)


def test_damage_that_only_decoding_shows_is_named_then(folder):
    path = bad(folder, "cut bmp")
    found = source(folder, images=parse_images("resize=6,crop=6"))
    with pytest.raises(FileError, match="cannot be read") as caught:
        list(found.epoch(0))
    assert str(path) in caught.value.where
    assert_three_lines(caught.value)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_what_follows_the_end_of_an_image_is_no_damage(folder, suffix):
    path = folder / "cat" / f"more.{suffix}"
    picture(path)
    path.write_bytes(path.read_bytes() + bytes(10_000))
    assert len(list(source(folder).epoch(0))) == 3


@pytest.mark.parametrize("kind", ["gray", "transparent"])
def test_all_are_converted_where_it_is_said(folder, kind):
    bad(folder, kind)
    assert source(folder, images=parse_images("color=rgb")).length == 5


def test_one_class_is_none_and_an_empty_one_too(tmp_path):
    picture(tmp_path / "only" / "1.png")
    with pytest.raises(FileError, match="only one class of images, 'only'") as caught:
        source(tmp_path)
    assert_three_lines(caught.value)
    (tmp_path / "void").mkdir()
    with pytest.raises(FileError, match="'void' has no images"):
        source(tmp_path)


def test_a_changed_file_is_another_data_set(folder):
    before = source(folder).fingerprint()
    assert source(folder).fingerprint() == before
    picture(folder / "cat" / "2.png", seed=9)
    assert source(folder).fingerprint() != before


def test_without_pillow_it_says_what_to_install(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(DependencyError, match="read with Pillow") as caught:
        source(folder)
    assert "ortboost[images]" in caught.value.fix
    assert_three_lines(caught.value)


def test_images_vary_from_files_too(folder):
    varied = source(folder, augment=parse_augment("resized-crop=0.3,flip"), shuffle=True)
    assert next(varied.epoch(0))["x"].shape == (2, 3, 6, 6)
