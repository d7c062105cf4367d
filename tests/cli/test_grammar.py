import pytest

from ortboost.cli.grammar import parse_pairs, parse_value
from ortboost.core.errors import UsageError


def test_pairs_read_numbers_words_and_text():
    pairs = parse_pairs(["a=1", "b=1e-3", "c=true", "d=none", "e=2**10", "f=x", "g-h=.5"], "--o")
    assert pairs == {"a": 1, "b": 1e-3, "c": True, "d": None, "e": 1024.0, "f": "x", "g_h": 0.5}
    with pytest.raises(UsageError, match="KEY=VALUE"):
        parse_pairs(["a"], "--o")


@pytest.mark.parametrize("text", ["1000000**127", "2**99999999999", "2**²", "[" * 100_000])
def test_what_is_no_number_stays_text(text):
    assert parse_value(text) == text
