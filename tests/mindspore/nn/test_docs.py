"""The samples in docs/mindspore.md run as they stand."""

from __future__ import annotations

import re

import pytest

from tests.support import ROOT

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "mindspore.md").read_text(), re.DOTALL)


def test_the_samples_were_found():
    assert len(BLOCKS) == 3


@pytest.mark.parametrize("block", BLOCKS, ids=["loss-scale", "tutorial", "cell"])
def test_sample(block, monkeypatch):
    monkeypatch.chdir(ROOT)
    names: dict = {}
    exec(block, names)
    if "metric" in names:
        assert names["metric"].eval() > 0.9
    elif "losses" in names:
        assert names["losses"][-1] < names["losses"][0]
    else:
        assert float(names["loss_scale"]) == 4096
        assert float(names["train_network"].scale_sense.asnumpy()) == 512
