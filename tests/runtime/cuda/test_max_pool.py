import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.graph.build import Builder
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import load_kernels
from ortboost.runtime.cuda.max_pool import shifted_maxima
from ortboost.runtime.cuda.placement import place
from ortboost.runtime.session import open_session


def pool(attributes, lengths=(9, 7), kind="float", opset=18, outputs="y, i"):
    open_dims = ",".join("abcde"[: len(lengths) + 2])
    text = (
        f'<ir_version: 8, opset_import: ["" : {opset}]> g '
        f"({kind}[n,3,{','.join(map(str, lengths))}] x) "
        f"=> ({kind}[{open_dims}] y{', int64[' + open_dims + '] i' if 'i' in outputs else ''}) "
        f"{{ {outputs} = MaxPool<{attributes}>(x) }}"
    )
    model = ir.from_onnx_text(text)
    infer_shapes(model)
    return model


def shifted(model):
    changed = model.clone()
    infer_shapes(changed)
    done = shifted_maxima(changed.graph[0], Builder(changed.graph, "ortboost/cuda"))
    return changed if done else None


def tensors(shape, seed=0):
    """Many equal numbers, and some of -inf."""
    rng = np.random.default_rng(seed)
    x = rng.integers(-2, 3, shape).astype(np.float32)
    x[rng.random(shape) < 0.5] = -np.inf
    return x


@pytest.mark.parametrize(
    ("attributes", "lengths"),
    [
        ("kernel_shape=[2,2], strides=[2,2]", (8, 6)),
        ("kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]", (9, 7)),
        ("kernel_shape=[3,2], strides=[1,3], pads=[2,0,1,1]", (9, 7)),
        ("kernel_shape=[3,3], strides=[2,1], dilations=[2,1], pads=[2,1,2,1]", (9, 7)),
        ("kernel_shape=[3], strides=[2], pads=[1,1]", (11,)),
        ("kernel_shape=[2,3,2], strides=[2,1,1], pads=[0,1,1,1,1,0]", (5, 4, 6)),
    ],
)
def test_values_and_places_are_those_of_the_operator(attributes, lengths):
    model = pool(attributes, lengths)
    changed = shifted(model)
    onnx.checker.check_model(ir.to_proto(changed), full_check=True)
    assert "MaxPool" not in {node.op_type for node in changed.graph}
    x = np.random.default_rng(1).integers(-2, 3, (2, 3, *lengths)).astype(np.float32)
    for one in (x, np.round(x * 0.4), np.zeros_like(x)):
        answers = [open_session(m, device="cpu").run(None, {"x": one}) for m in (model, changed)]
        np.testing.assert_array_equal(answers[1][0], answers[0][0])
        np.testing.assert_array_equal(answers[1][1], answers[0][1])


def test_what_lies_outside_never_wins():
    changed = shifted(pool("kernel_shape=[3,3], strides=[2,2], pads=[1,1,1,1]"))
    x = tensors((2, 3, 9, 7))
    x[0, 0] = -np.inf
    y, places = open_session(changed, device="cpu").run(None, {"x": x})
    assert places.min() >= 0
    assert places.max() < x.size
    np.testing.assert_array_equal(x.reshape(-1)[places], y)
    assert (places // (9 * 7) == np.arange(6).reshape(2, 3, 1, 1)).all()


@pytest.mark.parametrize(
    "model",
    [
        pool("kernel_shape=[3,3], strides=[2,2], ceil_mode=1"),
        pool('kernel_shape=[3,3], strides=[2,2], auto_pad="SAME_UPPER"'),
        pool("kernel_shape=[3,3], storage_order=1"),
        pool("kernel_shape=[9,8]", (20, 20)),
        pool("kernel_shape=[2,2]", ("h", "w")),
    ],
)
def test_other_forms_stay(model):
    before = [node.op_type for node in model.graph]
    assert shifted(model) is None
    assert [node.op_type for node in model.graph] == before


def test_it_is_done_where_no_older_opset_helps():
    kernels = load_kernels("cuda=1.31.1")
    short = for_cuda(pool("kernel_shape=[2,2]", kind="bfloat16", opset=22), kernels)
    assert short.opset_imports[""] == 22
    assert "MaxPool" not in {node.op_type for node in short.graph}
    infer_shapes(short)
    assert {row.side for row in place(short, kernels)[0] if not row.shape_work} == {"cuda"}
    wide = for_cuda(pool("kernel_shape=[2,2]", opset=22), kernels)
    assert wide.opset_imports[""] == 21
    assert "MaxPool" in {node.op_type for node in wide.graph}
