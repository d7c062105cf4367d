"""Buffers that processes exchange; with several processes: tests/parallel."""

import numpy as np
import pytest

from ortboost.runtime.process_group import Buffer, Handle

torch = pytest.importorskip("torch", reason="several processes need torch")


class Alone:
    """A group of one process that records when its sum is waited for."""

    def __init__(self, events):
        self.events = events

    def start_sum(self, tensor):
        return Handle(lambda: self.events.append("waited"))


@pytest.fixture
def on_gpu(monkeypatch):
    """A buffer that believes that it is on a GPU, and what happened in which order."""
    events = []

    class Stream:
        def synchronize(self):
            events.append("synchronized")

    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    buffer = Buffer(Alone(events), {"a": [3]}, np.dtype(np.float32))
    buffer.device = "cuda"
    return buffer, events


def test_the_gpu_is_waited_for_before_onnxruntime_reads(on_gpu):
    buffer, events = on_gpu
    buffer.start_sum().wait()
    assert events == ["waited", "synchronized"]


@pytest.mark.parametrize(
    "change",
    [
        lambda b: b.write("a", np.ones(3)),
        lambda b: b.scale(0.5),
        lambda b: b.drop_not_finite(),
    ],
)
def test_what_torch_changes_is_there_when_it_returns(on_gpu, change):
    buffer, events = on_gpu
    change(buffer)
    assert events == ["synchronized"]


def test_on_the_cpu_there_is_nothing_to_wait_for(on_gpu):
    buffer, events = on_gpu
    buffer.device = "cpu"
    buffer.scale(0.5)
    buffer.start_sum().wait()
    assert events == ["waited"]
