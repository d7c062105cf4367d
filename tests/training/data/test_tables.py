"""CSV and .npy files."""

from __future__ import annotations

import numpy as np
import pytest

from ortboost.core.errors import FileError
from ortboost.program.catalogue import TensorSpec
from ortboost.training.data import bind_arrays, load_arrays, open_source
from ortboost.training.data.csv_file import read_csv
from ortboost.training.data.tables import FrameTable
from ortboost.training.protocols import InputSpec
from tests.support import assert_three_lines

INPUTS = [
    TensorSpec("x", np.dtype("float32"), ("N", 2)),
    TensorSpec("labels", np.dtype("int64"), ("N",), classes=3),
]


def write(tmp_path, text, name="data.csv", **more):
    path = tmp_path / name
    path.write_text(text, **{"encoding": "utf-8", **more})
    return path


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("a,label,b\n1,0,-2.5\n3,2,4e1\n", "data.csv"),
        ("\ufeffa, label , b\r\n1,0,-2.5\r\n3,2,4e1\r\n", "data.csv"),  # as Excel writes it
        ("a\tlabel\tb\n1\t0\t-2.5\n3\t2\t4e1\n", "data.tsv"),
        ('"a","label","b"\n"1","0","-2.5"\n"3","2","4e1"\n', "DATA.CSV"),
    ],
)
def test_columns_and_features(tmp_path, text, name):
    arrays = load_arrays(write(tmp_path, text, name))
    assert list(arrays) == ["a", "label", "b", "x"]
    assert arrays["x"].dtype == np.float32
    assert arrays["x"].tolist() == [[1, -2.5], [3, 40]]
    bound = bind_arrays(arrays, INPUTS, path="data.csv")
    assert bound["labels"].tolist() == [0, 2]
    assert bound["x"].tolist() == [[1, -2.5], [3, 40]]


def test_a_table_in_memory_has_the_columns_of_its_frame():
    class Frame(dict):
        columns = property(list)

    table = FrameTable(Frame({7: np.array([1, 255], np.uint8), "label": [0, 1]}))
    assert (table.columns, table.where) == (["7", "label"], "data: Frame")
    assert table.column("7").dtype == np.int16  # bytes would be pixels
    assert table.column("7").tolist() == [1, 255]


def test_a_table_of_labels_only_has_no_features(tmp_path):
    assert list(read_csv(write(tmp_path, "label\n1\n0\n")).arrays()) == ["label"]


def test_columns_feed_inputs_of_their_own(tmp_path):
    arrays = read_csv(write(tmp_path, "age,x,label\n40,1,0\n50,2,1\n")).arrays()
    inputs = [TensorSpec(name, np.dtype("float32"), ("N", 1)) for name in ("age", "x")]
    bound = bind_arrays(arrays, [*inputs, INPUTS[1]])
    assert bound["age"].tolist() == [[40], [50]]
    assert bound["x"].tolist() == [[1], [2]]


@pytest.mark.parametrize(
    ("text", "what", "where"),
    [
        ("a,b,label\n1,2,0\n3,,1\n", "not a table", "line 3, column 'b': '' is not a number"),
        ("a,b,label\n\n1,2,0\n\n3,x,1\n", "not a table", "line 5, column 'b': 'x' is not a number"),
        ('a,t,label\n1,"2\n",0\n3,"x\ny",1\n', "not a table", "line 4, column 't': 'x\\ny' is not"),
        ("a,label\n1,setosa\n", "not a table", "line 2, column 'label': 'setosa' is not a number"),
        ("a,b,label\n1,2,0\n3,1\n", "not a table", "line 3 has 2 cells, earlier ones have 3"),
        ("a,label\n1,2,0\n", "2 column names and rows of 3 cells", ""),
        ("a,label\n", "no rows", ""),
        ("1,2,3\n4,5,6\n", "numbers instead of column names", "1, 2, 3"),
        ("a,a,label\n1,2,0\n", "or with a duplicate one", "a, a, label"),
        ("a,,label\n1,2,0\n", "without a name", ""),
        ("a;b;label\n1;2;0\n", "not separated by commas", "a;b;label"),
        ("\n1,2,0\n", "no column names", "empty first row"),
    ],
)  # fmt: skip
def test_what_is_no_table_is_told_with_its_line(tmp_path, text, what, where):
    path = write(tmp_path, text)
    with pytest.raises(FileError, match=what) as caught:
        read_csv(path)
    assert str(path) in caught.value.where
    assert where in caught.value.where
    assert_three_lines(caught.value)


def test_labels_of_any_name_and_tables_without_labels(tmp_path):
    path = write(tmp_path, "a,species,b\n1,2,3\n")
    with pytest.raises(FileError, match="No array feeds the input 'labels'") as caught:
        open_source(path, INPUTS, "train", 1, None)
    assert "--map labels=COLUMN" in caught.value.fix
    batch = next(open_source(path, INPUTS, "train", 1, {"labels": "species"}).epoch(0))
    assert {name: array.tolist() for name, array in batch.items()} == {"labels": [2], "x": [[1, 3]]}
    wide = InputSpec("x", np.dtype("float32"), ("N", 3))
    assert next(open_source(path, [wide], "train", 1, None).epoch(0))["x"].tolist() == [[1, 2, 3]]
    path = write(tmp_path, "a,Label,b\n1,2,3\n")
    assert next(open_source(path, INPUTS, "train", 1, None).epoch(0))["labels"].tolist() == [2]


def test_two_columns_that_could_be_the_labels(tmp_path):
    """The one that comes first in a list of usual names was taken, the other one ignored."""
    path = write(tmp_path, "a,label,b,y\n1,2,3,0\n")
    with pytest.raises(FileError, match="Several columns could feed the input 'labels'") as caught:
        open_source(path, INPUTS, "train", 1, None)
    assert caught.value.where.endswith("columns label, y")
    assert_three_lines(caught.value)
    for mapping, label in (({"labels": "label"}, 2), ({"labels": "y"}, 0)):
        batch = next(open_source(path, INPUTS, "train", 1, mapping).epoch(0))
        assert (batch["labels"].tolist(), batch["x"].tolist()) == ([label], [[1, 3]])
    path = write(tmp_path, "a,labels,b,y\n1,2,3,0\n")  # its own name
    assert next(open_source(path, INPUTS, "train", 1, None).epoch(0))["labels"].tolist() == [2]


def test_large_whole_numbers_stay_exact(tmp_path):
    """Tokens above 2^24 were rounded to float32."""
    path = write(tmp_path, "a,b\n16777217,3\n")
    tokens = InputSpec("tokens", np.dtype("int64"), ("N", 2))
    batch = next(open_source(path, [tokens], "train", 1, None).epoch(0))
    assert batch["tokens"].tolist() == [[16777217, 3]]


def test_bytes_that_are_no_text(tmp_path):
    path = tmp_path / "data.csv"
    path.write_bytes(b"a,label\n\xff\xfe,1\n")
    with pytest.raises(FileError) as caught:
        read_csv(path)
    assert "UTF-8" in caught.value.fix
    assert_three_lines(caught.value)


def test_a_folder_of_npy_files_is_mapped(tmp_path):
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([0, 1, 2, 0])
    for name, array in {"x_train": x, "y_train": y, "x_test": x[:1], "y_test": y[:1]}.items():
        np.save(tmp_path / f"{name}.npy", array)
    arrays = load_arrays(tmp_path)
    assert isinstance(arrays["x_train"], np.memmap)
    assert not arrays["x_train"].flags.writeable
    for split, length in (("train", 4), ("test", 1)):
        bound = bind_arrays(arrays, INPUTS, split=split)
        assert len(bound["x"]) == len(bound["labels"]) == length
    assert list(load_arrays(tmp_path / "x_train.npy")) == ["x_train"]
