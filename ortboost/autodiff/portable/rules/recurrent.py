"""LSTM, GRU and RNN, which are refused unless ``prepare`` has unrolled them."""

from __future__ import annotations

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rewrites.recurrent import unrollable
from ortboost.graph.rewriting import Refusal

__all__: list[str] = []

refuses("GRU", "LSTM", "RNN")(unrollable)


@register("GRU", "LSTM", "RNN")
def recurrent(b: Backward) -> Gradients:
    """Refuse: a recurrent node is left only if it could not be unrolled."""
    raise Refusal(unrollable(b.node) or "it was not unrolled; run prepare() of the engine")
