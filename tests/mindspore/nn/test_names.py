"""The names of ``ortboost.nn``."""

from __future__ import annotations

import pytest

import ortboost as ob
from ortboost import nn


def test_a_layer_of_mindspore_is_answered_with_where_networks_come_from():
    assert not hasattr(nn, "Conv2d")
    with pytest.raises(AttributeError, match=r"with the network, from ortboost\.load") as caught:
        _ = nn.Conv2d
    assert "'Conv2d'" in str(caught.value)
    with pytest.raises(AttributeError, match="schedules and metrics are supported"):
        _ = nn.Lamb


@pytest.mark.parametrize(
    ("name", "instead"),
    [("set_context", "leave it out"), ("ops", "in the ONNX file"), ("dataset", "any iterable")],
)
def test_a_name_of_mindspore_that_is_not_here_says_what_to_do(name, instead):
    with pytest.raises(AttributeError, match=rf"no attribute '{name}': .*{instead}.*mindspore\.md"):
        getattr(ob, name)
    with pytest.raises(AttributeError, match=r"no attribute 'elsewhere'$") as caught:
        _ = ob.elsewhere
    assert (caught.value.name, caught.value.obj) == ("elsewhere", ob)
