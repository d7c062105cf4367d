import os

import pytest

from ortboost.core.cores import available_cores


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes are not bound here")
def test_only_the_processors_of_this_process_count():
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert available_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
    assert available_cores() == len(allowed)


@pytest.mark.parametrize(("count", "cores"), [(6, 6), (None, 1)])
def test_systems_that_do_not_bind_processes(count, cores, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: count)
    assert available_cores() == cores
