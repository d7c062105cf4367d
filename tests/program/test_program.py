"""The program folder: written, read back, refused when damaged, and usable without ortboost."""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import onnx
import pytest
from safetensors.numpy import load_file, save_file

from ortboost.boosts import GradFreeze
from ortboost.core.errors import FileError
from ortboost.core.version import __version__
from ortboost.graph.io import load_model, save_model
from ortboost.graph.shapes.input_config import InputConfig
from ortboost.program.build import build_program
from ortboost.program.catalogue import (
    METADATA_KEY,
)
from ortboost.program.config import ParameterGroup, ProgramConfig
from ortboost.program.program import Program
from ortboost.transforms.loss_config import LossConfig
from tests.support import (
    NAMES,
    assert_same_bits,
    assert_three_lines,
    batch_for,
    shipped_program,
    small_convnet,
    small_mlp,
    stepper,
    text_model,
    weights,
)

RATE = {"learning_rate": 0.1}


@pytest.fixture
def folder(tmp_path):
    build_program(small_convnet(), ProgramConfig()).save(tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, tmp_path):
    program = shipped_program(name)
    assert program.save(tmp_path / "new" / "run") == tmp_path / "new" / "run"
    assert sorted(os.listdir(tmp_path / "new" / "run")) == [
        "eval.onnx",
        "program.json",
        "state.safetensors",
        "step.onnx",
    ]
    again = Program.load(tmp_path / "new" / "run")
    assert again.fingerprint == program.fingerprint
    assert again.catalogue == program.catalogue
    assert again.config == program.config
    assert again.reports == program.reports
    assert (again.engine, again.source, again.prediction) == (
        program.engine,
        program.source,
        program.prediction,
    )
    assert_same_bits(dict(again.initial), {n: np.asarray(a) for n, a in program.initial.items()})
    runs = [stepper(p) for p in (program, again)]
    for i in range(3):
        feeds = batch_for(program, 3, seed=i)
        losses = [s.step(feeds, {"learning_rate": 0.01}, seed=i).loss for s in runs]
        assert losses[0] == losses[1]
    assert_same_bits(runs[0].state(), runs[1].state())


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda p: pickle.loads(pickle.dumps(p))])
@pytest.mark.parametrize("loaded", [False, True])
def test_a_copy_in_memory(copied, loaded, tmp_path):
    """The graphs are too long to follow from node to node."""
    layers = []
    for i in range(4):
        layers.append(f"a{i}_0 = MatMul({f'a{i - 1}_49' if i else 'x'}, w{i})")
        layers += [f"a{i}_{j} = Tanh(a{i}_{j - 1})" for j in range(1, 50)]
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w0, float[4,4] w1, float[4,4] w2, float[4,4] w3)
            => (float[N,4] y) {{ {" ".join(layers)} y = Identity(a3_49) }}""",
        **{f"w{i}": weights(4, 4, seed=i) for i in range(4)},
    )
    program = build_program(model, ProgramConfig(boosts=(GradFreeze(groups=2),)))
    assert len(program.graphs) > 1
    if loaded:
        program.save(tmp_path / "run")
        program = Program.load(tmp_path / "run")
    again = copied(program)
    assert list(again.graphs) == list(program.graphs)
    assert again.fingerprint == program.fingerprint
    assert again.config == program.config
    assert_same_bits(dict(again.initial), dict(program.initial))
    feeds = batch_for(program, 2)
    results = [stepper(p).step(feeds, RATE) for p in (program, again)]
    assert results[0].loss == results[1].loss


def test_an_input_that_the_loss_does_not_need_has_its_own_batch_axis():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x, float[7,batch] aside, float[4,3] w)
            => (float[batch,3] logits, float[7,batch] other) {
            logits = MatMul(x, w) other = Neg(aside) }""",
        w=weights(4, 3),
    )
    inputs, loss = InputConfig(batch_axes={"aside": 1}), LossConfig(output="logits")
    program = build_program(model, ProgramConfig(inputs=inputs, loss=loss))
    axes = {spec.name: spec.batch_axis for spec in program.evaluation_inputs}
    assert axes == {"x": 0, "aside": 1, "labels": 0}


def test_the_manifest_is_readable_json(folder):
    manifest = json.loads((folder / "program.json").read_text())
    assert list(manifest) == [
        *("format", "ortboost", "onnx", "source", "engine", "fingerprint", "evaluation"),
        *("initial", "models", "prediction", "graphs", "state", "config", "settings"),
        *("catalogue", "reports"),
    ]
    assert manifest["format"] == 1
    assert (manifest["ortboost"], manifest["onnx"]) == (__version__, onnx.__version__)
    assert manifest["graphs"] == {"step": "step.onnx", "eval": "eval.onnx"}
    assert {r["rewrite"] for r in manifest["reports"]} >= {"attach_loss", "choose_trainable"}
    assert manifest["config"]["optimizer"]["name"] == "momentum"
    assert [e["name"] for e in manifest["catalogue"]["state"]][:2] == ["cw", "s"]


def test_zero_dimensional_state_stays_so(folder):
    state = load_file(folder / "state.safetensors")
    assert state["ortboost/step"].shape == ()
    assert state["ortboost/loss_scale"].shape == ()


def damaged(folder, name) -> FileError:
    with pytest.raises(FileError) as info:
        Program.load(folder)
    assert_three_lines(info.value)
    assert name in info.value.where
    return info.value


@pytest.mark.parametrize("name", ["program.json", "step.onnx", "eval.onnx", "state.safetensors"])
@pytest.mark.parametrize("how", ["missing", "empty", "truncated", "garbage"])
def test_a_damaged_file_is_named(folder, name, how):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if how != "missing":
        path.write_bytes(
            {"empty": b"", "truncated": content[: len(content) // 2], "garbage": b"\xff" * 200}[how]
        )
    fix = damaged(folder, name).fix
    assert "give the folder" not in fix  # it was given
    if (how, name) != ("missing", "program.json"):
        assert "into another folder" in fix  # in this one, checkpoints would be removed


def edited(folder, edit):
    path = folder / "program.json"
    manifest = json.loads(path.read_text())
    edit(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    "edit",
    [
        lambda m: m.update(format=2),
        lambda m: m.pop("catalogue"),
        lambda m: m.update(catalogue=[]),
        lambda m: m["catalogue"].update(version=9),
        lambda m: m["catalogue"].update(state=7),
        lambda m: m["catalogue"]["state"][0].pop("shape"),
        lambda m: m["catalogue"]["state"][0].update(dtype="float33"),
        lambda m: m.pop("config"),
        lambda m: m["config"].update(unknown=1),
        lambda m: m["config"].update(optimizer={"name": "momentun"}),
        lambda m: m["config"].update(decay="half"),
        lambda m: m.pop("fingerprint"),
        lambda m: m.update(reports=[1]),
        lambda m: m.update(reports=[{"rewrite": "x"}]),
        lambda m: m.pop("engine"),
        lambda m: m.update(config=[]),
        lambda m: m["config"].update(accumulate=3),
        lambda m: m["config"].update(grad_freeze={"param_groups": 3, "sequence": [0, 2]}),
        lambda m: m["config"].update(weight_decay=0.25),
    ],
)
def test_a_damaged_manifest_is_named(folder, edit):
    edited(folder, edit)
    damaged(folder, "program.json")


def test_learning_rates_may_be_edited_and_other_settings_not(tmp_path):
    """The host derives from the configuration the counts that the graphs keep."""
    groups = (ParameterGroup("head", ("w2",), "0.1"),)
    build_program(small_mlp(), ProgramConfig(accumulate=2, groups=groups)).save(tmp_path)

    def rates(manifest):
        manifest["config"]["learning_rate"] = "cosine:0.5"
        manifest["config"]["groups"][0]["learning_rate"] = "0.2"

    edited(tmp_path, rates)
    config = Program.load(tmp_path).config
    assert (config.learning_rate, config.groups[0].learning_rate) == ("cosine:0.5", "0.2")
    edited(tmp_path, lambda m: m["config"]["groups"][0].pop("learning_rate"))
    damaged(tmp_path, "program.json")


def test_a_manifest_of_before_settings_were_signed(folder):
    edited(folder, lambda m: m.pop("settings"))
    Program.load(folder)


def test_a_manifest_that_is_no_object(folder):
    (folder / "program.json").write_text("[]")
    damaged(folder, "program.json")


@pytest.mark.parametrize("name", ["step.onnx", "eval.onnx"])
def test_a_graph_of_another_program(folder, tmp_path, name):
    other = build_program(small_convnet(), ProgramConfig(weight_decay=0.5, frozen_norm=("bn",)))
    other = build_program(small_mlp(), ProgramConfig()) if name == "eval.onnx" else other
    other.save(tmp_path / "other")
    (folder / name).write_bytes((tmp_path / "other" / name).read_bytes())
    damaged(folder, name)


@pytest.mark.parametrize("how", ["missing", "extra", "shape", "dtype"])
def test_a_state_that_does_not_fit(folder, how):
    path = folder / "state.safetensors"
    state = load_file(path)
    if how == "missing":
        del state["cw"]
    elif how == "extra":
        state["stranger"] = np.zeros(1)
    elif how == "shape":
        state["cw"] = state["cw"].reshape(-1)
    else:
        state["cw"] = state["cw"].astype(np.float64)
    save_file(state, path)
    error = damaged(folder, "state.safetensors")
    assert ("stranger" if how == "extra" else "cw") in error.what


def test_a_folder_without_a_program(tmp_path):
    assert "ortboost convert" in damaged(tmp_path, "program.json").fix
    assert "Not a program folder" in damaged(tmp_path / "no", "program.json").what


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError) as info:
        build_program(small_mlp(), ProgramConfig()).save(tmp_path / "file" / "run")
    assert_three_lines(info.value)


def test_no_manifest_before_everything_else_is_there(tmp_path, monkeypatch):
    from ortboost.program import program as module

    def fail(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(module, "write_tensors", fail)
    with pytest.raises(FileError, match="cannot be written"):
        build_program(small_mlp(), ProgramConfig()).save(tmp_path / "run")
    assert "program.json" not in os.listdir(tmp_path / "run")


# ---- without ortboost -------------------------------------------------------------------------

BARE = """
import json, struct, sys
import numpy as np
import onnx
import onnxruntime as ort

folder, data, out = sys.argv[1:4]
raw = open(f"{folder}/state.safetensors", "rb").read()
size = struct.unpack("<Q", raw[:8])[0]
header = json.loads(raw[8 : 8 + size])
kinds = {"F32": np.float32, "I64": np.int64, "I32": np.int32, "BOOL": np.bool_}
state = {}
for name, entry in header.items():
    if name != "__metadata__":
        begin, end = entry["data_offsets"]
        piece = raw[8 + size + begin : 8 + size + end]
        state[name] = np.frombuffer(piece, kinds[entry["dtype"]]).reshape(entry["shape"])

options = ort.SessionOptions()
options.intra_op_num_threads = 1
step = ort.InferenceSession(f"{folder}/step.onnx", options, providers=["CPUExecutionProvider"])
catalogue = json.loads(step.get_modelmeta().custom_metadata_map["ortboost.catalogue"])
shown = [spec["name"] for spec in catalogue["outputs"]]
moving = [entry for entry in catalogue["state"] if entry["next"]]
losses = []
with np.load(data) as batches:
    for i in range(int(batches["count"])):
        feeds = {spec["name"]: batches[f"{spec['name']}_{i}"] for spec in catalogue["batch"]}
        feeds |= {spec["name"]: np.asarray(0.05, np.float32) for spec in catalogue["hyper"]}
        answers = step.run(shown + [e["next"] for e in moving], {**state, **feeds})
        losses.append(answers[shown.index("loss")])
        state.update({e["name"]: a for e, a in zip(moving, answers[len(shown):], strict=True)})
np.savez(out, losses=losses, **{"state:" + n: a for n, a in state.items()})
assert not [m for m in sys.modules if m.startswith(("ortboost", "onnx_ir", "safetensors", "torch"))]
"""


@pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet_bottleneck"])
def test_the_step_file_trains_without_ortboost(name, tmp_path, monkeypatch):
    # The forms for the CPU sum in another order; for the accuracy see
    # tests/runtime/test_peepholes.py
    monkeypatch.setattr("ortboost.runtime.peepholes._CPU", ())
    program = shipped_program(name)
    program.save(tmp_path / "run")
    training, arrays, losses = stepper(program), {"count": np.array(6)}, []
    for i in range(6):
        feeds = batch_for(program, 8, seed=i)
        if i == 2:
            feeds["x"][0] = np.inf
        arrays |= {f"{key}_{i}": value for key, value in feeds.items()}
        losses.append(training.step(feeds, {"learning_rate": 0.05}).loss)
    np.savez(tmp_path / "data.npz", **arrays)
    (tmp_path / "bare.py").write_text(BARE)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    subprocess.run(
        [sys.executable, "bare.py", "run", "data.npz", "out.npz"],
        cwd=tmp_path,
        env=environment,
        check=True,
    )
    with np.load(tmp_path / "out.npz") as out:
        np.testing.assert_array_equal(out["losses"], np.float32(losses))
        state = {key[6:]: out[key] for key in out.files if key.startswith("state:")}
    assert_same_bits(state, training.state())
    assert state["ortboost/total_skips"] == 1


def test_the_saved_step_is_the_one_that_runs(tmp_path):
    program = build_program(small_mlp(), ProgramConfig())
    program.save(tmp_path)
    save_model(load_model(tmp_path / "step.onnx"), tmp_path / "step.onnx")  # rewriting is harmless
    assert Program.load(tmp_path).fingerprint == program.fingerprint


def test_a_changed_number_in_the_initial_state_is_noticed(folder):
    path = folder / "state.safetensors"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1  # the file stays well-formed
    path.write_bytes(data)
    assert "initial state" in damaged(folder, "state.safetensors").what


def test_it_is_shown_in_one_line():
    text = repr(build_program(small_mlp()))
    assert "engine portable" in text
    assert "\n" not in text
    assert len(text) < 200


@pytest.mark.parametrize("name", ["step.onnx", "eval.onnx"])
@pytest.mark.parametrize(
    "edit",
    [
        lambda proto: proto.metadata_props.add(key="ortboost.note", value="edited"),
        lambda proto: proto.opset_import.add(domain="somebody", version=1),
        lambda proto: setattr(proto.opset_import[0], "version", 19),
    ],
    ids=["metadata", "domain", "opset"],
)
def test_what_is_around_the_nodes_is_covered(folder, name, edit):
    proto = onnx.load(folder / name)
    edit(proto)
    onnx.save(proto, folder / name)
    assert "'models'" in damaged(folder, name).where


def test_an_edited_catalogue_is_noticed(folder):
    proto = onnx.load(folder / "step.onnx")
    (entry,) = (e for e in proto.metadata_props if e.key == METADATA_KEY)
    entry.value = entry.value.replace("ortboost/slot/momentum/fb", "ortboost/slot/momentum/s", 1)
    onnx.save(proto, folder / "step.onnx")
    damaged(folder, "step.onnx")


def test_programs_that_do_not_record_it_load(folder):
    edited(folder, lambda m: m.pop("models"))
    Program.load(folder)
    edited(folder, lambda m: m.update(models=[1]))
    damaged(folder, "step.onnx")
