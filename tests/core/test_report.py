from __future__ import annotations

import json

from ortboost.core.report import Report


def filled() -> Report:
    return Report(
        "fold_bn", {"bn1": "folded"}, {"bn2": "shared"}, ["a remark"], {"bn1": {"macs": 3}}
    )


def test_survives_json():
    assert Report.from_dict(json.loads(json.dumps(filled().to_dict()))) == filled()


def test_dict_is_a_copy():
    report = filled()
    report.to_dict()["changed"]["bn9"] = "no"
    assert "bn9" not in report.changed


def test_text_tells_everything():
    assert (
        str(filled())
        == "fold_bn: 1 changed, 1 kept\n  bn1: folded\n  bn2: kept, shared\n  a remark"
    )


def test_only_changes_count_as_modified():
    assert filled().modified
    assert not Report("x", kept={"a": "b"}, notes=["n"]).modified


def test_two_reports_share_nothing():
    Report("a").changed["x"] = "y"
    assert Report("a").changed == {}
