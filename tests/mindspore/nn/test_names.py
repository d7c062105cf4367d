"""The names of ``ortboost.nn``."""

from __future__ import annotations

import pytest

from ortboost import nn


def test_a_layer_of_mindspore_is_answered_with_where_networks_come_from():
    assert not hasattr(nn, "Conv2d")
    with pytest.raises(AttributeError, match=r"no layers; export the network as ONNX") as caught:
        _ = nn.Conv2d
    assert "'Conv2d'" in str(caught.value)
