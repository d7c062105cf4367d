"""Parquet files: columns, row groups, and what is wrong with them."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ortboost.core.errors import DependencyError, FileError
from ortboost.training.data import ArraySource, load_arrays, open_source, parquet
from ortboost.training.data.prefetch import work_ahead
from ortboost.training.protocols import InputSpec
from tests.support import assert_same_bits, assert_three_lines

N = 100
SPECS = [
    InputSpec("x", np.dtype(np.float32), ("N", 2)),
    InputSpec("labels", np.dtype(np.int64), ("N",)),
]
COLUMNS = {
    "a": np.arange(N, dtype=np.float64) / 3,
    "label": np.arange(N, dtype=np.int32),
    "b": np.arange(N, dtype=np.float32) * 2,
}


def write(path, columns=None, rows=10, **more):
    table = pa.table(COLUMNS if columns is None else columns)
    pq.write_table(table, path, row_group_size=rows, **more)
    return path


def source(path, **arguments):
    return open_source(path, SPECS, "train", 8, None, **arguments)


def labels(batches):
    return np.concatenate([batch["labels"] for batch in batches]).tolist()


@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_columns_feed_inputs_as_those_of_csv_files_do(tmp_path, compression):
    found = source(write(tmp_path / "d.parquet", compression=compression))
    batches = list(found.epoch(0))
    assert labels(batches) == list(range(N))
    wanted = np.stack([COLUMNS["a"], COLUMNS["b"]], axis=1).astype(np.float32)
    np.testing.assert_array_equal(np.concatenate([b["x"] for b in batches]), wanted)
    text = "a,label,b\n" + "".join(
        f"{a},{y},{b}\n" for a, y, b in zip(*COLUMNS.values(), strict=True)
    )
    (tmp_path / "d.csv").write_text(text)
    for batch, other in zip(batches, source(tmp_path / "d.csv").epoch(0), strict=True):
        assert_same_bits(batch, other)


def test_lists_of_a_fixed_length_are_an_axis(tmp_path):
    cells = np.arange(N * 4, dtype=np.float32)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(cells), 4)
    nested = pa.FixedSizeListArray.from_arrays(lists, 2)
    path = write(tmp_path / "d.parquet", {"x": lists, "label": COLUMNS["label"]}, rows=7)
    np.testing.assert_array_equal(np.asarray(load_arrays(path)["x"]), cells.reshape(N, 4))
    path = write(tmp_path / "n.parquet", {"x": nested, "label": np.arange(N // 2)}, rows=7)
    specs = [InputSpec("x", np.dtype(np.float32), ("N", 1, 2, 4)), SPECS[1]]
    found = open_source(path, specs, "train", 50, None)
    np.testing.assert_array_equal(next(found.epoch(0))["x"].ravel(), cells)


@pytest.fixture
def windows(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "WINDOW", 3 * 10 * (8 + 4 + 4))  # three row groups
    return write(tmp_path / "d.parquet")


def test_row_groups_are_shuffled_and_rows_within_windows_of_them(windows):
    found = source(windows, shuffle=True, seed=5)
    first, second = (labels(found.epoch(epoch)) for epoch in (0, 1))
    assert first != second
    assert sorted(first) == sorted(second) == list(range(N))
    for start in range(0, N, 30):
        groups = {label // 10 for label in first[start : start + 30]}
        assert len(groups) == min(3, (N - start) // 10)
        assert len({label // 10 for label in first[start : start + 9]}) == len(groups)
    assert [label // 10 for label in first] != sorted(label // 10 for label in first)


def test_no_more_than_two_windows_are_held(windows):
    found = source(windows, shuffle=True)
    assert isinstance(found, ArraySource)
    (table,) = {array._table for array in found._lazy.values()}
    for _ in found.epoch(0):
        assert len(table._held) <= 2 * 3 * 2  # of two arrays


def test_it_goes_on_where_it_stood_with_any_number_of_threads(windows):
    found = source(windows, shuffle=True, seed=1)
    whole = list(found.epoch(2))
    for batch, other in zip(
        whole[5:], source(windows, shuffle=True, seed=1).epoch(2, 5), strict=True
    ):
        assert_same_bits(batch, other)
    for batch, other in zip(whole, work_ahead(found.tasks(2), 4), strict=True):
        assert_same_bits(batch, other)
    parts = [list(source(windows, shuffle=True, seed=1, part=(r, 2)).epoch(2)) for r in (0, 1)]
    joined = itertools.chain(*zip(*parts, strict=True))
    assert labels(joined) == labels(whole)


def test_a_part_can_be_held_out(windows):
    rest, held_out = source(windows, shuffle=True).split(0.2)
    one, other = labels(rest.epoch(0)), labels(held_out.epoch(0))
    assert len(other) == 20
    assert other == sorted(other)
    assert sorted(one + other) == list(range(N))
    assert labels(rest.epoch(1)) != one


@pytest.mark.parametrize(("size", "groups"), [(1, 1), (159, 1), (160, 1), (319, 1), (320, 2)])
def test_a_window_has_its_size_in_bytes_and_at_least_a_row_group(
    tmp_path, monkeypatch, size, groups
):
    monkeypatch.setattr(parquet, "WINDOW", size)
    assert parquet.ParquetTable([write(tmp_path / "d.parquet")]).blocks.window == groups


def test_a_folder_of_files_is_one_table(tmp_path):
    for split, first in (("train", 0), ("train", 10), ("test", 20)):
        part = {name: values[first : first + 10] for name, values in COLUMNS.items()}
        write(tmp_path / f"{split}-{first:05}.parquet", part)
    assert labels(source(tmp_path).epoch(0)) == list(range(20))
    assert np.asarray(load_arrays(tmp_path, split="test")["label"]).tolist() == list(range(20, 30))
    write(tmp_path / "train-2.parquet", {"other": np.arange(3), "label": np.arange(3)})
    with pytest.raises(FileError, match="have different columns"):
        source(tmp_path)


def test_the_fingerprint_sees_other_values(tmp_path):
    one = source(write(tmp_path / "1.parquet")).fingerprint()
    assert one == source(write(tmp_path / "2.parquet")).fingerprint()
    changed = {**COLUMNS, "b": np.where(np.arange(N) == 41, 0, COLUMNS["b"]).astype(np.float32)}
    assert source(write(tmp_path / "3.parquet", changed)).fingerprint() != one


def test_the_index_of_pandas_is_no_column(tmp_path):
    columns = {**COLUMNS, "__index_level_0__": np.arange(N)}
    assert source(write(tmp_path / "d.parquet", columns)).arrays["x"].shape == (N, 2)


def without_values():
    return pa.array([None if i == 33 else float(i) for i in range(N)])


@pytest.mark.parametrize(
    ("change", "what", "where"),
    [
        ({"b": [f"{i}" for i in range(N)]}, "'b' has the type string, which is not numeric", ""),
        ({"b": [[1.0] * (i % 3) for i in range(N)]}, "'b' has the type list", ""),
        ({"b": without_values()}, "without a value", "row group 3"),
        ({"b": np.where(np.arange(N) == 52, np.nan, 1.0)}, "NaN", "row 52"),
        ({"label": None, "kind": np.arange(N)}, "No array feeds the input 'labels'", "kind"),
        ({"a": None, "b": np.arange(N) * 1.0}, "does not have the shape", "[100, 1]"),
    ],
)
def test_columns_that_are_no_input(tmp_path, change, what, where):
    columns = {name: v for name, v in {**COLUMNS, **change}.items() if v is not None}
    path = write(tmp_path / "d.parquet", columns)
    with pytest.raises(FileError, match=what.replace("(", r"\(")) as caught:
        source(path)
    assert str(path) in caught.value.where
    assert where in caught.value.where
    assert_three_lines(caught.value)


@pytest.mark.parametrize("damage", ["cut", "text", "page"])
def test_a_damaged_file_is_named(tmp_path, damage):
    path = write(tmp_path / "d.parquet", compression="zstd")
    raw = bytearray(path.read_bytes())
    raw[4:60] = b"\xff" * 56
    path.write_bytes({"cut": raw[:-20], "text": b"no table" * 9, "page": raw}[damage])
    with pytest.raises(FileError, match=r"'d.parquet' is not a readable Parquet file") as caught:
        source(path)
    assert str(path) in caught.value.where
    assert_three_lines(caught.value)


def test_a_row_group_has_a_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("ORTBOOST_LIMITS", "tensor_bytes=1000")
    path = write(tmp_path / "d.parquet", rows=N)
    with pytest.raises(FileError, match="A row group has 1,600 bytes") as caught:
        source(path)
    assert "row_group_size=" in caught.value.fix
    assert_three_lines(caught.value)


def test_no_rows(tmp_path):
    empty = {name: values[:0] for name, values in COLUMNS.items()}
    with pytest.raises(FileError, match="no rows"):
        source(write(tmp_path / "d.parquet", empty))


def test_without_pyarrow_it_says_what_to_install(tmp_path, monkeypatch):
    path = write(tmp_path / "d.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DependencyError, match="read with pyarrow") as caught:
        source(path)
    assert "ortboost[parquet]" in caught.value.fix
    assert_three_lines(caught.value)


def test_bytes_in_cells_are_numbers_and_bytes_in_lists_are_pixels(tmp_path):
    ages, pixels = np.arange(N, dtype=np.uint8), np.arange(2 * N, dtype=np.uint8)
    y = np.zeros(N, np.int32)
    cells = {"age": ages, "height": ages + 100, "label": y}
    batch = next(iter(source(write(tmp_path / "cells.parquet", cells)).epoch(0)))
    assert batch["x"].tolist() == [[n, n + 100] for n in range(8)]
    lists = {"x": pa.FixedSizeListArray.from_arrays(pixels, 2), "label": y}
    batch = next(iter(source(write(tmp_path / "lists.parquet", lists)).epoch(0)))
    np.testing.assert_allclose(batch["x"], pixels[:16].reshape(8, 2) / 255, rtol=1e-6)
