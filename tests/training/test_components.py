"""Principal components of checkpoints: what is read, and how many files are open."""

import resource

import numpy as np
import pytest
from safetensors.numpy import save_file

from ortboost.training.components import weight_blocks


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
