from __future__ import annotations

import json

import onnx_ir as ir
import pytest

from ortboost.autodiff.check import check_trainable, find_blockers
from ortboost.autodiff.conditions import unfit_shapes
from ortboost.autodiff.engine import get_engine
from ortboost.autodiff.native.support import gradient_support
from ortboost.core.errors import ModelError
from ortboost.graph.normalize import normalize
from ortboost.graph.shapes.shape_inference import infer_shapes
from tests.autodiff.oracle import graph
from tests.support import native_only
from tools.support_table import support_table

native_only()


ENGINE = get_engine("native")


def check(model, wrt, loss=None):
    return check_trainable(model, wrt=wrt, loss=loss, engine=ENGINE)


@pytest.mark.parametrize("kind", ["seq(float[2])", "optional(float[2])"])
def test_inputs_are_tensors(kind):
    read = "SequenceAt(s, i)" if kind.startswith("seq") else "OptionalGetElement(s)"
    model = graph(f"""g ({kind} s, int64 i, float[2] w) => (float[2] y) {{
        x = {read}
        y = Mul(x, w)
    }}""")
    (found,) = check(model, ["w"], "y").blockers
    assert found.node == "s"
    assert "sequences, optional values" in found.reason


@pytest.mark.parametrize("op", ["AveragePool", "MaxPool"])
def test_a_dilated_pool_whose_padding_runtimes_compute_differently(op):
    """onnxruntime leaves the dilation out; a step would compute another loss than the file."""
    model = graph(f"""g (float[N,4,6] x, float[4,4,3] w) => (float[N,4,L] y) {{
        a = Conv(x, w) y = {op}<auto_pad="SAME_LOWER", kernel_shape=[2], dilations=[2]>(a) }}""")
    model.opset_imports[""] = 19
    (found,) = check(model, ["w"]).blockers
    assert "dilations beside auto_pad" in found.reason


def test_all_blockers_at_once_with_reason_and_fix():
    model = graph("""g (float[N,4,H,W] x, float[4,4,3,3] w, float[4] p, double[4] d, int64[4] k,
        string[N] names) => (float[N,4,H,W] y) {
        [conv] a = Conv<auto_pad="SAME_UPPER", strides=[2,2]>(x, w)
        [round] b = Round(a)
        [scatter] i = ArgMax(b)
        [mod] y = Mod<fmod=1>(b, a)
    }""")
    found = check(model, ["w", "p", "d", "k", "nothing"])
    by_name = {blocker.node: blocker for blocker in found.blockers}
    assert set(by_name) == {"conv", "round", "mod", "d", "k", "nothing", "names"}
    assert "auto_pad=SAME_UPPER" in by_name["conv"].reason
    assert by_name["conv"].fix == "Export with explicit pads, or with fixed height and width."
    assert "only float32 can" in by_name["d"].reason
    assert "no gradient" in by_name["k"].reason
    assert all(blocker.fix for blocker in found.blockers)
    assert not found.trainable
    assert any("'p' will not be trained" in note for note in found.notes)
    assert found.trained == ("w",)
    json.dumps(found.to_dict())


def test_what_will_be_rewritten_is_told_and_nothing_is_changed():
    model = graph("""g (float[N,4] x, float[4] w, float[1] s, float[4] m) => (float[N,4] y) {
        h = Mul(x, w) [act] a = HardSwish(h) [like] l = CastLike(a, s) [prelu] y = PRelu(l, s) }""")
    before = ir.to_proto(model).SerializeToString(deterministic=True)
    found = check(model, ["w", "s"])
    assert ir.to_proto(model).SerializeToString(deterministic=True) == before
    assert found.trainable
    changed = {name: what for report in found.rewrites for name, what in report.changed.items()}
    assert {name: what for name, what in changed.items() if not name.startswith("ortboost/")} == {
        "act": "HardSwish: decomposed",
        "prelu": "PRelu: decomposed",
        "like": "CastLike: changes nothing: replaced by Identity",
    }


def test_operators_beside_the_gradient_path_do_not_matter():
    model = graph("""g (float[N,4] x, float[4] w) => (float[N,4] y, float[N,4] r) {
        a = Round(x) y = Mul(a, w) r = Round(y) }""")
    assert check(model, ["w"], loss="y").trainable
    assert [blocker.op for blocker in check(model, ["w"], loss=["y", "r"]).blockers] == ["Round"]


@pytest.mark.parametrize(
    ("body", "op", "reason"),
    [
        ("h = Mul(x, w) y = com.microsoft.FusedMatMul(h, h)", "FusedMatMul", "for inference only"),
        ("h = Mul(x, w) y = com.microsoft.nchwc.Conv(h, h)", "Conv", "for the processor"),
        ("h = Mul(x, w) y = other.domain.Thing(h)", "Thing", "not a standard operator"),
        ("h = Mul(x, w) y = NonMaxSuppressed(h)", "NonMaxSuppressed", "no gradient"),
        (
            "c = Greater(x, w) e = ReduceMax(x) z = Equal(e, e) q = Squeeze(z) y = If (q) <"
            "then_branch = a () => (float[3,3] p) { p = Mul(x, w) },"
            "else_branch = b () => (float[3,3] r) { r = Identity(x) }>",
            "If",
            "control flow",
        ),
        ("q = Cast<to=3>(w) k = Constant<value_float=0.1>() y = Sign(w)", "Sign", "zero almost"),
    ],
)
def test_kinds_of_blockers(body, op, reason):
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1, "com.microsoft.nchwc" : 1,'
        ' "other.domain" : 1]>\n'
        f"g (float[3,3] x, float[3,3] w) => (float[3,3] y) {{ {body} }}"
    )
    (blocker,) = check(model, ["w"]).blockers
    assert blocker.op == op
    assert reason in blocker.reason


def test_an_input_that_chooses_a_branch_is_named():
    model = ir.from_onnx_text("""<ir_version: 10, opset_import: ["" : 18]>
        g (float[3,3] x, float[3,3] w, bool[1] cached) => (float[3,3] y) {
        q = Squeeze(cached) y = If (q) <
            then_branch = a () => (float[3,3] p) { p = Mul(x, w) },
            else_branch = b () => (float[3,3] r) { r = Add(x, w) }> }""")
    (blocker,) = check(model, ["w"]).blockers
    assert blocker.reason == "the input 'cached' chooses its branch"
    assert "--input cached=0 or 1" in blocker.fix


@pytest.mark.parametrize("between", ["i = Identity(q)", "i = Clip(q, low)"])
def test_quantized_weights(between):
    model = ir.from_onnx_text(f"""<ir_version: 10, opset_import: ["" : 18]>
        g (float[3] x, float[3] w) => (float[3] y)
        <int8[3] q = {{1, 2, 3}}, float s = {{0.5}}, int8 low = {{-127}}> {{
        {between} [dq] k = DequantizeLinear(i, s) h = Mul(x, w) y = Mul(h, k) }}""")
    (blocker,) = check(model, ["w"]).blockers
    assert (blocker.node, blocker.op) == ("dq", "DequantizeLinear")
    assert "quantize after training" in blocker.fix


@pytest.mark.parametrize(
    ("body", "reason", "portable"),
    [
        ("y = Pow(h, e)", "the exponent has no gradient", False),
        ("y = Clip(h, , s)", "its bounds have no gradient", False),
        ("y = Pad(h, i, s)", "its padding value has no gradient", True),
        ("y = SoftmaxCrossEntropyLoss(h, i, e)", "the class weights have no gradient", True),
        ("l = LogSoftmax(h) y = NegativeLogLikelihoodLoss(l, i, e)", "class weights", True),
        ("y = Pad(h, i, c)", "", False),
        ("y = SoftmaxCrossEntropyLoss(h, i, u)", "", False),
    ],
)
@pytest.mark.parametrize("engine", ["native", "portable"])
def test_inputs_that_cannot_have_a_gradient_are_found_before_the_conversion(
    body, reason, portable, engine
):
    model = graph(f"""g (float[3,4] x, float[4] w, float[4] u) => (float loss) {{
        h = Mul(x, w) e = Exp(w) s = ReduceSum<keepdims=0>(w) c = ReduceSum<keepdims=0>(u)
        i = Constant<value_ints=[0,1,{"1,0" if "Pad" in body else "2"}]>()
        {body} loss = ReduceMean<keepdims=0>(y) }}""")
    engine_here = get_engine(engine)
    found = find_blockers(model, wrt=["w"], engine=engine_here, loss="loss")
    refused = bool(reason) and (portable or engine == "native")
    if engine == "native" and body.startswith("l"):
        refused = False  # decomposed
    assert [reason in blocker.reason for blocker in found] == [True] * refused
    if refused:
        with pytest.raises(ModelError):
            engine_here.differentiate(model, "loss", ["w"])


def test_nothing_trainable_is_a_blocker():
    model = graph("g (float[3] x, float[3] w) => (int64[1] y) { h = Mul(x, w) y = ArgMax(h) }")
    (blocker,) = check(model, ["w"]).blockers
    assert "before the ArgMax" in blocker.fix


def test_every_reason_is_a_sentence_without_stop():
    node = ir.node("LSTM", [], num_outputs=1)
    assert gradient_support(node).startswith("recurrent operators have no gradient; ")


def test_the_document_has_the_table_that_the_code_makes():
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "trainability.md").read_text()
    between = text.split("<!-- table -->\n")[1]
    assert between == support_table()


QUANTIZED = """g (float[N,3] x, float[3,3] w, float[3] b) => (float[N,3] y) {
    s = Constant<value_float=0.1>() t = Constant<value_float=0.2>()
    q = QuantizeLinear(HERE, s)  d = DequantizeLinear(q, t) REST }"""


@pytest.mark.parametrize(
    ("here", "rest", "blocked"),
    [
        ("w", "a = MatMul(x, d) y = Add(a, b)", True),  # its inverse would pass one
        ("x", "a = MatMul(d, w) y = Add(a, b)", False),
        ("b", "a = MatMul(x, w) y = Identity(a)", False),  # off the path
    ],
)
def test_quantizers_between_parameters_and_loss_are_named(here, rest, blocked):
    """Otherwise `b` would be trained, and `w` would not."""
    model = graph(QUANTIZED.replace("HERE", here).replace("REST", rest))
    report = check_trainable(model, wrt=["w", "b"], engine=get_engine("portable"))
    assert [(b.op, b.reason) for b in report.blockers] == (
        [("QuantizeLinear", "no gradient passes quantized values")] if blocked else []
    )


@pytest.mark.parametrize(("loss", "blocked"), [("y", True), ("h", False)])
def test_inputs_of_a_type_that_an_operator_does_not_take(loss, blocked):
    """torch's older exporter writes `torch.log(torch.tensor(3))` so; no runtime opens the file."""
    model = graph("""g (float[N,3] x, float[3] w) => (float[N,3] y, float[N,3] h) <int64 k = {3}> {
        l = Log(k) f = Cast<to = 1>(l) h = Mul(x, w) y = Mul(h, f) }""")
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"), loss=loss)
    reason = "'k' is int64, which Log does not take"
    assert [(b.op, b.reason) for b in report.blockers] == ([("Log", reason)] if blocked else [])


@pytest.mark.parametrize(
    ("join", "blocked"),
    [
        ("p = Concat<axis = 0>(f, k)", "'f' is float, but 'k' is int64"),
        ("p = Add(k, f)", "'k' is int64, but 'f' is float"),
        ("b = Cast<to = 9>(k) p = Where(b, f, f)", None),
        ("t = Cast<to = 7>(f) p = Add(t, k)", None),
        ("l = Cast<to = 7>(f) c = Cast<to = 9>(k) s = Squeeze(k) "
         "p, z = Loop(s, c, f, k) <body = b (int64 i, bool a, float[1] u, int64[1] v)"
         " => (bool d, float[1] n, int64[1] o) "
         "{ d = Identity(a) n = Identity(u) o = Identity(v) }>", None),
    ],
)  # fmt: skip
def test_inputs_whose_types_differ_although_the_operator_takes_one(join, blocked):
    """torch's dynamo exporter writes `torch.stack([floats, integers])` so; no runtime opens it."""
    model = graph(f"""g (float[N,1] x, float[1] w) => (float[N,1] y)
        <float[1] f = {{1.0}}, int64[1] k = {{3}}> {{
        {join} q = Cast<to = 1>(p) r = ReduceSum<keepdims = 0>(q) h = Mul(x, w) y = Mul(h, r) }}""")
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"), loss="y")
    assert [b.reason for b in report.blockers] == ([blocked] if blocked else [])


def test_the_type_that_an_operator_takes_is_named():
    model = graph("""g (float[N,3] x, float[3] w) => (float[N,3] y) <float k = {1.0}> {
        t = Gather(w, k) h = Mul(x, w) y = Mul(h, t) }""")
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"))
    (blocker,) = report.blockers
    assert blocker.fix == "Convert it in the model, before this operator, to int64."


def test_a_type_that_an_operator_in_a_branch_does_not_take():
    model = graph("""g (float[3] x, float[3] w, bool c) => (float[3] y) <int64 k = {3}> {
        f = If(c) <then_branch = t () => (float a) { a = Log(k) },
                   else_branch = e () => (float b) { b = Cast<to = 1>(k) }>
        h = Mul(x, w) y = Mul(h, f) }""")
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"), loss="y")
    assert [b.reason for b in report.blockers] == ["'k' is int64, which Log does not take"]


def test_of_a_file_with_a_wrong_type_that_type_is_named_and_nothing_else():
    """torch's older exporter writes the mask of packed sequences so: a sum of booleans."""
    text = """g (float[N,3] x, bool[3] m, float[3,3] w) => (y) <int64 k = {0}> {
        s = CumSum(m, k) f = Cast<to = 1>(s) h = MatMul(x, w) a = Cast<to = 1>(h) y = Mul(a, f) }"""
    model = graph(text)
    infer_shapes(model)
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"), loss="y")
    assert [b.reason for b in report.blockers] == ["'m' is bool, which CumSum does not take"]


def test_a_type_that_a_file_leaves_open_is_taken():
    model = graph("g (float[3] x, float[3] w) => (float[3] y) { h = Mul(x, w) y = Relu(h) }")
    (product,) = [value for node in model.graph for value in node.outputs if value.name == "h"]
    product.type = ir.TensorType(ir.DataType.UNDEFINED)
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"), loss="y")
    assert not any("does not take" in blocker.reason for blocker in report.blockers)


POOL = "y = AveragePool<kernel_shape = [2, 2]>(h)"
SCATTER = "z = ScatterElements(x, i, h) y = ScatterElements(z, i, h)"


@pytest.mark.parametrize(
    ("labels", "arguments", "reason"),
    [
        ("int64[N]", "%x, %y, None, 1, -100, 0.1", "dropped its label_smoothing of 0.1"),
        ("int64[N]", "%x, %y, None, 1, -100, 0.0", None),
        ("int64[N]", "%x, %y, None, 1, -100", None),
        ("int64[N]", "%x, %y", None),
        ("float[N,3]", "%x, %y", "its labels are probabilities"),
    ],
)
def test_cross_entropies_that_torch_exports_wrongly(labels, arguments, reason):
    model = graph(f"""g (float[N,3] x, float[3] w, {labels} y) => (float loss) {{
        h = Mul(x, w) loss = SoftmaxCrossEntropyLoss(h, y) }}""")
    target = "target=torch.ops.aten.cross_entropy_loss.default"
    call = f"%c : [num_users=1] = call_function[{target}](args = ({arguments}), kwargs = {{}})"
    model.graph[-1].metadata_props["pkg.torch.onnx.fx_node"] = call
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"))
    assert [reason in b.reason for b in report.blockers] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("node", "call", "reason"),
    [
        (POOL, "avg_pool2d.default](args = (%x, [2, 2], [2, 2], [0, 0], False, True, 3))", "of 3"),
        (POOL, "avg_pool2d.default](args = (%x, [2, 2], [2, 2], [0, 0], False, True))", None),
        (POOL, "avg_pool2d.default](args = (%x, [2, 2]), kwargs = {})", None),
        (SCATTER, "scatter_reduce.two](args = (%x, 0, %i, %h, mean), kwargs = {})", "the mean"),
        (SCATTER, "scatter_reduce.two](args = (%x, 0, %i, %h, sum), kwargs = {})", None),
    ],
)
def test_arguments_that_torch_drops_when_it_exports(node, call, reason):
    """One call may have become several nodes, which are told once."""
    model = graph(f"""g (float[N,1,2,2] x, float[2] w, int64[N,1,2,2] i) => (float loss) {{
        h = Mul(x, w) {node} loss = ReduceSum<keepdims = 0>(y) }}""")
    for written in model.graph:
        written.metadata_props["pkg.torch.onnx.fx_node"] = (
            f"call_function[target=torch.ops.aten.{call}"
        )
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"))
    assert [reason in b.reason for b in report.blockers] == ([True] if reason else [])


@pytest.mark.parametrize("opset", [13, 17, 22])
def test_a_loss_written_wrongly_is_known_after_a_conversion_of_the_opset(opset):
    """The converter of onnx drops the metadata of nodes, and with it what the exporter dropped."""
    model = graph("""g (float[N,3] x, float[3] w, int64[N] y) => (float loss) {
        h = Mul(x, w) loss = SoftmaxCrossEntropyLoss(h, y) }""")
    model.opset_imports[""] = opset
    call = "call_function[target=torch.ops.aten.cross_entropy_loss.default](args = (%x, %y, None, "
    model.graph[-1].metadata_props["pkg.torch.onnx.fx_node"] = f"{call}1, -100, 0.1))"
    normalize(model, opsets=range(18, 22), ir_version=10)
    assert model.opset_imports[""] in (18, 21)
    report = check_trainable(model, wrt=["w"], engine=get_engine("portable"))
    assert ["label_smoothing" in b.reason for b in report.blockers] == [True]


def test_what_is_unknown_behind_an_operator_that_was_refused_is_no_reason_of_its_own():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 18, "com.microsoft" : 1]>
        net (float[N,4,6] x, float[6,18] w, float[6,6] u) => (float y) {
          [attend] a = com.microsoft.Attention <num_heads = 5> (x, w)
          [product] b = MatMul(a, u)
          [sum] y = ReduceSum <keepdims = 0> (b) }"""
    )
    for name in ("portable", "native"):
        report = check_trainable(model, wrt=["w", "u"], engine=get_engine(name))
        assert [blocker.node for blocker in report.blockers] == ["attend"]
        assert "5 heads do not divide" in str(report)


def test_shapes_that_contradict_each_other_are_the_only_reason():
    """PatchTST by TorchScript: each layer behind had "the rank of ... is unknown"."""
    model = graph("""g (float[N,4,2,8] x, float[4,8] w, float[8,8] v) => (y) {
        [positions] a = Add(x, w)
        b = Transpose(a)
        c = MatMul(b, v)
        y = MatMul(c, v)
    }""")
    (found,) = check(model, ["w", "v"], "y").blockers
    assert found.node == "positions"
    assert "the shapes [N, 4, 2, 8] and [4, 8] cannot be combined" in found.reason


@pytest.mark.parametrize(
    ("op", "one", "other", "unfit"),
    [
        ("Add", "N,4", "2,1", False),
        ("Mul", "N,4", "3", True),
        ("Sub", "4", "N", False),
        ("MatMul", "N,4", "4,2", False),
        ("MatMul", "N,1", "4,2", True),
        ("MatMul", "4", "4", False),
        ("MatMul", "N,2,3", "K,2", False),
        ("MatMul", "N,2,3", "2,K", True),
    ],
)
def test_only_lengths_that_are_known_contradict_each_other(op, one, other, unfit):
    model = graph(f"g (float[{one}] x, float[{other}] w) => (y) {{ y = {op}(x, w) }}")
    assert (unfit_shapes(model.graph[0]) is not None) == unfit
