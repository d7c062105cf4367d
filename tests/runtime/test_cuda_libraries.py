import sys
import types

import pytest

from ortboost.runtime import cuda_libraries


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A `nvidia` package folder as the wheels make it, with files that are no libraries."""
    for package, name in (
        ("cudnn", "libcudnn.so.8"),
        ("cudnn", "libcudnn_ops_infer.so.8"),
        ("cublas", "libcublas.so.11"),
        ("cublas", "libcublasLt.so.11"),
        ("cuda_runtime", "libcudart.so.11.0"),
        ("cuda_runtime", "libcudart.so.12"),
    ):
        folder = tmp_path / "nvidia" / package / "lib"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"no library")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)


def test_dependencies_come_first_and_other_versions_stay_out(wheels):
    names = [path.name for path in cuda_libraries.find_libraries()]
    assert names == [
        "libcudart.so.11.0",
        "libcublasLt.so.11",
        "libcublas.so.11",
        "libcudnn_ops_infer.so.8",
        "libcudnn.so.8",
    ]


TRAINING = types.SimpleNamespace(cuda_version="11.8")


def test_a_library_that_does_not_load_stops_nothing_and_is_told(wheels):
    told = cuda_libraries.preload(TRAINING)
    assert told.count("; ") == 4
    assert "libcudart.so.11.0: " in told


def test_all_are_loaded(wheels, monkeypatch):
    asked = []
    monkeypatch.setattr(cuda_libraries.ctypes, "CDLL", lambda path, mode: asked.append(path))
    assert cuda_libraries.preload(TRAINING) == ""
    assert len(asked) == 5


def test_newer_builds_load_theirs_themselves(wheels, capsys):
    """What they print belongs to an error message, not to the standard output."""
    asked = []

    def preload_dlls(directory):
        asked.append(directory)
        print("Failed to load libcublas.so.13: libcublas.so.13: no such file")
        print("Failed to load /x/libcudnn.so.9: other\nPlease follow https://...")

    newer = types.SimpleNamespace(cuda_version="13.0", preload_dlls=preload_dlls)
    assert cuda_libraries.preload(newer) == "libcublas.so.13, libcudnn.so.9: no such file"
    assert asked == [""]
    assert capsys.readouterr().out == ""
    assert cuda_libraries.preload(types.SimpleNamespace(cuda_version="12.4")) == ""  # 1.20
