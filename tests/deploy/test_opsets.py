"""Every rewrite, target and precision over every opset: valid, with equal results."""

from __future__ import annotations

import itertools

import onnx
import onnxruntime
import pytest

from ortboost.core.errors import ModelError
from ortboost.deploy.export import export_network
from ortboost.deploy.low_precision import LowPrecision
from ortboost.deploy.targets import PRECISIONS, TARGETS
from ortboost.deploy.tolerance import tolerance_for
from ortboost.deploy.write_verified import write_verified
from tests.deploy.opsets import OPSETS, convnet, transformer
from tests.support import run, weights

MINOR = int(onnxruntime.__version__.split(".")[1])
KNOWN = [opset for opset in OPSETS if opset <= (21 if MINOR < 20 else 25)]
NETWORKS = {"convnet": (convnet, (3, 2, 6, 6)), "transformer": (transformer, (2, 5, 8))}


def exported(network, opset, target="onnxruntime", precision="fp32", wanted=None, path=None):
    make, shape = NETWORKS[network]
    model, feeds = make(opset), [{"x": weights(*shape, seed=3, scale=1.0)}]
    low_precision = None if precision == "fp32" else LowPrecision(precision, calibration=feeds)
    made = export_network(model, target=TARGETS[target], low_precision=low_precision, opset=wanted)
    write_verified(
        made, path, expected=[run(model, feeds[0])], feeds=feeds, tolerance=tolerance_for(precision)
    )
    proto = onnx.load(path)
    onnx.checker.check_model(proto, full_check=True)
    return proto


@pytest.mark.parametrize("opset", KNOWN)
@pytest.mark.parametrize("network", NETWORKS)
def test_what_is_written_is_valid_and_right(network, opset, tmp_path):
    proto = exported(network, opset, path=tmp_path / "m.onnx")
    assert len(proto.graph.node) <= len(NETWORKS[network][0](opset).graph.node)


# Each target and precision runs with some opsets here; all combinations were run by hand.
TURNS = itertools.cycle(KNOWN)
REST = [
    (network, next(TURNS), target, precision)
    for network in NETWORKS
    for target in TARGETS
    for precision in PRECISIONS
    if (target, precision) != ("onnxruntime", "fp32") and precision != "bf16"
    for _ in range(2)
]


@pytest.mark.parametrize(("network", "opset", "target", "precision"), REST)
def test_so_it_is_for_every_target_and_precision(network, opset, target, precision, tmp_path):
    if (opset, target, precision) == (21, "onnxruntime", "int8") and MINOR < 20:
        pytest.skip("onnxruntime 1.19 has no QLinearMatMul of opset 21; it is refused by name")
    exported(network, opset, target, precision, path=tmp_path / "m.onnx")


def test_a_shape_is_read_in_parts_only_where_the_opset_has_them(tmp_path):
    for opset in (13, 14, 15):
        proto = exported("transformer", opset, target="generic", path=tmp_path / "m.onnx")
        shapes = [node for node in proto.graph.node if node.op_type == "Shape"]
        assert all(opset >= 15 or not node.attribute for node in shapes)


@pytest.mark.parametrize("wanted", [11, 12, 13, 15, 17])
@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_a_newer_file_is_written_in_an_older_opset(network, wanted, precision, tmp_path):
    proto = exported(network, 20, "generic", precision, wanted, tmp_path / "m.onnx")
    assert proto.opset_import[0].version == wanted


def test_int8_by_channel_has_no_older_opset_than_13(tmp_path):
    """Quantizing raises the opset; the conversion that was asked for comes last."""
    with pytest.raises(ModelError, match="from opset 20 to 12"):
        exported("convnet", 20, "generic", "int8", 12, tmp_path / "m.onnx")
