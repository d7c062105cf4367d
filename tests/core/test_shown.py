"""One line in a session, a table in a notebook."""

from ortboost.core.shown import Shown


class Odd(Shown):
    def _facts(self):
        return {"<name>": "a & b", "nothing": None, "empty": "", "zero": 0, "no": False}


def test_what_is_not_there_is_not_told():
    assert repr(Odd()) == "<Odd: <name> a & b; zero 0; no False>"


def test_html_is_escaped():
    assert "<tr><th>&lt;name&gt;</th><td>a &amp; b</td></tr>" in Odd()._repr_html_()
