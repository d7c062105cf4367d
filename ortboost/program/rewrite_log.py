"""The reports of the rewrites of a graph, and a check of the graph after each of them."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir

from ortboost.core.report import Report
from ortboost.graph.checked_rewrites import check_rewritten

__all__ = ["RewriteLog"]


class RewriteLog:
    """Collects the reports of rewrites, in the order in which they ran.

    Args:
        model: The graph that the rewrites change.
        reports: Reports of the stages before.

    Example:
        >>> model = ir.Model(ir.Graph([], [], nodes=[], name="g"), ir_version=10)
        >>> log = RewriteLog(model)
        >>> log.add(Report("fold_bn", changed={"bn1": "folded into conv1"}))
        >>> [report.rewrite for report in log.reports]
        ['fold_bn']
    """

    def __init__(self, model: ir.Model, reports: Iterable[Report] = ()) -> None:
        self.model, self.reports = model, list(reports)

    def add(self, *reports: Report | None, by: str = "") -> None:
        """Add the reports of a rewrite that just ran, and check the graph.

        A boost that did nothing may return ``None``. ``by`` names the rewrite if it leaves an
        invalid graph; by default it is that of the last report.

        Raises:
            OrtBoostError: See :func:`ortboost.graph.checked_rewrites.check_rewritten`.
        """
        found = [report for report in reports if report is not None]
        self.reports += found
        check_rewritten(self.model, by or (found[-1].rewrite if found else "none"))
