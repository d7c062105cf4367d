"""Options of the suite, what runs with one runtime only, and fixed seeds for hypothesis.

The suite tries the same examples everywhere and every time. ``make random`` tries others: it takes
the profile ``random``, and prints how to reproduce what it finds.

``make test`` runs the suite twice, with onnxruntime-training and with the current onnxruntime. What
answers alike with both runs once; which tests these are is said here, in ``WITHOUT_RUNTIME``, and
held: such a test fails as soon as it opens a session or asks which runtime there is.
``EITHER_RUNTIME`` are tests that need a runtime, and are not about what it computes. Of these, only
what needs the native engine, or is marked ``each_runtime``, runs with onnxruntime-training. A test
of both engines runs with the native one there, and with the portable one on the current runtime.
Of what is in ``SAMPLED`` and has many cases of a kind, every fifth runs with onnxruntime-training.
"""

from __future__ import annotations

import gc
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import onnxruntime
import pytest
from hypothesis import HealthCheck, settings

from ortboost.autodiff.native import bindings
from ortboost.autodiff.native import engine as native
from ortboost.autodiff.portable import engine as portable
from ortboost.training import plot
from tests.support import ENGINES, NEEDS_NATIVE

TESTS = Path(__file__).resolve().parent

# No deadline and no check of speed: a slow machine is no failure.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _UNTIMED, derandomize=True, database=None)
settings.register_profile("random", _UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("fixed")  # --hypothesis-profile=random comes before it where it is given

# Folders and files whose tests read graphs, texts and numbers, and use no runtime.
WITHOUT_RUNTIME = (
    "api/test_cards.py",
    "api/test_list_runs.py",
    "cli/test_grammar.py",
    "cli/test_parse.py",
    "cli/test_runs.py",
    "cli/test_watch.py",
    "core",
    "drawing/test_layout.py",
    "drawing/test_picture.py",
    "graph/shapes/test_batch_axes.py",
    "graph/test_cost.py",
    "graph/weights/test_generated.py",
    "graph/shapes/test_input_config.py",
    "graph/weights/test_origins.py",
    "graph/weights/test_parameters.py",
    "graph/test_query.py",
    "graph/test_reach.py",
    "optimizers/test_config.py",
    "runtime/cuda/test_kernels.py",
    "runtime/cuda/test_placement.py",
    "test_dependencies.py",
    "test_layers.py",
    "test_operator_names.py",
    "test_suite.py",
    "tools/test_make_cuda_table.py",
    "tools/test_mutate.py",
    "tools/test_site.py",
    "tools/test_tests_of.py",
    "training",
    "transforms/precision/test_min_cut.py",
    "transforms/precision/test_operators.py",
    "transforms/precision/test_policy.py",
    "transforms/test_class_axis.py",
)

# The command line, MindSpore's names, configurations and files, benchmarks, examples, and forms of
# graphs for a GPU. What a runtime computes is tested in the folders that are not listed.
EITHER_RUNTIME = (
    "api",
    "cli",
    "deploy/tensorrt",
    "deploy/test_bench.py",
    "deploy/test_check_cuda.py",
    "deploy/test_large.py",
    "drawing",
    "mindspore",
    "program/test_boost_config.py",
    "program/test_catalogue.py",
    "program/test_combine_replay.py",
    "program/test_config.py",
    "program/test_digests.py",
    "program/test_former_fields.py",
    "program/test_growth.py",
    "program/test_network.py",
    "program/test_parameter_list.py",
    "program/test_program.py",
    "program/test_reproducible.py",
    "program/test_rewrite_log.py",
    "program/test_state_file.py",
    "runtime/cuda",
    "test_doctests.py",
    "test_public_api.py",
    "test_quickstart.py",
    "tools",
)

# The graphs are the same with both runtimes, and the kernels are tried by a part of the cases.
SAMPLED = (
    "autodiff/decompose",
    "autodiff/portable",
    "boosts",
    "deploy",
    "program",
    "tools/test_fuzz.py",
)
_RUN_WITH_EACH = ("each_runtime", "needs_native", "ENGINES")  # see _runs_once
_FEW = 10  # cases of one test, which all run
_START = time.monotonic()
_PNG = b"\x89PNG\r\n\x1a\n"
_plot_log = plot.plot_log


@pytest.fixture(scope="session", autouse=True)
def _files_may_be_lost_with_the_power() -> Iterator[None]:
    """Thousands of waits for the disk are slow; a killed process loses nothing without them."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


def _one_pixel(log: Path, path: Path) -> Path:
    path.write_bytes(_PNG)
    return path


@pytest.fixture(scope="session", autouse=True)
def _runs_are_not_drawn() -> Iterator[None]:
    """Curves at the end of a training take longer than the trainings of the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plot, "plot_log", _one_pixel)
        yield


@pytest.fixture
def runs_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """For the tests of these curves."""
    monkeypatch.setattr(plot, "plot_log", _plot_log)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("ortboost")
    group.addoption(
        "--runtime-only",
        action="store_true",
        help="leave out what runs once, with the other runtime",
    )
    group.addoption(
        "--budget", type=float, metavar="SECONDS", help="after so long, skip what is left"
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    """Graphs have many objects; to look for cycles among them takes an eighth of the time."""
    gc.set_threshold(100_000, 20, 50)
    gc.freeze()  # thousands of tests, and the modules


def without_runtime(path: Path) -> bool:
    """Whether the tests of a file answer alike with every runtime."""
    return _listed(path, WITHOUT_RUNTIME)


def _listed(path: Path, names: tuple[str, ...]) -> bool:
    name = path.relative_to(TESTS).as_posix()
    return any(name == one or name.startswith(f"{one}/") for one in names)


def _needs_native(item: pytest.Item) -> bool:
    return NEEDS_NATIVE in [mark.kwargs.get("reason") for mark in item.iter_markers("skipif")]


def _of_both_engines(item: pytest.Item) -> bool:
    return any(mark.args[1] is ENGINES for mark in item.iter_markers("parametrize"))


def _runs_once(item: pytest.Item) -> bool:
    if _needs_native(item) or item.get_closest_marker("each_runtime") is not None:
        return False
    once = (*WITHOUT_RUNTIME, *EITHER_RUNTIME)
    return _listed(item.path, once) or _of_both_engines(item)


def _sample(items: list[pytest.Item]) -> list[pytest.Item]:
    """Every fifth case of the listed tests that have many; all cases of the others.

    Five, as cases are products of two, three, four or six values: so each value has its turn. Where
    there may be five or ten values, as of the targets of an export, it is every seventh.
    """
    chosen = []
    for _, cases in itertools.groupby(items, key=lambda item: item.nodeid.partition("[")[0]):
        found = list(cases)
        many = len(found) > _FEW and _listed(found[0].path, SAMPLED)
        step = 7 if len(found) % 5 == 0 else 5
        chosen += found[::step] if many and not _needs_native(found[0]) else found
    return chosen


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not import files of which nothing is left: that takes seconds."""
    once = (*WITHOUT_RUNTIME, *EITHER_RUNTIME)
    if not config.getoption("--runtime-only") or not collection_path.name.startswith("test_"):
        return None
    if not _listed(collection_path, once):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return not any(word in text for word in _RUN_WITH_EACH) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--runtime-only"):
        chosen = _sample([item for item in items if not _runs_once(item)])
        kept = {*chosen}
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = chosen


def pytest_runtest_setup(item: pytest.Item) -> None:
    budget = item.config.getoption("--budget")
    if budget is not None and time.monotonic() - _START > budget:
        pytest.skip(f"the {budget:g} seconds are over")


def _refuse(*arguments: object, **options: object) -> None:
    pytest.fail(
        "This test asks the runtime: take its file from WITHOUT_RUNTIME in tests/conftest.py"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """A test that should not need a runtime does not find one."""
    if not without_runtime(item.path):
        return (yield)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(onnxruntime, "InferenceSession", _refuse)
        patched.setattr(onnxruntime, "get_available_providers", _refuse)
        patched.setattr(native, "diagnose", _refuse)
        patched.setattr(bindings, "_bindings", _refuse)
        patched.setattr(portable, "_newest_here", _refuse)
        return (yield)
