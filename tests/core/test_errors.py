from __future__ import annotations

import pytest

from ortboost.core import errors
from ortboost.core.errors import OrtBoostError, nearest

FAMILY = {
    errors.UsageError: 2,
    errors.ConfigError: 3,
    errors.ModelError: 4,
    errors.ParityError: 5,
    errors.DivergedError: 6,
    errors.DependencyError: 7,
    errors.FileError: 8,
}


@pytest.mark.parametrize(("kind", "status"), FAMILY.items())
def test_every_kind_has_its_own_exit_status(kind, status):
    assert issubclass(kind, OrtBoostError)
    assert kind.exit_status == status


def test_the_text_is_what_where_fix():
    error = errors.ModelError("It broke.", where="net.onnx: node 'c1'", fix="Fix it.")
    assert str(error) == "It broke.\n  where: net.onnx: node 'c1'\n  fix:   Fix it."


def test_empty_parts_leave_no_line():
    assert str(OrtBoostError("It broke.")) == "It broke."
    assert str(OrtBoostError("It broke.", fix="Fix it.")) == "It broke.\n  fix:   Fix it."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("momentun", "did you mean 'momentum'? (choices: sgd, momentum)"),
        ("zzz", "choices: sgd, momentum"),
    ],
)
def test_nearest_offers_what_is_close(name, expected):
    assert nearest(name, ["sgd", "momentum"]) == expected
