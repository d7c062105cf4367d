"""Experimental operators of the first ONNX releases, written out in operators of the standard.

ONNX dropped them with opset 10, and has no adapter for them. onnxruntime still runs them in files
of older opsets, as winmltools and onnxmltools made them from CoreML.

Source: ``core/graph/contrib_ops/contrib_defs.cc`` and ``contrib_ops/cpu`` of
https://github.com/microsoft/onnxruntime.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ortboost.core.report import Report
from ortboost.graph.query import ROLE_MARK
from ortboost.graph.rewriting import Rule, Site, rewrite_nodes

__all__ = ["write_out_former_operators"]

_OPSETS: Final = range(7, 10)
_ENDLESS: Final = np.iinfo(np.int64).max


def _affine(site: Site) -> list[ir.Value]:
    """``alpha x + beta``."""
    return [_linear(site, site.number("alpha", 1.0), site.number("beta", 0.0))]


def _image_scaler(site: Site) -> list[ir.Value]:
    """``scale x + bias``, with one bias for each channel of an image."""
    bias = site.node.attributes.get_floats("bias", None) or (0.0,)
    return [_linear(site, site.number("scale", 1.0), np.asarray(bias, np.float32)[:, None, None])]


def _scaled_tanh(site: Site) -> list[ir.Value]:
    """``alpha tanh(beta x)``."""
    return [_scaled(site, "Tanh")]


def _parametric_softplus(site: Site) -> list[ir.Value]:
    """``alpha log(1 + exp(beta x))``."""
    return [_scaled(site, "Softplus")]


def _crop(site: Site) -> list[ir.Value]:
    """Cut the borders (left, top, right, bottom) of an image, or a part of size ``scale``."""
    left, top, right, bottom = site.integers("border") or (0, 0, 0, 0)
    scale = site.integers("scale")
    starts = (top, left)
    if scale is not None:
        ends = (top + scale[0], left + scale[1])
    else:
        ends = (-bottom or _ENDLESS, -right or _ENDLESS)
    return [site.op("Slice", site.input(0), starts=starts, ends=ends, axes=(2, 3))]


_RULES: Final[dict[str, Rule]] = {
    "Affine": _affine,
    "Crop": _crop,
    "ImageScaler": _image_scaler,
    "ParametricSoftplus": _parametric_softplus,
    "ScaledTanh": _scaled_tanh,
}


def write_out_former_operators(model: ir.Model) -> Report:
    """Replace operators that ONNX no longer has by those of the standard, in place.

    Models of other opsets than 7 to 9 are left alone: before, numbers do not broadcast, and
    onnxruntime runs none of these operators at later ones.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 3, opset_import: ["" : 7]>
        ... net (float[N,3,H,W] x) => (float[N,3,H,W] y) { y = Affine <alpha = 2.0> (x) }''')
        >>> write_out_former_operators(model).modified
        True
        >>> [node.op_type for node in model.graph]
        ['Mul']
    """
    name, what = "write_out_former_operators", "written out in standard operators"
    if model.opset_imports.get("") not in _OPSETS:
        return Report(name)
    return rewrite_nodes(model, name, _RULES, what, subgraphs=True)


def _linear(site: Site, factor: float, shift: float | NDArray[np.float32]) -> ir.Value:
    """``factor x + shift``, with numbers that are not trained."""
    value = site.input(0)
    if factor != 1:
        value = site.op("Mul", value, _number(site, factor))
    return site.op("Add", value, _number(site, shift)) if np.any(shift) else value


def _scaled(site: Site, function: str) -> ir.Value:
    inner = site.op(function, _linear(site, site.number("beta", 1.0), 0.0))
    return site.op("Mul", inner, _number(site, site.number("alpha", 1.0)))


def _number(site: Site, value: float | NDArray[np.float32]) -> ir.Value:
    number = site.const(value)
    number.metadata_props[ROLE_MARK] = "constant"
    return number
