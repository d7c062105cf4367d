"""Write ``ortboost/runtime/cuda/kernels-VERSION.json``: ONNX Runtime's CUDA and CPU kernels.

Only facts are stored: operator, opset range, element types, and the operands that a CUDA kernel
needs in host memory. They come from

* ``--listing``: the kernels that a build reports (written by ``list``: ``get_all_opkernel_def``,
  which release wheels have from 1.31 on); or ``--docs``: ``docs/OperatorKernels.md`` of the
  release, if it has no such function;
* ``--source``: a checkout of the release. ``InputMemoryType`` and ``OutputMemoryType`` of the
  registrations under ``onnxruntime/{core/providers,contrib_ops}/cuda``; with ``--training`` also
  the kernels that ``orttraining/training_ops/{cuda,cpu}`` register, which neither list contains.

For operators outside the standard domain there is no schema to look up: their type constraints are
merged into one set, the element types that occur.

Examples:
    The shipped files were written by these commands; the placement was compared with both builds
    (``tools/gpu/placement.py``)::

        # in an environment with onnxruntime-gpu
        python tools/make_cuda_table.py list listing.json
        python tools/make_cuda_table.py make 1.31.1 --listing listing.json \
            --source checkout --commit a18e5b982
        python tools/make_cuda_table.py make 1.19.2 \
            --docs checkout/docs/OperatorKernels.md \
            --source checkout --commit 88c811b63 --training
"""

from __future__ import annotations

import argparse
import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_OUT = Path(__file__).resolve().parents[1] / "ortboost" / "runtime" / "cuda"
_DOMAINS = {"kOnnxDomain": "", "kMSDomain": "com.microsoft"}
_PROVIDERS = {"CUDAExecutionProvider": "cuda", "CPUExecutionProvider": "cpu"}
_CPP = {
    "MLFloat16": "float16",
    "BFloat16": "bfloat16",
    "float": "float",
    "double": "double",
    **{f"{sign}int{bits}_t": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
    "bool": "bool",
}
# Inputs that registrations identify by an enumerator.
_INDICES = {"RNN_Input_Index::sequence_lens": 4, "CpuInputIndex": None}
_OPEN = (1 << 31) - 1

Types = dict[str, frozenset[str]]
Row = tuple[int, int, Types]
"""First and last opset, element types of each constraint."""
Host = tuple[int, tuple[int, ...], tuple[int, ...]]
"""First opset, inputs and outputs in host memory."""


def write_listing(out: Path) -> None:
    """Write the kernels that the installed build reports."""
    from onnxruntime.capi import _pybind_state as state

    found = sorted(
        {
            (k.provider, k.domain, k.op_name, *k.version_range, json.dumps(k.type_constraints))
            for k in state.get_all_opkernel_def()
        }
    )
    out.write_text(json.dumps(found), encoding="utf-8")


def from_listing(path: Path) -> Iterator[tuple[str, str, Row]]:
    """Provider, operator and kernel, from a listing."""
    for provider, domain, op, first, last, types in json.loads(path.read_text("utf-8")):
        if provider in _PROVIDERS and domain in _DOMAINS.values():
            sets = {k: frozenset(map(_bare, v)) for k, v in json.loads(types).items()}
            yield _PROVIDERS[provider], _full(domain, op), (first, last, sets)


def from_docs(path: Path) -> Iterator[tuple[str, str, Row]]:
    """Provider, operator and kernel, from ``docs/OperatorKernels.md``."""
    provider = domain = op = ""
    for line in path.read_text("utf-8").splitlines():
        if line.startswith("## Operators implemented by "):
            provider = _PROVIDERS.get(line.rsplit(" ", 1)[1], "")
        named = re.match(r"\|\*\*Operator Domain:\*\* \*([\w.]+)\*", line)
        if named:
            domain = "" if named[1] == "ai.onnx" else named[1]
            continue
        cells = line.split("|")
        span = (
            re.fullmatch(r"\[?(\d+)(?:, (\d+)\]|(\+))?", cells[3].strip())
            if len(cells) > 5
            else None
        )
        if span is None or not provider or domain not in _DOMAINS.values():
            continue
        op = cells[1].strip() or op
        last = _OPEN if span[3] else int(span[2] or span[1])
        sets = re.findall(r"\*\*(\w+)\*\* = ([^*]+?)(?=<br/>|$)", cells[4].strip())
        types = {
            name: frozenset(_bare(t.strip()) for t in kinds.split(", ")) for name, kinds in sets
        }
        yield provider, _full(domain, op), (int(span[1]), last, types)


def from_training(source: Path) -> Iterator[tuple[str, str, Row]]:
    """Provider, operator and kernel for ``orttraining`` registrations missing in the documents."""
    root = source / "orttraining" / "orttraining" / "training_ops"
    typed = {(op, domain): body for op, domain, _, body in registrations(root)}
    for provider in ("cuda", "cpu"):
        text = (root / provider / f"{provider}_training_kernels.cc").read_text("utf-8")
        text = _built(text)
        for entry in re.findall(
            r"^\s*BuildKernelCreateInfo<(?:class )?\w+\(([^)]*)\)>", text, re.M
        ):
            parts = [part.strip() for part in entry.split(",")]
            if parts[1] not in _DOMAINS:
                continue
            versions = [int(part) for part in parts[2:] if part.isdigit()]
            tags = "_".join(parts[2 + len(versions) : -1])
            kinds = frozenset(_CPP[tag] for tag in re.findall("|".join(_CPP), tags))
            if not kinds:
                body = typed.get((parts[-1], parts[1]), "")
                kinds = frozenset(_CPP[t] for t in re.findall(rf"\b({'|'.join(_CPP)})\b", body))
            last = versions[1] if len(versions) > 1 else _OPEN
            yield (
                provider,
                _full(_DOMAINS[parts[1]], parts[-1]),
                (versions[0], last, {"": kinds} if kinds else {}),
            )


def _built(text: str) -> str:
    """The text without features that the wheels lack: collectives, Triton, interop with torch."""
    absent = r"#if(?:def)? [^\n]*(?:NCCL|MPI|TRITON|TORCH_INTEROP).*?#endif"
    return re.sub(absent, "", text, flags=re.S)


def registrations(*roots: Path) -> Iterator[tuple[str, str, list[str], str]]:
    """Operator, domain, arguments and text of each registration of a kernel in C++ files."""
    for root in roots:
        for path in sorted(root.rglob("*")):
            if path.suffix not in (".cc", ".cu", ".h", ".cuh") or "rocm" in path.parts:
                continue
            text = path.read_text("utf-8", errors="replace")
            text = re.sub(r"/\*.*?\*/|//[^\n\\]*", "", text, flags=re.S).replace("\\\n", " ")
            for found in re.finditer(r"ONNX_OPERATOR\w*KERNEL_EX\(", text):
                body = _inside(text, found.end() - 1)
                parts = _split(body)
                for op in _named(text, found.start(), parts[0]):
                    yield op, parts[1], parts, body


def host_memory(source: Path) -> dict[str, list[Host]]:
    """Operator to the operands that its CUDA kernels need in host memory, by first opset."""
    below = ["onnxruntime/core/providers/cuda", "onnxruntime/contrib_ops/cuda"]
    below += ["orttraining/orttraining/training_ops/cuda"]
    found: dict[str, set[Host]] = defaultdict(set)
    for op, domain, parts, body in registrations(*(source / b for b in below)):
        if domain not in _DOMAINS:
            continue
        sides: dict[str, set[int]] = {"Input": set(), "Output": set()}
        places = r"(Input|Output)MemoryType(?:<\w+>)?\(\s*OrtMemTypeCPU\w+\s*,\s*([\w:]+)"
        for side, index in re.findall(places, body):
            number = int(index) if index.isdigit() else _INDICES.get(index)
            if number is not None:
                sides[side].add(number)
        first = int(parts[2]) if parts[2].isdigit() else 1
        found[_full(_DOMAINS[domain], op)].add(
            (first, tuple(sorted(sides["Input"])), tuple(sorted(sides["Output"])))
        )
    return {op: sorted(rows) for op, rows in found.items()}


def _named(text: str, where: int, name: str) -> list[str]:
    """The operators of a registration: its name, or all arguments of the enclosing macro."""
    define = text.rfind("#define", 0, where)
    if define < 0 or "\n" in text[define:where]:
        return [name]
    macro = re.match(r"#define (\w+)\(([^)]*)\)", text[define:where])
    parameters = [part.strip() for part in macro[2].split(",")] if macro else []
    if macro is None or name not in parameters:
        return [name]
    calls = re.findall(rf"^\s*{macro[1]}\(([^)]*)\)", text[where:], re.M)
    inner = re.findall(rf"^#define (\w+)\((\w+)[^)]*\)[^\n]*\b{macro[1]}\(\2\b", text, re.M)
    for outer, _ in inner:
        calls += re.findall(rf"^\s*{outer}\(([^)]*)\)", text, re.M)
    place = parameters.index(name)
    return sorted(
        {parts[place].strip() for parts in (c.split(",") for c in calls) if len(parts) > place}
    )


def _inside(text: str, start: int) -> str:
    depth = 0
    for position in range(start, len(text)):
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if not depth:
            return text[start + 1 : position]
    return ""


def _split(text: str) -> list[str]:
    parts, depth, last = [], 0, 0
    for position, letter in enumerate(text):
        depth += {"(": 1, "<": 1, "{": 1, ")": -1, ">": -1, "}": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append(text[last:position].strip())
            last = position + 1
    return [*parts, text[last:].strip(), "", ""]


def _bare(kind: str) -> str:
    return (
        kind.replace("tensor(", "", 1).replace(")", "", 1) if kind.startswith("tensor(") else kind
    )


def _full(domain: str, op: str) -> str:
    return f"{domain}::{op}" if domain else op


def merged(rows: list[Row]) -> list[Row]:
    """One row for kernels of one opset range that differ in the types of one constraint only."""
    done: list[Row] = []
    for first, last, types in sorted(rows, key=lambda r: (r[0], r[1], str(sorted(r[2])))):
        for place, (a, b, known) in enumerate(done):
            differ = [k for k in types if known.get(k) != types[k]]
            if (a, b, set(known)) == (first, last, set(types)) and len(differ) <= 1:
                done[place] = (a, b, {**known, **{k: known[k] | types[k] for k in differ}})
                break
        else:
            done.append((first, last, types))
    return done if len(done) == len(rows) else merged(done)


def make(
    version: str, found: list[tuple[str, str, Row]], host: dict[str, list[Host]]
) -> dict[str, Any]:
    """The whole file."""
    sets: dict[frozenset[str], int] = {}
    tables: dict[str, dict[str, list[Row]]] = {"cuda": defaultdict(list), "cpu": defaultdict(list)}
    for provider, op, (first, last, types) in found:
        if "::" in op:
            kinds: frozenset[str] = frozenset().union(*types.values())
            types = {"": kinds} if kinds else {}
        tables[provider][op].append((first, last, types))
    data: dict[str, Any] = {"release": version, "types": []}
    for provider, table in tables.items():
        data[provider] = {}
        for op, rows in sorted(table.items()):
            entries = data[provider][op] = []
            for first, last, types in merged(rows):
                numbered = {k: sets.setdefault(v, len(sets)) for k, v in sorted(types.items())}
                entry: list[Any] = [first, None if last == _OPEN else last, numbered]
                ago = [h for h in host.get(op, ()) if h[0] <= first]
                if provider == "cuda" and ago and any(ago[-1][1:]):
                    entry += [list(ago[-1][1]), list(ago[-1][2])]
                entries.append(entry)
    data["types"] = [" ".join(sorted(kinds)) for kinds in sets]
    return data


def dump(data: dict[str, Any]) -> str:
    """JSON with one line per operator and set of types."""
    lines = [f' "{key}": {json.dumps(data[key])},' for key in ("release", "source")]
    lines += [' "types": [', *_lines(map(json.dumps, data["types"])), " ],"]
    for provider in ("cuda", "cpu"):
        rows = (f"{json.dumps(op)}: {_short(rows)}" for op, rows in data[provider].items())
        lines += [f' "{provider}": {{', *_lines(rows), " }" + ("," if provider == "cuda" else "")]
    return "\n".join(["{", *lines, "}", ""])


def _short(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _lines(rows: Any) -> list[str]:
    found = [f"  {row}," for row in rows]
    return [*found[:-1], found[-1][:-1]]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list").add_argument("out", type=Path)
    making = verbs.add_parser("make")
    making.add_argument("version")
    kinds = making.add_mutually_exclusive_group(required=True)
    kinds.add_argument("--listing", type=Path)
    kinds.add_argument("--docs", type=Path)
    making.add_argument("--source", type=Path, required=True)
    making.add_argument("--commit", required=True, help="of the checkout")
    making.add_argument("--training", action="store_true")
    options = parser.parse_args()
    if options.verb == "list":
        write_listing(options.out)
        return
    found = list(from_listing(options.listing) if options.listing else from_docs(options.docs))
    if options.training:
        found += from_training(options.source)
    data = make(options.version, found, host_memory(options.source))
    data["source"] = {
        "kernels": f"get_all_opkernel_def of onnxruntime-gpu {options.version}"
        if options.listing
        else f"github.com/microsoft/onnxruntime docs/OperatorKernels.md at {options.commit}"
        + (", orttraining/training_ops" if options.training else ""),
        "host_memory": f"github.com/microsoft/onnxruntime registrations at {options.commit}",
        "made_by": "tools/make_cuda_table.py",
    }
    out = _OUT / f"kernels-{options.version}.json"
    out.write_text(dump(data), encoding="utf-8")
    print(f"{out}: {len(data['cuda'])} operators on CUDA, {len(data['cpu'])} on the CPU")


if __name__ == "__main__":
    main()
