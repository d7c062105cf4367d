"""Training with several processes: the numbers of one, resuming with others, and faults."""

from __future__ import annotations

import json
import socket

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs torch: pip install 'ortboost[distributed]'")

import ortboost as ob
from ortboost.api.run_folder import LOCK, alone_in, load_run
from ortboost.boosts import AdaSum, GradAccumulation, Thor
from tests.parallel.launch import finished, torchrun
from tests.support import small_mlp

pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path):
    return program(tmp_path / "run")


def program(path, **settings):
    config = ob.ProgramConfig(engine="portable", learning_rate="0.1", **settings)
    return ob.build_program(small_mlp(features=10, hidden=16), config).save(path)


def train(folder, processes, restarts=0, **settings):
    module = ("-m", "tests.parallel.run", folder, json.dumps(settings))
    return torchrun(processes, *module, restarts=restarts)


def events(folder, kind):
    lines = (folder / "log.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["event"] == kind]


def last(folder):
    return load_run(folder, "last")[1]


def apart(one, other):
    return max(float(np.abs(one[n].astype(np.float64) - other[n]).max(initial=0)) for n in one)


def test_the_numbers_of_one_process(tmp_path):
    one, two = program(tmp_path / "one"), program(tmp_path / "two")
    finished(train(one, 1))
    finished(train(two, 2, segments=2))
    assert apart(last(one), last(two)) <= 1e-6
    for kind in ("step", "validation", "epoch"):
        ours, theirs = events(one, kind), events(two, kind)
        assert len(ours) == len(theirs) > 1
        for a, b in zip(ours, theirs, strict=True):
            numbers = [k for k, v in a.items() if isinstance(v, float)]
            assert {k: b[k] for k in numbers} == pytest.approx({k: a[k] for k in numbers}, abs=1e-6)
    assert not (two / LOCK).exists()


def test_validation_data_that_are_held_out_are_the_same_in_all(tmp_path):
    one, two = program(tmp_path / "one"), program(tmp_path / "two")
    settings = {"val_split": 0.3, "length": 47}
    finished(train(one, 1, **settings))
    finished(train(two, 2, epochs=1, **settings))
    finished(train(two, 3, resume=True, **settings))
    assert apart(last(one), last(two)) <= 1e-6
    ours, theirs = events(one, "validation"), events(two, "validation")
    assert len(ours) == len(theirs) == 2
    for a, b in zip(ours, theirs, strict=True):
        assert {k: b[k] for k in a if isinstance(a[k], float)} == pytest.approx(
            {k: v for k, v in a.items() if isinstance(v, float)}, abs=1e-6
        )


def test_resumed_by_another_number_of_processes(tmp_path):
    # Step 3 is within a window: its sums are of both processes.
    boosts = (Thor(damping=0.3, frequency=2), GradAccumulation(2))
    one, two = program(tmp_path / "one", boosts=boosts), program(tmp_path / "two", boosts=boosts)
    finished(train(one, 1))
    finished(train(two, 2, max_steps=3, checkpoint_every=3))
    finished(train(two, 3, resume=True))
    assert apart(last(one), last(two)) <= 1e-6


@pytest.mark.parametrize(
    ("rank", "step", "boosts"),
    [(0, 5, ()), (1, 3, (AdaSum(1, every=3),))],  # a checkpoint in a window joins the servers
    ids=["plain", "adasum"],
)
def test_killed_and_started_again_to_the_same_bits(tmp_path, rank, step, boosts):
    whole, broken = (program(tmp_path / name, boosts=boosts) for name in ("whole", "broken"))
    finished(train(whole, 2, checkpoint_every=2))
    fault = {"rank": rank, "step": step}
    result = train(broken, 2, restarts=1, checkpoint_every=2, fault=fault)
    finished(result)
    assert "exitcode: -9" in result.stderr  # SIGKILL
    assert events(broken, "start")[-1]["resumed"] is not None
    assert apart(last(whole), last(broken)) == 0


def test_started_again_before_its_first_step_it_does_not_go_on_with_an_older_run(tmp_path):
    whole, broken = (program(tmp_path / name) for name in ("whole", "broken"))
    finished(train(whole, 2, checkpoint_every=2))
    finished(train(broken, 2, epochs=1, checkpoint_every=2, learning_rate="0.5"))
    refused = train(broken, 2, restarts=1)
    assert refused.returncode != 0
    assert refused.stdout.count("The folder already has a run") == 4  # two processes, twice
    fault = {"rank": 0, "step": 0}
    result = train(broken, 2, restarts=1, checkpoint_every=2, overwrite=True, fault=fault)
    finished(result)
    assert "exitcode: -9" in result.stderr  # SIGKILL
    assert [event["resumed"] for event in events(broken, "start")] == [None]
    assert apart(last(whole), last(broken)) == 0


def test_one_that_does_not_answer_is_named(folder):
    result = train(folder, 3, fault={"rank": 1, "step": 2, "seconds": 30}, timeout=5)
    assert result.returncode != 0
    assert "lost rank 1: it ended, or did not respond for 5 seconds" in result.stdout


def test_other_data_are_refused(folder):
    result = train(folder, 2, other_length=49)
    assert result.returncode != 0
    assert "the training data differs" in result.stdout
    assert "rank 1" in result.stdout


def test_segments_are_for_several(folder):
    with pytest.raises(ob.UsageError, match="segments is for several processes"):
        ob.train(folder, {}, segments=2)


def test_a_port_that_is_taken_is_named(folder, monkeypatch):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        alone = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
        for name, value in {**alone, "MASTER_PORT": str(port)}.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ob.UsageError) as caught:
            ob.train(folder, {}, timeout=5)
    assert f"127.0.0.1:{port}" in str(caught.value)
    assert "a free address and port" in caught.value.fix


def test_a_lock_names_its_process_and_goes_with_it(folder):
    with alone_in(folder):
        holder = json.loads((folder / LOCK).read_text())
        assert holder["host"] == socket.gethostname()
        with pytest.raises(ob.UsageError, match="Another process") as caught, alone_in(folder):
            pass
    assert f"process {holder['pid']} on {holder['host']}" in caught.value.where
    (folder / LOCK).write_text(json.dumps(holder))  # as after a SIGKILL: no lock behind it
    with alone_in(folder):
        pass
