"""The names of ``ortboost.nn``."""

from __future__ import annotations

import pytest

from ortboost import nn


def test_a_layer_of_mindspore_is_answered_with_where_networks_come_from():
    assert not hasattr(nn, "Conv2d")
    with pytest.raises(AttributeError, match=r"with the network, from ortboost\.load") as caught:
        _ = nn.Conv2d
    assert "'Conv2d'" in str(caught.value)
    with pytest.raises(AttributeError, match="schedules and metrics are supported"):
        _ = nn.Lamb
