"""``docs/zoo.md`` from the results of a run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["decided_in_float32", "write_table"]

_TIGHT = 1e-4  # weights after three steps, relative
_UPDATE = 1e-2  # what the three steps moved, relative
_ROUNDING = (
    2.0**-23
)  # a weight that is off by less is the nearest in float32, however little it moved
_TIMES = 4  # how much worse than torch in float32 we may be where that is off by more
_SLOPE = 3e-2  # central differences in float32
_DOUBLE = 1e-2  # central differences in float64
_AGREE = 1e-3  # gradients of two engines, over the largest
_EXPORT = 1e-3
_MARK = "<!-- results: everything below is written by tools/zoo/run.py -->"


def agreement(one: dict[str, Any] | None, other: dict[str, Any] | None) -> float | None:
    """Relative difference of the gradients of two engines: norms and random products."""
    if not one or not other or "probes" not in one or "probes" not in other:
        return None
    a, b = one["probes"], other["probes"]
    if a.keys() != b.keys():
        return None
    top = max(norm for norm, _ in a.values())
    return max(abs(x - y) for name in a for x, y in zip(a[name], b[name], strict=True)) / max(
        top, 1e-30
    )


def decided_in_float32(found: dict[str, Any] | None) -> bool:
    """Whether a training stage needs no float64 slopes: torch is its oracle, or they agree."""
    if not found or found.get("oracle") != "differences" or found["slope_error"] is None:
        return True
    return found["slope_error"] <= _SLOPE and (found["worst_slope_error"] or 0.0) <= 3 * _SLOPE


def verdict(
    found: dict[str, Any] | None,
    apart: float | None = None,
    double: dict[str, Any] | None = None,
) -> str:
    """One word on a training stage: ``ok``, ``agree``, ``wrong``, ``refused``, ``crash``, ``-``.

    Args:
        found: The stage.
        apart: Difference between the gradients of the two engines; it decides (``agree``) where
            float32 leaves too few digits for finite differences.
        double: Slopes in float64; they decide where float32 does not.
    """
    if found is None:
        return "-"
    for word in ("crash", "died", "timeout", "refused"):
        if word in found:
            return {"died": "crash"}.get(word, word)
    if found["oracle"] == "torch":
        if found["weight_error"] is None:
            return "wrong"
        loose = max(
            1.0, _TIMES * found.get("torch_error", 0.0) / _TIGHT
        )  # as torch itself in float32
        right = found["weight_error"] <= loose * _TIGHT and (
            found["update_error"] <= loose * _UPDATE
            or (found["weight_error"] <= _ROUNDING and found["update_error"] <= 10 * _UPDATE)
        )
        complete = not found["not_trained"] and not found["not_of_torch"]
        return ("ok" if complete else "other tensors") if right else "wrong"
    if found["slope_error"] is None:
        return "wrong"
    if decided_in_float32(found):
        return "ok"
    agree = apart is not None and apart <= _AGREE
    if (double or {}).get("error", np.inf) <= _DOUBLE and (agree or apart is None):
        return "ok"
    return "agree" if agree else "wrong"


def _error(found: dict[str, Any] | None) -> str:
    if not found or "oracle" not in found:
        return ""
    value = found["weight_error"] if found["oracle"] == "torch" else found["slope_error"]
    return "" if value is None else f"{value:.0e}"


def _reason(found: dict[str, Any] | None) -> str:
    if not found:
        return ""
    for word in ("refused", "crash", "died", "timeout"):
        if word in found:
            text = str(found.get("said") or found[word]).strip()
            if word == "refused":
                return text.replace("|   where:", "--").split("|   fix:")[0].strip()[:260]
            return f"{word}: {text.splitlines()[-1][:200] if text else ''}"
    if found.get("oracle") == "torch":
        parts = []
        if found["not_trained"]:
            parts.append("not trained: " + ", ".join(found["not_trained"][:3]))
        if found["not_of_torch"]:
            parts.append("no parameters of torch: " + ", ".join(found["not_of_torch"][:3]))
        if verdict(found) == "wrong":
            parts.append(
                f"weights {found['weight_error']} at {found['worst_weight']}, "
                f"moves {found['update_error']} at {found['worst_update']}"
            )
        return "; ".join(parts)
    if verdict(found) == "wrong":
        return f"slope off by {found.get('slope_error')}, {found.get('worst_slope_error')} at {found.get('worst_slope')}"
    return ""


def _exports(found: dict[str, Any] | None) -> tuple[str, list[str]]:
    """How many of the exports are right or refused by name, and what is to be said of them."""
    if not found:
        return "-", []
    if "died" in found or "timeout" in found:
        return "crash", [f"export: {_reason(found)}"]
    good, said = 0, []
    for name, stage in found.items():
        if "refused" in stage:
            said.append(f"{name}: {_reason(stage)}")
        elif "crash" in stage or "died" in stage:
            said.append(f"{name}: {_reason(stage)}")
            continue
        elif "error" in stage and "fp32" in name and stage["error"] > _EXPORT:
            said.append(f"{name}: differs by {stage['error']:.1e}")
            continue
        else:
            good += 1
    return f"{good}/{len(found)}", said


def _nodes(found: dict[str, Any]) -> tuple[str, bool]:
    """Our nodes against those of the best rival without operators of other domains."""
    entry, stage = found["entry"], found.get("export", {}).get("onnxruntime fp32", {})
    ours = found.get("export", {}).get("generic fp32", {}).get("nodes", stage.get("nodes"))
    rivals = {
        name: data["nodes"]
        for name, data in entry.get("rivals", {}).items()
        if "nodes" in data and not data.get("other_domains")
    }
    if ours is None:
        return "-", False
    best = min(rivals.values(), default=None)
    text = f"{entry['nodes']} → {ours}" + (f" ({best})" if best is not None else "")
    return text, best is not None and ours > best


def write_table(results: Path, out: Path) -> None:
    """Write the page; what stands above the mark in it is kept."""
    rows, reasons, tally = [], [], {"native": {}, "portable": {}, "stock": {}}
    more, gathered = 0, 0
    for path in sorted(results.glob("*.json")):
        found = json.loads(path.read_text())
        if "failed" in found:
            reasons.append(f"- **{path.stem}**: the exporter failed: {found['failed'][:160]}")
            continue
        gathered += 1
        entry = found["entry"]
        words = {}
        apart = agreement(found.get("native"), found.get("portable"))
        for engine in tally:
            words[engine] = word = verdict(found.get(engine), apart, found.get("double"))
            tally[engine][word] = tally[engine].get(word, 0) + 1
            why = _reason(found.get(engine)) if word not in ("ok", "agree") else ""
            if why and (engine != "stock" or _reason(found.get("portable")) != why):
                reasons.append(f"- **{path.stem}**, {engine}: {why}")
        exports, said = _exports(found.get("export"))
        reasons += [f"- **{path.stem}**, export {text}" for text in said]
        nodes, larger = _nodes(found)
        more += larger
        fit = found.get("overfit") or {}
        falls = f"{fit['first']:.3g} → {fit['last']:.3g}" if "last" in fit else "-"
        checked = found.get("tensorrt", {})
        rows.append(
            f"| {path.stem} | {entry['source']} | {entry['opset']} | "
            + " | ".join(f"{words[e]} {_error(found.get(e))}".strip() for e in tally)
            + f" | {falls} | {exports} | {nodes}{' **more**' if larger else ''} | "
            f"{checked.get('findings', '-')} | "
            f"{found.get('stock', {}).get('peak_mib', '-')} |"
        )
    reasons = [re.sub(r"(?<=\s)/\S+/", "", reason) for reason in reasons]  # folders of this machine
    reasons = [re.sub(r"\x1b\[\d*m", "", reason) for reason in reasons]  # colors of a terminal
    lines = [
        _MARK,
        "",
        f"{gathered} files. By engine: "
        + "; ".join(
            f"{engine} " + ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
            for engine, counts in tally.items()
        )
        + f". Files with more nodes than the best rival leaves: {more}.",
        "",
        "| model | source | opset | native | portable, 1.19.2 | portable, stock | one batch, Adam "
        "| exports | nodes (rival) | TensorRT findings | peak MiB |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
        *rows,
        "",
        "## Reasons",
        "",
        *reasons,
        "",
    ]
    head = out.read_text().split(_MARK)[0] if out.exists() else "# The zoo\n\n"
    out.write_text(head + "\n".join(lines).rstrip() + "\n")
