"""Merge ``Cast(Cast(x: A -> B) -> C)`` into ``Cast(x -> C)`` if B represents every value of A.

float32 to float16 and back is kept, because it rounds.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.graph.query import label, producer_of
from ortboost.graph.rewriting import Refusal, Site, rewrites

__all__ = ["merge_casts"]

_T = ir.DataType
_HOLDS = {
    _T.BOOL: {_T.UINT8, _T.INT8, _T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.UINT8: {_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT8: {_T.INT16, _T.INT32, _T.INT64, _T.FLOAT16, _T.FLOAT, _T.DOUBLE},
    _T.INT16: {_T.INT32, _T.INT64, _T.FLOAT, _T.DOUBLE},
    _T.INT32: {_T.INT64, _T.DOUBLE},
    _T.FLOAT16: {_T.FLOAT, _T.DOUBLE},
    _T.BFLOAT16: {_T.FLOAT, _T.DOUBLE},
    _T.FLOAT: {_T.DOUBLE},
}
"""Type to the types that represent all its values exactly."""


@rewrites("Cast", subgraphs=True, bypass=True)
def merge_casts(site: Site) -> list[ir.Value | None] | None:
    """Merge pairs of Cast nodes, in place, including subgraphs."""
    first = producer_of(site.input(0), "Cast")
    source = None if first is None else first.inputs[0]
    if first is None or source is None or source.dtype is None:
        return None
    middle, wanted = (ir.DataType(n.attributes.get_int("to", 0)) for n in (first, site.node))
    if wanted == _T.STRING:
        raise Refusal(f"{middle.name} and {source.dtype.name} are written differently")
    if middle not in _HOLDS.get(source.dtype, set()):
        raise Refusal(f"{middle.name} cannot represent every {source.dtype.name} value")
    if source.dtype == wanted:
        site.note = f"undoes '{label(first)}'"
        return [source]
    site.note = f"reads '{source.name}' directly"
    site.node.replace_input_with(0, source)  # the inner Cast stays if another node reads it
    return list(site.node.outputs)
