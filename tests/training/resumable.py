"""A run to be killed by tests, in a process of its own: ``FOLDER [--resume] [--kill-at N]...``.

Prints only a hash of the final state. ``--kill-at N`` sends the process SIGKILL in the
middle of step N; ``--kill-in-save N`` between the two files of the N-th checkpoint; ``--signal-at
N`` sends a SIGINT (or, with ``--signal TERM``, a SIGTERM) in step N.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from linear_stepper import LinearEvaluator, LinearStepper, make_data

from ortboost.core.errors import OrtBoostError
from ortboost.core.loss_scale import DynamicScaleConfig
from ortboost.training import checkpoint_file
from ortboost.training.callbacks import BestModel, EarlyStopping, Goal
from ortboost.training.checkpoints import CheckpointStore
from ortboost.training.config import TrainConfig
from ortboost.training.data import ArraySource
from ortboost.training.logs import EventLog
from ortboost.training.progress import make_progress
from ortboost.training.schedules import Cosine, LinearWarmup
from ortboost.training.trainer import Trainer

SCALE = DynamicScaleConfig(init_scale=2.0**16, scale_window=5)
STEPS = 4 * 7  # 4 epochs of 50 samples in batches of 8, the last one short


class DeadlyStepper(LinearStepper):
    """Sends its own process a signal in a given step."""

    deaths: dict[int, int]

    def step(self, feeds, hyper, *, seed):
        number = self.deaths.get(self.scale.cur_iter)
        if number is not None:
            os.kill(os.getpid(), number)
        return super().step(feeds, hyper, seed=seed)


def build(folder, *, stepper=None, callbacks=None, progress="off", **options):
    stepper = stepper or LinearStepper(SCALE, overflow=lambda step: step < 5 or step % 9 == 0)
    config = TrainConfig(
        **{
            "epochs": 4,
            "learning_rate": LinearWarmup(Cosine(0.05, 20), 4),
            "seed": 11,
            "metrics": (),
            "loss_scale": SCALE,
            "checkpoint_every": 3,
            "validate_every": 5,
            **options,
        }
    )
    folder = Path(folder)
    trainer = Trainer(
        stepper,
        LinearEvaluator(stepper),
        config,
        store=CheckpointStore(folder / "checkpoints", keep=3),
        callbacks=[BestModel(), EarlyStopping(Goal(min_delta=1e-9), patience=50)]
        if callbacks is None
        else callbacks,
        log=EventLog(folder / "log.jsonl"),
        progress=make_progress(progress),
        program="linear",
    )
    train = ArraySource(make_data(50), 8, shuffle=True, seed=5, inputs=stepper.inputs)
    validation = ArraySource(make_data(20, seed=9), 8, inputs=stepper.inputs)
    return trainer, train, validation


def fingerprint(trainer):
    """A hash over the bits of the whole state, and over what the callbacks remember."""
    digest = hashlib.sha256()
    for name, array in sorted(trainer.stepper.state().items()):
        digest.update(f"{name}{array.dtype}{array.shape}".encode() + array.tobytes())
    for callback in trainer.callbacks:
        digest.update(repr(callback.state_dict()).encode())
    return digest.hexdigest()


def main(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--kill-at", type=int)
    parser.add_argument("--kill-in-save", type=int)
    parser.add_argument("--signal-at", type=int)
    parser.add_argument("--signal", default="INT")
    options = parser.parse_args(words)
    stepper = DeadlyStepper(SCALE, overflow=lambda step: step < 5 or step % 9 == 0)
    stepper.deaths = {
        options.kill_at: signal.SIGKILL,
        options.signal_at: getattr(signal, f"SIG{options.signal}"),
    }
    if options.kill_in_save:
        saves, write = [], checkpoint_file.write_json

        def deadly(path, value):
            saves.append(path)
            if len(saves) == options.kill_in_save:
                os.kill(os.getpid(), signal.SIGKILL)
            write(path, value)

        checkpoint_file.write_json = deadly
    trainer, train, validation = build(options.folder, stepper=stepper)
    try:
        trainer.fit(train, validation, resume=options.resume)
    except OrtBoostError as error:
        print(error, file=sys.stderr)
        sys.exit(error.exit_status)
    print(fingerprint(trainer))
