"""The origin of a model's tensors, from the exporter's metadata or from their names.

ONNX has initializers but no notion of a parameter. Exporters leave traces:

- torch's dynamo exporter writes for each initializer the kind that ``torch.export`` gave it
  (``PARAMETER``, ``BUFFER``, ``CONSTANT_TENSOR``), and the graph's whole signature. With
  ``optimize=True`` it folds some parameters into new tensors, called ``val_12`` or after the last
  call, and lists all that a tensor was computed from; older versions do not, and the origin is
  taken from the module of the node that reads the tensor. A parameter that two modules share is
  stored once, under its name in one of them.
- torch's TorchScript exporter keeps the names of parameters and buffers, but does not distinguish
  them; folded tensors are called ``onnx::MatMul_123``, and literals in the code are ``Constant``
  nodes.
- Other exporters leave no reliable traces, but the tables of a RotaryEmbedding are buffers.

:func:`tensor_origins` reads these traces before a rewrite loses them, and :func:`stamp_origins`
stores them with the values (in ``Value.meta``, which is not written to files).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ortboost.graph.query import is_standard, source_before

__all__ = [
    "CALL_KEY",
    "SIGNATURE_KEY",
    "STACK_KEY",
    "Origin",
    "Origins",
    "in_block",
    "made_by_torch",
    "missing_parameters",
    "names_a_parameter",
    "origin_of",
    "original_name",
    "placeholders",
    "scopes_of",
    "stamp_origin",
    "stamp_origins",
    "stamp_restored",
    "tensor_origins",
]

_META = "ortboost.origin"
_MISSING = "ortboost.missing_parameters"
_KIND = "pkg.torch.export.graph_signature.InputSpec.kind"
SIGNATURE_KEY = "pkg.torch.export.ExportedProgram.graph_signature"
_SCOPES = "pkg.torch.onnx.name_scopes"
STACK_KEY = "pkg.torch.onnx.stack_trace"
CALL_KEY = "pkg.torch.onnx.fx_node"  # the call in torch that a node was written for
_FOLDED_FROM = "pkg.onnxscript.optimizer.folded_from"
# ``torch.export`` puts the block of a ``with torch.no_grad()`` into a module that it generates.
_GENERATED = re.compile(r'\s*File "<eval_with_key>')
_SPEC = re.compile(r"^(\w+): ([A-Z_]+) target='([^']*)'", re.MULTILINE)
# Names that torch's exporters give to tensors they create (onnx.compose may put a prefix before),
# and onnxsim (`_v_12`).
_EXPORTER_NAME = re.compile(
    r"^(.*onnx::.*|/.*|[^/]+/.*_output_\d+|\d+|_?val_\d+.*|.+_val_\d+|_v_\d+|scalar_tensor.*|"
    r"lifted_tensor_.*)$"
)
# Those of them that a transposed parameter may have.
_TRANSPOSED_NAME = re.compile(r"(val|t|transpose|permute|numpy_t)(_\d+)?")

# TorchScript folds nothing but parameters and buffers; numbers in the code are Constant nodes.
_TORCHSCRIPT_FOLDED = "onnx::"
# onnxsim stores in Constant nodes what it computes: names of other nodes' outputs, and its own.
_STORED_OUTPUT = re.compile(r"[^/]*/(.*/)?(?!Constant(_\d+)?_output)[^/]+_output_\d+|_v_\d+")
_TRANSPOSE = re.compile(r"/Transpose(_\d+)?_output_\d+$")
# Tools that change files of any exporter and name themselves as the producer, or nobody.
_MERGER = "onnx.compose.merge_models"
_TOOLS = ("", _MERGER, "onnx.quantize", "onnx.utils.extract_model", "onnxruntime.transformers")
# That only torch's exporters give, also after the prefix of onnx.compose.
_TORCH_NAME = re.compile(r".*onnx::[A-Z]\w*_\d+|(.+_)?val_\d+$|[^/]*/.+_output_\d+$")

# Index of the input that is the bias of a layer.
_BIAS = {"Conv": 2, "ConvTranspose": 2, "Gemm": 2, "GRU": 3, "LSTM": 3, "RNN": 3}


@dataclass(frozen=True)
class Origin:
    """The origin of a tensor.

    Args:
        kind: ``parameter`` or ``buffer``, according to the exporter; ``literal``, a number in the
            code or computed from such numbers; ``module``, a parameter or a buffer of a torch
            module; ``folded``, computed by the exporter; ``unknown``.
        folded_from: For a folded tensor, the parameters that it was computed from; if the exporter
            does not list them, those missing from the file and part of the module that reads it.
        direct: Whether it was computed from tensors of the module itself, not of a submodule.
        transposed: Whether it may be a transposed parameter; otherwise it is certainly more.
        known: Whether the exporter lists all parameters, so that an empty ``folded_from`` is
            conclusive.
        computed: For a literal, whether the exporter computed it, from numbers or from parameters
            that are in the file, too.
        in_block: For a parameter, whether only nodes of such blocks read it as ``torch.export``
            separates: ``torch.no_grad()``, ``torch.autocast()`` or a ``torch.autograd.Function``.
    """

    kind: Literal["parameter", "buffer", "literal", "module", "folded", "unknown"]
    folded_from: tuple[str, ...] = ()
    direct: bool = False
    transposed: bool = False
    known: bool = False
    computed: bool = False
    in_block: bool = False


_UNKNOWN = Origin("unknown")


@dataclass(frozen=True)
class Origins:
    """The origins of a file's tensors.

    Args:
        of: Name of a tensor to its origin.
        missing: Parameters of the torch module that the file does not contain under their names,
            and the statistics of a BatchNormalization that has no parameters.
    """

    of: Mapping[str, Origin]
    missing: tuple[str, ...] = ()


def origin_of(value: ir.Value) -> Origin:
    """The origin stored by :func:`stamp_origins`; of kind ``unknown`` if none is stored.

    Example:
        >>> origin_of(ir.Value(name="w")).kind
        'unknown'
    """
    found = value.meta.get(_META)
    return found if isinstance(found, Origin) else _UNKNOWN


def missing_parameters(model: ir.Model) -> tuple[str, ...]:
    """Tensors of the torch module that the file lacks; see :attr:`Origins.missing`."""
    found = model.graph.meta.get(_MISSING, ())
    return tuple(found) if isinstance(found, tuple) else ()


def tensor_origins(model: ir.Model) -> Origins:
    """The origin of each initializer and of each output of a ``Constant`` node, by name.

    The model is as loaded, except that its functions are inlined.
    """
    signature = _signature(model)  # empty for TorchScript
    stored: list[ir.Value] = []
    constants: set[str] = set()
    for graph in model.graphs():
        stored += graph.initializers.values()
        for node in graph:
            if is_standard(node, "Constant"):
                stored.append(node.outputs[0])
                constants.add(node.outputs[0].name or "")
    torch = bool(signature) or made_by_torch(model)
    # torch.jit.freeze makes all weights Constant nodes: they differ from numbers only by their use.
    frozen = not signature and all(
        value.name in constants or _EXPORTER_NAME.match(value.name or "") for value in stored
    )
    missing = set(_missing(model, signature, stored))
    blocked, tables = _in_blocks(stored), _rotary_tables(model)
    simplified = any(key.startswith("onnxsim.") for key in model.metadata_props)
    found: dict[str, Origin] = {}
    for value in stored:
        name = value.name or ""
        known = origin_of(value)
        kind = value.metadata_props.get(_KIND) or signature.get(name)
        if known.kind != "unknown":  # stamped when the model was normalized the first time
            found[name] = known
        elif kind == "PARAMETER":
            found[name] = Origin("parameter", in_block=name in blocked)
        elif kind is not None or name in tables:  # BUFFER, CONSTANT_TENSOR
            found[name] = Origin("buffer")
        elif not torch or (name in constants and (frozen or _of_any_model(model, name))):
            found[name] = _UNKNOWN
        elif name in constants and _is_number(name, simplified=simplified):
            found[name] = Origin("literal")
        elif listed := _names(value.metadata_props.get(_FOLDED_FROM, "")):
            found[name] = _computed(name, listed, signature, missing)
        # From here on, the exporter created the tensor, and does not say from what.
        elif signature and missing:
            found[name] = _folded(value, missing)
        elif signature:  # `val_12` is a number; what has the name of a call was computed
            found[name] = Origin("literal", computed=_EXPORTER_NAME.match(name) is None)
        # No signature: TorchScript, or onnxsim has removed it. What was created is recognized by
        # its name.
        elif name in constants or _EXPORTER_NAME.match(name):
            direct = _TORCHSCRIPT_FOLDED in name
            transposed = "_output_" not in name or _TRANSPOSE.search(name) is not None
            found[name] = Origin("folded", direct=direct, transposed=transposed)
        else:
            found[name] = _UNKNOWN if _of_any_model(model, name) else Origin("module")
    return Origins(found, tuple(sorted(missing | _folded_statistics(signature, found))))


def _of_any_model(model: ir.Model, name: str) -> bool:
    """Whether a tensor of a merged file may be of the other model, which any tool may have made."""
    named = "." in name or _EXPORTER_NAME.match(name) is not None
    return model.producer_name == _MERGER and not named


def _is_number(name: str, *, simplified: bool) -> bool:
    """Whether a Constant node has a number of the code, and not what onnxsim computed."""
    numbered = _STORED_OUTPUT.fullmatch(name) is None
    return numbered and (not simplified or _EXPORTER_NAME.match(name) is not None)


def _rotary_tables(model: ir.Model) -> set[str]:
    """Names of stored cosines and sines that RotaryEmbedding reads, some after a choice of rows."""
    tables = set[str]()
    for node in model.graph.all_nodes():
        if node.op_type == "RotaryEmbedding":
            for value in node.inputs[2:4] if node.domain else node.inputs[1:3]:
                source = source_before(value, "Cast", "Gather", "Identity", "Slice", "Unsqueeze")
                tables.add((source.name if source is not None else None) or "")
    return tables


def in_block(node: ir.Node) -> bool:
    """Whether a node stands in a module that ``torch.export`` generated; see ``Origin.in_block``.

    Example:
        >>> in_block(ir.node("Neg", []))
        False
    """
    return _GENERATED.match(node.metadata_props.get(STACK_KEY, "")) is not None


def _in_blocks(stored: Iterable[ir.Value]) -> set[str]:
    """Tensors that only nodes of generated modules read; none if that holds for all tensors."""
    read, blocked = set[str](), set[str]()
    for value in stored:
        nodes = [usage.node for usage in value.uses()]
        if nodes:
            read.add(value.name or "")
            if all(map(in_block, nodes)):
                blocked.add(value.name or "")
    return blocked if blocked < read else set()  # else the module itself was generated


def made_by_torch(model: ir.Model) -> bool:
    """Whether one of torch's exporters wrote a file, also if a tool has changed it since.

    Example:
        >>> made_by_torch(ir.from_onnx_text(
        ...     '<ir_version: 10, producer_name: "onnx.quantize", opset_import: ["" : 18]>'
        ...     'net (float[1] x) => (float[1] y) { "/act/Neg_output_0" = Neg(x)'
        ...     ' y = Neg("/act/Neg_output_0") }'))
        True
    """
    if (model.producer_name or "") in _TOOLS:
        made = (out.name or "" for node in model.graph.all_nodes() for out in node.outputs)
        return any(map(_TORCH_NAME.match, (*model.graph.initializers, *made)))
    return model.producer_name == "pytorch"


def names_a_parameter(model: ir.Model, name: str) -> bool:
    """Whether a value of a file of TorchScript has the name of a parameter or buffer.

    Example:
        >>> file = ir.from_onnx_text('<ir_version: 10, producer_name: "pytorch", '
        ...     'opset_import: ["" : 18]> net (float[1] x) => (float[1] y) { y = Neg(x) }')
        >>> names_a_parameter(file, "norm.bias"), names_a_parameter(file, "/Identity_output_0")
        (True, False)
    """
    torchscript = made_by_torch(model) and not _signature(model)
    return torchscript and _EXPORTER_NAME.match(name) is None


def original_name(value: ir.Value, reader: ir.Node) -> str:
    """The name of the torch parameter that an exporter stored under a name of its own.

    TorchScript does not store it, but in a normalized model the name of the node that reads the
    tensor has the path of the module: ``/encoder/encoder.0/query/MatMul``. The result is the name
    of the tensor if the exporter kept it, or nothing is known.
    """
    name, origin = value.name or "", origin_of(value)
    if origin.kind != "folded" or (origin.known and len(origin.folded_from) != 1):
        return name
    if origin.known:
        return origin.folded_from[0]
    path: list[str] = []
    for part in (reader.name or "").split("/")[1:-1]:
        if path and part.startswith(f"{path[-1]}."):  # of a sequence, which stands before it
            path.pop()
        path.append(part)
    is_bias = value in reader.inputs and reader.inputs.index(value) == _BIAS.get(reader.op_type)
    return ".".join([*path, "bias" if is_bias else "weight"]) if path else name


def stamp_origin(value: ir.Value, origin: Origin) -> None:
    """Store the origin of one value."""
    value.meta[_META] = origin


def stamp_origins(model: ir.Model, origins: Origins) -> None:
    """Store the origins with the initializers they belong to."""
    model.graph.meta[_MISSING] = origins.missing
    for graph in model.graphs():
        for name, value in graph.initializers.items():
            if name in origins.of and origins.of[name].kind != "unknown":
                stamp_origin(value, origins.of[name])


def placeholders(model: ir.Model) -> dict[str, str]:
    """Names that ``torch.export`` gave to its inputs for tensors, to the names of the tensors."""
    return {placeholder: name for placeholder, _, name in _specifications(model)}


def stamp_restored(model: ir.Model, value: ir.Value) -> None:
    """Store the origin of a tensor that ``torch.export`` lists and the file has again.

    It is a parameter or a buffer, and no longer one of :attr:`Origins.missing`.
    """
    name = value.name or ""
    parameter = _signature(model).get(name) == "PARAMETER"
    stamp_origin(value, Origin("parameter" if parameter else "buffer"))
    model.graph.meta[_MISSING] = tuple(n for n in missing_parameters(model) if n != name)


def _signature(model: ir.Model) -> dict[str, str]:
    """Name of a tensor to the kind that ``torch.export`` gave it."""
    return {name: kind for _, kind, name in _specifications(model)}


def _specifications(model: ir.Model) -> list[tuple[str, str, str]]:
    """Placeholder, kind and name of each stored tensor that ``torch.export`` lists."""
    # Outputs repeat names, as PARAMETER_MUTATION.
    inputs = model.graph.metadata_props.get(SIGNATURE_KEY, "").partition("# outputs")[0]
    return _SPEC.findall(inputs)


def _missing(
    model: ir.Model, signature: Mapping[str, str], stored: Iterable[ir.Value]
) -> Iterable[str]:
    known = missing_parameters(model)
    if known:  # already read
        return known
    values = {value.name: value for value in stored}
    parameters = [name for name, kind in signature.items() if kind == "PARAMETER"]
    # A module that reads a tensor of another one: its own parameter is not missing, but tied. Only
    # the innermost module reads it.
    tied = {
        scopes[-1]
        for name in parameters
        if name in values
        for usage in values[name].uses()
        if (scopes := scopes_of(usage.node)) and scopes[-1] != _module(name)
    }
    absent = [name for name in parameters if name not in values]
    modules = [_module(name) for name in absent]
    folded = {n for v in values.values() for n in _names(v.metadata_props.get(_FOLDED_FROM, ""))}
    # If two are absent from one module, either may be the tied one: both count as missing.
    return [
        n
        for n, m in zip(absent, modules, strict=True)
        if m not in tied or modules.count(m) > 1 or n in folded
    ]


def _folded_statistics(signature: Mapping[str, str], stored: Collection[str]) -> set[str]:
    """Running statistics of layers without parameters that an exporter folded into others."""
    layers = {_module(name) for name, kind in signature.items() if kind == "PARAMETER"}
    return {
        name
        for name in signature
        if name.endswith((".running_mean", ".running_var"))
        and name not in stored
        and _module(name) not in layers
    }


def _computed(
    name: str, listed: Collection[str], signature: Mapping[str, str], missing: Collection[str]
) -> Origin:
    """The origin of a tensor that the exporter computed from the tensors listed."""
    parameters = tuple(sorted(n for n in listed if signature.get(n) == "PARAMETER"))
    # If one is no longer in the file, the tensor stands for it; otherwise that one is trained.
    if any(parameter in missing for parameter in parameters):
        transposed = len(listed) == 1 and _TRANSPOSED_NAME.fullmatch(name) is not None
        return Origin("folded", parameters, direct=True, transposed=transposed, known=True)
    if not parameters and any(n in signature for n in listed):
        return Origin("buffer")
    return Origin("literal", computed=bool(parameters))


def _folded(value: ir.Value, missing: set[str]) -> Origin:
    """The origin of a folded tensor: what the innermost module reading it misses, if anything."""
    found: set[str] = set()
    direct = True
    for usage in value.uses():
        # The innermost module first: an outer one holds the parameters of many layers.
        for scope in reversed(scopes_of(usage.node)):
            own = {name for name in missing if _module(name) == scope}
            inner = {name for name in missing if scope and name.startswith(f"{scope}.")}
            if own or inner:
                found |= own or inner
                direct = direct and bool(own)
                break
    transposed = _TRANSPOSED_NAME.fullmatch(value.name or "") is not None
    direct = direct and bool(found)
    return Origin("folded", tuple(sorted(found)), direct, transposed, known=True)


def _module(parameter: str) -> str:
    """The module of a parameter; torch keeps parametrized ones in a submodule of it."""
    module, inside, _ = parameter.partition(".parametrizations.")
    return module if inside else module.rpartition(".")[0]


def scopes_of(node: ir.Node) -> list[str]:
    """The modules that a node belongs to, the outermost first, without the last entry, the call."""
    return _names(node.metadata_props.get(_SCOPES, ""))[:-1]


def _names(text: str) -> list[str]:
    """The strings of a Python list written as text; empty if the text is not one."""
    try:
        found = ast.literal_eval(text or "[]")
    except (SyntaxError, ValueError):  # not as the exporter writes it
        return []
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []
