"""Device-specific forms of a graph that run faster, or correctly; made in memory only.

Files contain standard operators (or those of the native engine), which any runtime supports. The
CPU provider has faster forms of some of them. Each is a rewrite in a module of its own in
:mod:`ortboost.runtime.cpu`, which says why; it changes a step graph in place, and returns whether
it did. They compute the same function with sums in another order, so the last digits may differ.

On CUDA, nodes are converted to forms that have a kernel there (:mod:`ortboost.runtime.cuda.forms`).

Mixed precision on the CPU: onnxruntime has no bfloat16 kernels there, and computes most float16
operators in float32 without rounding in between. Two copies of one value may then differ, and
comparisons of them (in the gradients of Max, Min, Clip) give wrong results. The CPU therefore runs
an emulation, see :mod:`ortboost.transforms.precision.emulate`.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ortboost.graph.query import SHORT_FLOATS
from ortboost.graph.unused import remove_unused_nodes
from ortboost.runtime.cpu.batch_norm import fused_statistics
from ortboost.runtime.cpu.blocked import blocked_convolutions
from ortboost.runtime.cpu.chunks import chunked_chains
from ortboost.runtime.cpu.depthwise import depthwise_gradients
from ortboost.runtime.cpu.dot_products import dot_products
from ortboost.runtime.cpu.expand import expand_by_products
from ortboost.runtime.cpu.late_unscaling import late_unscaling
from ortboost.runtime.cpu.masks import steep_masks
from ortboost.runtime.cpu.products import plain_products
from ortboost.runtime.cpu.scalars import full_rank_scalars
from ortboost.runtime.cpu.weight_gradients import weight_gradients
from ortboost.runtime.cuda.forms import for_cuda
from ortboost.runtime.cuda.kernels import kernels_of
from ortboost.runtime.session import runtime
from ortboost.transforms.precision import emulate_precision

__all__ = ["emulated_for", "for_device", "short_types"]

# late_unscaling first: it matches scales of shape [], which full_rank_scalars may reshape.
_CPU = (
    late_unscaling,
    fused_statistics,
    steep_masks,
    blocked_convolutions,
    depthwise_gradients,
    expand_by_products,
    dot_products,
    plain_products,
    full_rank_scalars,
)


def for_device(
    model: ir.Model, device: str, *, states: Collection[str] = (), threads: int | None = None
) -> ir.Model:
    """The form of a step graph for ``cpu`` or ``cuda``: the model itself, or a modified copy.

    ``states`` are outputs that may get another shape with as many elements. ``threads`` is the
    number of intra-op threads, by default the number of processors.
    """
    if device == "cuda":
        return for_cuda(model, kernels_of(runtime().__version__))
    found = emulated_for(model, device)
    changed = model.clone() if found is model else found
    done = [rewrite(changed) for rewrite in _CPU]  # a list: all of them run
    done.append(weight_gradients(changed, threads))
    # Last: the nodes of a chain disappear into a Scan, where no other rewrite would find them.
    done.append(chunked_chains(changed, states, threads))
    if not any(done):
        return found
    remove_unused_nodes(changed)
    return changed


def emulated_for(model: ir.Model, device: str, *, keep_names: bool = False) -> ir.Model:
    """The model itself, or for the CPU a copy in which 16-bit types are emulated.

    ``keep_names`` keeps the names of all tensors, for inspection.
    """
    short = short_types(model) if device == "cpu" else []
    if not short:
        return model
    changed = model.clone()
    for dtype in short:
        emulate_precision(changed, dtype, keep_names=keep_names)
    return changed


def short_types(model: ir.Model) -> list[ir.DataType]:
    """The 16-bit types that nodes compute in; an already emulated graph only casts to them.

    Example:
        >>> model = ir.from_onnx_text('''<ir_version: 10, opset_import: ["" : 18]>
        ... net (float16[N,2] x) => (float16[N,2] y) { y = Relu(x) }''')
        >>> short_types(model)
        [FLOAT16]
    """
    found = {
        value.dtype
        for node in model.graph.all_nodes()
        if node.op_type != "Cast"
        for value in node.outputs
    }
    return [dtype for dtype in SHORT_FLOATS if dtype in found]
