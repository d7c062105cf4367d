"""Types of arguments: the decorator and its errors."""

from __future__ import annotations

import copy
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from ortboost.boosts import LessBN
from ortboost.core.arguments import check_argument, checked
from ortboost.core.errors import ArgumentTypeError, ArgumentValueError, UsageError
from ortboost.core.field_types import check_value
from ortboost.core.field_words import OnlyFloat, Range, UnfitError, describe_type
from ortboost.optimizers import AdamW
from ortboost.program.config import ParameterGroup
from ortboost.transforms.loss_config import LossConfig
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
        ({"number": 1, "path": 7}, "'path' is 7", "a string or a path"),
        ({"number": 1, "path": b"a"}, "'path' is b'a'", "a string or a path"),
        ({"number": 1, "names": "abc"}, "'names' is 'abc'", "a list of strings"),
        ({"number": 1, "names": ["a", 1]}, "'names' is ['a', 1]", "a list of strings"),
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
    """A generic alias in older versions of numpy, a ``type`` statement in newer ones."""
    assert fits(np.zeros(1), NDArray[Any])
    assert fits({"a": np.zeros(1)}, str | Mapping[str, NDArray[Any]])
    assert not fits([0.0], NDArray[Any])
    assert describe_type(NDArray[Any]) == "an array"


def test_words_for_annotations():
    assert describe_type(Sequence[str]) == "a list of strings"
    assert describe_type(tuple[str, int]) == "a list of 2 items"
    assert describe_type(tuple[tuple[str, ...], ...]) == "a list of lists of strings"
    assert describe_type(os.PathLike[str] | None) == "a path or None"
    assert describe_type(Mapping[str, int]) == "a mapping of names to whole numbers"
    assert describe_type(Mapping[str, Any]) == "a mapping of names to values"


class Tuned:
    in_words: ClassVar[str] = "a tuned thing, as Tuned()"

    @checked
    def __init__(
        self,
        rate: Annotated[float, OnlyFloat, Range(above=0)] = 0.1,
        steps: Annotated[int, Range(1)] | None = None,
        mode: Literal["min", "max"] = "min",
        widths: Sequence[Annotated[int, Range(1)]] = (),
        inner: Tuned | None = None,
    ) -> None:
        self.rate, self.steps = rate, steps


class Finer(Tuned):
    pass


@pytest.mark.parametrize(
    ("arguments", "kind", "said_so"),
    [
        ({"rate": 1}, ArgumentTypeError, "'rate' is 1; a float above 0 is needed."),
        ({"rate": 0.0}, ArgumentValueError, "'rate' is 0.0; a float above 0 is needed."),
        ({"rate": float("nan")}, ArgumentValueError, "'rate' is nan; a float above 0 is needed."),
        (
            {"steps": 0},
            ArgumentValueError,
            "'steps' is 0; a whole number of 1 or more, or None is needed.",
        ),
        (
            {"steps": 1.5},
            ArgumentTypeError,
            "'steps' is 1.5; a whole number of 1 or more, or None is needed.",
        ),
        ({"mode": "mean"}, ArgumentValueError, "'mode' is 'mean'; 'min' or 'max' is needed."),
        (
            {"widths": [2, 0]},
            ArgumentValueError,
            "'widths' is [2, 0]; a list of whole numbers of 1 or more is needed.",
        ),
        (
            {"widths": ["2"]},
            ArgumentTypeError,
            "'widths' is ['2']; a list of whole numbers of 1 or more is needed.",
        ),
        (
            {"inner": 3},
            ArgumentTypeError,
            "'inner' is 3; a tuned thing, as Tuned() or None is needed.",
        ),
    ],
)
def test_ranges_and_choices_are_values_and_the_rest_are_types(arguments, kind, said_so):
    Tuned(np.float64(0.5), np.int64(2), "max", [1], Finer())
    with pytest.raises(UsageError) as caught:
        Tuned(**arguments)
    assert type(caught.value) is kind
    assert caught.value.what == said_so
    assert_three_lines(caught.value)


def test_who_inherits_a_constructor_is_named_itself():
    with pytest.raises(ArgumentTypeError) as caught:
        Finer(1)
    assert caught.value.where == "Finer, rate"


def test_one_value_is_checked_as_an_argument_is():
    check_argument("SGD", "nesterov", True, bool)
    with pytest.raises(ArgumentValueError) as caught:
        check_argument("layer", "number", 4, Annotated[int, Range(0, 3)])
    assert caught.value.where == "layer, number"


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LossConfig(redaction="sum"), "did you mean 'reduction'"),
        (lambda: LossConfig(class_weights=[1, 2]), "Write weight=[1.0, 2.5]"),
        (lambda: LessBN(patterns=()), "It takes none."),
        (lambda: ParameterGroup("a", lr=1), "choices: name, patterns, learning_rate"),
        (lambda: AdamW(lr=1), "ProgramConfig(learning_rate="),
        (lambda: AdamW(weight_decay=0.1), "ProgramConfig(weight_decay="),
    ],
)
def test_a_configuration_names_an_unknown_argument(call, words):
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert_three_lines(caught.value)
    assert words in str(caught.value)


def test_a_configuration_is_copied_and_pickled():
    group = ParameterGroup("head", ("fc*",))
    assert copy.copy(group) == group == pickle.loads(pickle.dumps(group))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: Sampled(nummer=3), "did you mean 'number'"),
        (lambda: Sampled(), "missing a required argument"),
        (lambda: Sampled(1, 2), "too many positional arguments"),
    ],
)
def test_a_call_that_does_not_fit(call, words):
    with pytest.raises(ArgumentTypeError) as caught:
        call()
    assert_three_lines(caught.value)
    assert words in str(caught.value)
    assert "Sampled" in caught.value.where
