from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ortboost.autodiff.check import check_trainable
from ortboost.autodiff.engine import differentiate, get_engine
from ortboost.graph.reach import stops_gradient
from ortboost.graph.weights.training_traces import find_training_traces
from tests.support import ENGINES, run, text_model, weights

SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
STACK, SCOPES = "pkg.torch.onnx.stack_trace", "pkg.torch.onnx.name_scopes"
CALL = "pkg.torch.onnx.fx_node"
FRAME = '  File "net.py", line {}, in {}\n    {}\n'
APPLIED = FRAME.format(8, "forward", "return self.o(Reverse.apply(self.a(x)))")


def net(*, table: str = "w", **stored: object) -> ir.Model:
    return text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (int64[N] x, float[5,3] {table}, float[3] u) => (float[N,3] y) {{
          d = Identity({table}) e = Gather(d, x) y = Mul(e, u) }}""",
        **{table: weights(5, 3), "u": weights(3), **stored},
    )


@pytest.mark.parametrize(
    ("scopes", "inner", "told"),
    [
        (["", "clone"], FRAME.format(3, "forward", "return x.clone()"), True),
        (["", "a", "clone"], FRAME.format(3, "forward", "return x.clone()"), False),  # a module
        (["", "clone"], "", False),  # beside the function
        (["", "clone"], FRAME.format(3, "helper", "return x.clone()"), False),
        ([], FRAME.format(3, "forward", "return x.clone()"), False),  # nothing is known
    ],
)
def test_an_autograd_function_is_told(scopes, inner, told):
    model = net()
    node = model.graph[0]
    node.metadata_props.update({STACK: APPLIED + inner, SCOPES: str(scopes)})
    notes = find_training_traces(model).notes
    assert [("Reverse" in note and "backward()" in note) for note in notes] == [True] * told


def test_tensors_that_forward_changes_are_told():
    model = net()
    model.graph.metadata_props[SIGNATURE] = (
        "# inputs\nb_m: BUFFER target='m' persistent=True\nx: USER_INPUT\n\n# outputs\n"
        "add: BUFFER_MUTATION target='m'\nr: PARAMETER_MUTATION target='e.weight'\n"
        "getitem_3: BUFFER_MUTATION target='bn.running_mean'\n"
        "add_2: BUFFER_MUTATION target='bn.num_batches_tracked'\ny: USER_OUTPUT\n"
    )
    (note,) = find_training_traces(model).notes
    assert "changes 2 tensors (e.weight, m) in place" in note


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("0.weight_orig", "0.weight_u"), True),
        (("0.parametrizations.weight.original", "0.parametrizations.weight.0._u"), True),
        (("0.weight", "0.weight_u"), False),
    ],
)
def test_the_vector_of_a_spectral_norm_is_told(names, told):
    model = net()
    for value, name in zip(list(model.graph.initializers.values()), names, strict=True):
        value.name = name
    assert [names[1] in note for note in find_training_traces(model).notes] == [True] * told


@pytest.mark.parametrize(("arguments", "told"), [(", -1, True", True), (", 0", False), ("", False)])
def test_gradients_divided_by_frequency_are_told(arguments, told):
    model = net()
    model.graph[1].metadata_props[CALL] = (
        "%embedding : [num_users=1] = call_function[target=torch.ops.aten.embedding.default]"
        f"(args = (%p_e_weight, %x{arguments}), kwargs = {{}})"
    )
    found = find_training_traces(model).notes
    assert ["scale_grad_by_freq" in note for note in found] == [True] * told


@pytest.mark.parametrize(("reader", "kept"), [("embedding_renorm", False), ("embedding", True)])
def test_a_table_whose_rows_are_shortened_is_not_detached(reader, kept):
    call = "%{0} : [num_users=1] = call_function[target=torch.ops.aten.{0}.default](args = (%d,))"
    model = net()
    model.graph[0].metadata_props[CALL] = call.format("detach")
    model.graph[1].metadata_props[CALL] = call.format(reader)
    report = find_training_traces(model)
    assert report.changed.keys() == {"d"}
    assert (model.graph[1].inputs[0].name == "d") == kept


MODULES = FRAME.format(3, "forward", "return self.a(x)") + FRAME.format(5, "forward", "h = x + x")


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize(
    ("stack", "stops"),
    [
        (MODULES, True),
        (MODULES + FRAME.format(7, "forward", "return torch.round(x)"), False),  # of a function
        (MODULES.replace("net.py", "<eval_with_key>.5"), False),  # code that torch generated
        ("", False),
    ],
)
def test_rounding_by_modules_has_no_gradient(stack, stops, engine):
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3] x, float[3] w) => (float loss, float[2,3] k) {
          k = Round(x) h = Mul(x, w) r = Round(h) y = Add(h, r)
          loss = ReduceSum<keepdims=0>(y) }""",
        w=weights(3),
    )
    for node in model.graph:
        node.metadata_props.update({STACK: stack, SCOPES: str(["", "a", "round"])})
    notes = find_training_traces(model).notes
    assert [note[:16] for note in notes] == ["1 operator (r) w"] * stops
    report = check_trainable(model, wrt=["w"], loss="loss", engine=get_engine(engine))
    assert report.trainable == stops
    if stops:
        x = weights(2, 3)
        model.graph.inputs.append(model.graph.initializers.pop("w"))
        found = run(differentiate(model, "loss", ["w"], engine), {"x": x, "w": x[0]})
        np.testing.assert_allclose(found["w_grad"], x.sum(0), rtol=1e-6)


def test_rounding_of_a_straight_through_estimator_without_its_detach_is_refused():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[2,3] x, float[3] w) => (float loss) {
          h = Mul(x, w) r = Round(h) q = Sub(r, h) y = Add(h, q)
          loss = ReduceSum<keepdims=0>(y) }""",
        w=weights(3),
    )
    model.graph[1].metadata_props.update({STACK: MODULES, SCOPES: str(["", "a", "round"])})
    model.graph[3].metadata_props[CALL] = "%add = call_function[target=a](args = (%mul, %detach))"
    (note,) = find_training_traces(model).notes
    assert "detaches 1 value (detach)" in note
    engine = get_engine("portable")
    assert not check_trainable(model, wrt=["w"], loss="loss", engine=engine).trainable


@pytest.mark.parametrize(
    ("producer", "name", "stops"),
    [
        ("jax2onnx", "stop_out_0", True),
        ("jax2onnx", "copy_out_0", False),
        ("pytorch", "stop_out_0", False),
    ],
)
def test_stop_gradient_of_jax(producer, name, stops):
    model = net()
    model.producer_name = producer
    model.graph[0].outputs[0].name = name
    assert (name in find_training_traces(model).changed) == stops
    assert stops_gradient(model.graph[0]) == stops


@pytest.mark.parametrize(
    ("producer", "attribute", "told"),
    [("pytorch", "", True), ("pytorch", '<reduction = "add">', False), ("other", "", False)],
)
def test_an_index_add_of_torchscript_is_told(producer, attribute, told):
    model = text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (int64[E] i, float[E] x, float[N] h) => (float[N] y) {{
          s = Shape(h) z = ConstantOfShape(s) c = ScatterElements{attribute}(z, i, x)
          y = Add(h, c) }}"""
    )
    notes = find_training_traces(model).notes
    assert ["index repeats" in note for note in notes] == [True] * told


@pytest.mark.parametrize(
    ("block", "told"),
    [
        (("a", "b"), True),
        (("a",), True),
        (("a", "b", "c", "y"), False),  # the whole module was generated
        (("b",), True),
        (("c",), False),  # w is read only there: it is doubtful itself
        ((), False),
    ],
)
def test_a_block_through_which_a_gradient_flows_is_told(block, told):
    """``with torch.no_grad(): target = net(k)``, beside ``net(q)``."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] q, float[N,3] k, float[3,3] v, float[3,3] w) => (float[N,3] y) {
          a = MatMul(k, v) b = Relu(a) h = MatMul(q, v) c = MatMul(q, w) y = Sum(b, h, c) }""",
        v=weights(3, 3),
        w=weights(3, 3),
    )
    for value in model.graph.initializers.values():
        value.metadata_props["pkg.torch.export.graph_signature.InputSpec.kind"] = "PARAMETER"
    for node in model.graph:
        generated = node.outputs[0].name in block or len(block) == 4
        node.metadata_props[STACK] = f'File "{"<eval_with_key>.3" if generated else "net.py"}"'
    found = find_training_traces(model).notes
    assert ["torch.no_grad()" in note for note in found] == [True] * told


@pytest.mark.parametrize("detached", [False, True])
@pytest.mark.parametrize(
    "estimator", ["d = Sub(q, x) y = Add(x, {0})", "d = Sub(q, x) y = Add({0}, x)"]
)
def test_a_straight_through_estimator_of_torchscript_is_told(estimator, detached):
    """``x + (q - x).detach()`` of a VQ-VAE; the dynamo exporter keeps an Identity."""
    identity = "i = Identity(d) " if detached else ""
    text = estimator.format("i" if detached else "d").replace(" y =", f" {identity}y =")
    model = text_model(
        f"""<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,3] x, float[3] q) => (float[N,3] y) {{ {text} }}""",
        q=weights(3),
    )
    notes = find_training_traces(model).notes
    assert ["straight-through" in note for note in notes] == [True] * (not detached)


def test_positions_are_no_straight_through_estimator():
    """Longformer, exported by TorchScript: a length less another one, and that one again."""
    model = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,3] x, int64[2] k, float[3] w) => (float[N,3] y) {
          q = Shape(x) d = Sub(q, k) s = Add(k, d) e = Expand(w, s) y = Mul(x, e) }""",
        w=weights(3),
    )
    assert not find_training_traces(model).notes
