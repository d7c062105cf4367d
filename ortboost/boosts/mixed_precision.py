"""Mixed precision: compute in 16 bits where that is safe, with parameters in float32.

The loss, that is, everything after the prediction, stays in float32 too. The rewrites are in
:mod:`ortboost.transforms.precision`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal

from ortboost.boosts.base import Boost, GraphContext, Stage
from ortboost.core.errors import ModelError
from ortboost.core.printable import count_of
from ortboost.core.report import Report
from ortboost.graph.reach import descendants, find_value
from ortboost.graph.source import source_name
from ortboost.transforms.precision import PrecisionConfig, emulate_precision, place_precision

__all__ = ["MixedPrecision"]

_ALL_BFLOAT16: Final = 22  # the first opset in which all operators support bfloat16
_ON_CPU: Final = {
    "fp16": "onnxruntime computes float16 in float32 on a CPU",
    "bf16": "onnxruntime has no bfloat16 kernels for the CPU",
}


@dataclass(frozen=True)
class MixedPrecision(PrecisionConfig, Boost):
    """Mixed precision.

    The settings are those of :class:`ortboost.transforms.precision.PrecisionConfig`.

    Example:
        >>> MixedPrecision("bf16", keep_fp32=("head*",)).low
        BFLOAT16
    """

    compute: Literal["fp32", "fp16", "bf16"] = "fp16"

    name: ClassVar[str] = "mixed-precision"
    stage: ClassVar[Stage] = "forward"
    card: ClassVar[str] = "mixed-precision"

    @property
    def enabled(self) -> bool:
        """Whether the precision is not ``fp32``."""
        return self.low is not None

    def opsets(self, opsets: range) -> range:
        """For bfloat16 require an opset that supports it in all operators, if the engine can."""
        newer = range(max(_ALL_BFLOAT16, opsets.start), opsets.stop)
        return newer if self.compute == "bf16" and len(newer) else opsets

    def rewrite_forward(self, graph: GraphContext) -> Report:
        """Place the casts.

        Raises:
            UsageError: A pattern matches no node, or a node cannot have the requested precision.
            ModelError: No node can compute in the lower precision.
        """
        prediction = find_value(graph.model.graph, graph.prediction)
        loss = descendants(graph.model.graph, [] if prediction is None else [prediction])
        report = place_precision(
            graph.model,
            self,
            masters=[name for name, p in graph.parameters.items() if p.role != "constant"],
            fixed={node.name or "": "a part of the loss" for node in loss},
            unsupported=graph.fp32_operators,
        )
        if not report.changed:
            reasons = sorted({why.partition(": ")[2] for why in report.kept.values()})
            raise ModelError(
                f"No operator of the model would compute in {self.compute}.",
                where=f"{source_name(graph.model)}: {'; '.join(reasons[:3])}",
                fix="Stay with fp32, name fewer nodes with --keep-fp32 or more with --force-low, "
                "or (for bf16) use --engine portable with an onnxruntime that supports opset 22.",
            )
        if self.emulate:
            report.notes.append(
                f"{self.compute} is emulated: the step computes in float32 and rounds every tensor "
                f"that would be {self.compute}, so it is slower than fp32"
            )
        else:
            report.notes.append(
                f"{_ON_CPU[self.compute]}; there ortboost itself rounds tensors that would be "
                f"{self.compute}, which is slower than fp32 (--emulate writes this into the step "
                "file)"
            )
        missing = [why for why in report.kept.values() if " at opset " in why]
        if missing:
            report.notes.append(
                f"{count_of(len(missing), 'node')} kept in float32: "
                f"{missing[0].partition(': ')[2]} "
                "(--engine portable raises the opset if onnxruntime supports it)"
            )
        return report

    def rewrite_gradients(self, graph: GraphContext) -> None:
        """Round instead of casting, if the precision is emulated."""
        if self.emulate and self.low is not None:
            emulate_precision(graph.model, self.low)
