"""A run that was killed or interrupted anywhere goes on to the same bits."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import traceback

import numpy as np
import pytest
from resumable import STEPS, build, fingerprint, main

from ortboost.core.errors import ArgumentTypeError, FileError, UsageError
from ortboost.core.field_types import write_config
from ortboost.training import Callback, checkpoint_file
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.history import RunHistory
from ortboost.training.logs import read_log
from ortboost.training.resume import _schedule, verify_run
from ortboost.training.schedules import Constant, PerStep


def curves(folder):
    """Everything in a log but where and when."""
    kept = []
    for event in read_log(folder / "log.jsonl"):
        if event["event"] in ("step", "validation", "epoch", "warning"):
            kept.append(event)  # noqa: PERF401 - clearer than nested conditions
    return kept


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The uninterrupted run: its bits, and its curves."""
    folder = tmp_path_factory.mktemp("whole")
    trainer, train, validation = build(folder)
    summary = trainer.fit(train, validation)
    assert summary.steps == STEPS
    assert summary.skipped_steps > 4
    return fingerprint(trainer), curves(folder)


def run(folder, *options):
    """In a fork, which may be killed: this is about files, and opens no session."""
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        child = os.fork()
        if not child:
            status = 1
            try:
                signal.alarm(120)
                sys.stdout, sys.stderr = out, err
                main([str(folder), *options])
                status = 0
            except SystemExit as left:
                status = left.code
            except BaseException:
                traceback.print_exc()
            finally:
                out.flush()
                err.flush()
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said = []
        for stream in (out, err):
            stream.seek(0)
            said.append(stream.read())
    return subprocess.CompletedProcess(options, status, *said)


# Before the first checkpoint, on and around checkpoints, at the end of an epoch, in the last step.
@pytest.mark.parametrize("step", [1, 4, 7, 8, 15, STEPS])
def test_killed_in_a_step_and_resumed(tmp_path, whole, step):
    assert run(tmp_path, "--kill-at", str(step)).returncode == -signal.SIGKILL
    again = run(tmp_path, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == whole[0]
    assert curves(tmp_path) == whole[1]


@pytest.mark.parametrize("save", [1, 3, 6])
def test_killed_while_saving_and_resumed(tmp_path, whole, save):
    assert run(tmp_path, "--kill-in-save", str(save)).returncode == -signal.SIGKILL
    again = run(tmp_path, "--resume")
    assert again.returncode == 0, again.stderr
    assert again.stdout.strip() == whole[0]
    assert not list((tmp_path / "checkpoints").glob(".*.tmp"))


def test_killed_between_the_best_checkpoint_and_its_pin(tmp_path, monkeypatch):
    trainer, train, validation = build(tmp_path / "whole", max_steps=12)
    trainer.fit(train, validation)
    expected = trainer.store.best_step()

    def killed(self, step):
        if step == expected:
            raise SystemExit

    trainer, train, validation = build(tmp_path / "killed", max_steps=12)
    with monkeypatch.context() as context:
        context.setattr(CheckpointStore, "pin_best", killed)
        with pytest.raises(SystemExit):
            trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path / "killed", max_steps=12)
    assert trainer.store.best_step() != expected
    trainer.fit(train, validation, resume=True)
    assert trainer.store.best_step() == expected


def test_a_damaged_pin_is_written_again(tmp_path):
    trainer, train, validation = build(tmp_path, max_steps=12)
    trainer.fit(train, validation)
    expected = trainer.store.best_step()
    (tmp_path / "checkpoints" / "best.json").write_text("{")
    trainer, train, validation = build(tmp_path, max_steps=12)
    trainer.fit(train, validation, resume=True)
    assert trainer.store.best().step == expected


def test_killed_three_times(tmp_path, whole):
    for index, step in enumerate((5, 13, 22)):
        options = ["--resume"] if index else []
        assert run(tmp_path, *options, "--kill-at", str(step)).returncode == -signal.SIGKILL
    again = run(tmp_path, "--resume")
    assert again.stdout.strip() == whole[0]
    assert curves(tmp_path) == whole[1]


@pytest.mark.parametrize(("name", "status"), [("INT", 130), ("TERM", 143)])
def test_a_signal_saves_and_leaves_with_its_status(tmp_path, whole, name, status):
    done = run(tmp_path, "--signal-at", "11", "--signal", name)
    assert done.returncode == status
    assert "after step 11" in done.stderr
    assert "step-00000011.json" in done.stderr
    assert "resume=True" in done.stderr
    assert "Traceback" not in done.stderr
    found = CheckpointStore(tmp_path / "checkpoints").latest(program="linear")
    assert found.checkpoint.step == 11
    assert read_log(tmp_path / "log.jsonl")[-1]["reason"] == "interrupted"
    again = run(tmp_path, "--resume")
    assert again.stdout.strip() == whole[0]
    assert curves(tmp_path) == whole[1]


@pytest.mark.parametrize("stop", range(1, STEPS, 3))
def test_every_limit_is_a_place_to_go_on_from(tmp_path, whole, stop):
    trainer, train, validation = build(tmp_path, max_steps=stop)
    assert trainer.fit(train, validation).steps == stop
    trainer, train, validation = build(tmp_path)
    summary = trainer.fit(train, validation, resume=True)
    assert summary.steps == STEPS
    assert summary.session_steps == STEPS - stop
    assert fingerprint(trainer) == whole[0]
    assert curves(tmp_path) == whole[1]


def test_resuming_a_finished_run_changes_nothing(tmp_path, whole):
    trainer, train, validation = build(tmp_path)
    trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path)
    summary = trainer.fit(train, validation, resume=True)
    assert summary.session_steps == 0
    assert summary.reason == "all epochs done"
    assert fingerprint(trainer) == whole[0]
    assert curves(tmp_path) == whole[1]


def test_the_time_of_the_sessions_before_is_kept(tmp_path):
    first, train, validation = build(tmp_path, max_steps=STEPS // 2)
    first.fit(train, validation)
    again, train, validation = build(tmp_path)
    summary = again.fit(train, validation, resume=True)
    run = RunHistory.read(tmp_path / "log.jsonl")
    starts = [e["seconds"] for e in read_log(tmp_path / "log.jsonl") if e["event"] == "start"]
    assert starts == [0.0, run.before]
    assert run.sessions == 2
    assert run.before > 0
    assert run.seconds == run.before + summary.seconds


def test_resuming_nothing_starts_from_the_beginning(tmp_path, whole, capsys):
    trainer, train, validation = build(tmp_path)
    trainer.fit(train, validation, resume=True)
    assert "nothing to resume" in capsys.readouterr().err
    assert fingerprint(trainer) == whole[0]


def test_a_damaged_checkpoint_is_named_and_the_one_before_used(tmp_path, whole, capsys):
    trainer, train, validation = build(tmp_path, max_steps=14)
    trainer.fit(train, validation)
    newest = sorted((tmp_path / "checkpoints").glob("*.safetensors"))[-1]
    newest.write_bytes(newest.read_bytes()[:-1])
    trainer, train, validation = build(tmp_path)
    trainer.fit(train, validation, resume=True)
    err = capsys.readouterr().err
    assert f"checkpoint refused: {newest}" in err
    assert "falling back to the newest valid checkpoint" in err
    assert fingerprint(trainer) == whole[0]
    assert curves(tmp_path) == whole[1]


def test_only_bad_checkpoints_stop_the_resuming(tmp_path):
    trainer, train, validation = build(tmp_path, max_steps=4)
    trainer.fit(train, validation)
    for path in (tmp_path / "checkpoints").glob("*.safetensors"):
        path.write_bytes(b"")
    trainer, train, validation = build(tmp_path)
    with pytest.raises(FileError, match="None of the 2 checkpoints"):
        trainer.fit(train, validation, resume=True)


def test_the_only_checkpoint_is_bad(tmp_path):
    trainer, train, validation = build(tmp_path, max_steps=1)
    trainer.fit(train, validation)
    (path,) = (tmp_path / "checkpoints").glob("*.safetensors")
    path.write_bytes(b"")
    trainer, train, validation = build(tmp_path)
    with pytest.raises(FileError, match="The only checkpoint cannot be used"):
        trainer.fit(train, validation, resume=True)


def test_an_old_run_is_not_mixed_with_a_new_one(tmp_path, whole):
    trainer, train, validation = build(tmp_path, max_steps=4, seed=99)
    trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path)
    with pytest.raises(UsageError, match="up to step 4") as caught:
        trainer.fit(train, validation)
    assert "--resume" in caught.value.fix
    assert "--overwrite" in caught.value.fix
    trainer, train, validation = build(tmp_path, overwrite=True)
    trainer.fit(train, validation)
    assert fingerprint(trainer) == whole[0]
    assert curves(tmp_path) == whole[1]


def test_changed_seed_or_data_is_refused_by_name(tmp_path):
    trainer, train, validation = build(tmp_path, max_steps=4)
    trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path, seed=12)
    with pytest.raises(UsageError, match="seed changed") as caught:
        trainer.fit(train, validation, resume=True)
    assert caught.value.where == "seed: 11 -> 12"
    trainer, train, validation = build(tmp_path)
    train.batch_size = 4
    with pytest.raises(UsageError, match="The batch size changed") as caught:
        trainer.fit(train, validation, resume=True)
    assert caught.value.where == "batch size: 8 -> 4"


def test_a_changed_schedule_is_allowed_with_a_warning(tmp_path, capsys):
    trainer, train, validation = build(tmp_path, max_steps=4)
    trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path, learning_rate=Constant(0.001))
    trainer.fit(train, validation, resume=True)
    assert (
        "the schedule of learning_rate changed since the checkpoint: "
        "cosine:0.05,steps=20,warmup=4 -> constant:0.001\n"
    ) in capsys.readouterr().err
    assert trainer.stepper.rates[0] == 0.001


def test_without_validation_data_no_old_validation_is_shown(tmp_path, capsys):
    trainer, train, validation = build(tmp_path, max_steps=6)
    assert "val_loss" in trainer.fit(train, validation).metrics
    trainer, train, _ = build(tmp_path, callbacks=[])
    assert "val_loss" not in trainer.fit(train, resume=True).metrics
    assert "no validation data: the best model stays" in capsys.readouterr().err


def test_callbacks_that_came_or_went_are_named(tmp_path, capsys):
    trainer, train, validation = build(tmp_path, max_steps=6)
    trainer.fit(train, validation)
    (best, *_) = trainer.callbacks
    best.__class__ = type("NewBest", (type(best),), {})
    trainer, train, validation = build(tmp_path, callbacks=[best])
    trainer.fit(train, validation, resume=True)
    err = capsys.readouterr().err
    assert "callback 'NewBest' starts without saved state" in err
    assert "this run has no 'EarlyStopping', whose state is in the checkpoint" in err
    trainer, train, validation = build(tmp_path, callbacks=[best, Callback()], epochs=9)
    trainer.fit(train, validation, resume=True)  # one without a state has no past to miss
    assert "without saved state" not in capsys.readouterr().err


class Counting(Callback):
    """Keeps numbers of numpy by step, as written by hand."""

    def __init__(self):
        self.seen = {}

    def on_step_end(self, run, result):
        self.seen[run.step] = np.float32(result.loss)

    def state_dict(self):
        return self.seen

    def load_state_dict(self, state):
        self.seen = {int(step): np.float32(loss) for step, loss in state.items()}


def test_a_callback_with_numbers_of_numpy_by_step(tmp_path):
    """Its checkpoints were refused as damaged: none of them could be resumed."""
    trainer, *data = build(tmp_path, callbacks=[Counting()], max_steps=12)
    trainer.fit(*data)
    trainer, *data = build(tmp_path, callbacks=[counting := Counting()])
    assert trainer.fit(*data, resume=True).session_steps == STEPS - 12
    assert list(counting.seen) == list(range(1, STEPS + 1))


def test_a_callback_with_a_state_that_is_no_json_is_named(tmp_path):
    counting = Counting()
    counting.state_dict = lambda: {"seen": {1, 2}}
    trainer, *data = build(tmp_path, callbacks=[counting])
    with pytest.raises(ArgumentTypeError, match="cannot be saved as JSON") as caught:
        trainer.fit(*data)
    assert "callback 'Counting'" in caught.value.where


def test_a_source_may_describe_itself_with_tuples(tmp_path, monkeypatch):
    trainer, train, validation = build(tmp_path, max_steps=12)
    fingerprint = {"shape": (50, 3), "mean": np.float32(0.5)}
    monkeypatch.setattr(type(train), "fingerprint", lambda self: fingerprint)
    trainer.fit(train, validation)
    trainer, train, validation = build(tmp_path)
    assert trainer.fit(train, validation, resume=True).steps == STEPS


def test_a_smaller_keep_makes_room_on_a_full_disk(tmp_path, monkeypatch):
    """Old checkpoints go before the first new one is written, not after it."""
    plain = checkpoint_file.write_tensors

    def on_a_small_disk(path, arrays, **options):
        if len(list((tmp_path / "checkpoints").glob("step-*.safetensors"))) >= 3:
            raise OSError(errno.ENOSPC, "No space left on device")
        plain(path, arrays, **options)

    monkeypatch.setattr(checkpoint_file, "write_tensors", on_a_small_disk)

    def trained(keep, **options):
        trainer, train, validation = build(tmp_path)
        trainer.store.keep = keep
        return trainer.fit(train, validation, **options)

    with pytest.raises(FileError, match="checkpoint cannot be written"):
        trained(3)
    with pytest.raises(FileError, match="checkpoint cannot be written"):
        trained(3, resume=True)
    assert trained(1, resume=True).steps == STEPS


def test_what_changed_in_the_data_is_said_in_words():
    images, run = {"crc": 1, "resize": 32}, {"seed": 0, "schedules": {}}
    before = {"arrays": {"labels": {"content": 1}}, "images": images}
    progress = {"run": run, "data": before}
    for data, where in (
        ({**before, "arrays": {"labels": {"content": 2}}}, "arrays.labels.content: other contents"),
        ({**before, "images": {"crc": 2, "resize": 36}}, "images.resize: 32 -> 36"),
    ):
        with pytest.raises(UsageError, match="training data changed") as caught:
            verify_run(progress, run, data)
        assert caught.value.where == f"training data.{where}"


def test_a_schedule_in_a_warning_is_short_and_may_be_of_another_version():
    text = _schedule(write_config(PerStep((0.1,) * 99)))
    assert text.startswith("list:0.1/0.1/")
    assert len(text) == 103
    assert _schedule({"kind": "spiral"}) == "{'kind': 'spiral'}"
    assert _schedule(None) == "None"
