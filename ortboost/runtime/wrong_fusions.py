"""Fusions of onnxruntime that are wrong for a graph, and therefore turned off for it."""

from __future__ import annotations

import contextlib
import os

import onnx_ir as ir

from ortboost.graph.query import is_standard, known_shape, producer_of

__all__ = ["wrong_optimizers"]

# It fuses a zero Pad into a MaxPool, whose own padding is -inf (1.31, and 1.19 in some graphs), and
# into an AveragePool that excludes its padding from the mean (1.19); see onnxruntime pull request
# 23190. EliminateDropout removes a Dropout whose mask is not read, also in training mode (1.31).
# DivMulFusion turns (1 / x) z into z / x, which is wrong for integers, where (1 / 3) 6 is 0, and
# loses an axis that only the 1 has; the graph becomes invalid if z is a Cast, an Identity or a
# Dropout that the runtime removes later (1.32; issues 32413 to 32416). GemmSumFusion rejects a
# graph in which a Gemm reads the third output of a node, such as a Split (1.19 and 1.32), and
# crashes on some others (1.19).
_ALWAYS = ("DivMulFusion", "EliminateDropout", "GemmSumFusion", "Pad_Fusion")
_MATMUL_ADD = "MatMulAddFusion"
# It moves a Transpose behind a cubic Resize, whose kernel cannot shrink the axes 1 and 2 (1.19 and
# 1.32): position embeddings of ViTs for a smaller image.
_TRANSPOSES = "TransposeOptimizer_CPUExecutionProvider"


def wrong_optimizers(model: ir.Model | str | os.PathLike[str], version: str) -> list[str]:
    """The optimizers of this version of onnxruntime to turn off for a model.

    Of a file, only the structure is read, and only for an old runtime.

    Example:
        >>> wrong_optimizers("models/mlp.onnx", "1.31.1")
        ['DivMulFusion', 'EliminateDropout', 'GemmSumFusion', 'Pad_Fusion']
    """
    found, old = [*_ALWAYS], version.startswith("1.19.")
    with contextlib.suppress(Exception):  # of many types: maps, which onnx_ir does not read
        if old and not isinstance(model, ir.Model):
            model = ir.load(model)
        if isinstance(model, ir.Model):
            found += [_MATMUL_ADD] if old and _loses_addend(model) else []
            found += [_TRANSPOSES] if any(map(_is_cubic, model.graph.all_nodes())) else []
    return found


def _is_cubic(node: ir.Node) -> bool:
    return is_standard(node, "Resize") and node.attributes.get_string("mode") == "cubic"


def _loses_addend(model: ir.Model) -> bool:
    """Whether ``p = A B; q = p + C D; y = q + p``, or a superset of it, is in a graph.

    MatMulAddFusion of 1.19 makes `q` a Gemm that reads `p`, overlooks this use of `p`, and fuses
    the product `p` into the other Add, so that the Gemm lacks an input.
    """
    for node in model.graph.all_nodes():
        if not is_standard(node, "MatMul") or len(known_shape(node.outputs[0]) or (0, 0)) != 2:
            continue
        product = node.outputs[0]
        sums = [use.node for use in product.uses() if is_standard(use.node, "Add")]
        addends = {value for add in sums for value in add.inputs} - {product}
        if len(sums) > 1 and any(producer_of(value, "MatMul") for value in addends):
            return True
    return False
