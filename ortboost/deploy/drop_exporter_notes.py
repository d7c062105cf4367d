"""Remove exporters' notes on the origin of nodes from the deployed file.

torch writes the Python stack, the source lines and the module of every node, including folder names
of the exporting machine: more than half of the file for a small BERT. No runtime reads them.
"""

from __future__ import annotations

import onnx_ir as ir

from ortboost.core.report import Report

__all__ = ["drop_exporter_notes"]

_KEYS = ("namespace", "pkg.")  # https://github.com/pytorch/pytorch/blob/main/torch/onnx


def drop_exporter_notes(model: ir.Model) -> Report:
    """Remove the notes of exporters from nodes, tensors and graphs, in place.

    Names and the metadata of the model itself (author, license, a user's entries) are kept. The
    report has the number of bytes removed per kind of note.
    """
    report = Report("drop_exporter_notes")
    sizes: dict[str, int] = {}
    graphs = [model.graph, *model.graph.subgraphs(), *(f.graph for f in model.functions.values())]
    for graph in graphs:
        values = [*graph.inputs, *graph.initializers.values()]
        for item in (graph, *graph, *values, *(v for node in graph for v in node.outputs)):
            for key in [key for key in item.metadata_props if key.startswith(_KEYS)]:
                sizes[key] = sizes.get(key, 0) + len(key) + len(item.metadata_props.pop(key))
        for node in graph:
            if node.doc_string:
                sizes["doc_string"] = sizes.get("doc_string", 0) + len(node.doc_string)
                node.doc_string = None
    report.changed.update({key: f"{size} bytes removed" for key, size in sizes.items()})
    return report
