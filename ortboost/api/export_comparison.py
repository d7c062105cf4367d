"""The reference of an exported graph, and notes on what a comparison with it does not prove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import onnx_ir as ir

from ortboost.api.accuracies import Accuracies
from ortboost.api.export_subject import Collected, Subject
from ortboost.api.stored_batches import Feeds
from ortboost.deploy.export import Exported
from ortboost.deploy.tolerance import Tolerance
from ortboost.deploy.verify import Parity
from ortboost.graph.query import RANDOM_OPERATORS, all_tensors
from ortboost.graph.reach import ancestors
from ortboost.transforms.precision import PLACE_PRECISION

__all__ = ["ExportComparison"]


@dataclass(frozen=True)
class ExportComparison:
    """An exported graph, and what its outputs are compared with."""

    subject: Subject
    collected: Collected
    expected: Sequence[Feeds]
    exported: Exported
    scores: Accuracies
    tolerance: Tolerance

    @cached_property
    def drawn(self) -> set[str]:
        """The outputs whose values differ in every run."""
        return {
            value.name or ""
            for value in self.exported.model.graph.outputs
            if any(node.op_type in RANDOM_OPERATORS for node in ancestors([value]))
        }

    def judge(self, parity: Parity, *, max_drop: float, where: str) -> Parity:
        """Let the accuracy decide about the output that it is measured on."""
        parity = self.collected.counted(parity)
        if self.exported.precision == "int8":
            self.scores.require(max_drop, where, parity)
            judged = [o for o in self.scores.judged if self.tolerance.by_noise(o)]
            parity = parity.without(judged)
        found = {d.output for d in parity.differences if np.isfinite(d.max_abs)}
        return parity.without(found & self.drawn)  # infinite: of another shape

    def notes(self, *, plain: bool, refreshed: bool) -> list[str]:
        """What the comparison does not prove."""
        found = [*self.exported.target.notes, *_worthless(self.expected), *self.collected.notes]
        if refreshed:
            found.append("The running statistics were re-estimated from the data of --update-bn.")
        found += self.scores.notes
        if self.drawn:
            found.append(
                f"{', '.join(repr(name) for name in sorted(self.drawn))}: computed from random "
                "numbers, so only the shape was compared."
            )
        found += _notes_on(self.exported, self.subject.device, plain=plain)
        if self.exported.precision == "int8" and not self.scores.found():
            found.append(
                f"No accuracy was measured: the criterion was {self.tolerance}."
                + (" Give --verify data with labels." if self.subject.scored else "")
            )
        return found


_OF_FILES = ("store_densely", "weights_are_not_inputs")
"""Rewrites whose notes say how the exported file differs from the one that was given."""


def _notes_on(exported: Exported, device: str, *, plain: bool) -> list[str]:
    """Notes on the exported graph: its interface, its reference, its precision."""
    notes, graph, precision = list[str](), exported.model.graph, exported.precision
    ports = (*graph.inputs, *graph.outputs)
    if exported.target.int64_note and any(value.dtype is ir.DataType.INT64 for value in ports):
        notes.append(exported.target.int64_note)
    if plain:
        notes += [note for r in exported.reports if r.rewrite in _OF_FILES for note in r.notes]
    if plain and any(r.rewrite == "to_inference" and r.changed for r in exported.reports):
        notes.append(
            "The model is in training mode: the reference is its output in inference mode."
        )
    lowering = (PLACE_PRECISION, "quantize_int8")
    lowered = any(r.rewrite in lowering and r.changed for r in exported.reports)
    if precision != "fp32" and not lowered:
        made = (out for node in graph.all_nodes() for out in node.outputs)
        known = any(value.dtype is ir.DataType.FLOAT for value in made)
        why = "--explain says why" if known else "none computes in float32"
        notes.append(f"No node was converted to {precision}: {why}.")
    elif precision == "int8":
        sizes = {ir.DataType.FLOAT: 0, ir.DataType.INT8: 0}  # numbers of weights
        for _, tensor in all_tensors(exported.model):
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.size
        share = sizes[ir.DataType.FLOAT] / max(1, sum(sizes.values()))
        if share > 0.5:
            notes.append(
                f"{int(share * 100)} % of the weights stay in float32: --explain says why."
            )
    elif precision in ("fp16", "bf16") and device == "cpu":
        notes.append(
            f"Compared on the CPU, with every {precision} tensor rounded in float32: a GPU rounds "
            "differently, so compare there too."
        )
    return notes


def _worthless(expected: Sequence[Feeds]) -> list[str]:
    """A note on each output that is never finite: NaN equals NaN, which proves nothing."""
    return [
        f"The output '{name}' is NaN or infinite everywhere, before and after: its comparison "
        "proves little."
        for name in (expected[0] if expected else ())
        if all(
            getattr(batch[name], "dtype", np.dtype(object)).kind == "f"
            and not np.isfinite(batch[name]).any()
            for batch in expected
        )
    ]
