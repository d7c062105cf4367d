from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.core.errors import FileError
from ortboost.graph import io
from ortboost.graph.io import load_model, save_model
from ortboost.graph.mentions import mentions
from ortboost.graph.normal_form.inline_functions import inline_functions
from ortboost.graph.query import all_tensors
from ortboost.graph.source import source_name
from tests.support import assert_three_lines, model_path, run, small_mlp, weights

X = {"x": weights(5, 4, seed=9)}


def external(folder, name="net.onnx", location="net.onnx.data"):
    """A file with external weights, written by onnx itself; the location is patched in."""
    path = folder / name
    proto = ir.to_proto(small_mlp(hidden=64, features=4))
    onnx.save_model(
        proto, path, save_as_external_data=True, location="net.onnx.data", size_threshold=0
    )
    if location != "net.onnx.data":
        proto = onnx.load(path, load_external_data=False)
        for tensor in proto.graph.initializer:
            for entry in tensor.external_data:
                if entry.key == "location":
                    entry.value = location
        path.write_bytes(proto.SerializeToString())
    return path


def caught(path) -> FileError:
    with pytest.raises(FileError) as info:
        load_model(path)
    assert_three_lines(info.value)
    assert path.name in info.value.where
    return info.value


@pytest.mark.parametrize("name", ["mlp", "lenet5", "transformer_tiny"])
def test_round_trip(name, tmp_path):
    model = load_model(model_path(name))
    save_model(model, tmp_path / "again.onnx")
    assert os.listdir(tmp_path) == ["again.onnx"]
    again = load_model(tmp_path / "again.onnx")
    one, other = ir.to_proto(model), ir.to_proto(again)
    assert one.graph.SerializeToString(deterministic=True) == other.graph.SerializeToString(
        deterministic=True
    )


def test_the_source_is_remembered(tmp_path):
    path = tmp_path / "net.onnx"
    save_model(small_mlp(), path)
    assert source_name(load_model(path)) == str(path)
    assert source_name(load_model(load_model(path))) == str(path)
    assert source_name(load_model(ir.to_proto(small_mlp()))) == "net"
    assert source_name(load_model(small_mlp())) == "net"


def test_a_missing_file(tmp_path):
    assert "does not exist" in caught(tmp_path / "no.onnx").what


def test_a_folder(tmp_path):
    (tmp_path / "folder").mkdir()
    assert "folder" in caught(tmp_path / "folder").what


def test_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # without a check, reading waits for a writer
    assert "a pipe or device" in caught(tmp_path / "pipe").what


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello, world\n" * 30,
        b"\x00" * 100,
        b"\xff" * 100,
        b"PK\x03\x04" + b"x" * 50,
        truncated,
    ],
    ids=["empty", "text", "zeros", "ones", "zip", "truncated"],
)
def test_a_file_that_is_no_model(content, tmp_path):
    if callable(content):
        content = content(model_path("mlp").read_bytes())
    path = tmp_path / "bad.onnx"
    path.write_bytes(content)
    caught(path)


@pytest.mark.parametrize("cut", range(8, 10_000, 997))
def test_a_truncated_file_is_refused_at_every_length(cut, tmp_path):
    path = tmp_path / "bad.onnx"
    path.write_bytes(model_path("mlp").read_bytes()[:cut])
    caught(path)


def test_sources_in_memory_are_not_changed():
    model = small_mlp()
    proto = ir.to_proto(model)
    before = proto.SerializeToString(deterministic=True)
    for source in (model, proto):
        loaded = load_model(source)
        loaded.graph.name = "other"
        for value in loaded.graph.initializers.values():
            value.const_value = ir.tensor(np.zeros(tuple(value.shape), np.float32))
        loaded.graph.inputs[0].name = "renamed"
        for node in loaded.graph:
            node.name = f"{node.name}!"
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert proto.SerializeToString(deterministic=True) == before


# ---- external data --------------------------------------------------------------------------


def test_external_data_is_read(tmp_path):
    path = external(tmp_path)
    assert (tmp_path / "net.onnx.data").exists()
    np.testing.assert_array_equal(
        run(load_model(path), X)["logits"], run(small_mlp(hidden=64, features=4), X)["logits"]
    )


@pytest.mark.parametrize("by_path", [True, False])
def test_a_loaded_model_does_not_need_its_files(by_path, tmp_path):
    path = external(tmp_path)
    model = load_model(path if by_path else ir.load(path))
    path.unlink()
    (tmp_path / "net.onnx.data").unlink()
    np.testing.assert_array_equal(
        run(model, X)["logits"], run(small_mlp(hidden=64, features=4), X)["logits"]
    )


def test_missing_external_data(tmp_path):
    path = external(tmp_path)
    (tmp_path / "net.onnx.data").unlink()
    error = caught(path)
    assert "missing" in error.what
    assert "net.onnx.data" in error.fix


def test_external_data_that_is_too_short(tmp_path):
    path = external(tmp_path)
    data = tmp_path / "net.onnx.data"
    data.write_bytes(data.read_bytes()[:-1])
    assert "too short" in caught(path).what


@pytest.mark.parametrize("location", ["../secret.bin", "sub/../../secret.bin", "ABSOLUTE", "link"])
def test_external_data_outside_the_folder(location, tmp_path):
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 100_000)
    if location == "link":
        (folder / "link").symlink_to(secret)
    location = str(secret) if location == "ABSOLUTE" else location
    assert "outside" in caught(external(folder, location=location)).what


def test_external_data_in_a_sub_folder(tmp_path):
    path = external(tmp_path, location="sub/w.bin")
    (tmp_path / "sub").mkdir()
    (tmp_path / "net.onnx.data").rename(tmp_path / "sub" / "w.bin")
    np.testing.assert_array_equal(
        run(load_model(path), X)["logits"], run(small_mlp(hidden=64, features=4), X)["logits"]
    )


@pytest.mark.parametrize("threshold", [0, 10**9])
def test_a_given_proto_is_written_unless_weights_go_beside_it(threshold, tmp_path):
    model = small_mlp()
    proto = ir.to_proto(model)
    proto.doc_string = "given"
    save_model(model, tmp_path / "m.onnx", proto=proto, external_data_threshold=threshold)
    assert onnx.load(tmp_path / "m.onnx").doc_string == ("given" if threshold else "")


def test_big_weights_are_saved_beside_the_model(tmp_path):
    model = small_mlp(hidden=64)
    held = {name: value.const_value for name, value in model.graph.initializers.items()}
    save_model(model, tmp_path / "net.onnx", external_data_threshold=100)
    assert sorted(os.listdir(tmp_path)) == ["net.onnx", "net.onnx.data"]
    assert {n: v.const_value for n, v in model.graph.initializers.items()} == held
    proto = onnx.load(tmp_path / "net.onnx", load_external_data=False)
    assert any(
        tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer
    )
    loaded = load_model(tmp_path / "net.onnx")
    np.testing.assert_array_equal(run(loaded, X)["logits"], run(model, X)["logits"])


@pytest.mark.parametrize("threshold", [0, 1 << 30])
def test_a_model_with_external_data_can_be_saved_elsewhere(threshold, tmp_path):
    model = load_model(external(tmp_path))
    other = tmp_path / "other"
    other.mkdir()
    save_model(model, other / "moved.onnx", external_data_threshold=threshold)
    (tmp_path / "net.onnx.data").unlink()
    (tmp_path / "net.onnx").unlink()
    np.testing.assert_array_equal(
        run(load_model(other / "moved.onnx"), X)["logits"],
        run(small_mlp(hidden=64, features=4), X)["logits"],
    )


def test_a_model_with_external_data_can_be_saved_over_itself(tmp_path):
    path = external(tmp_path)
    model = load_model(path)
    for _ in range(2):
        save_model(model, path, external_data_threshold=0)
    np.testing.assert_array_equal(
        run(load_model(path), X)["logits"], run(small_mlp(hidden=64, features=4), X)["logits"]
    )


def test_saving_over_a_model_keeps_the_data_that_its_copy_reads(tmp_path):
    path = external(tmp_path)
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(path.read_bytes())
    save_model(load_model(copy), path)
    np.testing.assert_array_equal(run(load_model(copy), X)["logits"], run(path, X)["logits"])


def test_a_file_is_searched_without_the_values_of_its_weights(tmp_path):
    model, path = small_mlp(), tmp_path / "other.onnx"
    values = np.frombuffer(b"a.data.." * 3, np.float32)
    model.graph.initializers["b1"].const_value = ir.tensor(values)
    path.write_bytes(ir.to_proto(model).SerializeToString())
    assert b"a.data" in path.read_bytes()
    assert not mentions(path, "a.data")
    assert mentions(path, "b1")
    assert mentions(path, "fc2")
    long = b"\x3a" + b"\xff" * 9 + b"\x01"  # a graph of 2 ** 64 - 1 bytes
    cut = path.read_bytes()[:-30]
    others = (b"", b"\xff" * 9 + b"a.data", cut + b"a.data", b"\n" + long[1:] + b"a.data", long)
    for damaged in others:
        path.write_bytes(damaged)
        assert mentions(path, "a.data") == (b"a.data" in damaged)


def test_an_unreadable_model_in_the_folder_does_not_stop_saving(tmp_path, monkeypatch):
    path, other, opened = external(tmp_path), tmp_path / "other.onnx", Path.open
    other.write_bytes(b"\0")

    def refuse(file, *mode):
        if file == other:
            raise PermissionError(13, "Permission denied")
        return opened(file, *mode)

    monkeypatch.setattr(Path, "open", refuse)
    before = run(path, X)["logits"]
    save_model(load_model(path), path)
    np.testing.assert_array_equal(run(path, X)["logits"], before)


# ---- saving ---------------------------------------------------------------------------------


def test_saving_into_a_missing_folder(tmp_path):
    with pytest.raises(FileError) as info:
        save_model(small_mlp(), tmp_path / "no" / "net.onnx")
    assert_three_lines(info.value)


@pytest.mark.parametrize("step", ["save", "fsync", "replace"])
def test_a_failure_leaves_the_old_file(step, tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    save_model(small_mlp(), path)
    before = path.read_bytes()

    def fail(*_args, **_kwargs):
        raise OSError("no space left on device")

    target = {"save": (io.ir, "save"), "fsync": (io.os, "fsync"), "replace": (io.os, "replace")}
    monkeypatch.setattr(*target[step], fail)
    with pytest.raises(FileError, match="cannot be saved"):
        save_model(small_mlp(seed=5), path)
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["net.onnx"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("location", "net\0.data"),
        ("location", ""),
        ("offset", "-1"),
        ("offset", "x"),
        ("offset", str(2**63)),
        ("length", "9" * 5000),
    ],
)
def test_a_place_that_is_none_is_refused(key, value, tmp_path):
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    tensor = proto.graph.initializer[0]
    kept = {entry.key: entry.value for entry in tensor.external_data}
    del tensor.external_data[:]
    for name, text in {**kept, key: value}.items():
        tensor.external_data.add(key=name, value=text)
    path.write_bytes(proto.SerializeToString())
    assert "cannot be found" in caught(path).what
    with pytest.raises(FileError, match="cannot be found"):
        load_model(path, weights=False)


def test_a_shape_that_needs_more_than_its_length_is_refused(tmp_path):
    path = external(tmp_path)
    proto = onnx.load(path, load_external_data=False)
    proto.graph.initializer[0].dims[0] = 2**62
    path.write_bytes(proto.SerializeToString())
    assert "too short" in caught(path).what


@pytest.mark.parametrize("kind", ["proto", "model"])
def test_models_in_memory_read_no_files_from_elsewhere(kind, tmp_path, monkeypatch):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(b"\0" * 100_000)
    folder = tmp_path / "model"
    folder.mkdir()
    path = external(folder, location=str(secret))
    monkeypatch.chdir(folder)
    model = onnx.load(path, load_external_data=False) if kind == "proto" else ir.load(path)
    with pytest.raises(FileError, match="outside"):
        load_model(model)


def test_weights_of_one_name_in_two_branches_stay_what_they_are(tmp_path):
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
    net (bool c, float[1] x) => (float[1] y) {
      y = If (c) <
        then_branch = yes () => (float[1] t) <float[1] k = {1.0}> { t = Add(x, k) },
        else_branch = no () => (float[1] e) <float[1] k = {2.0}> { e = Add(x, k) }> }""")
    save_model(model, tmp_path / "net.onnx", external_data_threshold=0)
    for found in (model, load_model(tmp_path / "net.onnx")):
        assert [tensor.numpy()[0] for _, tensor in all_tensors(found)] == [1, 2]


def test_the_standard_domain_has_two_names():
    proto = ir.to_proto(small_mlp())
    proto.opset_import[0].domain = "ai.onnx"
    assert load_model(proto).opset_imports == {"": 18}


def test_a_function_with_an_operator_of_another_opset_keeps_its_own():
    """ReduceSum of opset 11 has its axes as an attribute."""
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        net (float[2] x) => (y) { y = own.F(x) }
        <domain: "own", opset_import: ["" : 11]> F (x) => (y) { y = ReduceSum<axes = [0]>(x) }""")
    (function,) = load_model(model).functions.values()
    assert function.opset_imports == {"": 11}


def test_functions_get_the_opsets_of_the_model():
    """jax2onnx imports another version of a function's own domain in the function."""
    proto = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["" : 18, "own" : 1]>
        net (float[2] x) => (float[2] y) { y = own.F(x) }
        <domain: "own", opset_import: ["" : 14, "own" : 23]> F (x) => (y) { y = Relu(x) }""")
    model = load_model(proto)
    (function,) = model.functions.values()
    assert function.opset_imports == {"": 18, "own": 1}
    inline_functions(model)
    assert [node.op_type for node in model.graph] == ["Relu"]


def test_a_name_that_is_not_utf8_is_refused(tmp_path):
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.onnx")
    shutil.copy(model_path("mlp"), path)
    with pytest.raises(FileError, match="not UTF-8") as info:
        load_model(path)
    assert info.value.where.isascii()
    with pytest.raises(FileError, match="not UTF-8"):
        save_model(small_mlp(), path)
