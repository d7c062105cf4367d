"""Write Bernoulli in other operators, because onnxruntime gets it wrong.

- It draws 1 with the chance `1 - p` instead of `p`.
- It merges Bernoullis that read the same `p`, in sessions (``CommonSubexpressionElimination``) and
  in its gradient builder: two masks of a stochastic depth would be one.

Neither happens to the definition of the operator in the standard:

    y = RandomUniformLike(p) < p

Source: measured with onnxruntime 1.19.2 and 1.31.1.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from ortboost.graph.rewriting import Site, rewrites

__all__ = ["guard_draws"]


@rewrites("Bernoulli", subgraphs=True)
def guard_draws(site: Site) -> list[ir.Value]:
    """Replace each Bernoulli of a forward graph with inferred types, in place."""
    site.note = "written as a comparison: onnxruntime inverts its probability"
    chance, dtype = site.input(0), ir.DataType(site.integer("dtype", site.dtype))
    if chance.dtype != ir.DataType.DOUBLE:  # RandomUniformLike has kernels for these two types
        chance = site.cast(chance, ir.DataType.FLOAT)
    seeds: dict[str, Any] = {k: v for k, v in site.node.attributes.items() if k == "seed"}
    uniform = site.op("RandomUniformLike", chance, shape=chance.shape, **seeds)
    on = site.op("Less", uniform, chance, dtype=ir.DataType.BOOL, shape=chance.shape)
    return [site.op("Cast", on, to=int(dtype), dtype=dtype, shape=chance.shape)]
