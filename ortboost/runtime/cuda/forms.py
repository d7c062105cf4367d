"""In-memory forms of a graph whose nodes stay on CUDA, according to the table of a release.

* CastLike becomes Cast: the provider has no kernel for it, and the runtime inlines its definition
  too late to see that it casts a length, which would then be copied to the device and back.
* Celu, which has no kernel, becomes ``alpha Elu(x / alpha)``.
* An Expand to a few equal values, whose count is a rank known from shape inference, becomes a
  constant: Expand leaves them on the device, and results computed from them are copied back to the
  host.
* An older, equivalent opset is used. An open-ended kernel serves only one definition of its
  operator, and the tables have gaps: onnxruntime-training 1.19.2 has no Reshape, Transpose or Pad
  of opset 21, onnxruntime-gpu 1.31.1 no Dropout and no MaxPool of opset 22. The results are bitwise
  equal.
* ArgMax and ArgMin without a kernel become TopK with one value, which by the standard has the lower
  index of equal values, too.
* MaxPool becomes the maximum of shifted images if the opset must be one in which it has no kernel
  (:mod:`ortboost.runtime.cuda.max_pool`).
* Statistics, reductions, weight gradients and Gelu take forms that are fast on a GPU
  (:mod:`batch_norm <ortboost.runtime.cuda.batch_norm>`, :mod:`reductions
  <ortboost.runtime.cuda.reductions>`, :mod:`weight_gradients
  <ortboost.runtime.cuda.weight_gradients>`, :mod:`gelu <ortboost.runtime.cuda.gelu>`). Only these
  change results: they compute the same function with other roundings.
* Nodes that have a kernel only in float32 are surrounded by casts. The runtime itself does this for
  float16, but on the CPU. Results are rounded once, after the operator; comparisons, copies and
  maxima of 16-bit values are exact.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Final

import numpy as np
import onnx_ir as ir

from ortboost.graph.build import Builder, insert_after
from ortboost.graph.query import (
    SHORT_FLOATS,
    constant,
    find_schema,
    has_subgraph,
    is_standard,
    known_shape,
    static_shape,
)
from ortboost.graph.rewriting import Rule, Site, rewrite_nodes
from ortboost.graph.shapes.shape_inference import infer_shapes
from ortboost.graph.unused import remove_unused_nodes
from ortboost.runtime.cuda.batch_norm import factors_by_channel, statistics_by_image
from ortboost.runtime.cuda.gelu import gelu_in_fewer_passes
from ortboost.runtime.cuda.kernels import Kernels, operands
from ortboost.runtime.cuda.max_pool import shifted_maxima
from ortboost.runtime.cuda.reductions import reductions_in_two_steps
from ortboost.runtime.cuda.weight_gradients import pad_before_transpose, patches_of_few_channels

__all__ = ["for_cuda"]

_OLDEST: Final = 18  # of the engines; see their `opsets`
_RANKS: Final = 16  # more ones than this are not one for each axis of a tensor
_SHORT_NAMES: Final = ("float16", "bfloat16")
# Operators whose meaning changed with unchanged attributes, and the opset of the change.
_OTHER_MEANING: Final = {
    "AveragePool": 19,
    "DFT": 20,
    "DequantizeLinear": 21,
    "GridSample": 20,
    "GroupNormalization": 21,
    "QuantizeLinear": 21,
    "Resize": 19,
}
_TYPED_BY_ATTRIBUTE: Final = ("Cast", "ConstantOfShape", "EyeLike")


def for_cuda(model: ir.Model, kernels: Kernels, *, fast: bool = True) -> ir.Model:
    """The form of a graph for the kernels of a release: the model itself, or a modified copy.

    ``fast`` also uses forms that are faster there and round differently.
    """
    changed = model.clone()
    infer_shapes(changed)
    # The opset is chosen before the casts: an older one may have kernels that make them needless.
    top_k = functools.partial(_best_as_top_k, kernels=kernels)
    rules: dict[str, Rule] = {
        "CastLike": _plain_cast,
        "Celu": _plain_elu,
        "Expand": _constant_ones,
        "ArgMax": top_k,
        "ArgMin": top_k,
    }
    done = rewrite_nodes(changed, "cuda", rules, subgraphs=True, bypass=True).modified
    if fast:
        done |= statistics_by_image(changed)  # before the reductions that it replaces
        done |= factors_by_channel(changed)
        done |= reductions_in_two_steps(changed)
        done |= patches_of_few_channels(changed)
        done |= pad_before_transpose(changed)
        done |= gelu_in_fewer_passes(changed)
    done |= _older_opset(changed, kernels)
    done |= _float32_around(changed, kernels)
    if not done:
        return model
    remove_unused_nodes(changed)
    return changed


def _plain_cast(site: Site) -> Sequence[ir.Value] | None:
    """Turn CastLike into a Cast to the type of its second input, in place."""
    like = site.input(1)
    # Without saturation it would not be this plain Cast.
    if like.dtype is None or not site.integer("saturate", 1):
        return None
    site.node.op_type = "Cast"
    site.node.resize_inputs(1)
    site.node.attributes.clear()
    site.node.attributes.add(ir.AttrInt64("to", like.dtype))
    return site.node.outputs


def _plain_elu(site: Site) -> list[ir.Value | None] | None:
    """`Celu(x) = alpha Elu(x / alpha)`."""
    x, alpha = site.input(0), site.number("alpha", 1.0)
    if x.dtype is None:
        return None
    if alpha == 1:
        return [site.op("Elu", x, shape=x.shape)]
    scale = site.const(alpha)
    elu = site.op("Elu", site.op("Div", x, scale, shape=x.shape), shape=x.shape)
    return [site.op("Mul", elu, scale, shape=x.shape)]


def _constant_ones(site: Site) -> list[ir.Value | None] | None:
    """Replace an Expand of one integer to a known number of them by a constant."""
    number, shape = constant(site.input(0), limit=1), static_shape(site.node.outputs[0])
    if number is None or number.size != 1 or number.dtype != np.int64:
        return None
    if shape is None or len(shape) != 1:
        return None
    return [site.ints(*[int(number.item())] * shape[0])] if shape[0] <= _RANKS else None


def _best_as_top_k(site: Site, kernels: Kernels) -> list[ir.Value | None] | None:
    """Replace ArgMax and ArgMin that have no kernel in any opset that the graph may use."""
    x, shape = site.input(0), known_shape(site.input(0))
    if shape is None or site.integer("select_last_index", 0) != 0:
        return None
    if not _missing([site.node], kernels, _OLDEST):
        return None
    axis, largest = site.integer("axis", 0), int(site.node.op_type == "ArgMax")
    _, found = site.ops("TopK", x, site.ints(1), count=2, axis=axis, largest=largest)
    found.type = ir.TensorType(ir.DataType.INT64)
    found.shape = ir.Shape([1 if i == axis % len(shape) else n for i, n in enumerate(shape)])
    if _missing(site.builder.nodes, kernels, _OLDEST):  # of this type
        return None
    if not site.integer("keepdims", 1):
        found = site.op("Squeeze", found, site.ints(axis), shape=site.node.outputs[0].shape)
    return [found]


def _older_opset(model: ir.Model, kernels: Kernels) -> bool:
    """Switch to the newest equivalent opset in which the most nodes have a kernel."""
    present = model.opset_imports.get("", _OLDEST)
    nodes = [node for node in model.graph.all_nodes() if is_standard(node)]
    best, fewest = present, _missing(nodes, kernels, present)
    for opset in range(present - 1, _OLDEST - 1, -1):
        # What differs between two opsets also differs to all older ones.
        if not fewest or not all(_same_in(node, present, opset) for node in nodes):
            break
        missing = _missing(nodes, kernels, opset)
        if missing < fewest:  # of equal ones the newest
            best, fewest = opset, missing
    model.opset_imports[""] = best
    return best != present


def _missing(nodes: list[ir.Node], kernels: Kernels, opset: int) -> int:
    """How many nodes have no CUDA kernel in an opset."""
    imports = {"": opset}
    return sum(isinstance(kernels.find("cuda", node, imports), str) for node in nodes)


def _same_in(node: ir.Node, present: int, older: int) -> bool:
    """Whether a node means the same in an older opset, which has its attributes and types."""
    now, then = find_schema(node.op_type, present), find_schema(node.op_type, older)
    if now is None or then is None:
        return False
    if now.since_version == then.since_version:
        return True
    if older < _OTHER_MEANING.get(node.op_type, 0):
        return False
    # A new value of an attribute that existed before.
    if node.op_type == "Pad" and older < 19 and node.attributes.get_string("mode") == "wrap":
        return False
    if not set(node.attributes) <= set(then.attributes) or len(node.inputs) > then.max_input:
        return False
    # The types of its operands must have been allowed then, too.
    allowed = {c.type_param_str: set(c.allowed_type_strs) for c in then.type_constraints}
    return all(
        value.type is not None and _text(value) in allowed[formal.type_str]
        for value, formal in operands(node, then)
        if formal.type_str in allowed
    )


def _text(value: ir.Value) -> str:
    """The type in the notation of the standard."""
    kind = f"tensor({str(value.dtype).lower()})"
    return f"seq({kind})" if isinstance(value.type, ir.SequenceType) else kind


def _float32_around(model: ir.Model, kernels: Kernels) -> bool:
    """Surround nodes without a 16-bit kernel by casts to float32; True if there was one."""
    builder, done = Builder(model.graph, "ortboost/cuda"), False
    for node in list(model.graph.all_nodes()):
        missing = isinstance(kernels.find("cuda", node, model.opset_imports), str)
        # Casts cannot help a MaxPool that has no kernel in float32 either.
        if missing and node.op_type == "MaxPool":
            as_float = kernels.find("cuda", node, model.opset_imports, as_float=_SHORT_NAMES)
            if isinstance(as_float, str) and shifted_maxima(node, builder):
                done = True
                continue
        values = [value for value in (*node.inputs, *node.outputs) if value is not None]
        short = [value for value in values if value.dtype in SHORT_FLOATS]
        if (
            not short
            or not is_standard(node)
            or has_subgraph(node)
            or node.op_type in _TYPED_BY_ATTRIBUTE
            or not missing
        ):
            continue
        # bfloat16 has no kernels on the CPU: casts help there, too.
        finds = (
            kernels.find(side, node, model.opset_imports, as_float=_SHORT_NAMES)
            for side in ("cuda", "cpu")
        )
        if all(isinstance(found, str) for found in finds):
            continue
        _cast_around(node, builder)
        done = True
    return done


def _cast_around(node: ir.Node, b: Builder) -> None:
    """Let a node compute in float32, from and to 16 bits."""
    graph = node.graph
    assert isinstance(graph, ir.Graph)
    for position, value in enumerate(node.inputs):
        if value is not None and value.dtype in SHORT_FLOATS:
            node.replace_input_with(position, b.cast(value, ir.DataType.FLOAT))
    graph.insert_before(node, b.take())
    for value in node.outputs:
        if value.dtype not in SHORT_FLOATS:
            continue
        dtype, value.type = value.dtype, ir.TensorType(ir.DataType.FLOAT)
        insert_after(value, b.cast(value, dtype), b, suffix="float32")
