"""Principal components of checkpoints: what is read, and how many files are open."""

import resource

import numpy as np
import pytest
from safetensors.numpy import save_file

from ortboost.core.errors import FileError
from ortboost.training.components import principal_components, weight_blocks


@pytest.fixture
def few_files():
    """A limit of open files, as systems have one, but lower."""
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100, old[1]))
    yield 100
    resource.setrlimit(resource.RLIMIT_NOFILE, old)


def test_more_checkpoints_than_files_may_be_open(tmp_path, few_files):
    paths = [tmp_path / f"{number}.safetensors" for number in range(few_files + 20)]
    for number, path in enumerate(paths):
        save_file({"w": np.full((3, 2), number, np.float32), "s": np.array(number, "f4")}, path)
    blocks = list(weight_blocks(paths, {"w": (3, 2), "s": ()}))
    rows = np.arange(len(paths), dtype=np.float32)[:, None]
    np.testing.assert_array_equal(np.concatenate(blocks, axis=1), np.repeat(rows, 7, axis=1))


def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path, monkeypatch):
    def full(*args, **settings):
        raise OSError(28, "No space left on device")

    rows = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    monkeypatch.setattr(np.lib.format, "open_memmap", full)
    with pytest.raises(FileError, match="cannot be written") as caught:
        principal_components(lambda: iter([rows]), 6, 2, tmp_path / "pca.npy")
    assert caught.value.where.endswith("pca.npy: No space left on device")
    assert not list(tmp_path.iterdir())
