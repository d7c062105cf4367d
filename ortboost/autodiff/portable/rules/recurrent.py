"""LSTM, GRU and RNN: unrolled before (rewrites/recurrent.py), or refused."""

from __future__ import annotations

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rewrites.recurrent import unrollable
from ortboost.graph.rewriting import Refusal

__all__: list[str] = []

refuses("GRU", "LSTM", "RNN")(unrollable)


@register("GRU", "LSTM", "RNN")
def recurrent(b: Backward) -> Gradients:
    """Refuse: nothing recurrent is left unless the rewrite could not unroll it."""
    raise Refusal(unrollable(b.node) or "it was not written out; run prepare() of the engine")
