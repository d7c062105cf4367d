from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from ortboost.core.errors import ConfigError, FileError
from ortboost.program.parameter_list import read_parameters, write_parameters
from tests.support import assert_three_lines, text_model, weights


def test_names_and_requires_grad(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text(
        "# name requires_grad\n\na.weight\nb true\nc  False\n  d "
        "requires_grad=0\n/n/Constant_output_0\n"
    )
    assert read_parameters(path) == {
        "a.weight": True,
        "b": True,
        "c": False,
        "d": False,
        "/n/Constant_output_0": True,
    }


@pytest.mark.parametrize(
    ("word", "trained"),
    [("true", True), ("1", True), ("Yes", True), ("false", False), ("0", False), ("no", False)],
)
@pytest.mark.parametrize("prefix", ["", "requires_grad="])
def test_words_of_a_line(tmp_path, word, trained, prefix):
    path = tmp_path / "list.txt"
    path.write_text(f"weight {prefix}{word}\n")
    assert read_parameters(path) == {"weight": trained}


def test_names_may_have_spaces_and_be_words(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("my weight\nmy bias false\ntrue\nno\n")
    assert read_parameters(path) == {"my weight": True, "my bias": False, "true": True, "no": True}


@pytest.mark.parametrize(
    ("content", "error"),
    [("a\nb\na false\n", ConfigError), ("# nothing\n", ConfigError), (b"\xff\xfe\x00", FileError)],
)
def test_lists_that_make_no_sense(tmp_path, content, error):
    path = tmp_path / "list.txt"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(error) as raised:
        read_parameters(path)
    assert_three_lines(raised.value)
    with pytest.raises(FileError) as raised:
        read_parameters(tmp_path / "none.txt")
    assert_three_lines(raised.value)


class Tensor:
    """A minimal stand-in for a torch parameter."""

    def __init__(self, array: np.ndarray, requires_grad: bool = True) -> None:
        self.array, self.requires_grad = array, requires_grad

    def detach(self) -> SimpleNamespace:
        return SimpleNamespace(cpu=lambda: self.array)


def test_names_of_the_exporter_are_found_by_the_numbers(tmp_path):
    kept, turned, flat = weights(4, 3), weights(4, 4, seed=1), weights(4, seed=2)
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,3] kept, float[4,4] val_1, float[1,4] val_2) => (y) {
          a = MatMul(x, val_1) b = Add(a, val_2) y = MatMul(b, kept) }""",
        kept=kept,
        val_1=turned.T,
        val_2=flat[None],
    )
    path = tmp_path / "list.txt"
    named = {
        "kept": Tensor(kept),
        "fc.weight": Tensor(turned, requires_grad=False),
        "fc.bias": Tensor(flat),
        "gone": Tensor(weights(7)),
    }
    assert write_parameters(path, model, named.items()) == ("gone",)
    assert read_parameters(path) == {"kept": True, "val_1": False, "val_2": True}
    assert "# gone true" in path.read_text()


def test_copies_of_a_tied_weight_are_not_in_the_list(tmp_path):
    """The dynamo exporter stores the table of a tied output layer a second time, transposed."""
    table, ones = weights(5, 4), np.ones(4, np.float32)
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N] i, float[5,4] emb, float[4,5] val_1, float[4] bias, float[4] eps) => (y) {
          e = Gather(emb, i) a = Add(e, bias) b = Mul(a, eps) y = MatMul(b, val_1) }""",
        emb=table,
        val_1=table.T,
        bias=ones,
        eps=ones,
    )
    path = tmp_path / "list.txt"
    named = {"emb": Tensor(table), "bias": Tensor(ones)}
    assert write_parameters(path, model, named.items()) == ()
    assert read_parameters(path) == {"emb": True, "bias": True}
    assert "# val_1: computed from 'emb', trained as one" in path.read_text()
