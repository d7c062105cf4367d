"""Unsupported forms of supported operators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import onnx
import onnx_ir as ir

from ortboost.deploy.findings import Finding, error, warn
from ortboost.deploy.tensorrt.rules.registry import Context, rule
from ortboost.graph.query import input_at, is_read, is_standard, known_shape

__all__: list[str] = []

_RECURRENT = ("RNN", "GRU", "LSTM")


@rule("TRT020", "attribute values that are not supported")
def values(context: Context) -> Iterator[Finding]:
    """``sorted=0`` of TopK, ``cubic`` of Resize, ``reduction`` of ScatterND..."""
    for node, known in context.known():
        # Entries of the table: "sorted=1", or "mode=nearest|linear".
        for limit in (*known.named("attribute"), *known.named("one-of")):
            name, _, allowed = limit.partition("=")
            if not _relevant(node, name):
                continue
            value = _attribute(context, node, name)
            if value is None or _same(value, allowed.split("|")):
                continue
            yield error(
                node,
                f"{name} = {value} is not supported.",
                f"Use {name} = {allowed.replace('|', ', ')}.",
            )


@rule("TRT021", "ranks, dilations and paddings that are not supported")
def geometry(context: Context) -> Iterator[Finding]:
    """One-dimensional pooling, dilated pooling, five-dimensional GridSample..."""
    for node, known in context.known():
        first = input_at(node, 0)
        dims = None if first is None else known_shape(first)
        problem = fix = ""
        for span in known.named("spatial"):
            low, high = (int(part) for part in span.split("-"))
            if dims is not None and not low <= len(dims) - 2 <= high:
                problem = (
                    f"{len(dims) - 2} spatial dimensions are not supported, {low} to {high} are."
                )
                fix = "Unsqueeze a dimension of length 1 before and squeeze it after."
        for rank in known.named("rank"):
            if dims is not None and len(dims) != int(rank):
                problem = f"An input of {len(dims)} dimensions is not supported, {rank} are."
                fix = f"Reshape to {rank} dimensions before and back after."
        if "no-dilations" in known.limits and any(
            d != 1 for d in node.attributes.get_ints("dilations", ())
        ):
            problem, fix = "Dilated pooling is not supported.", "Use dilations of 1."
        pads = node.attributes.get_ints("pads", ())
        half = len(pads) // 2
        if "symmetric-pads" in known.limits and list(pads[:half]) != list(pads[half:]):
            problem, fix = "Paddings at begin and end differ.", "Pad before, with a Pad node."
        if problem:
            yield error(node, problem, fix)


@rule("TRT022", "inputs and outputs that are not supported")
def extra_values(context: Context) -> Iterator[Finding]:
    """Second outputs, and optional inputs that the parser rejects."""
    for node, known in context.known():
        if "one-output" in known.limits:
            for output in node.outputs[1:]:
                if output.name and is_read(output):
                    yield error(
                        node,
                        f"Only the first output is supported, but '{output.name}' is used.",
                        "Compute what is needed of it with other operators.",
                    )
        for name in known.named("no-input"):
            given = context.given(node, name)
            if given is not None:
                yield error(
                    node,
                    f"The input '{name}' is not supported, but '{given.name}' is given.",
                    "Export without it.",
                )
        for name in known.named("int64"):
            given = context.given(node, name)
            if given is not None and given.dtype not in (None, ir.DataType.INT64):
                yield error(
                    node, f"The input '{name}' must be INT64, but is {given.dtype}.", "Cast it."
                )


@rule("TRT023", "a TopK with a K that is too large")
def top_k(context: Context) -> Iterator[Finding]:
    """K has an upper limit."""
    for node, known in context.known():
        for limit in known.named("k-below"):
            stored = context.array(input_at(node, 1))
            if stored is not None and stored.size and int(stored.max()) >= int(limit):
                yield error(
                    node,
                    f"K is {int(stored.max())}, but must be below {limit}.",
                    "Use a smaller K, or sort in parts.",
                )


@rule("TRT024", "recurrent layers whose directions differ")
def activations(context: Context) -> Iterator[Finding]:
    """Bidirectional layers need the same activations in both directions."""
    for node in context.standard(*_RECURRENT):
        names = list(node.attributes.get_strings("activations", ()))
        half = len(names) // 2
        both = node.attributes.get_string("direction", "forward") == "bidirectional"
        if both and names[:half] != names[half:]:
            yield error(
                node,
                f"The activations of the two directions differ: {', '.join(names)}.",
                "Use the same ones, or split it into a forward and a reverse layer.",
            )


@rule("TRT025", "random numbers")
def random(context: Context) -> Iterator[Finding]:
    """A seed is ignored, so random numbers differ from those of ONNX Runtime."""
    for node, known in context.known():
        if "seed-ignored" in known.limits:
            yield warn(
                node,
                "TensorRT ignores the seed: its random numbers are not those of another runtime.",
                "Generate them outside and feed them.",
            )


@rule("TRT026", "constants of a form that cannot be read")
def odd_constants(context: Context) -> Iterator[Finding]:
    """Sparse tensors and strings."""
    for node in context.original.graph.all_nodes():
        if node.op_type != "Constant" or not is_standard(node):
            continue
        odd = {"sparse_value", "value_string", "value_strings"} & set(node.attributes)
        if odd:
            yield error(
                node,
                f"A constant with {odd.pop()} is not supported.",
                "Store it as a dense tensor of numbers.",
            )


def _relevant(node: ir.Node, name: str) -> bool:
    """Whether an attribute has an effect: ``nearest_mode`` has none in a linear Resize."""
    if node.op_type != "Resize":
        return True
    if name == "nearest_mode":
        return node.attributes.get_string("mode", "nearest") == "nearest"
    if name == "keep_aspect_ratio_policy":
        return input_at(node, 3) is not None
    return True


def _attribute(context: Context, node: ir.Node, name: str) -> Any:
    """The value of an attribute or its default; ``None`` if the operator has no such attribute."""
    attribute = node.attributes.get(name)
    if attribute is not None:
        return attribute.value
    schema = context.schema(node)
    found = None if schema is None else schema.attributes.get(name)
    if found is None or not found.default_value.type:
        return None
    default = onnx.helper.get_attribute_value(found.default_value)
    return default.decode() if isinstance(default, bytes) else default


def _same(value: Any, allowed: list[str]) -> bool:
    text = value.decode() if isinstance(value, bytes) else str(value)
    if isinstance(value, float):  # "1" in the table, 1.0 in the model
        return any(float(entry) == value for entry in allowed)
    return text in allowed
