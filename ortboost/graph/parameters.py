"""Which float tensors of a model are parameters: what is trained unless the user says otherwise.

ONNX does not record that. :func:`find_parameters` decides by the origin of the tensor
(:mod:`ortboost.graph.origins`), its uses, and whether a formula computes its numbers
(:mod:`ortboost.graph.generated`). It gives the reason; and where the file leaves it open it says so
too, so that ``--trainable``, ``--freeze`` or ``--parameters`` can override the decision.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ortboost.graph.generated import counting, generated
from ortboost.graph.origins import Origin, origin_of
from ortboost.graph.query import FLOAT_TYPES, ROLE_MARK
from ortboost.graph.weight_uses import (
    BIAS,
    NORM,
    OTHER,
    PLAIN,
    SETTING,
    WEIGHT,
    WeightUse,
    weight_uses,
)

__all__ = ["Parameter", "find_parameters"]

_TRAINABLE = ("weight", "bias", "norm_scale", "norm_shift")
_PARAMETER_NAME = re.compile(
    r"(.*_)?(weight|bias|gamma|beta|kernel)(_[a-z]+_?l\d+.*|_[gvk]|_table)?\d*|original\d?"
    r"|.*(token|embed|embedding|(layer|logit)_?scale)s?\d*"
)
_BUFFER_NAME = re.compile(
    r"(.*_)?(inv_freq|freqs?(_cis)?|mask|anchors?|anchor_grid|anchor_points|strides?|window|filter_?bank|index"
    r"|fb|mel_(basis|filters)|(cos|sin)(_cached)?)|(pixel_|image_|running_)?(mean|std|var)",
    re.IGNORECASE,
)
_PRODUCTS = ("Gather", "Gemm", "MatMul")
_FOLDED = (
    "the exporter computed it of other tensors, as where it folds a BatchNormalization into a convolution: "
    "export without folding to train what torch trains"
)
_UNSAID = "a parameter or a buffer of the torch module: the file does not say which"


@dataclass(frozen=True)
class Parameter:
    """The classification of a float initializer.

    Args:
        name: Its name in the file.
        shape: Static shape.
        dtype: Element type.
        role: ``weight``, ``bias``, ``norm_scale``, ``norm_shift`` (these four are trainable by
            default), ``running_mean``, ``running_var`` (buffers) or ``constant``.
        reason: The node and input that decided, in a few words.
        doubt: Why the classification may be wrong; empty if the file leaves no doubt.
    """

    name: str
    shape: tuple[int, ...]
    dtype: ir.DataType
    role: str
    reason: str
    doubt: str = ""

    @property
    def trainable(self) -> bool:
        """Whether this is trained unless the user says otherwise."""
        return self.role in _TRAINABLE

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {
            "name": self.name,
            "shape": list(self.shape),
            "dtype": str(self.dtype),
            "size": self.size,
            "role": self.role,
            "trainable": self.trainable,
            "reason": self.reason,
            "doubt": self.doubt,
        }

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))


@dataclass(frozen=True)
class _Verdict:
    """A role, the reason, what speaks against it, and the role that the use alone suggests."""

    role: str
    reason: str
    doubt: str = ""
    by_use: str = "constant"


def find_parameters(model: ir.Model) -> dict[str, Parameter]:
    """Classify every float initializer of the main graph.

    - A tensor that the exporter calls a parameter is one, a buffer is not, and a number written in
      the code of a torch module is a constant.
    - Otherwise the use decides, followed through operators that only move or cast the numbers, and
      through arithmetic with other stored tensors. Weights, biases, tables, and scales and shifts
      of a normalization are parameters, whatever their size. Other tensors of more than one number
      that are combined with an activation (position embeddings, layer scales) are, too. Inputs 3
      and 4 of a BatchNormalization are running statistics.
    - Never trained, whatever the use: numbers that a formula computes, tensors with non-finite
      values, factors of integers inside a sine, and what is subtracted from the raw input or
      divides it.
    - A tensor that may be classified wrongly has a ``doubt``.
    - If nothing would be trained, every tensor that is only used like a weight is.

    Returns:
        Name to :class:`Parameter`, in the order of first use in the graph.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float[N,2] x) => (float[N,2] y) <float[2,2] w = {1, 2, 3, 4}, float h = {0.5}> {
        ...   a = MatMul(x, w)  y = Mul(a, h) }''')
        >>> {name: found.role for name, found in find_parameters(model).items()}
        {'w': 'weight', 'h': 'constant'}
    """
    found: dict[str, Parameter] = {}
    verdicts: dict[str, _Verdict] = {}
    for value in _initializers_by_first_use(model.graph):
        name, tensor = value.name or "", value.const_value
        if value.dtype not in FLOAT_TYPES or tensor is None:
            continue
        shape = tuple(
            dim for dim in tensor.shape if isinstance(dim, int)
        )  # a stored one has numbers
        verdict = verdicts[name] = _judge(value, shape, fitted=model.producer_name == "skl2onnx")
        found[name] = Parameter(
            name, shape, value.dtype, verdict.role, verdict.reason, verdict.doubt
        )
    if not any(parameter.trainable for parameter in found.values()):
        for name, verdict in verdicts.items():
            if verdict.by_use in _TRAINABLE:  # what else would the model have learned
                found[name] = dataclasses.replace(found[name], role=verdict.by_use)
    return found


def _initializers_by_first_use(graph: ir.Graph) -> list[ir.Value]:
    """Initializers in the order of the layers; exporters each have an order of their own."""
    ordered: dict[str, ir.Value] = {}
    for node in graph.all_nodes():
        for value in node.inputs:
            if value is not None and value.name in graph.initializers:
                ordered.setdefault(value.name or "", value)
    for initializer in graph.initializers.values():
        ordered.setdefault(initializer.name or "", initializer)
    return list(ordered.values())


def _judge(value: ir.Value, shape: tuple[int, ...], *, fitted: bool) -> _Verdict:
    """What a tensor is; ``fitted`` for a file of scikit-learn, whose scalers are no layers."""
    uses = weight_uses(value)
    if not uses:
        return _Verdict("constant", "nothing differentiable reads it")
    where = uses[0].where
    if ROLE_MARK in value.metadata_props:
        return _Verdict(value.metadata_props[ROLE_MARK], f"added as such, {where}")
    statistics = next((use for use in uses if use.role.startswith("running_")), None)
    if statistics is not None:
        return _Verdict(statistics.role, statistics.where)
    if all(use.kind == SETTING for use in uses):
        return _Verdict("constant", f"a setting, {where}")
    use = min((use for use in uses if use.kind != SETTING), key=lambda use: use.kind)
    if use.kind == NORM and use.neutral:
        why = "the groups of a normalization are scaled behind it"
        return _Verdict("constant", f"{why}, {use.where}")
    origin = origin_of(value)
    single = int(np.prod(shape, dtype=np.int64)) <= 1
    by_use = (
        "constant"
        if use.kind == OTHER or (single and (use.kind == PLAIN or use.computed))
        else use.role
    )
    if use.kind == PLAIN and len(shape) == 1 and use.op == "Add":
        by_use = "bias" if by_use != "constant" else by_use
    if use.kind == PLAIN and not single and not _is_finite(value):
        return _Verdict("constant", f"holds non-finite values, as masks do, {use.where}")
    if origin.kind == "buffer":
        return _Verdict("constant", f"a buffer of the torch module, {use.where}", by_use=by_use)
    if origin.kind == "literal":
        why = f"a number in the code of the torch module, {use.where}"
        return _Verdict("constant", why, by_use=by_use)
    formula = _formula(value, use, uses, origin, fitted=fitted)
    if formula is not None:
        named = "the exporter calls it a parameter" if origin.kind == "parameter" else ""
        doubt = named or (f"used as a {use.role}" if by_use != "constant" else "")
        return _Verdict(
            "constant", f"{formula}, {use.where}", doubt and f"{doubt}, but {formula}", by_use
        )
    if origin.kind == "parameter":
        return _Verdict(use.role if by_use == "constant" else by_use, use.where, "", use.role)
    if origin.kind == "module":
        return _of_a_module(value, use, by_use)
    if origin.kind == "folded" and not single:
        return _folded(origin, use, by_use, _is_one_number(value))
    if origin.kind == "folded" and origin.direct and by_use == "constant":
        return _Verdict("constant", f"a single number, {use.where}", _FOLDED)
    if by_use == "constant":
        why = "a single number" if single else "not a weight position"
        return _Verdict("constant", f"{why}, {use.where}")
    return _Verdict(by_use, use.where, "", by_use)


def _formula(
    value: ir.Value, use: WeightUse, uses: tuple[WeightUse, ...], origin: Origin, *, fitted: bool
) -> str | None:
    """The reason why nobody trains such numbers or such a use; ``None`` if somebody may."""
    tensor = value.const_value
    name = (value.name or "").rpartition(".")[2]
    sure = origin.kind == "parameter" or (
        origin.kind == "module" and _PARAMETER_NAME.fullmatch(name) is not None
    )
    if use.kind in (WEIGHT, PLAIN) and use.role != "bias":
        told = counting(value)
        if told is not None:
            return told
    told = generated(value, plain=not sure and use.kind in (WEIGHT, PLAIN) and not use.recurrent)
    if told is not None:
        return told
    if any(use.waves for use in uses) and not sure:
        return "it is multiplied with whole numbers for a sine or cosine"
    if sure or use.kind < PLAIN or tensor is None:
        return None
    if tensor.size > 1 and all(use.raw or (fitted and use.raw_affine) for use in uses):
        return "it normalizes the raw input"
    return None


def _of_a_module(value: ir.Value, use: WeightUse, by_use: str) -> _Verdict:
    """A parameter or a buffer of a torch module, by its name; other names leave a doubt."""
    name = value.name or ""
    last = name.rpartition(".")[2]
    role = use.role if by_use == "constant" else by_use
    if _BUFFER_NAME.fullmatch(last):
        doubt = f"{_UNSAID}, '{last}' is a name of buffers"
        return _Verdict("constant", f"named like a buffer, {use.where}", doubt, by_use)
    if _PARAMETER_NAME.fullmatch(last) and not _is_alone(value.graph, name):
        return _Verdict(role, use.where, "", role)
    return _Verdict(role, use.where, _UNSAID, role)


def _is_alone(graph: ir.Graph | None, name: str) -> bool:
    """Whether ``some_bias`` has no ``some_weight`` beside it: BART registers such a buffer."""
    if graph is None or not name.endswith("_bias") or name.endswith(".in_proj_bias"):
        return False
    return name.removesuffix("bias") + "weight" not in graph.initializers


def _folded(origin: Origin, use: WeightUse, by_use: str, same: bool) -> _Verdict:
    """A tensor that the exporter computed: a transposed weight, or one made of several tensors."""
    stands = f", stands for {_listed(origin.made_of)}" if origin.made_of else ""
    reason = f"{use.where}{stands}"
    if use.kind == NORM and use.plain_values and not origin.made_of:
        return _Verdict("constant", f"a normalization without scale and shift, {use.where}")
    if use.kind == PLAIN and same and not origin.made_of:
        return _Verdict("constant", f"the same number everywhere, {use.where}")
    reordered = use.recurrent or (
        use.op in _PRODUCTS and origin.direct and len(origin.made_of) == 1
    )
    if not origin.made_of and not origin.known:  # TorchScript transposes weights of these
        reordered = use.recurrent or use.op in _PRODUCTS
    if by_use != "constant" and use.kind in (WEIGHT, BIAS, NORM) and reordered:
        return _Verdict(by_use, reason, "", by_use)
    if by_use == "constant":
        return _Verdict("constant", f"not a weight position, {use.where}")
    return _Verdict(by_use, reason, _FOLDED, by_use)


def _is_finite(value: ir.Value) -> bool:
    tensor = value.const_value
    return tensor is not None and bool(np.isfinite(tensor.numpy().astype(np.float32)).all())


def _is_one_number(value: ir.Value) -> bool:
    tensor = value.const_value
    if tensor is None:
        return False
    array = tensor.numpy().reshape(-1)
    return bool((array == array[0]).all())


def _listed(names: tuple[str, ...]) -> str:
    shown = ", ".join(f"'{name}'" for name in names[:3])
    return f"{shown}, ..." if len(names) > 3 else shown
