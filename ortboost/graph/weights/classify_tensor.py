"""Classification of one float tensor: parameter, buffer or constant, and why.

ONNX does not record this. What decides is the origin of the tensor
(:mod:`ortboost.graph.weights.origins`), its uses (:mod:`ortboost.graph.weights.weight_uses`), and
whether a formula generates it (:mod:`ortboost.graph.weights.generated`).
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.graph.query import (
    ROLE_MARK,
    input_at,
    is_standard,
    known_shape,
    producer_of,
    scalar,
)
from ortboost.graph.weights.generated import counting, generated, grid
from ortboost.graph.weights.origins import Origin, origin_of
from ortboost.graph.weights.store_weights import COMPUTED, FUNCTIONS, POSITIONS
from ortboost.graph.weights.weight_uses import UseKind, WeightUse, weight_uses
from ortboost.graph.weights.written_norms import statistic

__all__ = ["TRAINABLE", "Verdict", "classify_tensor"]

TRAINABLE = ("weight", "bias", "norm_scale", "norm_shift")
"""The roles that are trained by default."""
_PARAMETER_NAME = re.compile(
    r"(.*_)?(weight|bias|gamma|beta)(_[a-z]+_?l\d+.*|_[gvk]|_table)?\d*|original\d?"
    r"|(?!embed(ding)?s?\d*$).*(token|embed|embedding|(layer|logit)_?scale)s?\d*"
)
_BUFFER_NAME = re.compile(
    r"(.*_)?(inv_freq|freqs?(_cis)?|mask|anchors?|anchor_grid|anchor_points|strides?|window"
    r"|filter_?bank|index|fb|eps|mel_(basis|filters)|(cos|sin)(_cached)?)"
    r"|(pixel_|image_|running_)?(mean|std|var)"
    r"|(.*_)?alphas_cumprod(_prev)?"  # of a diffusion process
    r"|final_logits_bias",  # zeros, of the BART family in transformers
    re.IGNORECASE,
)
# A variable of TensorFlow in a file of tf2onnx, `net/scale/ReadVariableOp:0`, and what a layer of
# Paddle created, `net_0.w_1`.
_VARIABLE = re.compile(r".*/ReadVariableOp(_\d+)?:0|\w+_\d+\.[wb]_\d+")
# Names of tensors that TensorFlow and onnxruntime compute when they fold a BatchNormalization.
_OF_A_NORM = re.compile(
    r".*/(batchnorm/mul|merged_input)(_\d+)?:0|ConvBnFusion_(W|BN_B)_.*"
    r"|.*BatchNormalization_output_\d+_(weight|bias)"  # onnxslim
)
# Names that exporters give to computed tensors that no gradient trains.
_FITTED = {
    "tf2onnx": (
        re.compile(r".*/batchnorm/Rsqrt(_\d+)?:0"),
        "the running variance of a BatchNormalization without a scale",
    ),
    "skl2onnx": (re.compile(r"transform_matrix\d*"), "a projection that was fitted, as by PCA"),
}
_PRODUCTS = ("Gather", "Gemm", "MatMul")
_FOLDED = (
    "the exporter computed it from other tensors, for example by folding a BatchNormalization into "
    "a convolution: export without folding (optimize=False or do_constant_folding=False) to train "
    "the same parameters as torch"
)
_COMPUTED = (
    "the exporter computed it, from numbers or from a parameter: export with optimize=False to "
    "train the same parameters as torch"
)
_MERGED = (
    "tf2onnx stores equal tensors once, and leaves out biases of zero: the layers that read it may "
    "have had one each. Change fresh values a little, or take a training step, before the export"
)
_NORM_FOLDED = (
    "TensorFlow, onnxruntime or onnxslim folded a BatchNormalization into it, which is no longer "
    "in the file: to train that, too, export with Keras's torch backend, or use the file from "
    "before it was optimized"
)
_SETTING = "a parameter or a buffer of the torch module, at an input without a gradient"
_MAYBE_LEARNED = "a variable of TensorFlow or Paddle: the file does not say whether it is trained"
_MAYBE_BIAS = "a single number, added to a layer with one output: its bias, or a constant"
_MAYBE_STATE = "an initial state or the times of a recurrence, not zero: learned, or constants"
_MAYBE_SCALE = "a learned scale, stored as its logarithm or the like, or a number of the code"
_FROZEN = "a buffer of FrozenBatchNorm2d, or a parameter: the file does not say which"
_IN_BLOCK = (
    "torch reads it in a block such as torch.no_grad() or torch.autocast(), and the file does not "
    "say which: the former gives it no gradient"
)
_ADDED = "_onnx_hidden_bias"
_AMBIGUOUS = "a parameter or a buffer of the torch module: the file does not say which"


@dataclass(frozen=True)
class Verdict:
    """A role, its reason and doubt, see :class:`~ortboost.graph.weights.parameters.Parameter`.

    ``by_use`` is the role that the use alone suggests.
    """

    role: str
    reason: str
    doubt: str = ""
    by_use: str = "constant"


def classify_tensor(value: ir.Value, shape: tuple[int, ...], *, producer: str) -> Verdict:
    """Classify a float initializer of this shape; ``producer`` is the name that the file gives."""
    # The scalers of scikit-learn are not layers.
    verdict = _judge(value, shape, fitted=producer == "skl2onnx")
    if verdict.role not in TRAINABLE or verdict.doubt:
        return verdict
    if producer == "MindSpore" and _ADDED in (value.name or "") and _is_zero(value):
        return Verdict("constant", "zeros that MindSpore's exporter adds to an LSTM")
    if producer == "tf2onnx" and _is_merged(value):
        return dataclasses.replace(verdict, doubt=_MERGED)
    pattern, what = _FITTED.get(producer, (None, ""))
    if pattern is not None and pattern.fullmatch(value.name or ""):
        doubt = f"used as a {verdict.role}, but it is {what}"
        return Verdict("constant", f"{what}, {verdict.reason}", doubt, verdict.by_use)
    folded = _OF_A_NORM.fullmatch(value.name or "") is not None
    return dataclasses.replace(verdict, doubt=_NORM_FOLDED) if folded else verdict


def _judge(value: ir.Value, shape: tuple[int, ...], *, fitted: bool) -> Verdict:
    """The verdict by the rules that hold for every exporter.

    The order matters: what is certain whatever the use, then what the exporter says, then the
    values, and the use alone last.
    """
    uses = weight_uses(value)
    certain = _certain(value, uses)
    if certain is not None:
        return certain
    # The most conclusive use decides.
    use = min((use for use in uses if use.kind != UseKind.SETTING), key=lambda use: use.kind)
    if use.kind == UseKind.NORM and use.neutral:
        why = f"the groups of a normalization are scaled after it, {use.where}"
        return Verdict("constant", why)
    origin = origin_of(value)
    single = int(np.prod(shape, dtype=np.int64)) <= 1
    role = _role(value, use)
    by_use = _role_by_use(use, role, len(shape), single)
    if use.kind == UseKind.PLAIN and not single and not _is_finite(value):
        return Verdict("constant", f"holds non-finite values, as masks do, {use.where}")
    if origin.kind == "buffer":
        return Verdict("constant", f"a buffer, {use.where}", by_use=by_use)
    if origin.kind == "literal" and (single or not use.recurrent):  # a scripted LSTM packs weights
        # If no formula explains the values, they may come from a parameter in the same file.
        doubtful = origin.computed and _formula(value, use, uses, origin, fitted=fitted) is None
        why = f"a number in the code of the torch module, {use.where}"
        return Verdict("constant", why, _COMPUTED if doubtful else "", by_use)
    formula = _formula(value, use, uses, origin, fitted=fitted)
    if POSITIONS in value.meta and origin.kind != "folded":
        formula = formula or "it is computed from positions or a mask"
    if formula is not None:
        marked = "the exporter marks it as a parameter" if origin.kind == "parameter" else ""
        doubt = marked or (f"used as a {use.role}" if by_use != "constant" else "")
        return Verdict(
            "constant", f"{formula}, {use.where}", doubt and f"{doubt}, but {formula}", by_use
        )
    if origin.kind == "parameter":
        doubt = _IN_BLOCK if origin.in_block else ""
        return Verdict(role, use.where, doubt, role)
    if origin.kind == "module":
        return _of_a_module(value, use, by_use)
    if origin.kind == "folded" and not single:
        # Only a fresh bias adds zeros: Keras exports the biases of its torch backend without names.
        zero_bias = use.op == "Add" and len(shape) == 1 and _is_zero(value)
        same = _is_one_number(value)
        return _folded(origin, use, by_use, same=same, zero_bias=zero_bias)
    if origin.kind == "folded" and origin.direct and by_use == "constant":
        return Verdict("constant", f"a single number, {use.where}", _FOLDED)
    return _by_use(value, shape, uses, use, by_use, fitted=fitted)


def _by_use(
    value: ir.Value,
    shape: tuple[int, ...],
    uses: tuple[WeightUse, ...],
    use: WeightUse,
    by_use: str,
    *,
    fitted: bool,
) -> Verdict:
    """Classify a tensor of which nothing but the uses is known."""
    single = int(np.prod(shape, dtype=np.int64)) <= 1
    if use.op in ("Max", "Min", "Where") and use.kind == UseKind.PLAIN and _is_filled(value):
        return Verdict("constant", f"the same value everywhere, {use.where}")
    # An initial state is multiplied by a stored matrix, or used in arithmetic.
    if use.kind <= UseKind.PLAIN and all(use.start or use.kind >= UseKind.PLAIN for use in uses):
        added = any(use.op == "Add" for use in uses)  # a bias may be zero, too
        if COMPUTED in value.meta and _is_zero(value) and not added:
            return Verdict("constant", f"computed, zero everywhere, {use.where}")
        if single and _VARIABLE.fullmatch(value.name or ""):
            role = _role(value, use)
            return Verdict(role, use.where, _MAYBE_LEARNED, role)
        if single and _shifts_one_column(value):  # of a regression, or of two classes
            doubt = "" if fitted else _MAYBE_BIAS
            if shape:
                return Verdict("bias", use.where, doubt, "bias")
            return Verdict("constant", f"a single number, {use.where}", doubt)
    if by_use == "constant":
        why = "a single number" if single else "not a weight position"
        state = use.kind == UseKind.OTHER and not single and not _is_zero(value)
        scale = single and all(is_standard(usage.node, *FUNCTIONS) for usage in value.uses())
        doubt = _MAYBE_STATE if state else _MAYBE_SCALE if scale else ""
        return Verdict("constant", f"{why}, {use.where}", doubt)
    return Verdict(by_use, use.where, "", by_use)


def _certain(value: ir.Value, uses: tuple[WeightUse, ...]) -> Verdict | None:
    """Classify a tensor without uses, with a mark, a running statistic, or a setting."""
    if not uses:
        return Verdict("constant", "no differentiable node reads it")
    if ROLE_MARK in value.metadata_props:
        return Verdict(value.metadata_props[ROLE_MARK], f"added as such, {uses[0].where}")
    for use in uses:
        if use.role.startswith("running_"):
            return Verdict(use.role, use.where)
    return _setting(value, uses) if all(use.kind == UseKind.SETTING for use in uses) else None


def _shifts_one_column(value: ir.Value) -> bool:
    """Whether a tensor is added to the product with a stored vector, column or row, and no more."""
    uses = list(value.uses())
    if len(uses) != 1 or not is_standard(uses[0].node, "Add"):
        return False
    product = uses[0].node.inputs[1 - uses[0].idx]
    layer = product.producer() if product is not None else None
    if product is None or layer is None or not is_standard(layer, "MatMul", "Gemm", "Einsum"):
        return False
    data, matrix = layer.inputs[0], input_at(layer, 1)
    if layer.op_type == "MatMul" and data is not None and data.is_initializer():  # W x + b
        return len(made := known_shape(data) or ()) == 2 and made[0] == 1
    if data is None or matrix is None or not matrix.is_initializer():
        return False
    made, rows = known_shape(product) or (), known_shape(data) or ()
    return made[-1:] == (1,) or (len(known_shape(matrix) or ()) == 1 and len(made) < len(rows))


def _setting(value: ir.Value, uses: tuple[WeightUse, ...]) -> Verdict:
    """Classify a tensor that only configures operators."""
    origin, where = origin_of(value), uses[0].where
    of_module = origin.kind in ("parameter", "module")
    if any(use.op == "Pow" for use in uses):
        if origin.computed:
            return Verdict("constant", f"a setting, {where}", _COMPUTED)
        if of_module:  # a generalized mean trains its exponent
            doubt = _AMBIGUOUS if origin.kind == "module" else ""
            return Verdict("weight", f"an exponent, {where}", doubt)
    folded = origin.direct and any(use.op == "Clip" for use in uses)
    doubt = _SETTING if of_module else _FOLDED if folded else ""  # a Clip may learn its bounds
    return Verdict("constant", f"a setting, {where}", doubt)


def _role(value: ir.Value, use: WeightUse) -> str:
    """The role of a trained tensor: a vector that is added is a bias, also to a stored product."""
    if use.role != "weight" or len(known_shape(value) or ()) != 1:
        return use.role
    readers = [usage.node for usage in value.uses()]
    added = (use.kind == UseKind.PLAIN and use.op == "Add") or all(map(_adds_to_product, readers))
    return "bias" if added else "weight"


def _adds_to_product(node: ir.Node) -> bool:
    layers = [producer_of(v, "Conv", "Gemm", "MatMul") for v in node.inputs]
    return is_standard(node, "Add") and any(layers)


def _role_by_use(use: WeightUse, role: str, rank: int, single: bool) -> str:
    if use.kind == UseKind.OTHER:
        return "constant"
    # Single numbers in arithmetic are constants of the code (0.5 of a GELU) more often than not.
    # So is one that is expanded to a bias, or to the matrix of an initial state: their zeros.
    expanded = use.kind in (UseKind.WEIGHT, UseKind.BIAS) and rank == 0 and use.op != "PRelu"
    if single and (use.kind == UseKind.PLAIN or use.computed or expanded):
        return "constant"
    return role


def _formula(
    value: ir.Value, use: WeightUse, uses: tuple[WeightUse, ...], origin: Origin, *, fitted: bool
) -> str | None:
    """Why a tensor with these values or uses is not trained; ``None`` if it may be."""
    name = (value.name or "").rpartition(".")[2]
    sure = origin.kind == "parameter" or (
        origin.kind == "module" and _PARAMETER_NAME.fullmatch(name) is not None
    )
    # Scales and biases, fresh from their initialization, hold only 0 and 1 as well.
    # So do the biases of an LSTM of Keras: a vector of 0 and 1 that is added is not a mask.
    bias = use.op == "Add" and value.shape is not None and len(value.shape) == 1
    examined = use.kind in (UseKind.WEIGHT, UseKind.PLAIN)
    examined = examined and not (bias and _is_of_0_and_1(value))
    reason = counting(value) if examined and use.role != "bias" else None
    reason = reason or generated(value, plain=examined and not sure and not use.recurrent)
    # Ternary weights are evenly spaced, too, and so are parameters, as the frequencies of an S4D.
    if reason is None and use.kind == UseKind.PLAIN and origin.kind == "folded":
        reason = grid(value)
    if reason is not None:
        return reason
    if all(use.waves for use in uses) and not sure:
        return "it is multiplied by integers inside a sine or cosine"
    tensor = value.const_value
    if sure or use.kind < UseKind.PLAIN or tensor is None or tensor.size <= 1:
        return None
    running = statistic(value)
    if running is not None:
        return running
    normalizes = all(use.raw or (fitted and use.raw_affine) for use in uses)
    return "it normalizes the raw input" if normalizes else None


def _of_a_module(value: ir.Value, use: WeightUse, by_use: str) -> Verdict:
    """Classify a parameter or buffer of a torch module by its name; other names leave a doubt."""
    name = value.name or ""
    last = name.rpartition(".")[2]
    role = _role(value, use)
    if _BUFFER_NAME.fullmatch(last):
        doubt = f"{_AMBIGUOUS}, but '{last}' is a common name of buffers"
        return Verdict("constant", f"named like a buffer, {use.where}", doubt, by_use)
    if _is_of_a_spectral_norm(value.graph, name):
        return Verdict("constant", f"a vector of a spectral norm, {use.where}")
    if all(_chooses_a_number(usage.node) for usage in value.uses()):
        return Verdict("constant", f"one of two numbers, {use.where}", _AMBIGUOUS, by_use)
    if use.op != "BatchNormalization" and _is_of_a_frozen_norm(value.graph, name):
        return Verdict("constant", f"of a frozen normalization, {use.where}", _FROZEN, by_use)
    # One number for each time of a diffusion process, or for each class, may weight the loss.
    looked_up = use.op == "Gather" and len(known_shape(value) or ()) == 1
    if _PARAMETER_NAME.fullmatch(last) and not looked_up and not _is_alone(value.graph, name):
        return Verdict(role, use.where, "", role)
    return Verdict(role, use.where, _AMBIGUOUS, role)


def _is_of_a_spectral_norm(graph: ir.Graph | None, name: str) -> bool:
    """Whether a tensor is `weight_u` or `weight_v` beside `weight_orig`, or has the newer names."""
    base, mark = name[:-2], name[-2:]
    if mark not in ("_u", "_v") or graph is None:
        return False
    return f"{base}_orig" in graph.initializers or ".parametrizations." in base


def _chooses_a_number(node: ir.Node) -> bool:
    """Whether a node chooses between two stored numbers, as those that make a mask do."""
    options = [input_at(node, index) for index in (1, 2)]
    return is_standard(node, "Where") and all(scalar(option) is not None for option in options)


def _is_alone(graph: ir.Graph | None, name: str) -> bool:
    """Whether there is no ``some_weight`` for ``some_bias``: BART registers such a buffer."""
    if graph is None or not name.endswith("_bias") or name.endswith(".in_proj_bias"):
        return False
    return name.removesuffix("bias") + "weight" not in graph.initializers


def _is_of_a_frozen_norm(graph: ir.Graph | None, name: str) -> bool:
    """Whether it is a scale or shift beside statistics that no BatchNormalization reads."""
    module, _, last = name.rpartition(".")
    if graph is None or last not in ("weight", "bias"):
        return False
    variance = graph.initializers.get(f"{module}.running_var")
    operators = {usage.node.op_type for usage in variance.uses()} if variance is not None else set()
    return bool(operators) and "BatchNormalization" not in operators


def _folded(origin: Origin, use: WeightUse, by_use: str, *, same: bool, zero_bias: bool) -> Verdict:
    """Classify a tensor that the exporter computed: a transposed weight, or a folded one."""
    reason = use.where
    if origin.folded_from:
        listed = ", ".join(f"'{name}'" for name in origin.folded_from[:3])
        reason += f", computed from {listed}{', ...' if len(origin.folded_from) > 3 else ''}"
    if use.kind == UseKind.NORM and use.plain_values and not origin.folded_from:
        return Verdict("constant", f"a normalization without scale and shift, {use.where}")
    if use.kind == UseKind.PLAIN and same and not origin.folded_from and not zero_bias:
        doubt = _FOLDED if origin.direct else ""  # the softmax of zeros, as learned weights begin
        return Verdict("constant", f"the same value everywhere, {use.where}", doubt)
    if by_use == "constant":
        return Verdict("constant", f"not a weight position, {use.where}")
    # Only moved elements, a transposed weight, train like the parameter itself.
    if origin.folded_from or origin.known:
        one = origin.direct and origin.transposed and len(origin.folded_from) == 1
        reordered = one and use.op in _PRODUCTS and not use.computed
    else:  # TorchScript transposes these weights
        reordered = use.linear and origin.transposed
    certain = use.kind <= UseKind.BIAS and (reordered or use.recurrent)
    return Verdict(by_use, reason, "" if certain else _FOLDED, by_use)


def _stored(value: ir.Value) -> NDArray[Any]:
    assert value.const_value is not None  # only stored tensors are classified
    return value.const_value.numpy()


def _numbers(value: ir.Value) -> NDArray[np.float32]:
    return _stored(value).astype(np.float32)


def _is_finite(value: ir.Value) -> bool:
    return bool(np.isfinite(_numbers(value)).all())


def _is_zero(value: ir.Value) -> bool:
    return not _numbers(value).any()


def _is_one_number(value: ir.Value) -> bool:
    array = _stored(value).reshape(-1)
    return bool((array == array[0]).all())


def _is_filled(value: ir.Value) -> bool:
    """Whether it is one number that jnp.where or a comparison has spread over several axes."""
    shape = value.shape.numpy() if value.shape is not None else ()
    return sum(length > 1 for length in shape) > 1 and _is_one_number(value)


def _is_merged(value: ir.Value) -> bool:
    """Whether several nodes read a tensor with values that layers begin with."""
    shared = len({usage.node for usage in value.uses()}) > 1 and value.shape
    return bool(shared) and (_is_one_number(value) or _is_of_0_and_1(value))


def _is_of_0_and_1(value: ir.Value) -> bool:
    return bool(np.isin(_numbers(value), (0, 1)).all())
