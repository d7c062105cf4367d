"""Load and save ONNX models, also with weights in external files.

`onnx_ir` reads and writes. This module adds errors that name the file and the fix, a check of
external data at load time (present, long enough, inside the model's folder), map types, which
`onnx_ir` does not support (scikit-learn's converter uses them for class scores), and atomic saving.
A loaded model holds all its weights in memory and does not depend on its files.
"""

from __future__ import annotations

import contextlib
import copy
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias, TypeGuard

import onnx
import onnx_ir as ir

from ortboost.core.errors import FileError, ModelError, OrtBoostError, first_line
from ortboost.core.files import check_name, put_in_place, temporary_folder, writable_path
from ortboost.graph.file_kind import other_kind, program_around
from ortboost.graph.mentions import mentions
from ortboost.graph.query import all_graphs, all_tensors, find_schema, is_standard, known_shape
from ortboost.graph.shapes.input_config import dimension_name
from ortboost.graph.shapes.shape_inference import check_slices
from ortboost.graph.source import named_source, source_name
from ortboost.graph.structure import check_standard, check_structure
from ortboost.graph.structure.dense import SPARSE, store_densely
from ortboost.graph.structure.walk import EXPORT_AGAIN, damaged

__all__ = [
    "EXTERNAL_DATA_THRESHOLD",
    "ModelSource",
    "check_model_file",
    "external_fault",
    "external_files",
    "is_folder",
    "is_map",
    "load_model",
    "name_of",
    "save_model",
]

ModelSource: TypeAlias = str | os.PathLike[str] | onnx.ModelProto | ir.Model

EXTERNAL_DATA_THRESHOLD = 1 << 30
"""Size of weights in bytes from which external data is used (protobuf's limit is 2 GiB)."""

_MAP = "ortboost.map_type"
_RUNTIME_DOMAIN = "com.microsoft"
_OPSET = 17  # for a file that uses none


def load_model(source: ModelSource, *, weights: bool = True) -> ir.Model:
    """Load an ONNX model; :func:`source_name` gives its path or name.

    Args:
        source: Path of a ``.onnx`` file, an :class:`onnx.ModelProto`, or an :class:`onnx_ir.Model`
            (which is copied, never changed).
        weights: Whether external data is loaded. Otherwise it stays in its files, which need not
            exist.

    Raises:
        FileError: The file is missing, is not ONNX, or its external data is missing, too short, or
            outside the folder of the model.
        ModelError: An input is a map, or a Slice has an input of a negative length.

    Example:
        >>> load_model("no-such-file.onnx")
        Traceback (most recent call last):
        ...
        ortboost.core.errors.FileError: The model file does not exist.
          where: no-such-file.onnx
          fix:   Check the path.
    """
    if isinstance(source, ir.Model | onnx.ModelProto):
        name = name_of(source)
        proto = source if isinstance(source, onnx.ModelProto) else None
        model = _checked(proto, name) if proto is not None else source.clone()
        _name_apart(model)
        _check_external_data(model, name)
        if proto is None:
            model = ir.external_data.load_to_model(model)
        elif not _has_external_data(model):  # the checker does not know the folder of its files
            check_standard(proto, name)
        return _finished(named_source(model, name))
    path = Path(source)
    check_model_file(path)
    try:
        model = _load(path, weights)
    except OrtBoostError:
        raise
    except OSError as error:
        raise FileError(
            "The model file cannot be read.", where=f"{path}: {error}", fix="Check permissions."
        ) from error
    except Exception as error:  # of many types: the file is damaged or not ONNX
        kind, whole = other_kind(path), program_around(path)
        raise FileError(
            "The file is not a readable ONNX model.",
            where=f"{path}: {kind or first_line(error)}",
            fix=whole
            or ("Give the model as ONNX (torch.onnx.export, tf2onnx)." if kind else EXPORT_AGAIN),
        ) from error
    # An empty file is a valid message of protobuf, and so are some files of other kinds.
    if not model.opset_imports and not len(model.graph):
        raise damaged("The file holds no ONNX graph.", str(path))
    named_source(model, str(path))
    if weights:  # if saved elsewhere, the model would look for its data beside the new file
        model = ir.external_data.load_to_model(model)
    return _finished(model)


def _is_the_same(node: ir.Node, *opsets: Mapping[str, int]) -> bool:
    """Whether a node of the standard domain has the same definition in these opsets."""
    if not is_standard(node):
        return True
    schemas = (find_schema(node.op_type, imports.get("", 1)) for imports in opsets)
    return len({None if schema is None else schema.since_version for schema in schemas}) == 1


def name_of(source: ModelSource) -> str:
    """The path or name of a model, for error messages."""
    if isinstance(source, onnx.ModelProto):
        return source.graph.name or "model"
    return source_name(source) if isinstance(source, ir.Model) else str(source)


def is_folder(source: ModelSource) -> TypeGuard[str | os.PathLike[str]]:
    """Whether a source is the path of a folder, such as a program's."""
    return isinstance(source, str | os.PathLike) and Path(source).is_dir()


def check_model_file(path: Path) -> None:
    """Raise a FileError, before anything is read, if a path cannot be that of a model."""
    if not path.exists():
        raise FileError("The model file does not exist.", where=str(path), fix="Check the path.")
    check_name(path)
    if path.is_dir():
        what = "A folder was given where an ONNX file is needed."
        raise FileError(what, where=str(path), fix="Give the .onnx file itself.")
    if not path.is_file():  # a device has no end, a pipe waits
        what = "The model is not a regular file, but a pipe or device."
        raise FileError(what, where=str(path), fix="Write it to a file first.")


def _name_apart(model: ir.Model) -> None:
    """Give a model its own tensor objects, which read those of the user's model in memory.

    Renaming a weight renames its tensor: without this, that of the user's model, too.
    """
    for value, tensor in all_tensors(model):
        value.const_value = _reading(tensor)
    bodies = (node for function in model.functions.values() for node in function.all_nodes())
    for node in (*model.graph.all_nodes(), *bodies):
        for name, attribute in list(node.attributes.items()):
            if attribute.type is ir.AttributeType.TENSOR and attribute.value is not None:
                node.attributes[name] = ir.AttrTensor(name, _reading(attribute.as_tensor()))


def _reading(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    if isinstance(tensor, ir.ExternalTensor):  # it is loaded into a tensor of its own
        return tensor
    if tensor.dtype is ir.DataType.STRING:
        return ir.StringTensor(tensor.numpy(), name=tensor.name)
    shape = ir.Shape([int(length) for length in tensor.shape.numpy()])
    return ir.LazyTensor(lambda: tensor, tensor.dtype, shape, name=tensor.name, cache=True)


def _finished(model: ir.Model) -> ir.Model:
    """Unify opsets and the names of the standard domain, drop dimension names for "unknown".

    What runtimes do without is added: the opset of their own operators, and the graph's name.
    """
    imports = model.opset_imports
    if "ai.onnx" in imports:
        imports.setdefault("", imports.pop("ai.onnx"))
    if any(node.domain == _RUNTIME_DOMAIN for node in model.graph.all_nodes()):
        imports.setdefault(_RUNTIME_DOMAIN, 1)
    if "" not in imports and not any(map(is_standard, model.graph.all_nodes())):
        imports[""] = _OPSET  # as a file of scikit-learn has none
    model.graph.name = model.graph.name or "graph"
    for function in model.functions.values():  # only functions of the model's opsets are inlined
        own = function.opset_imports
        agrees = all(imports.get(domain, version) == version for domain, version in own.items())
        if not agrees and all(_is_the_same(node, own, imports) for node in function.all_nodes()):
            own.update({domain: imports[domain] for domain in own if domain in imports})
    # Equal names imply equal lengths: a name like "?" must not stay on two dimensions.
    for graph in all_graphs(model.graph):
        made = (output for node in graph for output in node.outputs)
        for value in (*graph.inputs, *graph.outputs, *made):
            shape = known_shape(value)
            if shape is not None:  # some exporters write -1 for an open length
                value.shape = ir.Shape(
                    (None if dim < 0 else dim) if isinstance(dim, int) else dimension_name(dim)
                    for dim in shape
                )
    check_slices(model)
    return model


def is_map(value: ir.Value) -> bool:
    """Whether an output is a map, as scikit-learn's converter writes class scores."""
    return _MAP in value.meta


def save_model(
    model: ir.Model,
    path: str | os.PathLike[str],
    *,
    external_data_threshold: int = EXTERNAL_DATA_THRESHOLD,
    proto: onnx.ModelProto | None = None,
) -> None:
    """Save a model atomically: a crash leaves either the old or the new model, with its weights.

    Args:
        model: The model.
        path: Target, usually ``something.onnx``.
        external_data_threshold: Weights of at least this many bytes in total are written to
            ``<path>.data``, or to ``<path>.<random>.data`` if that exists: the old model may need
            it until the new one is in place.
        proto: The serialized model, if the caller has it; not used for weights in another file.

    Raises:
        FileError: No file can be written there; see :func:`~ortboost.core.files.writable_path`.
    """
    target = writable_path(path)
    external = sum(tensor.nbytes for _, tensor in all_tensors(model)) >= external_data_threshold
    # The data file gets an unused name and is put in place before the model that refers to it.
    data = f"{target.name}.data"
    if target.with_name(data).exists():
        data = f"{target.name}.{secrets.token_hex(8)}.data"
    try:
        with temporary_folder(target.parent) as scratch:
            # `ir.save` lets the caller's tensors refer to the new file: put its own back.
            kept = list(all_tensors(model))
            try:
                if proto is None or external:
                    ir.save(model, scratch / target.name, external_data=data if external else None)
                else:
                    (scratch / target.name).write_bytes(proto.SerializeToString())
                _write_map_types(model, scratch / target.name)
            finally:
                for value, tensor in kept:
                    value.const_value = tensor
            old = _data_files(target)  # read before the model that names them is replaced
            for name in (data, target.name) if external else (target.name,):
                put_in_place(scratch / name, target.with_name(name))
            for unused in old:
                unused.unlink(missing_ok=True)
    except OSError as error:
        raise FileError(
            "The model cannot be saved.",
            where=f"{target}: {error.strerror or error}",
            fix="Check the permissions of the folder and the free space.",
        ) from error


def _data_files(target: Path) -> list[Path]:
    """The weight files that only the model at a path uses: those named by :func:`save_model`."""
    ours = re.compile(re.escape(target.name) + r"\.[0-9a-f]{16}\.data")
    found = [path for path in target.parent.iterdir() if ours.fullmatch(path.name)]
    plain = target.with_name(f"{target.name}.data")
    with contextlib.suppress(Exception):  # missing or damaged: its data files are unknown
        found += [path for path in external_files(target) if path == plain]
    for other in target.parent.glob("*.onnx"):
        if found and other != target and other.is_file():  # a copy of the old model needs its data
            try:
                found = [path for path in found if not mentions(other, path.name)]
            except OSError:  # unreadable: it may be such a copy
                return []
    return found


def external_files(path: str | os.PathLike[str]) -> list[Path]:
    """The external weight files of a saved model."""
    proto = onnx.load(path, load_external_data=False)
    entries = (entry for tensor in proto.graph.initializer for entry in tensor.external_data)
    named = {entry.value for entry in entries if entry.key == "location"}
    return [Path(path).parent / name for name in sorted(named)]


def _load(path: Path, weights: bool) -> ir.Model:
    proto = onnx.load(path, load_external_data=False)
    model = _checked(proto, str(path))
    ir.external_data.set_base_dir(model.graph, path.parent)
    if weights:
        _check_external_data(model, str(path), path.parent)
    if weights or not _has_external_data(model):  # the checker looks for the data files, too
        check_standard(proto, str(path), path)
    return model


def _has_external_data(model: ir.Model) -> bool:
    return any(isinstance(tensor, ir.ExternalTensor) for _, tensor in all_tensors(model))


def _checked(proto: onnx.ModelProto, where: str) -> ir.Model:
    """Check the structure of a proto and convert it to a model, with nodes in topological order."""
    proto, sparse = store_densely(proto, where)
    in_order = check_structure(proto, where)
    model = _from_proto(proto)
    model.meta[SPARSE] = sparse
    if not in_order:
        try:
            model.graph.sort()
            for function in model.functions.values():
                function.sort()
        except ValueError as error:
            raise FileError(
                "The graph has a cycle.",
                where=where,
                fix="ONNX graphs must be acyclic; use Loop or Scan, or export the model again.",
            ) from error
    return model


def _from_proto(proto: onnx.ModelProto) -> ir.Model:
    """Convert a proto to a model; the type of a map output is kept in the ``meta`` of its value."""
    positions = {value.name: index for index, value in enumerate(proto.graph.output)}
    maps = [value for value in proto.graph.output if _has_map(value.type)]
    inner = [value for value in proto.graph.value_info if _has_map(value.type)]
    if not maps and not inner:
        return ir.from_proto(proto)
    fed = next((value.name for value in proto.graph.input if _has_map(value.type)), None)
    if fed is not None:
        raise ModelError(
            f"The input '{fed}' is a map, which cannot be fed as an array.",
            where=f"input '{fed}' of '{proto.graph.name}'",
            fix="Export the model with tensor inputs (scikit-learn: without DictVectorizer).",
        )
    bare = copy.deepcopy(proto)  # the caller's proto stays as it is
    for value in (*bare.graph.output, *bare.graph.value_info):
        if _has_map(value.type):
            value.ClearField("type")
    model = ir.from_proto(bare)
    for value in maps:
        model.graph.outputs[positions[value.name]].meta[_MAP] = value.type.SerializeToString()
    return model


def _has_map(kind: onnx.TypeProto) -> bool:
    if kind.HasField("sequence_type"):
        return _has_map(kind.sequence_type.elem_type)
    return bool(kind.HasField("map_type"))


def _write_map_types(model: ir.Model, path: Path) -> None:
    """Restore in a saved file the map types of outputs that were kept on loading."""
    kept = {value.name: value.meta[_MAP] for value in model.graph.outputs if _MAP in value.meta}
    if not kept:
        return
    proto = onnx.load(path, load_external_data=False)
    for value in proto.graph.output:
        if value.name in kept:
            value.type.ParseFromString(kept[value.name])
    path.write_bytes(proto.SerializeToString())


def external_fault(tensor: ir.ExternalTensor, folder: Path | None = None) -> tuple[str, str] | None:
    """What keeps the data of a tensor from being read, and how to fix it; ``None`` for nothing.

    The file is looked for in the ``folder`` of the model, else in the base directory of the tensor.
    It is not opened.
    """
    location = Path(tensor.location)
    # Resolved, so that a symbolic link cannot lead outside.
    root = Path(folder or tensor.base_dir or ".").resolve()
    resolved = (root / location).resolve()
    if location.is_absolute() or not resolved.is_relative_to(root):
        return (
            "lies outside the model's folder",
            "Only load models you trust; move the data file beside the model and save again.",
        )
    if not resolved.is_file():
        return "is missing", f"Put '{location}' beside the model."
    # A length that is shorter than the shape would be read past its end.
    needed = (tensor.offset or 0) + max(tensor.length or 0, tensor.nbytes)
    if resolved.stat().st_size < needed:
        return (
            f"is too short: {resolved.stat().st_size} bytes, {needed} needed",
            "The copy or download is incomplete; fetch it again.",
        )
    return None


def _check_external_data(model: ir.Model, where: str, folder: Path | None = None) -> None:
    for value, tensor in all_tensors(model):
        if not isinstance(tensor, ir.ExternalTensor):
            continue
        if (fault := external_fault(tensor, folder)) is not None:
            what, fix = fault
            raise FileError(
                f"A file with external weights {what}.",
                where=f"{where}: tensor '{value.name}', external data '{tensor.location}'",
                fix=fix,
            )
