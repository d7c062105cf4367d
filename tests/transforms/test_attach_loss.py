from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ortboost.autodiff.decompose import decompose
from ortboost.autodiff.engine import get_engine
from ortboost.core.errors import ConfigError, ModelError, UsageError
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.transforms.attach_loss import LOSSES, LossConfig, attach_loss
from ortboost.transforms.loss_functions import _ELEMENTWISE
from tests.support import ENGINES, GOLDEN, assert_three_lines, run, small_mlp, text_model, weights

with np.load(GOLDEN / "mindspore" / "losses.npz") as _file:
    MS = {name: _file[name] for name in _file.files if name != "meta"}

CE = "softmax-cross-entropy"
CASES = {
    "softmax_sparse": ({"name": CE}, "labels_sparse"),
    "softmax_onehot": ({"name": CE, "sparse": False}, "labels_onehot"),
    "softmax_soft": ({"name": CE, "sparse": False}, "labels_soft"),
    "mse": ({"name": "mse"}, "target"),
    "l1": ({"name": "l1"}, "target"),
    "huber": ({"name": "huber", "delta": 0.5}, "target"),
    "bce": ({"name": "bce-with-logits"}, "labels_binary"),
    "bce_soft": ({"name": "bce-with-logits"}, "labels_soft"),
    "bce_weight": ({"name": "bce-with-logits", "weight": MS["weight"]}, "labels_binary"),
    "bce_pos_weight": (
        {"name": "bce-with-logits", "pos_weight": MS["pos_weight"]},
        "labels_binary",
    ),
    "bce_both": (
        {"name": "bce-with-logits", "weight": MS["weight"], "pos_weight": MS["pos_weight"]},
        "labels_binary",
    ),
}
SMOOTHED = {
    "smoothed_sparse": ({"name": CE, "label_smoothing": 0.2}, "labels_sparse"),
    "smoothed_soft": ({"name": CE, "label_smoothing": 0.2, "sparse": False}, "labels_soft"),
}
REDUCTIONS = ("mean", "sum", "none")


def through(shape: str = "batch,4") -> ir.Model:
    """A network that multiplies its input by a weight of one."""
    return text_model(
        f'<ir_version: 10, opset_import: ["" : 18]> net (float[{shape}] x, float[1] w) =>'
        f" (float[{shape}] logits) {{ logits = Mul(x, w) }}",
        w=np.ones(1, np.float32),
    )


def attached(config: LossConfig, model: ir.Model | None = None):
    model = model or through()
    return model, attach_loss(model, config)


def value_and_grad(
    config: LossConfig, x: np.ndarray, labels: np.ndarray, shape="batch,4", engine=None
):
    """The shown loss, and its gradient with respect to the logits."""
    model, where = attached(config, through(shape))
    engine = get_engine() if engine is None else get_engine(engine)
    decompose(model, wrt=["x"], loss=where.objective, engine=engine)
    engine.prepare(model)
    model.graph.outputs[:] = [v for v in model.graph.outputs if v.name == where.loss]
    # The gradients with respect to input and logits are equal, as the weight is one.
    gradients = engine.differentiate(model, where.objective, ["x"])
    feeds = {"x": x, "labels": labels}
    found = run(gradients, feeds)
    return found[where.loss], found["x_grad"]


def labels_of(key: str) -> np.ndarray:
    return MS[key].astype(np.int64) if key == "labels_sparse" else MS[key]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_value_and_gradient_are_those_of_mindspore(case, reduction):
    fields, key = CASES[case]
    config = LossConfig(reduction=reduction, **fields)
    loss, gradient = value_and_grad(config, MS["logits"], labels_of(key))
    expected = MS[f"{case}/{reduction}/value"]
    assert loss.shape == expected.shape
    np.testing.assert_allclose(loss, expected, rtol=2e-6, atol=1e-6)
    np.testing.assert_allclose(gradient, MS[f"{case}/{reduction}/grad"], rtol=2e-5, atol=1e-6)


def formula(fields, x, y):
    """Losses in float64 by numpy, before the reduction."""
    x, y = x.astype(np.float64), np.asarray(y, np.float64)
    name = fields["name"]
    if name == CE:
        shifted = x - x.max(1, keepdims=True)
        log_softmax = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
        shares = np.eye(x.shape[1])[y.astype(int)] if fields.get("sparse", True) else y
        smoothing = fields.get("label_smoothing", 0.0)
        return -(((1 - smoothing) * shares + smoothing / x.shape[1]) * log_softmax).sum(1)
    if name == "mse":
        return (x - y) ** 2
    if name == "l1":
        return np.abs(x - y)
    if name == "huber":
        error, delta = np.abs(x - y), fields.get("delta", 1.0)
        return np.where(error <= delta, error**2 / 2, delta * (error - delta / 2))
    weight, positive = fields.get("weight", 1.0), fields.get("pos_weight", 1.0)
    return weight * (positive * y * np.logaddexp(0, -x) + (1 - y) * np.logaddexp(0, x))


@pytest.mark.parametrize(
    ("shape", "fixed"),
    [
        ("batch,3,H,W", (8, 3, 256, 256)),
        ("batch,256,256,3", (8, 256, 256, 3)),
        ("batch,384", (4096, 384)),
    ],
)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_loss_of_a_large_output_keeps_its_digits(reduction, shape, fixed):
    """One sum of all elements by the runtime is off by 4e-4."""
    x = np.full(fixed, 0.7, np.float32)
    config = LossConfig(name="mse", reduction=reduction)
    loss, gradient = value_and_grad(config, x, np.zeros_like(x), shape)
    count = x.size if reduction == "mean" else 1
    np.testing.assert_allclose(loss, 0.49 * x.size / count, rtol=2e-5)
    np.testing.assert_allclose(gradient, x * 2 / count, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("case", [*CASES, *SMOOTHED])
def test_the_gradient_is_the_slope_of_the_formula(case, reduction):
    fields, key = (CASES | SMOOTHED)[case]
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((5, 4)) * 3).astype(np.float32)
    labels = labels_of(key)
    loss, gradient = value_and_grad(LossConfig(reduction=reduction, **fields), x, labels)
    reduce = np.mean if reduction == "mean" else np.sum
    np.testing.assert_allclose(loss, reduce(formula(fields, x, labels)), rtol=2e-6)
    slope, step = np.zeros(x.shape), 1e-5
    for index in np.ndindex(*x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.astype(np.float64)
            moved[index] += sign * step
            ends.append(reduce(formula(fields, moved, labels)))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    np.testing.assert_allclose(gradient, slope, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("label", "slope"), [(0.0, 0.5), (1.0, -0.5), (0.25, 0.25)])
def test_bce_has_the_slope_of_the_sigmoid_at_zero(label, slope):
    x, labels = np.zeros((2, 4), np.float32), np.full((2, 4), label, np.float32)
    loss, gradient = value_and_grad(LossConfig("bce-with-logits", "sum"), x, labels)
    np.testing.assert_allclose(loss, 8 * np.log(2), rtol=1e-6)
    np.testing.assert_allclose(gradient, slope, rtol=1e-6)


@pytest.mark.parametrize("case", ["softmax_sparse", "softmax_onehot", "bce", "bce_both"])
@pytest.mark.parametrize("size", [1e3, 1e4, 1e30])
def test_large_logits_stay_finite(case, size):
    fields, key = CASES[case]
    x = np.where(np.arange(20).reshape(5, 4) % 3 == 0, size, -size).astype(np.float32)
    labels = labels_of(key)
    loss, gradient = value_and_grad(LossConfig(**fields), x, labels)
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()
    np.testing.assert_allclose(loss, formula(fields, x, labels).mean(), rtol=1e-5)


def test_images_with_sparse_labels():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    labels = rng.integers(0, 3, (2, 4, 5))
    loss, gradient = value_and_grad(LossConfig(class_axis=1), x, labels, "batch,3,4,5")
    flat = np.moveaxis(x, 1, -1).reshape(-1, 3)
    expected = formula({"name": CE}, flat, labels.reshape(-1)).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(gradient.sum(1), 0, atol=1e-7)


def test_images_with_dense_labels():
    rng = np.random.default_rng(1)
    x = rng.standard_normal((2, 3, 4, 5)).astype(np.float32)
    labels = rng.random((2, 3, 4, 5)).astype(np.float32)
    config = LossConfig(sparse=False, class_axis=1)
    loss, _ = value_and_grad(config, x, labels, "batch,3,4,5")
    rows = [np.moveaxis(a, 1, -1).reshape(-1, 3) for a in (x, labels)]
    expected = formula({"name": CE, "sparse": False}, *rows).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_ignored_labels_do_not_count(reduction):
    x, labels = MS["logits"], np.array([0, -100, 2, -100, 1])
    config = LossConfig(reduction=reduction, ignore_index=-100)
    loss, gradient = value_and_grad(config, x, labels)
    kept = labels != -100
    losses = np.zeros(5)
    losses[kept] = formula({"name": CE}, x[kept], labels[kept])
    expected = {"mean": losses[kept].mean(), "sum": losses.sum(), "none": losses}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    assert not gradient[~kept].any()
    assert gradient[kept].any(axis=1).all()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("ignored", [None, 1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_class_weights(engine, reduction, ignored):
    x, labels = MS["logits"], np.array([0, 1, 2, 3, 1])
    config = LossConfig(reduction=reduction, ignore_index=ignored, weight=[0.5, 2.0, 1.0, 0.25])
    loss, gradient = value_and_grad(config, x, labels, engine=engine)
    weights = np.array([0.5, 2, 1, 0.25])[labels] * (labels != ignored)
    losses = formula({"name": CE}, x, labels) * weights
    number = weights.sum() if reduction == "mean" else 1
    np.testing.assert_allclose(
        loss, losses if reduction == "none" else losses.sum() / number, rtol=2e-6, atol=1e-6
    )
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    slope = (soft - np.eye(4)[labels]) * weights[:, None] / number
    np.testing.assert_allclose(gradient, slope, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("smoothing", [None, 0.1])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_class_weights_of_dense_labels(engine, smoothing, reduction):
    """As in torch: the weights are those of the classes, and the mean is over the samples."""
    x, weights = MS["logits"], np.array([0.5, 2.0, 1.0, 0.25])
    labels = np.random.default_rng(0).dirichlet(np.ones(4), 5).astype(np.float32)
    config = LossConfig(
        sparse=False, reduction=reduction, weight=weights.tolist(), label_smoothing=smoothing
    )
    loss, gradient = value_and_grad(config, x, labels, engine=engine)
    target = (labels * (1 - (smoothing or 0)) + (smoothing or 0) / 4) * weights
    losses = -(target * np.log(np.exp(x) / np.exp(x).sum(1, keepdims=True))).sum(1)
    expected = {"mean": losses.mean(), "sum": losses.sum(), "none": losses}[reduction]
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    soft = np.exp(x) / np.exp(x).sum(1, keepdims=True)
    slope = soft * target.sum(1, keepdims=True) - target
    np.testing.assert_allclose(gradient, slope / (5 if reduction == "mean" else 1), atol=1e-6)


def test_class_weights_of_dense_labels_in_another_axis():
    rng = np.random.default_rng(1)
    x, labels = (rng.random((2, 3, 4, 5)).astype(np.float32) for _ in range(2))
    config = LossConfig(sparse=False, class_axis=1, weight=[0.5, 2.0, 1.0])
    loss, _ = value_and_grad(config, x, labels, "batch,3,4,5")
    log_p = x - np.log(np.exp(x).sum(1, keepdims=True))
    weights = np.array([0.5, 2, 1]).reshape(1, 3, 1, 1)
    np.testing.assert_allclose(loss, -(weights * labels * log_p).sum(1).mean(), rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"weight": [1.0, 0.0]}, "A class has the weight 0"),
        ({"weight": 2.0}, "not \\[classes\\]"),
        ({"weight": [1.0, np.nan]}, "finite"),
        ({"weight": [1.0, 2.0], "name": "l1"}, "^weight of LossConfig has no effect"),
        ({"from_logits": False, "name": "l1"}, "'from_logits' has no effect for"),
    ],
)
def test_class_weights_are_checked(fields, message):
    with pytest.raises(ConfigError, match=message) as info:
        LossConfig(**fields)
    assert_three_lines(info.value)


def test_there_is_one_weight_for_each_class():
    with pytest.raises(ConfigError, match="3 class weights") as info:
        attached(LossConfig(weight=[1, 2, 3]))
    assert_three_lines(info.value)


# ---- classes in another axis, against torch's numbers in numpy -------------------------------

SHAPES = {1: "batch,4,t", -1: "batch,t,4", 2: "batch,h,4,t"}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", SHAPES)
@pytest.mark.parametrize("ignored", [None, -100])
def test_classes_in_any_axis(engine, reduction, axis, ignored):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((2, 3, 4, 5) if axis == 2 else (2, 4, 5)).astype(np.float32)
    if axis == -1:
        x = np.moveaxis(x, 1, -1)
    labels = rng.integers(0, 4, np.delete(x.shape, axis))
    if ignored is not None:
        labels.flat[::3] = ignored
    config = LossConfig(class_axis=axis, reduction=reduction, ignore_index=ignored)
    loss, gradient = value_and_grad(config, x, labels, SHAPES[axis], engine)
    counts = labels != -100
    rows, known = np.moveaxis(x, axis, -1).reshape(-1, 4), np.where(counts, labels, 0)
    losses = formula({"name": CE}, rows, known.reshape(-1)).reshape(labels.shape) * counts
    number = counts.sum() if reduction == "mean" else 1
    expected = losses if reduction == "none" else losses.sum() / number
    np.testing.assert_allclose(loss, expected, rtol=2e-6, atol=1e-6)
    soft = np.exp(rows - rows.max(1, keepdims=True))
    slope = (soft / soft.sum(1, keepdims=True) - np.eye(4)[known.reshape(-1)]) / number
    slope = np.moveaxis((slope * counts.reshape(-1, 1)).reshape(*labels.shape, 4), -1, axis)
    np.testing.assert_allclose(gradient, slope, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [1, 2])
@pytest.mark.parametrize("weight", [None, [0.5, 1, 2, 4]])
def test_smoothed_labels_in_any_axis(engine, reduction, axis, weight):
    rng = np.random.default_rng(7)
    x, labels = rng.standard_normal((2, 3, 4, 5)).astype(np.float32), rng.integers(0, 4, (2, 3, 5))
    labels.flat[::3] = -1
    x = np.moveaxis(x, 2, axis)
    config = LossConfig(
        class_axis=axis, reduction=reduction, ignore_index=-1, label_smoothing=0.1, weight=weight
    )
    shape = SHAPES[2] if axis == 2 else "batch,4,h,t"
    loss, gradient = value_and_grad(config, x, labels, shape, engine)
    # torch: the shares of all classes are weighted by class, the mean by the labels.
    rows, known = np.moveaxis(x, axis, -1)[labels != -1], labels[labels != -1]
    of_class = np.ones(4) if weight is None else np.array(weight)
    shares = of_class * (0.9 * np.eye(4)[known] + 0.1 / 4)
    soft = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    expected = np.zeros(labels.shape)
    expected[labels != -1] = -(shares * np.log(soft)).sum(1)
    number = of_class[known].sum() if reduction == "mean" else 1
    np.testing.assert_allclose(
        loss, expected if reduction == "none" else expected.sum() / number, rtol=2e-6, atol=1e-6
    )
    slope = (soft * shares.sum(1, keepdims=True) - shares) / number
    np.testing.assert_allclose(
        np.moveaxis(gradient, axis, -1)[labels != -1], slope, rtol=2e-5, atol=1e-6
    )
    assert not np.moveaxis(gradient, axis, -1)[labels == -1].any()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_shifted_labels_are_those_of_the_next_position(engine, reduction):
    rng = np.random.default_rng(6)
    x = rng.standard_normal((3, 5, 4)).astype(np.float32)
    labels = rng.integers(0, 4, (3, 5))
    labels[1, 3:] = -100
    config = LossConfig(shift_labels=True, reduction=reduction)
    loss, gradient = value_and_grad(config, x, labels, "batch,t,4", engine)
    plain = LossConfig(class_axis=-1, reduction=reduction, ignore_index=-100)
    cut, slope = value_and_grad(plain, x[:, :-1], labels[:, 1:].copy(), "batch,t,4", engine)
    np.testing.assert_allclose(loss[:, :-1] if reduction == "none" else loss, cut, rtol=1e-6)
    np.testing.assert_allclose(gradient[:, :-1], slope, rtol=1e-5, atol=1e-7)
    assert not gradient[:, -1].any()


@pytest.mark.parametrize(
    ("config", "shape", "words"),
    [
        (LossConfig(), "batch,4", "mean, labels 'labels', classes in axis 1"),
        (
            LossConfig(shift_labels=True, reduction="sum"),
            "batch,t,4",
            "sum, labels 'labels', classes in axis 2, shifted by one position",
        ),
        (
            LossConfig(label_smoothing=0.1),
            "batch,4",
            "mean, labels 'labels', classes in axis 1, smoothed by 0.1",
        ),
        (LossConfig("mse", labels="target"), "batch,4", "mean, labels 'target'"),
    ],
)
def test_the_report_says_what_was_attached(config, shape, words):
    _, where = attached(config, through(shape))
    assert where.report.changed == {where.prediction: f"{config.name}, {words}"}


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_of_ignored_labels_has_a_loss_of_zero(engine):
    x, labels = weights(2, 4), np.full(2, -100)
    loss, gradient = value_and_grad(LossConfig(ignore_index=-100), x, labels, engine=engine)
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("name", ["mse", "l1", "huber", "bce-with-logits"])
@pytest.mark.parametrize("shape", ["batch", "batch,t", "batch,2,t,3"])
def test_elementwise_losses_of_any_rank(name, shape):
    size = [{"batch": 3, "t": 5}.get(d) or int(d) for d in shape.split(",")]
    x, labels = weights(*size, seed=1), np.abs(weights(*size, seed=2))
    loss, _ = value_and_grad(LossConfig(name), x, labels, shape)
    np.testing.assert_allclose(loss, formula({"name": name}, x, labels).mean(), rtol=2e-6)
    if len(size) > 1:
        with pytest.raises(Exception, match="Reshape"):
            value_and_grad(LossConfig(name), x, labels[:1], shape)


@pytest.mark.parametrize(
    ("config", "shape"),
    [
        (LossConfig(shift_labels=True), "batch,4"),
        (LossConfig(shift_labels=True, class_axis=1), "batch,4,t"),
        (LossConfig(shift_labels=True), "batch,h,w,4"),
    ],
)
def test_only_sequences_of_classes_are_shifted(config, shape):
    with pytest.raises(ModelError, match="not a sequence of class scores") as info:
        attached(config, through(shape))
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "mse", "class_axis": 1},
        {"name": "mse", "label_smoothing": 0.1},
        {"sparse": False, "shift_labels": True},
    ],
)
def test_settings_of_another_loss_are_refused(fields):
    with pytest.raises(ConfigError, match="has no effect for"):
        LossConfig(**fields)


def test_dense_labels_are_refused_where_nothing_reads_them():
    with pytest.raises(ConfigError, match="has no effect for mse") as info:
        attached(LossConfig(name="mse", sparse=False))
    assert_three_lines(info.value)


# ---- the graph ------------------------------------------------------------------------------


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_graph_is_valid_and_says_what_it_takes(case, reduction):
    fields, _ = CASES[case]
    model, where = attached(LossConfig(reduction=reduction, **fields))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    labels = model.graph.inputs[-1]
    assert labels.name == where.labels == "labels"
    assert labels.shape[0].value == "batch"
    sparse = case == "softmax_sparse"
    assert labels.dtype == (ir.DataType.INT64 if sparse else ir.DataType.FLOAT)
    assert [value.name for value in model.graph.outputs] == ["logits", "loss"]
    assert where.prediction == "logits"
    assert where.loss == "loss"
    assert (where.objective == "loss") == (reduction != "none")
    names = {value.name: value for node in model.graph for value in node.outputs}
    assert tuple(names[where.objective].shape) == ()
    assert where.report.changed


def test_labels_can_have_another_name_and_shape():
    config = LossConfig("mse", labels="target", label_shape=("batch", 1))
    model, where = attached(config)
    assert where.labels == "target"
    assert [str(d) for d in model.graph.inputs[-1].shape] == ["batch", "1"]
    x = MS["logits"]
    target = np.zeros((5, 1), np.float32)
    found = run(model, {"x": x, "target": target})
    np.testing.assert_allclose(found["loss"], (x**2).mean(), rtol=1e-6)


def two_heads() -> ir.Model:
    return text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        net (float[batch,4] x) => (float[batch,4] a, float[batch,4] b, int64[batch] n) {
          a = Relu(x)
          b = Neg(x)
          n = ArgMax<axis = 1, keepdims = 0>(x)
        }"""
    )


def test_several_outputs_need_a_name():
    with pytest.raises(UsageError) as info:
        attached(LossConfig(), two_heads())
    assert_three_lines(info.value)
    assert "a, b, n" in info.value.where
    assert info.value.fix.startswith("Name it with --output NAME; for a loss over several, ")


def test_the_named_output_is_taken():
    model, where = attached(LossConfig(output="b"), two_heads())
    assert where.prediction == "b"
    assert [value.name for value in model.graph.outputs] == ["a", "b", "n", "loss"]
    x = MS["logits"]
    found = run(model, {"x": x, "labels": np.zeros(5, np.int64)})
    np.testing.assert_allclose(
        found["loss"], formula({"name": CE}, -x, np.zeros(5)).mean(), rtol=1e-6
    )


def test_an_unknown_output_is_refused_with_the_nearest():
    with pytest.raises(UsageError) as info:
        attached(LossConfig(output="logit"))
    assert_three_lines(info.value)
    assert "'logits'" in info.value.fix


def test_labels_may_not_take_the_name_of_an_input():
    with pytest.raises(UsageError) as info:
        attached(LossConfig(labels="x"))
    assert_three_lines(info.value)
    assert "--labels" in info.value.fix


@pytest.mark.parametrize("taken", ["labels", "h"])
def test_labels_may_not_take_the_name_of_a_tensor(taken):
    model = small_mlp()
    if taken == "labels":
        next(iter(model.graph)).outputs[0].name = "labels"
    model, where = attached(LossConfig(labels=taken), model)
    names = [v.name for v in model.graph.inputs]
    names += [v.name for node in model.graph for v in node.outputs]
    assert len(set(names)) == len(names)
    assert where.labels == taken
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


def test_an_integer_output_is_no_prediction():
    with pytest.raises(ModelError) as info:
        attached(LossConfig(output="n"), two_heads())
    assert_three_lines(info.value)


def test_cross_entropy_needs_classes():
    with pytest.raises(ModelError) as info:
        attached(LossConfig(), through("batch"))
    assert_three_lines(info.value)


@pytest.mark.parametrize("config", [LossConfig(), LossConfig(sparse=False)])
def test_cross_entropy_of_a_single_class_is_refused(config):
    """It is 0 whatever the weights are: training would seem perfect and change nothing."""
    with pytest.raises(ModelError, match="single class") as caught:
        attached(config, through("batch,1"))
    assert_three_lines(caught.value)
    attached(LossConfig("bce-with-logits"), through("batch,1"))


def test_an_inner_tensor_called_loss_makes_way():
    model = small_mlp()
    next(iter(model.graph)).outputs[0].name = "loss"
    model, where = attached(LossConfig(), model)
    assert where.loss == "loss"
    assert [value.name for value in model.graph.outputs] == ["logits", "loss"]
    onnx.checker.check_model(ir.to_proto(model), full_check=True)


@pytest.mark.parametrize("kind", ["input", "initializer", "output"])
def test_a_tensor_called_loss_that_users_see_is_refused(kind):
    model = small_mlp()
    if kind == "input":
        model.graph.inputs[0].name = "loss"
    elif kind == "output":
        model.graph.outputs[0].name = "loss"
    else:
        value = model.graph.initializers.pop("b1")
        value.name = "loss"
        model.graph.register_initializer(value)
    with pytest.raises(ModelError) as info:
        attached(LossConfig(), model)
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    "fields", [{"name": "softmax"}, {"reduction": "avg"}], ids=["name", "reduction"]
)
def test_unknown_settings_name_the_nearest(fields):
    with pytest.raises(ConfigError) as info:
        LossConfig(**fields)
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("CrossEntropyLoss", "softmax-cross-entropy"),
        ("sigmoid_cross_entropy", "bce-with-logits"),
        ("BCEWithLogitsLoss", "bce-with-logits"),
        ("mae", "l1"),
        ("l2_loss", "mse"),
        ("smooth_l1_loss", "huber"),
        ("huber-los", "huber"),
    ],
)
def test_a_loss_is_found_by_its_name_in_other_libraries(name, meant):
    with pytest.raises(ConfigError) as info:
        LossConfig(name)
    assert info.value.fix.startswith(f"did you mean '{meant}'?")


@pytest.mark.parametrize(
    "fields",
    [
        {"name": "mse", "ignore_index": 0},
        {"name": "mse", "delta": 2.0},
        {"sparse": False, "ignore_index": 0},
        {"weight": 2.0},
        {"name": "l1", "pos_weight": 2.0},
        {"name": "l1", "from_logits": True},
        {"name": "bce-with-logits", "weight": "much"},
        {"name": "bce-with-logits", "pos_weight": [1.0, np.inf]},
    ],
)
def test_a_setting_of_another_loss_is_not_passed_over(fields):
    with pytest.raises(ConfigError) as info:
        LossConfig(**fields)
    assert_three_lines(info.value)
    assert list(fields)[-1] in info.value.what


# ---- a model with its own loss ----------------------------------------------------------------


def own_loss(name: str, shape: str) -> ir.Model:
    body = "s = Mul(d, d) t = ReduceSum<keepdims = 0>(s)"
    last = f"{name} = Identity(t)" if not shape else f"{name} = Unsqueeze(t, zero)"
    return text_model(
        '<ir_version: 10, opset_import: ["" : 18]> net (float[batch,4] x, float[4] w, int64[1] '
        "zero)"
        f" => (float{f'[{shape}]' if shape else ''} {name}) {{ d = Sub(x, w) {body} {last} }}",
        w=weights(4),
        zero=np.array([0]),
    )


@pytest.mark.parametrize("name", ["cost", "loss"])
@pytest.mark.parametrize("shape", ["", "1"])
def test_the_models_own_loss(name, shape):
    model, where = attached(LossConfig("output"), own_loss(name, shape))
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    assert where.labels is None
    assert where.loss == where.objective == "loss"
    assert [value.name for value in model.graph.inputs] == ["x"]
    assert [value.name for value in model.graph.outputs] == list(dict.fromkeys([name, "loss"]))
    found = run(model, {"x": MS["logits"]})
    assert found["loss"].shape == ()
    np.testing.assert_allclose(found["loss"], ((MS["logits"] - weights(4)) ** 2).sum(), rtol=1e-6)


def test_an_output_with_several_elements_is_no_loss():
    with pytest.raises(ModelError) as info:
        attached(LossConfig("output"))
    assert_three_lines(info.value)


def probabilities(nodes: str, shape: str = "N, 3", output: str | None = None) -> ir.Model:
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        m (float[{shape}] x) => (float[{output or shape}] y) {{ {nodes} }}"""
    )
    infer_shapes(model)
    return model


def loss_of(model: ir.Model, config: LossConfig, x: np.ndarray, labels: np.ndarray):
    report = attach_loss(model, config).report
    return run(model, {"x": x, "labels": labels})["loss"], report.notes


SCORES = weights(5, 3, scale=40.0)  # saturated: a second Softmax or a logarithm of the first fails
CLASSES = np.array([0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("loss", "nodes", "labels"),
    [
        ("softmax-cross-entropy", "y = Softmax(x)", CLASSES),
        ("softmax-cross-entropy", "y = Softmax<axis=1>(x)", CLASSES),
        ("softmax-cross-entropy", "p = Softmax(x) q = Cast<to=1>(p) y = Identity(q)", CLASSES),
        (
            "softmax-cross-entropy",
            "t = Transpose(x) p = Softmax<axis=0>(t) y = Transpose(p)",
            CLASSES,
        ),
        ("bce-with-logits", "y = Sigmoid(x)", (SCORES > 0.3).astype(np.float32)),
        (
            "bce-with-logits",
            "a = Constant<value_ints=[1]>() u = Unsqueeze(x, a) p = Sigmoid(u) y = Squeeze(p, a)",
            (SCORES > 0.3).astype(np.float32),
        ),
    ],
)
def test_the_loss_of_probabilities_is_that_of_their_logits(loss, nodes, labels):
    expected, notes = loss_of(probabilities("y = Identity(x)"), LossConfig(loss), SCORES, labels)
    assert notes == []
    found, notes = loss_of(probabilities(nodes), LossConfig(loss), SCORES, labels)
    assert found == expected
    assert "the loss is computed from the logits" in notes[0]
    twice, notes = loss_of(probabilities(nodes), LossConfig(loss, from_logits=True), SCORES, labels)
    assert abs(twice - expected) > 0.1
    assert notes == []


@pytest.mark.parametrize(
    ("loss", "nodes"),
    [
        ("softmax-cross-entropy", "y = Softmax<axis=0>(x)"),
        ("softmax-cross-entropy", "y = Sigmoid(x)"),
        ("bce-with-logits", "y = Softmax(x)"),
        ("softmax-cross-entropy", "p = Sigmoid(x) n = ReduceSum(p) y = Div(p, n)"),  # hummingbird
        ("bce-with-logits", "p = Sigmoid(x) a = Constant<value_float=0.1>() y = Clip(p, a)"),
    ],
)
def test_probabilities_whose_logits_are_not_found_are_noted(loss, nodes):
    model = probabilities(nodes)
    (note,) = attach_loss(model, LossConfig(loss)).report.notes
    assert "holds probabilities" in note


def test_two_classes_of_one_sigmoid_have_logits():
    """As scikit-learn's models of two classes end."""
    model = probabilities(
        "p = Sigmoid(x) o = Constant<value_float=1.0>() n = Sub(o, p) y = Concat<axis=1>(n, p)",
        "N, 1",
        "N, 2",
    )
    x = np.array([[90.0], [-90.0], [0.5], [-3.0]], np.float32)  # 1 - sigmoid(90) is 0
    labels = np.array([0, 1, 1, 0])
    found, (note,) = loss_of(model, LossConfig(), x, labels)
    signed = np.where(labels == 1, -x[:, 0], x[:, 0]).astype(np.float64)
    np.testing.assert_allclose(found, np.logaddexp(0, signed).mean(), rtol=1e-6)
    assert "the loss is computed from the logits" in note


@pytest.mark.parametrize(
    ("columns", "one", "nodes"),
    [
        (3, 1.0, "n = Sub(o, p) y = Concat<axis=1>(n, p)"),  # six classes
        (1, 1.0, "n = Sub(o, p) y = Concat<axis=1>(p, n)"),
        (1, 2.0, "n = Sub(o, p) y = Concat<axis=1>(n, p)"),
        (1, 1.0, "n = Sub(p, o) y = Concat<axis=1>(n, p)"),
        (1, 1.0, "q = Sigmoid(p) n = Sub(o, q) y = Concat<axis=1>(n, p)"),
    ],
)
def test_what_only_looks_like_two_classes_is_noted(columns, one, nodes):
    nodes = f"p = Sigmoid(x) o = Constant<value_float={one}>() {nodes}"
    model = probabilities(nodes, f"N, {columns}", f"N, {2 * columns}")
    (note,) = attach_loss(model, LossConfig()).report.notes
    assert "slow and inaccurate" in note


@pytest.mark.parametrize(
    ("loss", "nodes"),
    [
        ("softmax-cross-entropy", "y = LogSoftmax(x)"),  # whose Softmax is that of x
        ("softmax-cross-entropy", "p = Sigmoid(x) y = Mul(p, x)"),  # a Swish
        ("softmax-cross-entropy", "p = Sigmoid(x) n = Sub(x, p) y = Max(n, p)"),
        ("softmax-cross-entropy", "p = Sigmoid(x) y = Sub(x, p)"),
        ("mse", "y = Sigmoid(x)"),
    ],
)
def test_other_activations_are_part_of_the_logits(loss, nodes):
    found = attach_loss(probabilities(nodes), LossConfig(loss))
    assert found.report.notes == []
    assert found.logits == found.prediction == "y"


@pytest.mark.parametrize(
    ("nodes", "same"),
    [
        ("y = Softmax<axis=1>(x)", True),
        ("y = Softmax<axis=3>(x)", False),
        # as tf2onnx writes channels last: the classes, then the channels
        ("t = Transpose<perm=[0,2,3,1]>(x) p = Softmax(t) y = Transpose<perm=[0,3,1,2]>(p)", True),
        (
            "t = Transpose<perm=[0,2,3,1]>(x) p = Softmax<axis=1>(t) "
            "y = Transpose<perm=[0,3,1,2]>(p)",
            False,
        ),
        # axes behind the classes, or before them, are joined and split again
        (
            "a = Constant<value_ints=[0,3,8]>() b = Constant<value_ints=[0,3,2,4]>() "
            "u = Reshape(x, a) p = Softmax<axis=1>(u) y = Reshape(p, b)",
            True,
        ),
        (
            "a = Constant<value_ints=[0]>() u = Unsqueeze(x, a) p = Softmax<axis=2>(u) "
            "y = Squeeze(p, a)",
            True,
        ),
        (
            "a = Constant<value_ints=[0,24]>() b = Constant<value_ints=[0,3,2,4]>() "
            "u = Reshape(x, a) p = Softmax(u) y = Reshape(p, b)",
            False,
        ),
    ],
)
def test_probabilities_of_pixels_have_a_class_axis_of_their_own(nodes, same):
    shape = "N, 3, 2, 4"
    x, labels = weights(2, 3, 2, 4, scale=9.0), np.arange(16).reshape(2, 2, 4) % 3
    config = LossConfig(class_axis=1)
    expected, _ = loss_of(probabilities("y = Identity(x)", shape), config, x, labels)
    found, notes = loss_of(probabilities(nodes, shape), config, x, labels)
    assert (found == expected, "is computed from the logits" in notes[0]) == (same, same)
    assert ("slow and inaccurate" in notes[0]) is not same


@pytest.mark.parametrize("ranks", [(2, 2), (2, 3)])
def test_axes_of_unknown_length_are_not_taken_for_each_other(ranks):
    model = probabilities("s = Shape(x) u = Reshape(x, s) p = Softmax(u) y = Reshape(p, s)")
    for name, rank in zip("py", ranks, strict=True):
        value = next(n.outputs[0] for n in model.graph if n.outputs[0].name == name)
        value.shape = ir.Shape([None] * rank)
    with pytest.raises(ModelError, match="logits of the output 'y' are unknown"):
        attach_loss(model, LossConfig(class_axis=-1, from_logits=False))


def test_probabilities_without_known_logits_are_refused():
    model = probabilities("e = Exp(x) s = ReduceSum(e) y = Div(e, s)")
    with pytest.raises(ModelError, match="logits of the output 'y' are unknown") as info:
        attach_loss(model, LossConfig(from_logits=False))
    assert_three_lines(info.value)


@pytest.mark.parametrize(
    ("nodes", "settings", "threshold"),
    [
        ("y = Sigmoid(x)", {}, 0.5),
        ("y = Sigmoid(x)", {"from_logits": True}, 0.0),
        ("y = Sigmoid(x)", {"name": "mse"}, 0.5),
        ("p = Sigmoid(x) y = Clip(p, x)", {}, 0.5),
        ("y = Neg(x)", {}, 0.0),
    ],
)
def test_a_probability_above_one_half_is_class_1(nodes, settings, threshold):
    config = LossConfig(**{"name": "bce-with-logits", **settings})
    assert attach_loss(probabilities(nodes, "N, 1"), config).threshold == threshold


def test_the_rank_of_the_scores_needs_no_inference(monkeypatch):
    monkeypatch.setattr("ortboost.transforms.attach_loss.infer_missing", lambda model: None)
    model, found = attached(LossConfig(class_axis=-1), through("batch,steps,4"))
    node = next(n for n in model.graph if n.op_type == "SoftmaxCrossEntropyLoss")
    assert found.class_axis == 2
    assert list(node.inputs[0].shape)[1:] == [4]
    assert len(node.inputs[0].shape) == 2


@pytest.mark.parametrize(
    ("loss", "labels"),
    [
        ("mse", ["batch", 4, "height", "out3"]),
        ("softmax-cross-entropy", ["batch", "height", "out3"]),
    ],
)
def test_dimensions_of_labels_have_the_names_of_equal_ones_of_the_inputs(loss, labels):
    """Exporters name those of outputs anew. The doubled width keeps its own name."""
    model = text_model(
        """<ir_version: 10, opset_import: ["" : 18]>
        m (float[batch, 4, height, width] x) => (float[out0, 4, out2, out3] y) {
          e = Exp(x)
          y = Concat<axis = 3>(e, x)
        }"""
    )
    attach_loss(model, LossConfig(loss, class_axis=1 if "softmax" in loss else None))
    made = next(value for value in model.graph.inputs if value.name == "labels")
    assert list(made.shape) == labels
    assert model.graph.outputs[0].shape[0] == "out0"


@pytest.mark.parametrize("kind", [("double", 11), ("float16", 10), ("bfloat16", 16)])
@pytest.mark.parametrize(
    "config",
    [
        LossConfig(),
        LossConfig(sparse=False, reduction="none"),
        LossConfig("mse"),
        LossConfig("bce-with-logits", weight=2.0),
        LossConfig("output"),
    ],
)
def test_the_loss_of_an_output_of_another_float_type_is_float32(kind, config):
    dtype, code = kind
    model = text_model(
        f"""<ir_version: 10, opset_import: ["" : 18]>
        net (float[N, 3] x) => ({dtype}{"" if config.name == "output" else "[N, 3]"} y) {{
          s = {"ReduceSum<keepdims = 0>" if config.name == "output" else "Relu"}(x)
          y = Cast<to = {code}>(s)
        }}"""
    )
    found = attach_loss(model, config)
    onnx.checker.check_model(ir.to_proto(model), full_check=True)
    loss = next(value for value in model.graph.outputs if value.name == found.loss)
    assert loss.dtype == ir.DataType.FLOAT


@pytest.mark.parametrize("key", ["weight", "pos_weight"])
@pytest.mark.parametrize("shape", [(7, 1, 4), (3,), (2, 3)])
def test_weights_that_do_not_broadcast_to_the_output_are_refused(key, shape):
    with pytest.raises(ConfigError, match=f"'{key}' of shape") as info:
        attached(LossConfig("bce-with-logits", **{key: np.ones(shape)}))
    assert_three_lines(info.value)


@pytest.mark.parametrize("shape", [(), (1,), (4,), (1, 4), (5, 1)])
def test_weights_broadcast_to_the_output(shape):
    model, found = attached(LossConfig("bce-with-logits", "none", weight=np.ones(shape)))
    losses = next(value for value in model.graph.outputs if value.name == found.loss)
    assert len(losses.shape) == 2


@pytest.mark.parametrize(
    "fields", [{"labels": ""}, {"label_shape": (0,)}, {"label_shape": ("batch", -1)}]
)
def test_labels_need_a_name_and_a_shape(fields):
    with pytest.raises(ConfigError) as info:
        LossConfig(**fields)
    assert_three_lines(info.value)


def test_each_loss_of_elements_has_a_function_of_its_own():
    assert _ELEMENTWISE.keys() == set(LOSSES) - {"softmax-cross-entropy", "output"}
    assert len(set(_ELEMENTWISE.values())) == len(_ELEMENTWISE)
