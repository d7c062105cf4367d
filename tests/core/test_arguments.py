"""Types of arguments: the decorator, and what its errors say."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ortboost.core.arguments import checked
from ortboost.core.errors import ArgumentTypeError, UsageError
from ortboost.core.field_types import check_value
from ortboost.core.field_words import UnfitError, said
from tests.support import assert_three_lines


@checked
def sample(
    number: float,
    path: str | os.PathLike[str] = "",
    names: Sequence[str] = (),
    *more: int,
    table: Mapping[str, int] | None = None,
    anything: Any = None,
    **rest: int,
) -> tuple[Any, ...]:
    """A docstring."""
    return number, path, names, more, table, anything, rest


class Sampled:
    @checked
    def __init__(self, number: int) -> None:
        self.number = number

    @classmethod
    @checked
    def of(cls, number: int) -> Sampled:
        return cls(number)


def test_right_arguments_arrive_as_they_are():
    found = sample(1, Path("a"), ["b"], 3, table={"c": 1}, anything=object, more_of_it=2)
    assert found == (1, Path("a"), ["b"], (3,), {"c": 1}, object, {"more_of_it": 2})
    assert Sampled.of(3).number == 3
    assert sample.__doc__ == "A docstring."


@pytest.mark.parametrize(
    ("arguments", "named", "needed"),
    [
        ({"number": "1"}, "'number' is '1'", "a number"),
        ({"number": True}, "'number' is True", "a number"),
        ({"number": 1, "path": 7}, "'path' is 7", "a text or a path"),
        ({"number": 1, "path": b"a"}, "'path' is b'a'", "a text or a path"),
        ({"number": 1, "names": "abc"}, "'names' is 'abc'", "a list of texts"),
        ({"number": 1, "names": ["a", 1]}, "'names' is ['a', 1]", "a list of texts"),
        ({"number": 1, "table": {"a": "b"}}, "'table' is {'a': 'b'}", "or None"),
        ({"number": 1, "table": np.zeros((9, 9))}, "'table' is of type ndarray", "or None"),
    ],
)
def test_wrong_arguments_are_named(arguments, named, needed):
    with pytest.raises(ArgumentTypeError) as caught:
        sample(**arguments)
    assert_three_lines(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, TypeError)
    assert caught.value.what.startswith(named)
    assert needed in caught.value.fix


def test_the_owner_is_named():
    for call in (lambda: Sampled("a"), lambda: Sampled.of("a")):
        with pytest.raises(ArgumentTypeError) as caught:
            call()
        assert caught.value.where in ("Sampled, number", "Sampled.of, number")


def test_missing_and_unknown_arguments_are_told_as_python_does():
    with pytest.raises(TypeError, match="missing a required argument: 'number'"):
        sample()
    with pytest.raises(TypeError, match="multiple values"):
        sample(1, number=2)


def fits(value: object, hint: Any) -> bool:
    try:
        check_value(value, hint)
    except UnfitError:
        return False
    return True


def test_arrays_and_scalars_of_numpy():
    assert fits(np.int64(3), int)
    assert fits(np.float32(3), float)
    assert not fits(np.float32(3), int)
    assert not fits(np.zeros(1), float)


def test_arrays_by_their_alias():
    """A generic alias in older versions of numpy, the name of a ``type`` statement in newer ones."""
    assert fits(np.zeros(1), NDArray[Any])
    assert fits({"a": np.zeros(1)}, str | Mapping[str, NDArray[Any]])
    assert not fits([0.0], NDArray[Any])
    assert said(NDArray[Any]) == "a ndarray"


def test_words_for_annotations():
    assert said(Sequence[str]) == "a list of texts"
    assert said(tuple[str, int]) == "a list of 2 items"
    assert said(tuple[tuple[str, ...], ...]) == "a list of lists of texts"
    assert said(os.PathLike[str] | None) == "a path or None"
    assert said(Mapping[str, int]) == "an object with whole number values"
