"""The event log."""

from __future__ import annotations

import json

import numpy as np
import pytest

from ortboost.core.errors import FileError
from ortboost.training.logs import EventLog, LogFollower, finite_or_none, read_log


def test_each_event_is_one_line_at_once(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write("step", 1, loss=0.5, overflow=False)
        assert (tmp_path / "log.jsonl").read_text() == (
            '{"event": "step", "step": 1, "loss": 0.5, "overflow": false}\n'
        )
        log.write("warning", 1, text="two\nlines")
        assert log.position == 2
    assert [event["event"] for event in read_log(tmp_path / "log.jsonl")] == ["step", "warning"]


def test_lines_are_strict_json_even_for_numbers_that_are_not_finite(tmp_path):
    with EventLog(tmp_path / "log.jsonl") as log:
        log.write(
            "step",
            1,
            loss=float("nan"),
            more=[float("inf"), {"a": float("-inf")}],
            n=np.float64("nan"),
        )
    line = (tmp_path / "log.jsonl").read_text()
    event = json.loads(line, parse_constant=lambda name: pytest.fail(name))
    assert event == {
        "event": "step",
        "step": 1,
        "loss": None,
        "more": [None, {"a": None}],
        "n": None,
    }
    assert finite_or_none((1, 2.0, "x", True)) == [1, 2.0, "x", True]
    numbers = (np.int64(1), np.float32(0.5), np.float32("inf"), np.bool_(True), np.arange(2))
    assert json.dumps(finite_or_none(numbers)) == "[1, 0.5, null, true, [0, 1]]"


def test_rewind_keeps_the_first_events_and_goes_on(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        for step in range(1, 6):
            log.write("step", step)
    with open(path, "a") as stream:
        stream.write('{"event": "step", "st')  # a killed process left half a line
    with EventLog(path) as log:
        log.rewind(3)
        assert log.position == 3
        log.write("step", 4, again=True)
    assert [(e["step"], "again" in e) for e in read_log(path)] == [
        (1, False),
        (2, False),
        (3, False),
        (4, True),
    ]
    assert len(path.read_text().splitlines()) == 4


def test_a_damaged_line_counts(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        for step in range(1, 6):
            log.write("step", step)
    path.write_text(path.read_text().replace('{"event": "step", "step": 2}', '{"event": "st'))
    with EventLog(path) as log:
        log.rewind(3)
        log.write("step", 4)
        assert log.position == 4
    assert [e["step"] for e in read_log(path)] == [1, 3, 4]


def test_events_held_replace_a_log_or_are_forgotten(tmp_path):
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.write("step", 1)
    with EventLog(path) as log:
        log.hold()
        log.write("start", 0)
    assert [e["event"] for e in read_log(path)] == ["step"]
    with EventLog(path) as log:
        log.hold()
        log.write("start", 0)
        log.replace()
        log.write("step", 7)
        assert log.position == 2
    assert [(e["event"], e["step"]) for e in read_log(path)] == [("start", 0), ("step", 7)]


def test_rewind_to_nothing_and_of_nothing(tmp_path):
    path = tmp_path / "log.jsonl"
    log = EventLog(path)
    log.rewind(5)
    assert not path.exists()
    log.write("step", 1)
    log.rewind(0)
    assert not path.exists()
    assert log.position == 0
    log.close()


def test_lines_that_are_no_events_are_left_out(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_bytes(
        b'{"event": "step", "step": 1}\nnoise\n[1]\n'
        b'{"step": 2}\n\xff\n{"event": "a", "step": "b"}\n'
    )
    assert read_log(path) == [{"event": "step", "step": 1}]


def test_files_that_cannot_be_used_are_named(tmp_path):
    with pytest.raises(FileError, match="cannot be read"):
        read_log(tmp_path / "none.jsonl")
    with pytest.raises(FileError, match="cannot be written"):
        EventLog(tmp_path / "no" / "log.jsonl").write("step", 1)


def test_a_follower_reads_what_is_added_and_notices_a_new_beginning(tmp_path):
    path = tmp_path / "log.jsonl"
    follower = LogFollower(path)
    assert follower.read() == (False, [])

    def told():
        anew, events = follower.read()
        return anew, [event["step"] for event in events]

    log = EventLog(path)
    log.write("step", 1)
    log.write("step", 2)
    assert told() == (False, [1, 2])
    assert told() == (False, [])
    with open(path, "a") as stream:
        stream.write('noise\n{"event": "step", "st')
    assert told() == (False, [])
    with open(path, "a") as stream:
        stream.write('ep": 3}\n')
    assert told() == (False, [3])
    log.rewind(1)  # as a resumed run does, and goes on before anybody looks
    for step in range(4, 40):
        log.write("step", step)
    assert told() == (True, [1, *range(4, 40)])
    log.rewind(0)
    assert told() == (True, [])
    log.write("start", 0)
    log.close()
    assert told() == (False, [0])
