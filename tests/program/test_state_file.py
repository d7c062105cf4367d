"""Files of state tensors."""

from __future__ import annotations

import pytest

from ortboost.core.errors import FileError
from ortboost.program.state_file import check_state, read_tensors
from tests.support import assert_three_lines, shipped_program


def test_reading_tensors_that_are_not_there(tmp_path):
    with pytest.raises(FileError) as info:
        read_tensors(tmp_path / "no.safetensors")
    assert_three_lines(info.value)
    assert "no.safetensors" in info.value.where


def test_check_state_accepts_what_fits():
    program = shipped_program("mlp")
    check_state(program.catalogue, program.initial, where="here")
