import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ortboost.core.errors import FileError
from ortboost.deploy.check_runtime import check_onnxruntime
from ortboost.deploy.int8.config import Int8Config
from ortboost.deploy.int8.quantize import quantize_int8
from ortboost.graph.io import save_model
from tests.deploy.tensorrt.cases import one
from tests.support import MODELS, small_mlp, text_model, weights


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet20"])
def test_what_runs_has_no_error(name):
    report = check_onnxruntime(MODELS / f"{name}.onnx")
    assert report.ok
    assert report.target == f"onnxruntime {onnxruntime.__version__}"
    training = {f.rule for f in report.findings}
    assert training == ({"ORT003"} if name == "resnet20" else set())


def test_an_unknown_operator_is_an_error():
    report = check_onnxruntime(text_model(one("[n] y = Bogus(x)")))
    rules = {finding.rule: finding for finding in report.findings}
    assert rules["ORT001"].severity == "error"
    assert "Bogus" in rules["ORT001"].node
    assert rules["ORT002"].severity == "warn"
    assert not report.ok


def test_missing_weights_are_an_error_and_nothing_is_opened(tmp_path):
    path = tmp_path / "m.onnx"
    ir.save(small_mlp(), path, external_data="w.bin", size_threshold_bytes=0)
    assert not check_onnxruntime(path).findings
    (tmp_path / "w.bin").unlink()
    assert {f.rule for f in check_onnxruntime(path).findings} == {"ORT004"}


def test_weights_that_are_inputs_are_told():
    model = small_mlp()
    model.graph.inputs.append(model.graph.initializers["w1"])
    assert [f.rule for f in check_onnxruntime(model).findings] == ["ORT005"]


def test_a_dropout_that_drops_is_a_warning_that_no_flag_mends():
    model = text_model(
        one("[n] y, m = Dropout(x, r, t)", "float[2,3] x, float r, bool t"),
        r=np.float32(0.5),
        t=np.bool_(True),
    )
    (finding,) = check_onnxruntime(model).findings
    assert (finding.rule, finding.severity, finding.fixable) == ("ORT003", "warn", False)
    assert "--fix" not in finding.fix


def test_no_file_and_no_model(tmp_path):
    with pytest.raises(FileError):
        check_onnxruntime(tmp_path / "no.onnx")
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    with pytest.raises(FileError):
        check_onnxruntime(tmp_path / "bad.onnx")
    save_model(small_mlp(), tmp_path / "good.onnx")
    assert check_onnxruntime(str(tmp_path / "good.onnx")).ok


def test_bytes_that_saturate_are_told():
    x = [{"x": weights(8, 4)}]
    for reduce_range in (True, False):
        model = small_mlp()
        quantize_int8(model, x, Int8Config(symmetric=False, reduce_range=reduce_range))
        found = check_onnxruntime(model).findings
        assert {f.rule for f in found} == (set() if reduce_range else {"ORT006"})
        assert all("without VNNI" in f.reason and f.severity == "warn" for f in found)
