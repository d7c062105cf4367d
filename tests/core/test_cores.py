import os

import pytest

from ortboost.core import cores as module
from ortboost.core.cores import available_cores


@pytest.fixture(autouse=True)
def groups(tmp_path, monkeypatch):
    """Writes in which control groups the process is, and files of them; at first there are none."""
    monkeypatch.setattr(module, "_CGROUPS", tmp_path)
    monkeypatch.setattr(module, "_MEMBERSHIP", tmp_path / "membership")

    def write(membership, files):
        (tmp_path / "membership").write_text(membership)
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)

    return write


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)


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


@pytest.mark.parametrize("folder", ["", "user/", "user/run/"])
@pytest.mark.parametrize(
    ("limit", "cores"),
    [("250000 100000", 3), ("10000 100000", 1), ("1600000 100000", 8), ("max 100000", 8)],
)
def test_a_container_is_limited_by_its_groups(folder, limit, cores, groups, eight_cores):
    groups("0::/user/run\n", {f"{folder}cpu.max": f"{limit}\n"})
    assert available_cores() == cores


@pytest.mark.parametrize("own", ["/", "/docker/of-the-host"])
@pytest.mark.parametrize(("quota", "cores"), [("200000", 4), ("-1", 8)])
def test_groups_of_the_first_version(own, quota, cores, groups, eight_cores):
    files = {"cpu,cpuacct/cpu.cfs_quota_us": quota, "cpu,cpuacct/cpu.cfs_period_us": "50000"}
    other = {"memory/cpu.max": "1 100000"}
    groups(f"3:memory:/\n2:cpu,cpuacct:{own}\n1:name=systemd:/\n", {**files, **other})
    assert available_cores() == cores


@pytest.mark.parametrize("text", ["", "many 100000", "100000", "100000 0"])
def test_what_is_not_a_limit_is_ignored(text, groups, eight_cores):
    groups("0::/\n", {"cpu.max": text})
    assert available_cores() == 8
