from __future__ import annotations

import functools
import json
import os
import types
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from onnx.reference import ReferenceEvaluator

from ortboost.api import doctor
from ortboost.core.errors import DependencyError, ModelError, UsageError
from ortboost.graph import io
from ortboost.program.build import build_program
from ortboost.program.config import ProgramConfig
from ortboost.runtime import compiled_graph
from ortboost.runtime import session as module
from ortboost.runtime.session import available_devices, open_session
from ortboost.runtime.stepper import Stepper
from tests.support import assert_three_lines, batch_for, model_path, small_mlp, text_model

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
ON_CPU_BUILD = pytest.mark.skipif(
    CUDA in onnxruntime.get_available_providers(), reason="this build has CUDA"
)


def test_cpu_is_cpu():
    assert open_session(model_path("mlp"), device="cpu").get_providers() == [CPU]


def test_a_path_and_a_model_are_the_same():
    names = [
        [v.name for v in open_session(source, device="cpu").get_inputs()]
        for source in (model_path("mlp"), str(model_path("mlp")))
    ]
    assert names[0] == names[1] == ["x"]
    assert [v.name for v in open_session(small_mlp(), device="cpu").get_inputs()] == ["x"]


def test_threads_are_those_asked_for():
    options = open_session(small_mlp(), device="cpu", threads=3).get_session_options()
    assert options.intra_op_num_threads == 3
    for threads in (-1, 0, 10**9):  # the runtime takes 0 and less for its own choice
        with pytest.raises(UsageError, match=f"'threads' is {threads}"):
            open_session(small_mlp(), device="cpu", threads=threads)


def test_a_limited_process_has_no_more_threads_than_processors(monkeypatch):
    """The runtime looks at the machine alone."""

    def threads():
        opened = open_session(small_mlp(), device="cpu").get_session_options()
        return opened.intra_op_num_threads

    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(module, "available_cores", lambda: 3)
    assert threads() == 3
    monkeypatch.setattr(module, "available_cores", lambda: 8)
    assert threads() == 0  # the runtime's choice: one for each physical core


def test_an_unknown_device_names_the_nearest():
    with pytest.raises(UsageError) as info:
        open_session(small_mlp(), device="cude")
    assert_three_lines(info.value)
    assert "'cuda'" in info.value.fix


@ON_CPU_BUILD
@pytest.mark.parametrize(
    "start", [open_session, lambda m, device: Stepper(build_program(m), device=device)]
)
def test_cuda_on_a_build_without_it_is_an_error(start):
    with pytest.raises(DependencyError) as info:
        start(small_mlp(), device="cuda")
    assert_three_lines(info.value)
    assert "ortboost[cuda]" in info.value.fix


@ON_CPU_BUILD
def test_devices_say_why_not():
    devices = available_devices()
    assert devices["cpu"] is None
    assert CUDA in devices["cuda"]


class FakeRuntime(types.SimpleNamespace):
    """A GPU build whose CUDA libraries do not load: it offers CUDA and falls back in silence."""

    def __init__(self, loads: bool):
        known = {"SessionOptions": onnxruntime.SessionOptions, "__version__": "1.31.1"}
        super().__init__(**known, opened=[], levels=[])
        self.loads = loads

    def get_available_providers(self):
        return [CUDA, CPU]

    def set_default_logger_severity(self, level):
        self.levels.append(level)

    def InferenceSession(self, source, options, providers, **_):
        self.opened.append(providers)
        kept = providers if self.loads else [p for p in providers if p == CPU]
        return types.SimpleNamespace(get_providers=lambda: kept)


def test_a_cuda_graph_without_cuda_is_refused():
    with pytest.raises(UsageError, match="has no CUDA graphs") as error:
        open_session(small_mlp(), device="cpu", cuda_graph=True)
    assert error.value.where == "cuda_graph"


def test_a_custom_operator_is_named():
    text = """<ir_version: 8, opset_import: ["" : 18, "com.acme": 1]>
        g (float[N] x) => (float[N] y) { y = com.acme.Magic(x) }"""
    with pytest.raises(ModelError, match=r"no operator Magic of the domain 'com\.acme'") as info:
        open_session(text_model(text))
    assert_three_lines(info.value)


def test_an_operator_that_no_opset_has_is_named():
    text = """<ir_version: 8, opset_import: ["" : 17]>
        g (float[N] x) => (float[N] y) { y = Erfc(x) }"""
    with pytest.raises(ModelError, match="no operator Erfc in opset 17") as info:
        open_session(text_model(text))
    assert_three_lines(info.value)


def test_shapes_that_do_not_fit_are_a_fault_of_the_file():
    """As written by torch's exporters: a pool of rank 2, a Squeeze of an axis of length 4."""
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (float[N,4] x) => (float[N] y) {
          one = Constant<value_ints = [1]>() [squeezed] y = Squeeze(x, one) }"""
    with pytest.raises(ModelError, match="The model is not valid") as info:
        open_session(text_model(text))
    assert_three_lines(info.value)
    assert info.value.where.startswith("Squeeze 'squeezed': Dimension of input 1 must be 1")


def test_a_node_without_a_name_is_not_named():
    text = """<ir_version: 8, opset_import: ["" : 18]>
        g (bfloat16[N] x) => (bfloat16[N] y) { y = Add(x, x) }"""
    with pytest.raises(ModelError, match="no kernel for Add of opset 14") as info:
        open_session(text_model(text))
    assert info.value.where.startswith("Add, onnxruntime")


def test_a_silent_fallback_is_an_error(monkeypatch):
    fake = FakeRuntime(loads=False)
    monkeypatch.setattr(module, "runtime", lambda: fake)
    with pytest.raises(DependencyError) as info:
        open_session(small_mlp(), device="cuda")
    assert_three_lines(info.value)
    assert "did not load" in info.value.what
    assert fake.levels == [4, 2]  # what the runtime logs of it is not shown beside the error


def test_cuda_that_does_not_load_is_refused_before_anything_is_placed_there(monkeypatch):
    fake = FakeRuntime(loads=False)
    monkeypatch.setattr(module, "runtime", lambda: fake)
    program = build_program(small_mlp(), ProgramConfig(engine="portable"))
    with pytest.raises(DependencyError, match="did not load"):
        Stepper(program, device="cuda")


@pytest.mark.parametrize("loads", [True, False])
def test_auto_takes_cuda_where_it_really_works(monkeypatch, loads):
    fake = FakeRuntime(loads)
    monkeypatch.setattr(module, "runtime", lambda: fake)
    assert (CUDA in open_session(small_mlp()).get_providers()) == loads


def test_two_packages_that_overwrote_each_other(monkeypatch):
    monkeypatch.delattr(onnxruntime, "InferenceSession")
    with pytest.raises(DependencyError) as info:
        open_session(small_mlp())
    assert_three_lines(info.value)
    assert "but empty" in info.value.what


def test_no_runtime_at_all(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    with pytest.raises(DependencyError) as info:
        open_session(small_mlp())
    assert_three_lines(info.value)


def test_a_model_the_runtime_refuses(tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(b"\xff" * 50)
    with pytest.raises(ModelError) as info:
        open_session(path, device="cpu")
    assert_three_lines(info.value)


@pytest.mark.gpu
@pytest.mark.skipif(CUDA not in onnxruntime.get_available_providers(), reason="no CUDA here")
def test_a_step_on_cuda_is_close_to_one_on_the_cpu():
    program = build_program(small_mlp())
    feeds = batch_for(program, 8)
    losses = []
    for device in ("cpu", "cuda"):
        stepper = Stepper(program, device=device)
        assert stepper.device == device
        losses.append([stepper.step(feeds, {"learning_rate": 0.1}).loss for _ in range(5)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


def test_a_large_model_goes_by_way_of_a_file(monkeypatch):
    """Beyond 2 GiB a model is no message any more; the limit is lowered here."""
    x = np.ones((2, 4), np.float32)
    small = open_session(small_mlp(), device="cpu", threads=1).run(None, {"x": x})
    monkeypatch.setattr(module, "EXTERNAL_DATA_THRESHOLD", 10)
    monkeypatch.setattr(
        io.save_model, "__kwdefaults__", {"external_data_threshold": 10, "proto": None}
    )
    paths = []
    original = onnxruntime.InferenceSession

    def watched(source, *arguments, **more):
        paths.append(source)
        return original(source, *arguments, **more)

    monkeypatch.setattr(onnxruntime, "InferenceSession", watched)
    large = open_session(small_mlp(), device="cpu", threads=1).run(None, {"x": x})
    np.testing.assert_array_equal(large[0], small[0])
    assert [type(path) for path in paths] == [str]


def test_tensorrt_is_used_or_refused(monkeypatch):
    with pytest.raises(DependencyError) as info:
        open_session(small_mlp(), device="tensorrt")
    assert_three_lines(info.value)
    assert "onnxruntime-gpu" in info.value.fix
    fake = types.SimpleNamespace(
        __version__="0",
        get_available_providers=lambda: ["TensorrtExecutionProvider", CUDA, CPU],
        SessionOptions=onnxruntime.SessionOptions,
        set_default_logger_severity=lambda level: None,
        asked=[],
    )

    def session(source, options, providers, **_):
        fake.asked.append(providers)
        return types.SimpleNamespace(get_providers=lambda: fake.given)

    fake.InferenceSession = session
    monkeypatch.setattr(module, "runtime", lambda: fake)
    loaded = []
    monkeypatch.setattr(module, "preload", lambda ort: loaded.append(ort) or "")
    monkeypatch.setattr(module, "_preloaded", functools.cache(module._preloaded.__wrapped__))
    fake.given = ["TensorrtExecutionProvider", CUDA, CPU]
    open_session(small_mlp(), device="tensorrt")
    assert fake.asked == [["TensorrtExecutionProvider", CUDA, CPU]]
    fake.given = [CUDA, CPU]
    with pytest.raises(DependencyError, match="did not load"):
        open_session(small_mlp(), device="tensorrt")

    def fails(*_, **__):
        raise RuntimeError("state.cc:729 void f() Please install TensorRT libraries, as mentioned")

    fake.InferenceSession = fails
    with pytest.raises(DependencyError, match="did not load") as info:
        open_session(small_mlp(), device="tensorrt")
    assert info.value.where == "Please install TensorRT libraries, as mentioned"
    assert loaded == [fake]  # once in a process


def test_tensorrt_runs_no_training_step():
    with pytest.raises(UsageError, match="not training steps"):
        Stepper(build_program(small_mlp()), device="tensorrt")


class Distribution:
    def __init__(self, name, folder="onnxruntime"):
        self.metadata, self.folder = {"Name": name}, folder

    def read_text(self, name):
        return f"{self.folder}\n" if name == "top_level.txt" else None


@pytest.fixture
def installed(monkeypatch):
    """A list: the distributions that are found."""
    found = []
    monkeypatch.setattr(module.importlib.metadata, "distributions", lambda: iter(found))
    for cached in (module.runtime_packages, module._warn_of_several):
        cached.cache_clear()
    yield found
    for cached in (module.runtime_packages, module._warn_of_several):
        cached.cache_clear()


@pytest.fixture
def two_packages(installed):
    installed += [Distribution(n) for n in ("numpy", "onnxruntime", "onnxruntime-training-cpu")]


def test_packages_with_folders_of_their_own_do_not_count(installed):
    installed += [
        Distribution("onnxruntime"),
        Distribution("onnxruntime-genai", "onnxruntime_genai"),
    ]
    assert module.runtime_packages() == ("onnxruntime",)


def test_two_packages_are_told_once_when_the_runtime_is_imported(two_packages, caplog, monkeypatch):
    """Partly overwritten, it mostly works, and ``auto`` would silently use the other engine."""
    module.runtime()
    module.runtime()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    said = record.getMessage()
    assert "onnxruntime and onnxruntime-training-cpu share one folder" in said
    assert "pip uninstall -y onnxruntime onnxruntime-training-cpu" in said
    (line,) = [f for f in doctor() if f.name == "onnxruntime"]
    assert line.status == "fail"
    assert "share one folder and break each other" in line.detail
    assert "pip uninstall -y" in line.fix


def test_what_is_optional_is_told_with_its_use():
    lines = {line.name: line for line in doctor()}
    for name in ("matplotlib", "pillow", "pyarrow", "torch"):
        assert lines[name].status == "ok" or lines[name].fix.startswith("For ")


def test_one_package_is_not_told(caplog):
    module._warn_of_several.cache_clear()
    module.runtime()
    assert not caplog.records


@pytest.mark.parametrize(
    "pool",
    [
        "MaxPool<kernel_shape=[3,3], strides=[2,2]>",
        "AveragePool<kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]>",
    ],
)
def test_zeros_before_a_pool_stay_zeros(pool):
    """The runtime's Pad_Fusion makes them -inf, or leaves them out of the mean."""
    text = f"""<ir_version: 8, opset_import: ["" : 18]>
        g (float[N,2,8,8] x) => (float[N,2,H,W] y)
        <int64[8] pads = {{0,0,1,1,0,0,1,1}}> {{ p = Pad(x, pads) y = {pool}(p) }}"""
    x = -1 - np.random.default_rng(0).random((2, 2, 8, 8), np.float32)
    model = onnx.parser.parse_model(text)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    (found,) = open_session(ir.from_proto(model), device="cpu").run(None, {"x": x})
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# What the backward pass computes from activations stands where it is needed.
BACKWARD = """<ir_version: 10, opset_import: ["" : 18]>
    g (float[n] x) => (float[n] y) {
      [a] a = Sin(x) [b] b = Sin(a) [c] c = Sin(b) [g0] g0 = Exp(c)
      [cos_b] mb = Cos(b) [g1] g1 = Mul(mb, g0)
      [cos_a] ma = Cos(a) [g2] g2 = Mul(ma, g1)
      [cos_x] mx = Cos(x) [g3] y = Mul(mx, g2) }"""


@pytest.mark.parametrize("in_order", [True, False])
def test_nodes_run_in_the_order_of_the_file(in_order, tmp_path, monkeypatch):
    class Profiled(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            self.enable_profiling = True
            self.profile_file_prefix = str(tmp_path / "run")

    monkeypatch.setattr(onnxruntime, "SessionOptions", Profiled)
    model = ir.from_onnx_text(BACKWARD)
    session = open_session(model, device="cpu", file_order=in_order)
    session.run(None, {"x": np.ones(3, np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    ran = [e["name"].removesuffix("_kernel_time") for e in events if e["cat"] == "Node"]
    ran = [name for name in ran if not name.endswith(("_fence_before", "_fence_after"))]
    assert (ran == [node.name for node in model.graph]) == in_order


@pytest.mark.parametrize(("limit", "large"), [(0, True), (2**40, False)])
def test_steps_with_a_large_state_run_in_that_order(limit, large, monkeypatch):
    opened = []

    def noted(model, **options):
        opened.append((options["file_order"], options["memory_pattern"], options["buffer_reuse"]))
        return open_session(model, **options)

    monkeypatch.setattr(compiled_graph, "open_session", noted)
    monkeypatch.setattr(compiled_graph, "_LARGE_STATE", limit)
    program = build_program(small_mlp())
    Stepper(program, threads=1).step(batch_for(program), {"learning_rate": 0.1})
    assert opened == [(large, not large, False)]


@pytest.mark.parametrize("reuse", [True, False])
def test_the_runtime_is_told_whether_to_keep_buffers(reuse, monkeypatch):
    made = []

    class Noted(onnxruntime.SessionOptions):
        def __init__(self):
            super().__init__()
            made.append(self)

    monkeypatch.setattr(onnxruntime, "SessionOptions", Noted)
    open_session(ir.from_onnx_text(BACKWARD), device="cpu", buffer_reuse=reuse)
    assert [options.enable_mem_reuse for options in made] == [reuse]


def test_a_type_that_an_operator_does_not_have_is_named():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 20]>
        net (bfloat16[1,1,4,4] x, bfloat16[1,1,3,3] w) => (bfloat16[1,1,2,2] y) {
          [conv] y = Conv(x, w) }""",
        w=np.ones((1, 1, 3, 3), ir.DataType.BFLOAT16.numpy()),
    )
    with pytest.raises(ModelError, match="no Conv for bfloat16") as caught:
        open_session(model, device="cpu")
    assert "ortboost convert" in caught.value.fix
    assert_three_lines(caught.value)


def test_an_operator_without_a_kernel_is_named():
    """onnxruntime 1.31.1 has none for the random operators of opset 22 either."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (double[N] x) => (double[N] y) { [bent] y = Erf(x) }"""
    )
    with pytest.raises(ModelError, match="no kernel for Erf of opset 13 and its types") as caught:
        open_session(model, device="cpu")
    assert_three_lines(caught.value)
    assert "Erf 'bent'" in str(caught.value)
    assert "'ortboost convert' accepts it as it is" in str(caught.value)
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[N,4,4,4] x, float[4] g, float[4] b) => (float[N,4,4,4] y) {
          y = com.microsoft.GroupNorm <groups = 2, epsilon = 0.1, activation = 0> (x, g, b) }"""
    )
    with pytest.raises(ModelError, match="no kernel for GroupNorm") as caught:
        open_session(model, device="cpu")
    assert "else with standard operators" in str(caught.value)


@pytest.mark.parametrize("given", ["", ", bool training"])
def test_a_dropout_in_training_mode_stays(given):
    """onnxruntime 1.31 removes it where its mask is not read: in trials and frozen layers."""
    training = "" if given else ", bool training = {1}"
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[n] x{given}) => (float[n] y) <float ratio = {{0.5}}{training}> {{
          h = Neg(x)  d = Dropout(h, ratio, training)  y = Neg(d) }}""")
    feeds = {"x": np.ones(64, np.float32), **({"training": np.array(True)} if given else {})}
    (found,) = open_session(model, device="cpu").run(None, feeds)
    assert set(found) == {0.0, 2.0}
