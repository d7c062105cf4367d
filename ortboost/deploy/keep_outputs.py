"""Leave outputs out of an exported file, for example the loss that a model computes itself."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ortboost.core.errors import require_known
from ortboost.core.report import Report
from ortboost.graph.unused import remove_unused_nodes

__all__ = ["keep_outputs"]


def keep_outputs(model: ir.Model, names: Sequence[str]) -> Report:
    """Remove the other outputs, in place, with the nodes and inputs that only they need.

    Raises:
        UsageError: The model has no output of such a name.
    """
    report, graph = Report("keep_outputs"), model.graph
    known = [value.name or "" for value in graph.outputs]
    for name in names:
        require_known(name, known, f"The model has no output '{name}'.", "outputs to keep")
    read = [value for value in graph.inputs if value.uses()]
    graph.outputs[:] = [value for value in graph.outputs if value.name in names]
    remove_unused_nodes(model)
    gone = [v for v in read if not v.uses() and not v.is_graph_output()]
    graph.inputs[:] = [value for value in graph.inputs if value not in gone]
    report.changed |= {name: "output left out" for name in known if name not in names}
    report.changed |= {v.name or "": "input of other outputs only, left out" for v in gone}
    return report
