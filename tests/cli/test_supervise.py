"""What the parent says of a child that died, in processes of their own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ortboost.cli import supervise
from ortboost.cli.supervise import CRASHED
from tests.support import ROOT

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux only")

PROGRAM = """
import os, signal, sys, time
from ortboost.cli.supervise import supervised
def run():
    {body}
    return 5
sys.exit(supervised(run, ["train", "net.onnx"]))
"""


def start(body: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(body=body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **variables},
    )


def test_the_status_of_the_command():
    process = start("print('done', flush=True)")
    assert process.communicate(timeout=60) == ("done\n", "")
    assert process.returncode == 5


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGFPE", "SIGABRT", "SIGBUS", "SIGILL"])
def test_a_crash_is_an_error_of_three_lines(name):
    process = start(f"os.kill(os.getpid(), signal.{name})")
    out, said = process.communicate(timeout=60)
    assert process.returncode == CRASHED
    what, where, fix = said.splitlines()
    assert name in what
    assert where == "  where: ortboost train net.onnx"
    assert fix.startswith("  fix:")
    assert out == ""


def test_arguments_reach_the_terminal_without_control_characters(capsys):
    status = supervise._exit_status(signal.SIGSEGV, ["a\x1b[31m\nb.onnx"], interrupted=False)
    assert status == CRASHED
    _, where, _ = capsys.readouterr().err.splitlines()
    assert where.startswith("  where: ortboost a")
    assert "\x1b" not in where


def test_a_killed_child_is_told():
    process = start("os.kill(os.getpid(), signal.SIGKILL)")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGKILL
    assert "SIGKILL" in said
    assert "--resume" in said


def test_only_training_is_told_to_be_resumed(capsys):
    for verb in ("export", "train"):
        supervise._exit_status(signal.SIGTERM, [verb, "run"], interrupted=False)
        assert ("--resume" in capsys.readouterr().err) == (verb == "train")


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_to_the_parent_reaches_the_child_once(name):
    body = (
        f"seen = []; signal.signal(signal.{name}, lambda *_: seen.append(1)); "
        "print('ready', flush=True); time.sleep(1); print(len(seen), flush=True)"
    )
    with start(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(getattr(signal, name))
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (5, "1\n")


def test_the_death_of_the_parent_ends_the_child():
    with start("print(os.getpid(), flush=True); time.sleep(600)") as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    for _ in range(100):
        if state_of(child) in ("", "Z"):  # dead; a new parent may not have looked yet
            return
        time.sleep(0.1)
    pytest.fail(f"the child lives, state {state_of(child)}")


def state_of(process: int) -> str:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_one_process_on_request():
    process = start("print(os.getppid(), flush=True)", ORTBOOST_ONE_PROCESS="1")
    out, _ = process.communicate(timeout=60)
    assert int(out) == os.getpid()


# ---- Ctrl-C -------------------------------------------------------------------------------------

SLOW = """
import sys, time
sys.argv = ["ortboost", "doctor"]
import ortboost.cli
def main(words=None):
    try:
        print("ready", flush=True)
        [time.sleep(0.1) for _ in range(600)]
    except KeyboardInterrupt:
        time.sleep(0.5)  # while it tells, or cleans up
        print("told", flush=True)
        return 130
ortboost.cli.main = main
from ortboost.__main__ import command
command()
"""


# The programs sleep in small pieces: a signal just before a sleep begins waits for its end.
# What a shell starts in the background ignores SIGINT, and so would all that these tests start.
HEARD = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"


def begin(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", HEARD + program],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def test_only_the_first_interrupt_counts():
    """``timeout`` and impatience send several, and to parent and child."""
    with begin(SLOW) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        for _ in range(3):
            os.killpg(process.pid, signal.SIGINT)
            time.sleep(0.1)
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out, said) == (130, "told\n", "")


BROKEN = """
import sys, time
sys.argv = ["ortboost", "doctor"]
import ortboost.cli.app
def run(words):
    try:
        print("ready", flush=True)
        [time.sleep(0.1) for _ in range(600)]
    except KeyboardInterrupt:
        raise ImportError("numpy.core failed to import") from None
ortboost.cli.app.run = run
from ortboost.__main__ import command
command()
"""


def test_another_error_that_an_interrupt_became_is_the_interrupt():
    """Not a bug of ortboost, and no library that is broken."""
    with begin(BROKEN) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert said.startswith("error: Interrupted.\n")
    assert "bug" not in said


def test_a_shell_may_have_it_ignored():
    """As for what it starts in the background."""
    ignored = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n" + SLOW.replace(
        "[time.sleep(0.1) for _ in range(600)]", "time.sleep(1); return 0"
    )
    with begin(ignored) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert (process.returncode, said) == (0, "")


def test_a_crash_after_an_interrupt_is_the_interrupt():
    """An import of a library that is interrupted in the middle may abort."""
    body = (
        "signal.signal(signal.SIGINT, lambda *_: os.abort()); "
        "print('ready', flush=True); [time.sleep(0.1) for _ in range(600)]"
    )
    with start(body) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert said.startswith("error: Interrupted.\n")
    assert "memory" not in said


SWALLOWED = """
import sys, time
sys.argv = ["ortboost", "doctor"]
import ortboost.cli.app
class Slow:
    def __del__(self):  # an exception in here goes no further
        print("ready", flush=True)
        [time.sleep(0.1) for _ in range(600)]
def run(words):
    Slow()
    [time.sleep(0.1) for _ in range(600)]
    return 0
ortboost.cli.app.run = run
from ortboost.__main__ import command
command()
"""


def test_an_interrupt_in_a_destructor_is_not_lost():
    with begin(SWALLOWED) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=50)
    assert process.returncode == 130
    assert said.startswith("error: Interrupted.\n")
    assert "Exception ignored" not in said


IMPORTING = """
import importlib.abc, os, signal, sys
class Interrupting(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupting())
from ortboost.__main__ import command
command()
"""


@pytest.mark.parametrize("name", ["ortboost.cli", "ortboost.cli.supervise", "ctypes", "typer"])
def test_an_interrupt_while_python_imports(name):
    with subprocess.Popen(
        [sys.executable, "-c", HEARD + IMPORTING, name],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        out, said = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert "Traceback" not in said
    assert "ignored" not in said


def test_little_is_imported_before_a_signal_can_be_handled():
    program = "import sys; before = set(sys.modules); import ortboost.__main__\n"
    program += "print(*sorted(set(sys.modules) - before))"
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); {program}",
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stdout.split())
    assert "ortboost.__main__" in loaded
    assert not loaded & {"typing", "collections", "enum", "functools", "signal", "re"}


def test_an_end_that_no_signal_tells_is_seen():
    """Who starts the command may ignore SIGCHLD, which is inherited, and a thread may take it."""
    ignored = "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    taken = (
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(5,), daemon=True).start()\n"
    )
    for before in (ignored, taken):
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", before + PROGRAM.format(body="pass")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (5, "", "")
