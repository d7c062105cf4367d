"""LSTM, GRU and RNN, which are refused unless ``prepare`` has made a Scan of them."""

from __future__ import annotations

from ortboost.autodiff.portable.backward import Backward, Gradients
from ortboost.autodiff.portable.registry import refuses, register
from ortboost.autodiff.portable.rewrites.recurrent import unsupported
from ortboost.graph.rewriting import Refusal

__all__: list[str] = []

refuses("GRU", "LSTM", "RNN")(unsupported)


@register("GRU", "LSTM", "RNN")
def recurrent(b: Backward) -> Gradients:
    """Refuse: a recurrent node is left only if it could not become a Scan."""
    raise Refusal(unsupported(b.node) or "it is not a Scan yet; run prepare() of the engine")
