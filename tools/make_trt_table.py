"""Write ``ortboost/deploy/tensorrt/trt_ops.json``: what TensorRT's ONNX parser accepts, as data.

The tool reads the operator table of onnx-tensorrt (``docs/operators.md``) and the plugin list of
TensorRT (``plugin/README.md``) from your checkouts, one pair per release. Only facts are stored:
operator, element types, opset range, plugin names, and each restriction as a code for a rule of the
checker (``ortboost/deploy/tensorrt/rules``). The tool stops at a restriction without a code: read
it, give it a code, and write the rule.

An operator has one entry for each release in which it changes.

Examples:
    The shipped file was written from the files of these commits::

        python tools/make_trt_table.py \
          --release 10.1 ops/10.1.md 96e781103cfc4adf4a6bb557e94bac8e693f6f4c \
            plugins/10.1.md 21f31ba7 \
          --release 10.16 ops/10.16.md 6bde6596eca84abf9afe9b4d21c18c32800fd3ad \
            plugins/10.16.md 52399f55 \
          --release 11.1 ops/11.1.md 7c51a63a719180eb5160c874c111746f3fb46a6b \
            plugins/11.1.md 82d1dca8 \
          -o ortboost/deploy/tensorrt/trt_ops.json
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

# Patterns for one restriction, each with its codes.
_CODES: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"`(\w+)` must be (?:an initializer|a build-time constant|a constant tensor|resolvable to "
     r"a constant)",
     ("constant:{0}",)),
    (r"`(\w+)` and `(\w+)` must be an initializer", ("constant:{0}", "constant:{1}")),
    (r"`is_tran?i?ning` must be an initializer and evaluate to False", ("inference-only",)),
    (r"`axis` dimension of input must be a build-time constant", ("static-axis",)),
    (r"2D or 3D [Pp]ooling only", ("spatial:2-3",)),
    (r"`input` must have 1D or 2D spatial dimensions", ("spatial:1-2",)),
    (r"`pads` for the beginning and end along each spatial axis must be the same",
     ("symmetric-pads",)),
    (r"`dilations` must be empty or all ones", ("no-dilations",)),
    (r"`Indices` output tensor unsupported", ("one-output",)),
    (r"Only the first output `Y` is supported", ("one-output",)),
    (r"`[xy]_zero_point` must be (?:zero|0)", ("zero-point-0",)),
    (r"`input` must have static dimensions", ("static-input",)),
    (r"Input must be 4D input", ("rank:4",)),
    (r"For bidirectional \w+, activation functions must be the same for both the forward and "
     r"reverse pass",
     ("same-activations",)),
    (r"`(\w+)` attribute must be (\d+)", ("attribute:{0}={1}",)),
    (r"`(sorted)` must be (1)", ("attribute:{0}={1}",)),
    (r"`(axis)` must be (-2)", ("attribute:{0}={1}",)),
    (r"`(reduction)` other than `(none)` is not supported", ("attribute:{0}={1}",)),
    (r"`reduction` is not supported", ("attribute:reduction=none",)),
    (r"`K` input must be less than (\d+)", ("k-below:{0}",)),
    (r"`past_cache` and `update` must be 4D", ("rank:4",)),
    (r"`position_ids` must be INT64", ("int64:position_ids",)),
    (r"Input must be real-valued", ("real-input",)),
    (r"`seed` value is ignored by TensorRT", ("seed-ignored",)),
    (r"`sparse_value`, `value_string`, and `value_strings` attributes are unsupported",
     ("dense-numbers",)),
    (r"Output tensors of the two conditional branches must have the same rank and must have "
     r"different names",
     ("if-branches",)),
    (r"Scan output length cannot be dynamic", ("static-scan",)),
    (r"The shape of Loop carried dependencies must be the same across all loop iterations",
     ("static-carried",)),
    (r"Supported resize transformation modes: (.+)",
     ("one-of:coordinate_transformation_mode={0}",)),
    (r"Supported resize modes: (.+)", ("one-of:mode={0}",)),
    (r"Supported nearest modes: (.+)", ("one-of:nearest_mode={0}",)),
    (r"Supported aspect ratio policy: (.+)", ("one-of:keep_aspect_ratio_policy={0}",)),
    (r"When `scales` is a tensor input, `axes` must be an iota vector of length rank\(input\)",
     ("all-axes",)),
    (r"Antialiasing is not supported", ("attribute:antialias=0",)),
    (r"`Q`, `K`, `V` and `attn_mask ` must be 4D", ("rank:4",)),
    (r"`past_key`, `past_value` and `nonpad_kv_seqlen` inputs are unsupported",
     ("no-input:past_key", "no-input:past_value", "no-input:nonpad_kv_seqlen")),
    (r"`present_key`, `present_value` and `qk_matmul_output` outputs are unsupported",
     ("one-output",)),
    (r"`qk_matmul_output_mode` and `softcap` attributes are unsupported",
     ("attribute:qk_matmul_output_mode=0", "attribute:softcap=0")),
    (r"`q_num_heads` and `kv_num_heads` attributes are supported via being specified .*", ()),
)  # fmt: skip


def codes(text: str, op: str) -> list[str]:
    """The codes of one cell of the table, for example ``["constant:axes"]``."""
    found: list[str] = []
    text = text.replace("<br />", " ")
    for sentence in re.split(r"\.(?:\s+|$)", text.strip()):
        sentence = sentence.strip()
        if not sentence:
            continue
        for pattern, entries in _CODES:
            matched = re.fullmatch(pattern, sentence)
            if matched:
                groups = [
                    ", ".join(re.findall(r"[\w-]+", g.replace(" and ", " ")))
                    for g in matched.groups()
                ]
                found += [entry.format(*groups).replace(", ", "|") for entry in entries]
                break
        else:
            raise SystemExit(f"{op}: no code for the restriction: {sentence}")
    return list(dict.fromkeys(found))


def operators(text: str) -> tuple[tuple[int, int], dict[str, dict[str, Any]]]:
    """The opset range and the table of one ``operators.md``."""
    span = re.search(r"inclusive range of opset (\d+) to opset (\d+)", text)
    if span is None:
        raise SystemExit("the file names no opset range: is it docs/operators.md of 10.0 or later?")
    table: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) < 2 or cells[1] not in ("Y", "N"):
            continue
        op, supported = cells[0], cells[1] == "Y"
        entry: dict[str, Any] = {"supported": supported}
        if supported:
            named = [t.strip().replace("INF64", "INT64") for t in cells[2].split(",")]
            entry["types"] = [name for name in named if name]
            limits = codes(" ".join(cells[3:]), op)
            if limits:
                entry["limits"] = limits
        table[op] = entry
    if len(table) < 100:
        raise SystemExit(f"only {len(table)} operators found: has the form of the table changed?")
    return (int(span[1]), int(span[2])), table


def plugins(text: str) -> dict[str, list[str]]:
    """Plugin name to its versions."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if len(cells) == 3 and re.match(r"\[.*\]\(", cells[0]):
            versions = found.setdefault(cells[1], [])
            versions += [v.strip() for v in cells[2].split(",") if v.strip() not in versions]
    if not found:
        raise SystemExit("no plugin found: is it plugin/README.md of TensorRT?")
    return {name: sorted(versions) for name, versions in sorted(found.items())}


def build(releases: list[tuple[str, str, str, str, str]]) -> dict[str, Any]:
    """The whole file from (release, operators text, its commit, plugins text, its commit)."""
    data: dict[str, Any] = {
        "source": {
            "operators": "github.com/onnx/onnx-tensorrt docs/operators.md",
            "plugins": "github.com/NVIDIA/TensorRT plugin/README.md",
            "made_by": "tools/make_trt_table.py",
        },
        "releases": {},
        "operators": {},
        "plugins": {},
    }
    newest: dict[str, Any] = {}
    for release, ops_text, ops_commit, plugin_text, plugin_commit in releases:
        opsets, table = operators(ops_text)
        data["releases"][release] = {
            "opset": list(opsets),
            "operators_commit": ops_commit,
            "plugins_commit": plugin_commit,
        }
        for op in sorted(table, key=str.lower):
            if newest.get(op) != table[op]:
                data["operators"].setdefault(op, []).append({"since": release, **table[op]})
        newest = table
        for name, versions in plugins(plugin_text).items():
            data["plugins"].setdefault(name, {})[release] = versions
    data["operators"] = dict(sorted(data["operators"].items(), key=lambda item: item[0].lower()))
    return data


def dump(data: dict[str, Any]) -> str:
    """JSON with one operator or plugin per line, so that diffs are readable."""
    parts = []
    for key, value in data.items():
        if key in ("operators", "plugins"):
            rows = ",\n".join(f"    {json.dumps(k)}: {json.dumps(v)}" for k, v in value.items())
            parts.append(f'  "{key}": {{\n{rows}\n  }}')
        else:
            text = json.dumps(value, indent=2).replace("\n", "\n  ")
            parts.append(f'  "{key}": {text}')
    return "{\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--release",
        nargs=5,
        action="append",
        required=True,
        metavar=("VERSION", "OPERATORS.md", "COMMIT", "PLUGINS.md", "COMMIT"),
        help="one release, oldest first (repeatable)",
    )
    parser.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    releases = [
        (version, Path(ops).read_text(), ops_commit, Path(plugged).read_text(), plugin_commit)
        for version, ops, ops_commit, plugged, plugin_commit in options.release
    ]
    options.out.write_text(dump(build(releases)))


if __name__ == "__main__":
    main()
