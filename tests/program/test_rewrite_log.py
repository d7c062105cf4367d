"""Reports of rewrites in order, and the check of the graph after each."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from ortboost.core.errors import OrtBoostError
from ortboost.core.report import Report
from ortboost.graph.checked_rewrites import VARIABLE
from ortboost.program.rewrite_log import RewriteLog
from tests.support import small_mlp


def test_reports_follow_those_of_earlier_stages():
    log = RewriteLog(small_mlp(), (Report("earlier"),))
    log.add(Report("one"), None, Report("two"))
    log.add(None, by="a boost")
    assert [report.rewrite for report in log.reports] == ["earlier", "one", "two"]


@pytest.mark.parametrize(("by", "named"), [("", "two"), ("my boost", "my boost")])
def test_an_invalid_graph_names_the_rewrite(monkeypatch, by, named):
    monkeypatch.setenv(VARIABLE, "1")
    model = small_mlp()
    log = RewriteLog(model)
    log.add(Report("one"))
    model.graph.append(ir.node("Relu", [ir.Value(name="nowhere")]))
    with pytest.raises(OrtBoostError, match=f"The rewrite '{named}' leaves an invalid"):
        log.add(Report("two"), by=by)
