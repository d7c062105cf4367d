import dataclasses

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.deploy.findings import Finding
from ortboost.deploy.tensorrt.checker import check_tensorrt
from ortboost.deploy.tensorrt.profiles import parse_profile
from ortboost.deploy.tensorrt.rules import RULES, Context, rule
from ortboost.deploy.tensorrt.table import parse_release
from ortboost.graph.io import load_model
from tests.deploy.tensorrt.cases import CASES, one
from tests.support import MODELS, ROOT, small_mlp, text_model

ALL = [
    pytest.param(name, case, id=f"{name}-{number}")
    for name, cases in CASES.items()
    for number, case in enumerate(cases)
]
ELEVEN = parse_release("tensorrt=11")


def found(model, target=ELEVEN, **arguments):
    return check_tensorrt(model, target, **arguments).findings


@pytest.mark.parametrize(("name", "case"), ALL)
def test_a_rule_finds_what_it_is_for_and_nothing_else(name, case):
    bad, good = case.models()
    target = parse_release(case.target)
    hits = [f for f in found(bad, target) if f.rule == name]
    assert [f for f in hits if f.node == case.where and f.severity == case.severity], hits
    for finding in hits:
        assert finding.reason.endswith(".") or finding.reason.endswith("?")
        assert finding.fix
    assert not [f for f in found(good, target) if f.rule == name and f.node == case.where]


def test_every_rule_has_a_case():
    elsewhere = {"TRT052", "TRT054"}  # they need files and the graph's inputs
    assert set(RULES) == set(CASES) | elsewhere


def test_two_rules_cannot_share_an_id():
    with pytest.raises(ValueError, match="TRT001"):
        rule("TRT001", "again")(lambda context: iter(()))


def test_the_check_changes_nothing():
    for cases in CASES.values():
        bad, _ = cases[0].models()
        before = ir.to_proto(bad).SerializeToString(deterministic=True)
        found(bad)
        assert ir.to_proto(bad).SerializeToString(deterministic=True) == before


@pytest.mark.parametrize("name", ["mlp", "lenet5"])
@pytest.mark.parametrize("target", ["tensorrt=10", "tensorrt=11"])
def test_a_plain_model_needs_a_profile_and_nothing_else(name, target):
    report = check_tensorrt(MODELS / f"{name}.onnx", parse_release(target))
    assert report.ok
    assert [f.rule for f in report.findings] == ["TRT040"]
    dims = "1x8x8" if name == "lenet5" else "64"
    assert f"--shape x:1,8,32x{dims}" in report.findings[0].fix
    shapes = [parse_profile(f"x:1,2,4x{dims}")]
    assert not check_tensorrt(
        MODELS / f"{name}.onnx", parse_release(target), profiles=shapes
    ).findings


def test_a_training_step_is_named_as_one(tmp_path):
    model = small_mlp()
    model.metadata_props["ortboost.catalogue"] = "{}"
    (finding,) = [f for f in found(model) if f.rule == "TRT001"]
    assert "ortboost export" in finding.fix


def test_profiles_that_do_not_fit_are_errors():
    model = small_mlp()
    for text, words in (
        ("y:1x4", "no input 'y'"),
        ("x:1x5", "is 4 in the model"),
        ("x:1x4x2", "2 dimensions"),
    ):
        (finding,) = [f for f in found(model, profiles=[parse_profile(text)]) if f.rule == "TRT040"]
        assert finding.severity == "error"
        assert words in finding.reason
    assert [f.rule for f in found(model, profiles=[])] == ["TRT040"]


def test_weights_as_inputs_are_found():
    model = small_mlp()
    model.graph.inputs.append(model.graph.initializers["w1"])
    (finding,) = [f for f in found(model) if f.rule == "TRT054"]
    assert finding.node == "w1"
    assert finding.fixable
    assert not [f for f in found(small_mlp()) if f.rule == "TRT054"]


def test_external_data_must_be_there_and_beside(tmp_path):
    model = small_mlp()
    path = tmp_path / "m.onnx"
    ir.save(model, path, external_data="w.bin", size_threshold_bytes=0)
    assert not [f for f in found(path) if f.rule == "TRT052"]
    data = (tmp_path / "w.bin").read_bytes()
    (tmp_path / "w.bin").write_bytes(data[:-8])
    assert "too short" in next(f for f in found(path) if f.rule == "TRT052").reason
    (tmp_path / "w.bin").unlink()
    findings = found(path)
    assert "missing" in next(f for f in findings if f.rule == "TRT052").reason
    inner = tmp_path / "inner"
    inner.mkdir()
    (tmp_path / "w.bin").write_bytes(data)
    text = path.read_bytes().replace(b"w.bin", b"../wb")  # as long as the other
    (tmp_path / "wb").write_bytes(data)
    (inner / "m.onnx").write_bytes(text)
    assert "outside" in next(f for f in found(inner / "m.onnx") if f.rule == "TRT052").reason


def test_external_data_do_not_count_as_inside_the_file(tmp_path):
    """A model of 3 GB with its weights outside: nothing is read, nothing is wrong."""
    model = text_model(one("[n] y = Add(x, w)", "float[1] x, float[1] w", "float[1] y"), w=[1.0])
    value = model.graph.initializers["w"]
    size = 3 << 30
    with open(tmp_path / "big.bin", "wb") as file:
        file.truncate(size)
    value.const_value = ir.ExternalTensor(
        "big.bin",
        0,
        size,
        ir.DataType.FLOAT,
        shape=ir.Shape([size // 4]),
        name="w",
        base_dir=tmp_path,
    )
    value.shape = ir.Shape([size // 4])
    model.graph.outputs[0].shape = ir.Shape([size // 4])
    path = tmp_path / "m.onnx"
    path.write_bytes(ir.to_proto(model).SerializeToString())
    from ortboost.deploy.tensorrt.rules import files

    raw = load_model(path, weights=False)
    assert not list(files.external_data(Context(raw, raw, ELEVEN)))
    value.const_value = _Claimed(size)
    inside = Context(model, model, ELEVEN)
    assert [f.fixable for f in files.external_data(inside)] == [True]


@dataclasses.dataclass
class _Claimed:
    """A stored tensor that says how large it is."""

    nbytes: int


def test_what_folds_is_fixable_and_what_does_not_is_not():
    text = "[k] a = Neg(b) [n] y = ReduceMean(x, a)"
    computed = text_model(one(text, "float[2,3] x, int64[1] b", "float[2,1] y"))
    stored = text_model(one(text, "float[2,3] x, int64[1] b", "float[2,1] y"), b=np.array([-1]))
    for model, expected in ((computed, False), (stored, True)):
        (finding,) = [f for f in found(model) if f.rule == "TRT010"]
        assert finding.fixable is expected
    shaped = text_model(
        one(
            "s = Shape(x) z = Constant<value_ints = [1]>() a = Gather(s, z) m = Sub(a, t)"
            " [n] y = ReduceMean(x, m)",
            "float[2,3] x, int64[1] t",
            "float[2,1] y",
        ),
        t=np.array([2]),
    )
    (finding,) = [f for f in found(shaped) if f.rule == "TRT010"]
    assert finding.fixable


def test_nodes_in_functions_and_subgraphs_are_seen():
    function = """<ir_version: 9, opset_import: ["" : 18, "mine" : 1]>
    g (float[2,3,3] x) => (float[2] y) { y = mine.f(x) }
    <domain: "mine", opset_import: ["" : 18]> f (a) => (b) { [inner] b = Det(a) }"""
    assert [f.op for f in found(text_model(function)) if f.rule == "TRT003"] == ["Det"]
    nested = text_model(
        one(
            "[n] y = If(c) <then_branch = t () => (float[2] a) { a = Det(x) },"
            " else_branch = e () => (float[2] b) { r = Det(x) b = Neg(r) }>",
            "float[2,3,3] x, bool c",
            "float[2] y",
        )
    )
    assert len([f for f in found(nested) if f.rule == "TRT003"]) == 2


def test_the_worst_come_first_and_each_once():
    model = text_model(one("y = Det(x) z = Det(x)", "double[b,3,3] x", "double[b] y, double[b] z"))
    findings = found(model)
    order = [("error", "warn", "info").index(f.severity) for f in findings]
    assert order == sorted(order)
    assert len(set(findings)) == len(findings)
    assert all(isinstance(f, Finding) for f in findings)


def test_the_report_as_data():
    data = check_tensorrt(small_mlp(), ELEVEN).to_dict()
    assert list(data) == ["target", "source", "ok", "counts", "findings"]
    assert data["ok"] is True
    assert data["counts"] == {"error": 0, "warn": 1, "info": 0}
    assert set(data["findings"][0]) == {
        "rule",
        "severity",
        "node",
        "op",
        "reason",
        "fix",
        "fixable",
    }


def test_the_page_lists_every_rule():
    page = (ROOT / "docs/tensorrt.md").read_text()
    for entry in RULES.values():
        assert f"| {entry.id} | {entry.title} |" in page
