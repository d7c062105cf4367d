import json
import os
import shlex
import sys
import types

import numpy as np
import pytest

from ortboost.core.errors import DependencyError, FileError, ModelError, ParityError, UsageError
from ortboost.deploy.tensorrt import session
from ortboost.deploy.tensorrt.api import load_toolkit
from ortboost.deploy.tensorrt.build_engine import build_engine, recipe
from ortboost.deploy.tensorrt.profiles import parse_profile
from ortboost.deploy.tensorrt.session import EngineSession
from ortboost.graph.io import save_model
from tests.deploy.tensorrt.cases import one
from tests.deploy.tensorrt.fake import DataType, FakeCuda, FakeTensorRT, toolkit
from tests.support import assert_three_lines, run, small_convnet, small_mlp, text_model, weights

SHAPES = [parse_profile("x:1,2,4x4")]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.onnx"
    save_model(small_mlp(), path)
    return path


def files(path):
    return sorted(os.listdir(path.parent))


def test_an_engine_is_built_compared_and_written(model):
    trt = FakeTensorRT()
    kit = toolkit(trt)
    out = model.with_name("m.engine")
    built = build_engine(model, out, SHAPES, workspace=1 << 30, toolkit=kit)
    assert built.parity.ok
    assert built.parity.samples == 2  # the optimum shape
    assert files(model) == ["m.engine", "m.engine.json", "m.onnx"]
    assert out.read_bytes() == model.read_bytes()
    metadata = json.loads((model.parent / "m.engine.json").read_text())
    assert metadata["tensorrt"] == "11.4.0"
    assert metadata["gpu"] == "Fake H200"
    assert metadata["compute_capability"] == "9.0"
    assert metadata["onnx"] == "m.onnx"
    assert len(metadata["onnx_sha256"]) == 64
    assert metadata["profiles"] == ["x:1,2,4x4"]
    assert metadata["strongly_typed"] is True
    assert trt.called("parse_from_file") == [(str(model),)]
    assert trt.called("set_shape") == [("x", (1, 4), (2, 4), (4, 4))]
    assert trt.called("set_memory_pool_limit") == [(0, 1 << 30)]
    assert trt.called("set_timing_cache") == [(b"", False)]
    assert not kit.cudart.memory
    assert not kit.cudart.streams


@pytest.mark.parametrize(("version", "flags"), [("10.16.1.11", 2), ("11.0.0.114", 0)])
def test_networks_are_strongly_typed_in_the_way_of_the_version(version, flags, model):
    trt = FakeTensorRT(version)
    build_engine(model, model.with_name("m.engine"), SHAPES, toolkit=toolkit(trt))
    assert trt.called("create_network") == [(flags,)]


def test_a_fixed_shape_needs_no_profile(tmp_path):
    model = text_model(one("[n] y = Relu(x)"))
    save_model(model, tmp_path / "m.onnx")
    trt = FakeTensorRT()
    built = build_engine(tmp_path / "m.onnx", tmp_path / "e", toolkit=toolkit(trt))
    assert not trt.called("add_optimization_profile")
    assert built.metadata["profiles"] == []


def test_timings_are_kept(model):
    cache = model.with_name("timings")
    for number in (1, 2):
        trt = FakeTensorRT()
        out = model.with_name("m.engine")
        build_engine(model, out, SHAPES, timing_cache=cache, toolkit=toolkit(trt))
        assert trt.called("set_timing_cache") == [(b"+" * (number - 1), False)]
        assert cache.read_bytes() == b"+" * number


def test_an_engine_that_answers_differently_is_not_written(model):
    out = model.with_name("m.engine")
    out.write_bytes(b"good")
    with pytest.raises(ParityError) as info:
        build_engine(model, out, SHAPES, toolkit=toolkit(FakeTensorRT(off=0.1)))
    assert_three_lines(info.value)
    assert "logits" in info.value.where
    assert out.read_bytes() == b"good"
    assert files(model) == ["m.engine", "m.onnx"]


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"refuses": "no importer for Det"}, ModelError, "/head/Det"),
        ({"fails": True}, ModelError, "could not build"),
        ({"starts": False}, DependencyError, "could not start"),
        ({"shape_tensor": True}, ModelError, "decides a shape"),
        ({"dynamic_output": True}, ModelError, "depends on the data"),
    ],
)
def test_what_goes_wrong_is_said_clearly(settings, error, words, model):
    with pytest.raises(error) as info:
        build_engine(model, model.with_name("e"), SHAPES, toolkit=toolkit(FakeTensorRT(**settings)))
    assert_three_lines(info.value)
    assert words in str(info.value)
    assert files(model) == ["m.onnx"]


@pytest.mark.parametrize(
    "shapes",
    [
        [],
        [parse_profile("y:1x4")],
        [parse_profile("x:1x5")],
        [parse_profile("x:1,2x4".replace("1,2", "2"))] * 2,
    ],
)
def test_profiles_are_checked_before_anything_is_built(shapes, model):
    trt = FakeTensorRT()
    with pytest.raises(UsageError):
        build_engine(model, model.with_name("e"), shapes, toolkit=toolkit(trt))
    assert not trt.calls


def test_a_missing_folder_is_found_before_anything_is_built(model):
    trt = FakeTensorRT()
    with pytest.raises(FileError):
        build_engine(model, model.parent / "no" / "e", SHAPES, toolkit=toolkit(trt))
    assert not trt.calls


def test_without_tensorrt_the_recipe_is_printed(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    for major, typed in ((10, True), (11, False)):
        with pytest.raises(DependencyError) as info:
            build_engine(model, model.with_name("m.engine"), SHAPES, major=major)
        assert info.value.exit_status == 7
        assert "package 'tensorrt' is not installed" in info.value.what
        assert str(model) in info.value.where
        line = info.value.fix.splitlines()[-1].strip()
        words = shlex.split(line)
        assert words[0] == "trtexec"
        assert "--minShapes=x:1x4" in words
        assert "--optShapes=x:2x4" in words
        assert "--maxShapes=x:4x4" in words
        assert ("--stronglyTyped" in words) is typed
        assert not [w for w in words if w.startswith(("--fp16", "--bf16", "--int8", "--best"))]
    assert files(model) == ["m.onnx"]


def test_the_recipe_joins_inputs_and_quotes():
    shapes = [parse_profile("x:1,2,4x3"), parse_profile("y:5")]
    line = recipe("my model.onnx", "e", shapes, workspace=3 << 30, timing_cache="t")
    words = shlex.split(line)
    assert words[1] == "--onnx=my model.onnx"
    assert "--maxShapes=x:4x3,y:5" in words
    assert "--memPoolSize=workspace:3072M" in words
    assert "--timingCacheFile=t" in words


def installed(monkeypatch, trt, cuda):
    monkeypatch.setitem(sys.modules, "tensorrt", trt)
    package = types.ModuleType("cuda")
    bindings = types.ModuleType("cuda.bindings")
    monkeypatch.setitem(sys.modules, "cuda", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)


def test_the_toolkit_is_found(monkeypatch):
    installed(monkeypatch, FakeTensorRT("10.16.1"), FakeCuda())
    kit = load_toolkit()
    assert (kit.version, kit.major, kit.gpu, kit.capability) == ("10.16.1", 10, "Fake H200", "9.0")


@pytest.mark.parametrize(
    ("version", "devices", "words"),
    [("8.6.1", 1, "too old"), ("11.4.0", 0, "GPU does not answer")],
)
def test_an_old_package_or_no_gpu(version, devices, words, monkeypatch):
    installed(monkeypatch, FakeTensorRT(version), FakeCuda(devices=devices))
    with pytest.raises(DependencyError) as info:
        load_toolkit()
    assert_three_lines(info.value)
    assert words in info.value.what


def test_without_cuda_python(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorrt", FakeTensorRT())
    monkeypatch.setitem(sys.modules, "cuda", None)
    with pytest.raises(DependencyError) as info:
        load_toolkit()
    assert "cuda-python" in info.value.fix


def test_an_engine_runs_batches_of_its_profile(tmp_path):
    network = small_convnet()
    path = tmp_path / "m.onnx"
    save_model(network, path)
    trt = FakeTensorRT()
    trt.calls.append(("set_shape", "x", (1, 1, 6, 6), (2, 1, 6, 6), (4, 1, 6, 6)))
    kit = toolkit(trt)
    session = EngineSession(kit, path.read_bytes())
    assert session.inputs == ("x",)
    assert session.outputs == ("logits",)
    for batch in (1, 4):
        feeds = {"x": weights(batch, 1, 6, 6).astype(np.float64)}
        expected = run(network, {"x": feeds["x"].astype(np.float32)})["logits"]
        np.testing.assert_allclose(session.evaluate(feeds)["logits"], expected, rtol=1e-5)
    with pytest.raises(UsageError, match="outside of the profile"):
        session.evaluate({"x": weights(5, 1, 6, 6)})
    with pytest.raises(UsageError, match="was not fed"):
        session.evaluate({})
    assert not kit.cudart.memory
    assert not kit.cudart.streams


def test_an_engine_of_another_machine():
    with pytest.raises(DependencyError) as info:
        EngineSession(toolkit(), b"foreign")
    assert_three_lines(info.value)


def test_a_type_that_numpy_does_not_have(model, monkeypatch):
    session = EngineSession(toolkit(), model.read_bytes())
    monkeypatch.setattr(session._engine, "get_tensor_dtype", lambda name: DataType.FP8)
    with pytest.raises(ModelError, match="FP8"):
        session.evaluate({"x": weights(2, 4)})


def test_all_types_of_the_edge_have_a_numpy_type():
    assert set(session._DTYPES) == {kind.name for kind in DataType} - {"FP8"}
