"""The file: opset, IR version, external data, names."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import onnx_ir as ir

from ortboost.deploy.findings import Finding, error, info, warn
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.io import external_fault

__all__: list[str] = []

_PROTOBUF_LIMIT = 1 << 31


@rule("TRT050", "opset")
def opset(context: Context) -> Iterator[Finding]:
    """The parser supports a range of opsets."""
    version = context.original.opset_imports.get("")
    if version is None:
        yield error(
            ("opset", "model"),
            "The model imports no standard opset.",
            "Export it with standard operators.",
        )
        return
    low, high = context.target.opsets
    guide = context.target.guide_opset
    if low <= version <= high:
        return
    if high < version <= guide:
        yield warn(
            ("opset", "model"),
            f"Opset {version} is in the guide of {context.target}, not in its parser's table "
            f"({low} to {high}).",
            f"Convert to opset {high}: ortboost check --fix does.",
            fixable=True,
        )
        return
    yield error(
        ("opset", "model"),
        f"Opset {version} is outside the range that {context.target} supports, {low} to {high}.",
        f"Convert to opset {low if version < low else high}: ortboost check --fix does.",
        fixable=True,
    )


@rule("TRT051", "IR version")
def ir_version(context: Context) -> Iterator[Finding]:
    """The parser may reject files of a newer ONNX version than its own."""
    version = context.original.ir_version
    if version > context.target.ir_version:
        yield warn(
            ("ir_version", "model"),
            f"IR version {version} is newer than that of the parser's ONNX, "
            f"{context.target.ir_version}.",
            "Lower it: ortboost check --fix does.",
            fixable=True,
        )


@rule("TRT052", "external data")
def external_data(context: Context) -> Iterator[Finding]:
    """External weight files must exist, be long enough, and lie beside the model."""
    total, worst = 0, set()
    for graph in context.original.graphs():
        for value in graph.initializers.values():
            tensor = value.const_value
            if not isinstance(tensor, ir.ExternalTensor):
                total += 0 if tensor is None else tensor.nbytes
                continue
            problem, _ = external_fault(tensor) or ("", "")
            where = str(tensor.location)
            if problem and (where, problem) not in worst:
                worst.add((where, problem))
                yield error(
                    (value.name or "?", "tensor"),
                    f"Its external data '{where}' {problem}.",
                    "Keep the data file beside the model, under its relative name.",
                )
    if total >= _PROTOBUF_LIMIT:
        yield error(
            ("weights", "model"),
            f"{total / 1e9:.1f} GB of weights are inside the file; protobuf is limited to 2 GiB.",
            "Save with external data: ortboost check --fix does.",
            fixable=True,
        )


@rule("TRT053", "names")
def names(context: Context) -> Iterator[Finding]:
    """Every node and tensor needs a unique name."""
    model = context.original
    counts = Counter(node.name or "" for node in model.graph.all_nodes())
    if counts.get(""):
        yield info(
            ("nodes", "model"),
            f"{counts['']} nodes have no name: messages and profiles cannot name them.",
            "Name them: ortboost check --fix does.",
            fixable=True,
        )
    twice = sorted(name for name, count in counts.items() if name and count > 1)
    if twice:
        yield warn(
            (twice[0], "model"),
            f"{len(twice)} node names are used more than once.",
            "Make them unique: ortboost check --fix does.",
            fixable=True,
        )
    tensors: Counter[str] = Counter()
    for graph in model.graphs():
        own = {value.name for value in (*graph.inputs, *graph.initializers.values()) if value.name}
        tensors.update(name for name in own if name)
        tensors.update(out.name for node in graph for out in node.outputs if out.name)
    shadows = sorted(name for name, count in tensors.items() if count > 1)
    if shadows:
        yield warn(
            (shadows[0], "tensor"),
            f"{len(shadows)} tensor names are used more than once, in subgraphs too.",
            "Make them unique: ortboost check --fix does.",
            fixable=True,
        )


@rule("TRT054", "weights that are inputs")
def weights_as_inputs(context: Context) -> Iterator[Finding]:
    """An initializer that is also an input cannot be folded, and needs a profile."""
    for value in context.original.graph.inputs:
        if value.is_initializer():
            yield warn(
                (value.name or "?", "input"),
                "It is both a weight and an input: the parser cannot treat it as a constant.",
                "Remove it from the inputs: ortboost check --fix does.",
                fixable=True,
            )
