import functools
import pickle
from concurrent.futures import ThreadPoolExecutor

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ortboost.core import tensor_file
from ortboost.core.tensor_file import (
    Overlay,
    Selection,
    TensorFile,
    form_of,
    pieces_of,
    rows_of,
    write_tensors,
)


@pytest.fixture
def stored(tmp_path):
    rng = np.random.default_rng(0)
    dtypes = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"
    arrays = {name: rng.integers(0, 2, (3, 4)).astype(name) for name in dtypes.split()}
    arrays |= {"half": rng.standard_normal((2, 5)).astype(ml_dtypes.bfloat16)}
    arrays |= {"scalar": np.array(3.5), "empty": np.zeros((0, 4), np.float32)}
    path = tmp_path / "state.safetensors"
    save_file(arrays, path, metadata={"step": "7"})
    return path, arrays


def test_it_reads_what_safetensors_reads(stored):
    path, arrays = stored
    found, expected = TensorFile(path), load_file(path)
    assert set(found) == set(expected) == set(arrays)
    assert len(found) == len(arrays)
    assert dict(found.metadata) == {"step": "7"}
    for name, array in expected.items():
        assert found.form(name) == (array.shape, array.dtype)
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(found[name], arrays[name])
        assert found[name].flags.writeable


def test_each_access_is_an_array_of_its_own(stored):
    found = TensorFile(stored[0])
    before = found["float32"].copy()
    found["float32"][:] = 9
    np.testing.assert_array_equal(found["float32"], before)


def test_a_pickled_one_has_its_contents(stored):
    """Another process must not read what has replaced the file since."""
    path, arrays = stored
    form = pickle.dumps(TensorFile(path))
    path.unlink()
    found = pickle.loads(form)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)


def test_a_selection_hides_the_other_tensors(stored):
    found = Selection(TensorFile(stored[0]), ["half", "bool"])
    assert list(found) == ["half", "bool"]
    assert len(found) == 2
    assert "int8" not in found
    for read in (found.__getitem__, functools.partial(form_of, found)):
        with pytest.raises(KeyError):
            read("int8")


def test_asking_for_a_name_reads_nothing(stored, monkeypatch):
    found = TensorFile(stored[0])
    monkeypatch.setattr(TensorFile, "_read", None)
    assert "float32" in found
    assert "float32" in Overlay({}, found)
    assert "none" not in found
    assert "none" not in Overlay({}, found)


def test_threads_read_at_the_same_time(tmp_path):
    path = tmp_path / "large"
    write_tensors(path, {str(i): np.full(2**18, i, np.float32) for i in range(8)})
    found = TensorFile(path)
    before = found._file.tell()

    def is_right(i):
        return bool((found[str(i % 8)] == i % 8).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(is_right, range(400)))
    assert found._file.tell() == before  # the position is one for all threads: none may use it


def test_metadata_may_be_null(tmp_path):
    path = tmp_path / "null"
    header = b'{"__metadata__":null}'
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    assert dict(TensorFile(path).metadata) == {}


def test_rows_without_elements(tmp_path):
    path = tmp_path / "rows"
    write_tensors(path, {"x": np.zeros((3, 0), np.float32)})
    assert TensorFile(path).rows("x", range(2)).shape == (2, 0)


def test_a_new_file_of_the_same_name_changes_nothing(stored):
    path, arrays = stored
    found = TensorFile(path)
    other = path.with_name("new")
    save_file({name: np.zeros_like(array) for name, array in arrays.items()}, other)
    other.replace(path)
    np.testing.assert_array_equal(found["float32"], arrays["float32"])


@pytest.mark.parametrize("cut", [0, 4, 100, -1])
def test_a_damaged_file_is_refused(stored, cut):
    path, _ = stored
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"\w"):
        TensorFile(path)


def test_a_file_that_shrinks_later_is_an_error(stored):
    path, _ = stored
    found = TensorFile(path)
    with open(path, "r+b") as file:
        file.truncate(path.stat().st_size // 4)
    with pytest.raises(OSError, match=r"ends \d+ bytes early"):
        dict(found)


def test_a_type_that_numpy_lacks_is_refused(tmp_path):
    path = tmp_path / "f8.safetensors"
    header = b'{"x":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}'
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0\0")
    with pytest.raises(ValueError, match="'x' has the type F8_E4M3"):
        TensorFile(path)


def test_what_it_writes_safetensors_reads(stored, tmp_path):
    _, arrays = stored
    arrays["turned"] = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    path = tmp_path / "ours.safetensors"
    write_tensors(path, arrays, metadata={"format": "x"})
    found = load_file(path)
    assert set(found) == set(arrays)
    for name, array in arrays.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)
    again = tmp_path / "again.safetensors"
    write_tensors(again, TensorFile(path), metadata={"format": "x"})
    assert again.read_bytes() == path.read_bytes()
    assert dict(TensorFile(again).metadata) == {"format": "x"}


def test_a_type_that_the_format_lacks_is_refused(tmp_path):
    with pytest.raises(ValueError, match="'z' has the type complex128"):
        write_tensors(tmp_path / "z", {"z": np.zeros(2, complex)})


def test_rows_and_pieces_are_read_alone(stored, tmp_path, monkeypatch):
    _, arrays = stored
    path = tmp_path / "ours.safetensors"
    write_tensors(path, arrays)
    found = TensorFile(path)
    monkeypatch.setattr(tensor_file, "_PIECE", 24)
    for name, array in arrays.items():
        pieces = list(pieces_of(found, name))
        assert max((piece.nbytes for piece in pieces), default=0) <= 24
        joined = np.concatenate([np.zeros(0, array.dtype), *pieces])
        np.testing.assert_array_equal(joined, array.reshape(-1))
        if array.ndim:
            for tensors in (arrays, found):
                np.testing.assert_array_equal(
                    rows_of(tensors, name, range(1, len(array))), array[1:]
                )
    copy = tmp_path / "copy.safetensors"
    write_tensors(copy, found)
    assert copy.read_bytes() == path.read_bytes()


def test_an_overlay_hides_and_adds(stored):
    path, arrays = stored
    behind, ones = TensorFile(path), np.ones((2, 2), np.float32)
    found = Overlay({"float32": ones, "new": ones[:1]}, behind)
    assert list(found) == [*behind, "new"]
    assert len(found) == len(behind) + 1
    np.testing.assert_array_equal(found["float32"], ones)
    np.testing.assert_array_equal(found["int8"], arrays["int8"])
    assert form_of(found, "int8") == ((3, 4), np.dtype("int8"))
    np.testing.assert_array_equal(rows_of(found, "int8", range(1, 2)), arrays["int8"][1:2])
    (piece,) = pieces_of(found, "new")
    np.testing.assert_array_equal(piece, [1, 1])
