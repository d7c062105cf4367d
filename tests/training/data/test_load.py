"""IDX and CIFAR-10 files, and the door that recognises them."""

from __future__ import annotations

import gzip
import struct
import tracemalloc
import zipfile

import numpy as np
import pytest

from ortboost.core.errors import FileError, UsageError
from ortboost.training.data import load_arrays
from ortboost.training.data.cifar import load_cifar
from ortboost.training.data.idx import load_idx


def idx_bytes(array, code=0x08):
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return head + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write_mnist(folder, stem, length, *, zipped=False):
    random = np.random.default_rng(length)
    x = random.integers(0, 256, (length, 4, 5)).astype(np.uint8)
    y = random.integers(0, 10, length).astype(np.uint8)
    for name, array in ((f"{stem}-images-idx3-ubyte", x), (f"{stem}-labels-idx1-ubyte", y)):
        if zipped:
            (folder / f"{name}.gz").write_bytes(gzip.compress(idx_bytes(array)))
        else:
            (folder / name).write_bytes(idx_bytes(array))
    return x, y


def write_cifar(path, length, seed=0):
    random = np.random.default_rng(seed)
    records = random.integers(0, 256, (length, 3073)).astype(np.uint8)
    records[:, 0] = random.integers(0, 10, length)
    path.write_bytes(records.tobytes())
    return records[:, 1:].reshape(length, 3, 32, 32), records[:, 0]


@pytest.mark.parametrize("zipped", [False, True])
def test_mnist_folder_by_split(tmp_path, zipped):
    train = write_mnist(tmp_path, "train", 7, zipped=zipped)
    test = write_mnist(tmp_path, "t10k", 3, zipped=zipped)
    for split, (x, y) in (("train", train), ("test", test), (None, train), ("val", test)):
        loaded = load_arrays(tmp_path, split=split)
        np.testing.assert_array_equal(loaded["x"], x)
        np.testing.assert_array_equal(loaded["y"], y)
    assert isinstance(load_arrays(tmp_path)["x"], np.memmap) is not zipped


def test_either_file_of_the_pair_finds_the_other_also_zipped(tmp_path):
    x, y = write_mnist(tmp_path, "train", 4)
    labels = tmp_path / "train-labels-idx1-ubyte"
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(labels.read_bytes()))
    labels.unlink()
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte.gz"):
        loaded = load_arrays(tmp_path / name)
        np.testing.assert_array_equal(loaded["x"], x)
        np.testing.assert_array_equal(loaded["y"], y)


@pytest.mark.parametrize(
    ("code", "dtype"), [(9, "i1"), (0x0B, "i2"), (0x0C, "i4"), (0x0D, "f4"), (0x0E, "f8")]
)
def test_every_idx_type(tmp_path, code, dtype):
    array = np.arange(-3, 3).astype(dtype).reshape(2, 3)
    (tmp_path / "a-idx").write_bytes(idx_bytes(array, code))
    np.testing.assert_array_equal(load_idx(tmp_path / "a-idx"), array)


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("damage", ["truncated", "longer", "magic", "header", "zero"])
def test_a_bad_idx_file_is_named(tmp_path, damage, zipped):
    raw = idx_bytes(np.zeros((3, 4), np.uint8))
    bad = {
        "truncated": raw[:-1],
        "longer": raw + b"x",
        "magic": b"\1" + raw[1:],
        "header": raw[:7],
        "zero": idx_bytes(np.zeros((0, 4), np.uint8)),
    }[damage]
    path = tmp_path / ("a-idx3-ubyte.gz" if zipped else "a-idx3-ubyte")
    path.write_bytes(gzip.compress(bad) if zipped else bad)
    with pytest.raises(FileError, match="a-idx3-ubyte"):
        load_idx(path)


def test_a_truncated_gzip_is_named(tmp_path):
    path = tmp_path / "a-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros((300, 4), np.uint8)))[:-9])
    with pytest.raises(FileError, match="not a complete IDX file"):
        load_idx(path)


def test_a_missing_or_foreign_partner_is_named(tmp_path):
    write_mnist(tmp_path, "train", 4)
    labels = tmp_path / "train-labels-idx1-ubyte"
    labels.write_bytes(idx_bytes(np.zeros(5, np.uint8)))
    with pytest.raises(FileError, match="The images and the labels do not match"):
        load_arrays(tmp_path)
    labels.unlink()
    with pytest.raises(FileError, match="labels file"):
        load_arrays(tmp_path)


def test_one_cifar_file_is_mapped(tmp_path):
    x, y = write_cifar(tmp_path / "test_batch.bin", 3)
    loaded = load_arrays(tmp_path / "test_batch.bin")
    np.testing.assert_array_equal(loaded["x"], x)
    np.testing.assert_array_equal(loaded["y"], y)
    assert isinstance(loaded["x"], np.memmap)
    assert loaded["x"].dtype == np.uint8


def test_a_cifar_folder_joins_its_batches_in_order(tmp_path):
    parts = [write_cifar(tmp_path / f"data_batch_{i}.bin", 2, i) for i in (1, 2)]
    test = write_cifar(tmp_path / "test_batch.bin", 1)
    loaded = load_arrays(tmp_path, split="train")
    np.testing.assert_array_equal(loaded["x"], np.concatenate([x for x, _ in parts]))
    np.testing.assert_array_equal(loaded["y"], np.concatenate([y for _, y in parts]))
    np.testing.assert_array_equal(load_arrays(tmp_path, split="test")["x"], test[0])


def test_bad_cifar_files_are_named(tmp_path):
    path = tmp_path / "data_batch_1.bin"
    write_cifar(path, 2)
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    with pytest.raises(FileError, match="not a complete CIFAR-10") as caught:
        load_arrays(tmp_path)
    assert "data_batch_1.bin" in str(caught.value)
    path.write_bytes(raw[:3073] + b"\x63" + raw[3074:])
    with pytest.raises(FileError, match="out of range") as caught:
        load_cifar(path)
    assert "record 1, label 99" in str(caught.value)
    with pytest.raises(FileError, match="missing"):
        load_cifar(tmp_path / "no.bin")


def test_npz_by_its_name(tmp_path):
    np.savez(tmp_path / "a.npz", x_train=np.ones(2))
    assert list(load_arrays(tmp_path / "a.npz", split="test")) == ["x_train"]


def test_what_cannot_be_loaded_is_named(tmp_path):
    with pytest.raises(FileError, match="missing"):
        load_arrays(tmp_path / "no.npz")
    (tmp_path / "a.npz").write_bytes(b"")
    with pytest.raises(FileError, match="empty"):
        load_arrays(tmp_path / "a.npz")
    (tmp_path / "a.xlsx").write_text("1,2")
    with pytest.raises(FileError, match=r"Supported: \.npz"):
        load_arrays(tmp_path / "a.xlsx")
    (tmp_path / "d").mkdir()
    with pytest.raises(FileError, match="no data files for the split 'test'"):
        load_arrays(tmp_path / "d", split="test")
    with pytest.raises(UsageError, match="did you mean 'test'"):
        load_arrays(tmp_path, split="tests")


def bomb(path, shape, data):
    """A gzipped IDX file with the header of one shape and other data."""
    head = bytes([0, 0, 0x08, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
    path.write_bytes(gzip.compress(head + data))
    return path


def test_no_more_is_unpacked_than_the_header_says(tmp_path):
    path = bomb(tmp_path / "a-idx1-ubyte.gz", (10,), bytes(64 << 20))
    tracemalloc.start()
    with pytest.raises(FileError, match="specifies 10 data bytes, but it has more"):
        load_idx(path)
    assert tracemalloc.get_traced_memory()[1] < 8 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("shape", [(2**32 - 1,) * 3, (2**32 - 1,) * 8, (3 << 30, 2)])
def test_a_header_beyond_the_limit_is_refused_before_unpacking(tmp_path, shape):
    with pytest.raises(FileError, match="compressed array has") as caught:
        load_idx(bomb(tmp_path / "a-idx3-ubyte.gz", shape, b"1234"))
    assert "ORTBOOST_LIMITS=tensor_bytes=" in caught.value.fix


def test_a_compressed_npz_is_compared_before_it_is_unpacked(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "a.npz", x=np.zeros((1000, 1000)))
    monkeypatch.setenv("ORTBOOST_LIMITS", "tensor_bytes=1000000")
    with pytest.raises(FileError, match="8,000,128 bytes, more than 1,000,000") as caught:
        load_arrays(tmp_path / "a.npz")
    assert "key 'x'" in caught.value.where
    np.savez(tmp_path / "b.npz", x=np.zeros((1000, 1000)))
    assert load_arrays(tmp_path / "b.npz")["x"].shape == (1000, 1000)  # mapped


def test_a_header_that_promises_more_than_the_archive_is_refused(tmp_path):
    good = tmp_path / "good.npy"
    np.save(good, np.zeros(10))
    liar = good.read_bytes().replace(b"(10,)", b"(99,)")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", liar)
    with pytest.raises(FileError, match="damaged") as caught:
        load_arrays(tmp_path / "a.npz")
    assert "its header specifies 920 bytes, but it has 208" in caught.value.where


def test_hidden_files_of_a_folder_are_left_out(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros(3))
    (tmp_path / "._x.npy").write_bytes(b"of another system")
    assert list(load_arrays(tmp_path)) == list(load_arrays(tmp_path / "x.npy")) == ["x"]
