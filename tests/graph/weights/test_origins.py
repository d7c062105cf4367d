from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.graph.normalize import normalize
from ortboost.graph.weights.origins import (
    missing_parameters,
    origin_of,
    original_name,
    tensor_origins,
)
from tests.support import text_model, weights

KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
SCOPES = "pkg.torch.onnx.name_scopes"


def model(producer: str = "pytorch", opset: int = 18) -> ir.Model:
    return text_model(
        f"""<ir_version: 10, producer_name: "{producer}", opset_import: ["" : {opset}]>
        net (float[N,4] x, float[4,4] w, float[4] b, float[4,4] val_3) => (y) {{
          c = Constant<value_float = 2.0>() h = MatMul(x, w) i = MatMul(h, val_3) j = Add(i, b)
          y = Mul(j, c) }}""",
        w=weights(4, 4),
        b=weights(4),
        val_3=weights(4, 4),
    )


def kinds(found: ir.Model) -> dict[str, str]:
    return {name: origin.kind for name, origin in tensor_origins(found).of.items()}


def test_torchscript_names():
    assert kinds(model()) == {"w": "module", "b": "module", "val_3": "folded", "c": "literal"}


@pytest.mark.parametrize(
    ("name", "torchscript", "simplified"),
    [
        ("/block/Constant_3_output_0", "literal", "literal"),
        ("/Constant_output_0", "literal", "literal"),
        ("val_12", "literal", "literal"),
        ("/embeddings/Gather_output_0", "folded", "folded"),
        ("/ConstantOfShape_output_0", "folded", "folded"),
        ("_v_1467", "folded", "folded"),
        ("embedding_1", "literal", "folded"),  # of the dynamo exporter, without its metadata
    ],
)
def test_what_onnxsim_computes_is_not_a_number_of_the_code(name, torchscript, simplified):
    """It stores that in Constant nodes: the weights of NF-ResNet were not trained."""
    found = model()
    found.graph[0].outputs[0].name = name
    assert kinds(found)[name] == torchscript
    found.metadata_props["onnxsim.constant_folding"] = "true"
    assert kinds(found)[name] == simplified


def test_a_node_of_torchscript_tells_the_name_of_a_renamed_weight():
    found = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (float[N,4] x, float[4,4] w, float[4] b, float[4,4] v) => (y) {
          ["/body/body.2/body.2.0/Gemm"] h = Gemm(x, w, b)  ["/MatMul"] y = MatMul(h, v) }""",
        w=weights(4, 4),
        b=weights(4),
        v=weights(4, 4),
    )
    layer, outer = found.graph
    for name, value in zip(("onnx::Gemm_1", "onnx::Gemm_2"), layer.inputs[1:], strict=True):
        value.name = name
    outer.inputs[1].name = "onnx::MatMul_3"
    normalize(found, opsets=range(18, 19), ir_version=10)
    layer, outer = found.graph
    assert original_name(layer.inputs[1], layer) == "body.2.0.weight"
    assert original_name(layer.inputs[2], layer) == "body.2.0.bias"
    assert original_name(outer.inputs[1], outer) == "onnx::MatMul_3"  # of no submodule


def test_other_producers_tell_nothing():
    assert set(kinds(model("tf2onnx")).values()) == {"unknown"}


def test_onnxruntimes_optimizer_keeps_the_names_of_torch():
    optimized = model("onnxruntime.transformers")
    assert kinds(optimized) == kinds(model())
    optimized.graph.initializers["val_3"].name = "dense/kernel"
    assert set(kinds(optimized).values()) == {"unknown"}


def dynamo(opset: int = 18) -> ir.Model:
    found = model(opset=opset)
    found.graph.initializers["w"].metadata_props[KIND] = "PARAMETER"
    found.graph.initializers["b"].metadata_props[KIND] = "BUFFER"
    found.graph.metadata_props[SIGNATURE] = (
        "\n# inputs\np_w: PARAMETER target='w'\nb_b: BUFFER target='b' persistent=False\n"
        "p_fc: PARAMETER target='net.fc.weight'\nx: USER_INPUT\n"
    )
    found.graph[2].metadata_props[SCOPES] = "['', 'net', 'net.fc', 'linear']"
    return found


_OF_TORCH = """float[4,4] "lin.weight", float[4] "{0}onnx::Add_3") => (y) {{
  "{0}/Constant_output_0" = Constant<value_floats = [1.0, 2.0, 3.0, 4.0]>()
  h = MatMul(x, "lin.weight") i = Add(h, "{0}onnx::Add_3") y = Mul(i, "{0}/Constant_output_0") }}"""


@pytest.mark.parametrize(
    ("producer", "prefix"),
    [
        ("", ""),
        ("onnx.utils.extract_model", ""),
        ("onnx.quantize", ""),
        ("onnx.compose.merge_models", ""),
        ("onnx.compose.merge_models", "m_"),
    ],
)
def test_tools_that_name_themselves_keep_the_names_of_torch(producer, prefix):
    """A vector in the code of the module was trained after such a tool."""
    changed = text_model(
        f'''<ir_version: 10, producer_name: "{producer}", opset_import: ["" : 18]>
        net (float[N,4] x, {_OF_TORCH.format(prefix)}''',
        **{"lin.weight": weights(4, 4), f"{prefix}onnx::Add_3": weights(4)},
    )
    assert kinds(changed) == {
        "lin.weight": "module",
        f"{prefix}onnx::Add_3": "folded",
        f"{prefix}/Constant_output_0": "literal",
    }


def test_of_a_merged_model_only_names_of_modules_are_of_torch():
    merged = text_model(
        """<ir_version: 10, producer_name: "onnx.compose.merge_models", opset_import: ["" : 18]>
        net (float[N,4] x, float scale, float[4] "norm.bias") => (y) {
          h = Mul(x, scale) i = Add(h, "norm.bias") "/act/Relu_output_0" = Relu(i)
          y = Neg("/act/Relu_output_0") }""",
        **{"scale": weights(), "norm.bias": weights(4)},
    )
    assert kinds(merged) == {"scale": "unknown", "norm.bias": "module"}


def test_constant_nodes_of_a_merged_model_may_be_weights_of_the_other():
    """Those of onnxscript, for example; numbers of torch's code have the names of its exporters."""
    merged = text_model(
        """<ir_version: 10, producer_name: "onnx.compose.merge_models", opset_import: ["" : 18]>
        net (float[N,4] x, float[4] "norm.bias") => (y) {
          "a_/Constant_output_0" = Constant<value_float = 2.5>()
          h = Mul(x, "a_/Constant_output_0") "a_/act/Add_output_0" = Add(h, "norm.bias")
          head = Constant<value = float[4] {1.0, 2.5, 0.5, 3.0}>()
          y = Mul("a_/act/Add_output_0", head) }""",
        **{"norm.bias": weights(4)},
    )
    expected = {"a_/Constant_output_0": "literal", "head": "unknown", "norm.bias": "module"}
    assert kinds(merged) == expected


def test_the_dynamo_exporter_says_it_all():
    """Also the module that reads a tensor that replaced a parameter."""
    found = tensor_origins(dynamo())
    assert {n: o.kind for n, o in found.of.items()} == {
        "w": "parameter",
        "b": "buffer",
        "val_3": "folded",
        "c": "literal",
    }
    assert found.missing == ("net.fc.weight",)
    assert found.of["val_3"].folded_from == ("net.fc.weight",)
    assert found.of["val_3"].direct


def tied(*lost: str) -> ir.Model:
    """The embedding `net.embed` reads the weight of the output layer `net.head`."""
    found = text_model(
        """<ir_version: 10, producer_name: "pytorch", opset_import: ["" : 18]>
        net (int64[N] x, float[4,4] head) => (y) { e = Gather(head, x) y = MatMul(e, head) }""",
        head=weights(4, 4),
    )
    head = found.graph.initializers["head"]
    head.name = "net.head.weight"
    head.metadata_props[KIND] = "PARAMETER"
    specs = "".join(f"p: PARAMETER target='{name}'\n" for name in ("net.head.weight", *lost))
    found.graph.metadata_props[SIGNATURE] = f"\n# inputs\n{specs}"
    for node, module in zip(found.graph, ("embed", "head"), strict=True):
        node.metadata_props[SCOPES] = f"['', 'net', 'net.{module}', 'call']"
    return found


def test_a_shared_parameter_is_not_lost():
    assert tensor_origins(tied("net.embed.weight")).missing == ()
    assert tensor_origins(tied("net.head.bias")).missing == ("net.head.bias",)
    both = ("net.embed.bias", "net.embed.weight")
    assert tensor_origins(tied(*both)).missing == both


def test_the_parts_of_a_parametrization_belong_to_its_layer():
    found = dynamo()
    signature = found.graph.metadata_props[SIGNATURE]
    found.graph.metadata_props[SIGNATURE] = signature.replace(
        "net.fc.weight", "net.fc.parametrizations.weight.original0"
    )
    assert tensor_origins(found).of["val_3"].direct


def test_origins_survive_a_conversion_of_the_opset_and_a_clone():
    found = dynamo(opset=16)
    normalize(found, opsets=range(18, 22), ir_version=10)
    copy = found.clone()
    normalize(copy, opsets=range(18, 22), ir_version=10)
    for one in (found, copy):
        assert origin_of(one.graph.initializers["w"]).kind == "parameter"
        assert origin_of(one.graph.initializers["c"]).kind == "literal"
        assert origin_of(one.graph.initializers["val_3"]).folded_from == ("net.fc.weight",)
    assert missing_parameters(found) == ("net.fc.weight",)


def test_the_tables_of_a_rotary_embedding_are_buffers():
    text = """<ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
        net (float[N,3,8] x, float[9,2] cos, float[9,2] sin, int64[N,3] at, int64[3] rows) =>
        (float[N,3,8] y) {{ {body} }}"""
    body = {
        "standard": "y = RotaryEmbedding<num_heads = 2>(x, cos, sin, at)",
        "gathered": """c = Gather(cos, at) s = Gather(sin, at)
                       y = RotaryEmbedding<num_heads = 2>(x, c, s)""",
        "runtime": "y = com.microsoft.RotaryEmbedding<num_heads = 2>(x, at, cos, sin)",
    }
    for nodes in body.values():
        model = text_model(text.format(body=nodes), cos=weights(9, 2), sin=weights(9, 2, seed=1))
        origins = tensor_origins(model)
        assert [origins.of[name].kind for name in ("cos", "sin")] == ["buffer"] * 2


def test_what_cannot_be_parsed_is_left_out():
    found = dynamo()
    found.graph[2].metadata_props[SCOPES] = "[''"
    assert tensor_origins(found).of["val_3"].folded_from == ()


def test_statistics_of_a_norm_without_parameters_are_missing():
    """The optimizing exporter folds such a BatchNormalization without leaving a trace."""
    found = dynamo()
    found.graph.metadata_props[SIGNATURE] += (
        "p_n: PARAMETER target='n.weight'\nb_m: BUFFER target='n.running_mean' persistent=True\n"
        "b_v: BUFFER target='net.plain.running_var' persistent=True\n"
    )
    assert tensor_origins(found).missing == ("n.weight", "net.fc.weight", "net.plain.running_var")


def test_a_parameter_that_the_module_changes_is_still_one():
    """``Embedding(max_norm=...)`` scales its rows in place: the signature names it twice."""
    found = dynamo()
    found.graph.initializers["w"].metadata_props.clear()
    found.graph.metadata_props[SIGNATURE] += "\n# outputs\nr: PARAMETER_MUTATION target='w'\n"
    assert kinds(found)["w"] == "parameter"
