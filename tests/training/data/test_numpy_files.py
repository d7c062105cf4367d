"""``.npz``: stored members are mapped, compressed ones read, bad ones named; ``.npy``."""

from __future__ import annotations

import pickle
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ortboost.core.errors import FileError
from ortboost.training.data.numpy_files import load_npy, load_npz
from tests.support import assert_three_lines

ARRAYS = {
    "x": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "y": np.array([1, 2], np.int64),
    "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "scalar": np.array(3, np.int16),
    "empty": np.zeros((0, 4), np.float32),
    "flags": np.array([True, False]),
}


def test_stored_members_are_mapped_and_equal(tmp_path):
    np.savez(tmp_path / "a.npz", **ARRAYS)
    loaded = load_npz(tmp_path / "a.npz")
    assert list(loaded) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)
        assert (loaded[name].dtype, loaded[name].shape) == (array.dtype, array.shape)
    assert isinstance(loaded["x"], np.memmap)
    assert loaded["fortran"].flags.f_contiguous
    with pytest.raises(ValueError, match="read-only"):
        loaded["x"][0] = 1


def test_compressed_members_are_read(tmp_path):
    np.savez_compressed(tmp_path / "a.npz", **ARRAYS)
    loaded = load_npz(tmp_path / "a.npz")
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(loaded[name], array)
    assert not isinstance(loaded["x"], np.memmap)


def test_a_local_header_with_another_extra_field_is_followed(tmp_path):
    # Only the local header gets the padding that aligns the data, as some writers do.
    path = tmp_path / "a.npz"
    np.save(tmp_path / "x.npy", ARRAYS["x"])
    info = zipfile.ZipInfo("x.npy")
    info.extra = b"\x00\x00\x08\x00" + b"\0" * 8
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(info, (tmp_path / "x.npy").read_bytes())
        info.extra = b""
    loaded = load_npz(path)["x"]
    assert isinstance(loaded, np.memmap)
    np.testing.assert_array_equal(loaded, ARRAYS["x"])


@given(
    array=hnp.arrays(
        st.sampled_from([np.uint8, np.int32, np.float32, np.dtype(">f8")]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
        elements=st.integers(0, 100),
    ),
    compress=st.booleans(),
)
def test_round_trip(tmp_path_factory, array, compress):
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    (np.savez_compressed if compress else np.savez)(path, a=array)
    loaded = load_npz(path)["a"]
    np.testing.assert_array_equal(loaded, array)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)


@pytest.mark.parametrize(("version", "mapped"), [((1, 0), True), ((2, 0), True), ((3, 0), False)])
def test_every_version_of_the_header_is_read(tmp_path, version, mapped):
    for kind in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w", kind) as archive, archive.open("x.npy", "w") as stream:
            np.lib.format.write_array(stream, ARRAYS["x"], version=version)
        loaded = load_npz(path)["x"]
        assert isinstance(loaded, np.memmap) == (mapped and kind == zipfile.ZIP_STORED)
        np.testing.assert_array_equal(loaded, ARRAYS["x"])


def test_what_has_to_be_unpacked_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTBOOST_LIMITS", "tensor_bytes=1000")
    np.savez(tmp_path / "stored.npz", x=np.zeros(1000))
    assert load_npz(tmp_path / "stored.npz")["x"].shape == (1000,)
    np.savez_compressed(tmp_path / "packed.npz", x=np.zeros(1000))
    with pytest.raises(FileError, match="A compressed array has 8,128 bytes") as caught:
        load_npz(tmp_path / "packed.npz")
    assert "key 'x'" in caught.value.where


def test_objects_are_never_unpickled(tmp_path):
    class Trap:
        def __reduce__(self):
            return (pytest.fail, ("unpickled!",))

    path = tmp_path / "a.npz"
    with zipfile.ZipFile(path, "w") as archive, archive.open("bad.npy", "w") as stream:
        np.lib.format.write_array_header_1_0(
            stream, {"descr": "|O", "fortran_order": False, "shape": (1,)}
        )
        stream.write(pickle.dumps(Trap()))
    with pytest.raises(FileError, match="never loaded") as caught:
        load_npz(path)
    assert "a.npz: key 'bad'" in str(caught.value)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("cut", [1, 30, 200, 100_000])
def test_a_truncated_file_is_named(tmp_path, compress, cut):
    path = tmp_path / "cut.npz"
    (np.savez_compressed if compress else np.savez)(
        path, x=np.random.default_rng(0).normal(size=(100, 100))
    )
    raw = path.read_bytes()
    path.write_bytes(raw[: max(1, len(raw) - cut)])
    with pytest.raises(FileError, match=r"cut\.npz"):
        load_npz(path)


@pytest.mark.parametrize("kind", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_compressed_member_is_named_by_key(tmp_path, kind):
    path, stored = tmp_path / "bad.npz", tmp_path / "stored.npz"
    np.savez(stored, x=np.random.default_rng(0).normal(size=1000))
    with zipfile.ZipFile(stored) as archive, zipfile.ZipFile(path, "w", kind) as made:
        made.writestr("x.npy", archive.read("x.npy"))
    assert load_npz(path)["x"].shape == (1000,)
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 0xFF
    path.write_bytes(raw)
    with pytest.raises(FileError, match="damaged") as caught:
        load_npz(path)
    assert "key 'x'" in str(caught.value)


@pytest.mark.parametrize("where", ["zip header", "npy magic", "npy shape"])
def test_a_damaged_stored_header_is_named_by_key(tmp_path, where):
    path = tmp_path / "bad.npz"
    np.savez(path, x=np.zeros((10, 10), np.float32))
    raw = path.read_bytes()
    old, new = {
        "zip header": (b"PK\x03\x04", b"PK\x03\x05"),
        "npy magic": (b"\x93NUMPY", b"\x93NUMPX"),
        "npy shape": (b"(10, 10)", b"(10, 99)"),
    }[where]
    assert raw.count(old) == 1
    path.write_bytes(raw.replace(old, new))
    with pytest.raises(FileError, match="damaged") as caught:
        load_npz(path)
    assert "key 'x'" in str(caught.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_header_that_is_no_python_is_named_by_key(save, tmp_path):
    save(tmp_path / "d.npz", x=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "d.npz") as archive:
        kind, data = archive.infolist()[0].compress_type, archive.read("x.npy")
    with zipfile.ZipFile(tmp_path / "d.npz", "w", kind) as archive:
        archive.writestr("x.npy", data.replace(b"{'descr'", b"{'descr "))
    with pytest.raises(FileError, match="damaged or of another format") as caught:
        load_npz(tmp_path / "d.npz")
    assert "key 'x'" in caught.value.where


def test_an_archive_without_arrays_and_a_foreign_member_are_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "none.npz", "w"):
        pass
    with pytest.raises(FileError, match="has no arrays"):
        load_npz(tmp_path / "none.npz")
    with zipfile.ZipFile(tmp_path / "text.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(FileError, match="damaged or of another format") as caught:
        load_npz(tmp_path / "text.npz")
    assert "readme.txt" in str(caught.value)


def damaged(path, kind):
    np.save(path, np.arange(6.0))
    raw = path.read_bytes()
    if kind == "objects":
        np.save(path, np.array([{}, None], dtype=object), allow_pickle=True)
    else:
        path.write_bytes({"short": raw[:-9], "header": b"x" * 99, "tiny": raw[:7]}[kind])
    return path


@pytest.mark.parametrize("kind", ["objects", "short", "header", "tiny"])
def test_a_damaged_npy_file_is_named(tmp_path, kind):
    path = damaged(tmp_path / "x.npy", kind)
    with pytest.raises(FileError, match=r"'x.npy' is not a readable .npy file") as caught:
        load_npy(path)
    assert_three_lines(caught.value)
