"""Killed before each single change of a file, a run resumes as if nothing had happened."""

from __future__ import annotations

import os
import shutil
import sys

import pytest
from resumable import build, fingerprint

from ortboost.core.errors import UsageError
from ortboost.training.logs import read_log

pytestmark = pytest.mark.slow
_CHANGES = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.truncate", "shutil.rmtree"}
_NEW, _OLD = {"max_steps": 16}, {"max_steps": 9, "seed": 99}


def killed_before(change, folder, work):
    """Whether a fork died before this change, counted from 1; otherwise it did all the work."""
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert status in (0, 9)
        return status == 9
    made = 0

    def watch(event, values):
        nonlocal made
        writes = event == "open" and isinstance(values[2], int) and values[2] & os.O_ACCMODE
        if (writes or event in _CHANGES) and str(values[0]).startswith(str(folder)):
            made += 1
            if made == change:
                os._exit(9)

    try:
        sys.addaudithook(watch)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def trained(folder, **options):
    trainer, train, validation = build(folder, **options)
    trainer.fit(train, validation, resume=not options.get("overwrite"))
    return outcome(folder, trainer)


def outcome(folder, trainer):
    events = read_log(folder / "log.jsonl")
    kinds = ("step", "validation", "epoch", "warning")
    files = sorted(path.suffix for path in (folder / "checkpoints").iterdir())
    store = trainer.store
    return (
        fingerprint(trainer),
        [event for event in events if event["event"] in kinds],
        [store.steps(), store.best_step(), store.best().step, files],
    )


def test_before_each_change(tmp_path):
    whole = trained(tmp_path / "whole", **_NEW)
    change = 1
    while True:
        folder = tmp_path / str(change)
        if not killed_before(change, folder, lambda f=folder: trained(f, **_NEW)):
            break
        assert trained(folder, **_NEW) == whole, change
        change += 1
    assert change > 50


def test_before_each_change_while_one_run_replaces_another(tmp_path):
    """What is resumed is one of the two, with its own log."""
    whole, older = trained(tmp_path / "whole", **_NEW), trained(tmp_path / "older", **_OLD)
    change = old = 1
    while True:
        folder = tmp_path / str(change)
        shutil.copytree(tmp_path / "older", folder)
        new = {**_NEW, "overwrite": True}
        if not killed_before(change, folder, lambda f=folder, new=new: trained(f, **new)):
            break
        try:
            assert trained(folder, **_NEW) == whole, change
        except UsageError:
            assert trained(folder, **_OLD)[:2] == older[:2], change
            old += 1
        change += 1
        if old < change - 12:  # the new run has long begun
            break
    assert old > 3
