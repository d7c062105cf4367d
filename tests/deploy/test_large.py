"""A model of more than 2 GB, too large for one protobuf: none may be made."""

import os
import shutil

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.cli import main
from ortboost.runtime.session import open_session

WIDTH = 1024
ROWS = (2 << 30) // (4 * WIDTH) + 4096
NEEDED = (
    12 << 30
)  # of memory and of disk: the table, twice while it is compared, and the suites beside


def _memory() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.fixture
def large(tmp_path):
    """An embedding whose table is a file full of holes but for its last rows."""
    if min(_memory(), shutil.disk_usage(tmp_path).free) < NEEDED:
        pytest.skip("needs 12 GiB of memory and of disk")
    model = ir.from_onnx_text(
        f"""<ir_version: 8, opset_import: ["" : 18]>
        g (int64[N] ids, float[{ROWS},{WIDTH}] table) => (float[N,{WIDTH}] y)
        {{ e = Gather(table, ids) c = Identity(e) y = Relu(c) }}"""
    )
    rows = np.arange(3 * WIDTH, dtype=np.float32).reshape(3, WIDTH) - WIDTH
    with open(tmp_path / "table.bin", "wb") as file:
        file.truncate(ROWS * WIDTH * 4)
        file.seek(-rows.nbytes, os.SEEK_END)
        file.write(rows.tobytes())
    table = model.graph.inputs.pop()
    table.const_value = ir.ExternalTensor(
        "table.bin",
        0,
        ROWS * WIDTH * 4,
        ir.DataType.FLOAT,
        shape=table.shape,
        name="table",
        base_dir=tmp_path,
    )
    model.graph.register_initializer(table)
    path = tmp_path / "large.onnx"
    path.write_bytes(ir.to_proto(model).SerializeToString())
    yield path, rows
    for file in tmp_path.iterdir():  # the folders of tests are kept for a while
        file.unlink()


def test_export(large, tmp_path, capsys):
    path, rows = large
    out = tmp_path / "out.onnx"
    assert main(["export", str(path), "-o", str(out)]) == 0, capsys.readouterr().err
    assert "2.2 GB" in capsys.readouterr().out
    assert out.stat().st_size < 1 << 20
    assert [n.op_type for n in onnx.load(out, load_external_data=False).graph.node] == [
        "Gather",
        "Relu",
    ]
    session = open_session(out, device="cpu")
    ids = np.array([ROWS - 3, 0, ROWS - 1])
    (found,) = session.run(None, {"ids": ids})
    np.testing.assert_array_equal(found, np.maximum([rows[0], 0 * rows[0], rows[2]], 0))
