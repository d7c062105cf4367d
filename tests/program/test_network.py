"""The network that a conversion reads from a model file."""

from __future__ import annotations

import pytest

from ortboost.autodiff.engine import get_engine
from ortboost.boosts import LessBN
from ortboost.core.errors import ModelError, UsageError
from ortboost.program.config import ProgramConfig
from ortboost.program.network import read_network
from tests.support import assert_three_lines, small_convnet, small_mlp, text_model, weights


def read(model, **fields):
    return read_network(model, ProgramConfig(**fields), get_engine("portable"))


def test_a_network_has_no_loss_and_keeps_its_weights():
    network = read(small_mlp())
    assert [value.name for value in network.model.graph.outputs] == ["logits"]
    assert all(value.const_value is not None for value in network.model.graph.initializers.values())
    assert not any(node.op_type.endswith("Loss") for node in network.model.graph)


def test_reports_are_in_the_order_of_the_rewrites():
    network = read(small_convnet(), boosts=(LessBN(),), new_head=3)
    named = [report.rewrite for report in network.reports]
    found = [named.index(n) for n in ("training_traces", "store_weights", "new_head", "less_bn")]
    assert found == sorted(found)


def test_what_the_torch_module_detaches_is_reported():
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[N,3] x, float[3,2] w) => (float[N,2] y) {
          d = Identity(x) h = MatMul(d, w) y = Relu(h) }""",
        w=weights(3, 2),
    )
    call = "%{} : [num_users=1] = call_function[target=torch.ops.aten.{}.default](args = (%{},))"
    calls = [("detach", "detach", "x"), ("h", "mm", "detach_1"), ("y", "relu", "h")]
    for node, names in zip(model.graph, calls, strict=True):
        node.metadata_props["pkg.torch.onnx.fx_node"] = call.format(*names)
    (report,) = (r for r in read(model).reports if r.rewrite == "training_traces")
    assert report.changed == {"d": "detached: gets no gradient"}
    (note,) = report.notes
    assert note.startswith("the torch module detaches 1 value (detach_1), but")


def test_reserved_names_are_left_to_the_step():
    text = """<ir_version: 10, opset_import: ["" : 18]>
    net (float[N,3] {x}, float[3,2] w) => (float[N,2] y) {{
      [a] {h} = MatMul({x}, w) y = Relu({h}) }}"""
    model = text_model(text.format(x="x", h='"ortboost/h"'), w=weights(3, 2))
    network = read(model)
    assert [node.outputs[0].name for node in network.model.graph] == ["model/ortboost/h", "y"]
    stored = text.replace(" w)", ' "ortboost/w")').replace(", w)", ', "ortboost/w")')
    network = read(text_model(stored.format(x="x", h="h"), **{"ortboost/w": weights(3, 2)}))
    assert list(network.model.graph.initializers) == ["model/ortboost/w"]
    with pytest.raises(ModelError, match="reserved") as refused:
        read(text_model(text.format(x='"ortboost/x"', h="h"), w=weights(3, 2)))
    assert_three_lines(refused.value)


def test_a_pattern_of_frozen_norms_has_to_match():
    network = read(small_convnet(), frozen_norm=("*",))
    norms = [n for n in network.model.graph if n.op_type == "BatchNormalization"]
    assert norms
    assert all(map(network.frozen_norm, norms))
    with pytest.raises(UsageError, match="'nix' matches no BatchNormalization"):
        read(small_convnet(), frozen_norm=("nix",))
    with pytest.raises(UsageError, match="has none: leave out"):
        read(small_mlp(), frozen_norm=("*",))
