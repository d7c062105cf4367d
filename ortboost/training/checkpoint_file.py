"""Write a checkpoint as two files, and verify it byte by byte when reading it.

::

    step-00000120.safetensors   the state tensors
    step-00000120.json          written last: sha256 and size of the tensor file, names, dtypes and
                                shapes of the tensors, the program's fingerprint, the trainer's
                                progress, and a digest of the JSON itself

Large tensors that the steps of a program never change (frozen weights) stay in the program folder,
as long as they have their initial values: the JSON names them and the digest of the initial state.

A tensor file without its JSON is an incomplete save and is ignored. If a step is saved again with
different tensors, they go to ``step-00000120.<number>.safetensors``: the old JSON and tensors stay
valid until the new JSON is in place.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ortboost.core.errors import ArgumentTypeError, FileError
from ortboost.core.files import put_in_place, read_json, temporary_folder, write_json
from ortboost.core.tensor_file import Overlay, Selection, TensorFile, form_of, write_tensors
from ortboost.training.protocols import Array

__all__ = [
    "FORMAT_VERSION",
    "Checkpoint",
    "Constants",
    "RefusedError",
    "digest_of",
    "is_ours",
    "json_data",
    "named_tensors",
    "read_checkpoint",
    "tensor_files",
    "write_checkpoint",
]

FORMAT_VERSION: Final = 2
_SELF_CONTAINED: Final = 1  # the version of files that need no tensors of their program
_FORMAT: Final = "ortboost-checkpoint"
_TENSORS: Final = r"(\.[0-9a-f]{8})?\.safetensors"
_CHUNK: Final = 1 << 20


@dataclass(frozen=True)
class Constants:
    """Tensors of a program that its steps do not change, with their initial values.

    Checkpoints refer to them by the digest, which identifies the values.
    """

    tensors: Mapping[str, Array]
    digest: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was read and verified.

    Args:
        step: The global step (batches consumed) after which it was taken.
        path: Its JSON file.
        state: State tensor by name; each access reads the file.
        progress: The progress that was passed to :meth:`CheckpointStore.save`.
        program: Fingerprint of its program.
    """

    step: int
    path: Path
    state: Mapping[str, Array]
    progress: dict[str, Any]
    program: str


class RefusedError(Exception):
    """Why a checkpoint is refused; the store turns it into a warning or a FileError."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(reason)
        self.path, self.reason = path, reason


def write_checkpoint(
    path: Path,
    state: Mapping[str, Array],
    progress: Mapping[str, Any],
    program: str,
    constants: Constants | None = None,
) -> None:
    """Write both files of a checkpoint; a crash at any moment leaves no partial checkpoint.

    Args:
        path: Its JSON file.
        state: State tensor by name; dtypes and 0-d shapes are kept.
        progress: JSON data with the key ``step``.
        program: Fingerprint of the program.
        constants: Tensors that are not written if they still have these values.

    Raises:
        FileError: The folder is missing, not writable or full.
        ArgumentTypeError: ``progress`` is not JSON data.
    """
    content = {"progress": json_data(progress, "progress")}  # first: it may be refused
    version = _SELF_CONTAINED
    if constants is not None and (same := _unchanged(state, constants.tensors)):
        state = Selection(state, [name for name in state if name not in same])
        content["constants"] = {"names": sorted(same), "digest": constants.digest}
        version = FORMAT_VERSION
    tensors = path.with_suffix(".safetensors")
    with temporary_folder(path.parent) as workshop:
        made = workshop / tensors.name
        try:
            write_tensors(made, state, metadata={"format": _FORMAT})
            size, sha256 = made.stat().st_size, _sha256(made)
            # The same tensors again need only a new JSON.
            if not tensors.exists() or _sha256(tensors) != sha256:
                if tensors.exists():  # it belongs to the JSON that is still valid
                    tensors = path.with_suffix(f".{secrets.token_hex(4)}.safetensors")
                put_in_place(made, tensors)
        except (ValueError, OSError) as error:
            full = isinstance(error, OSError)
            raise FileError(
                "A checkpoint cannot be written.",
                where=f"{tensors}: {error}",
                fix="Free some disk space, or check the folder and its permissions."
                if full
                else "State tensors must have numeric dtypes.",
            ) from error
    content |= {
        "format": _FORMAT,
        "version": version,
        "program": program,
        "file": {"name": tensors.name, "size": size, "sha256": sha256},
        "tensors": {name: _describe(state, name) for name in sorted(state)},
    }
    write_json(path, {**content, "digest": digest_of(content)})
    for old in tensor_files(path):
        if old != tensors:
            old.unlink(missing_ok=True)


def tensor_files(path: Path) -> list[Path]:
    """The tensor files that belong to a checkpoint by name, given its JSON file."""
    ours = re.compile(re.escape(path.stem) + _TENSORS)
    return sorted(found for found in path.parent.iterdir() if ours.fullmatch(found.name))


def named_tensors(path: Path) -> Path:
    """The tensor file of a checkpoint, given its JSON file, which names it.

    Raises:
        RefusedError: The JSON is damaged.
    """
    return _named_tensors(path, _read_content(path))


def _named_tensors(path: Path, content: Mapping[str, Any]) -> Path:
    name = str(content["file"]["name"])
    if not re.fullmatch(re.escape(path.stem) + _TENSORS, name):
        raise RefusedError(path, f"it names another checkpoint's tensors ({name})")
    return path.with_name(name)


def is_ours(path: Path) -> bool:
    """Whether ortboost wrote a file with the name of a checkpoint, complete or not.

    Incomplete tensor files of ortboost 0.1 are not recognized.
    """
    with contextlib.suppress(OSError, ValueError, AttributeError, FileError):
        if path.suffix == ".json":
            return bool(read_json(path).get("format") == _FORMAT)
        with open(path, "rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(min(length, _CHUNK * 64)))
        return bool(header["__metadata__"]["format"] == _FORMAT)
    return False


def json_data(value: Any, where: str) -> Any:
    """JSON data as it will be read back: keys are text, tuples are lists, numpy numbers are plain.

    Raises:
        ArgumentTypeError: Something in it has no form in JSON.

    Example:
        >>> json_data({10: (1, np.float32(0.5))}, "state")
        {'10': [1, 0.5]}
    """
    try:
        return json.loads(json.dumps(value, default=_plain))
    except (TypeError, ValueError, RecursionError) as error:
        raise ArgumentTypeError(
            "The state of a run cannot be saved as JSON.",
            where=f"{where}: {error}",
            fix="Use numbers, text, booleans, None, and lists and dicts of them.",
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a type of JSON")


def _describe(tensors: Mapping[str, Array], name: str) -> dict[str, Any]:
    shape, dtype = form_of(tensors, name)
    return {"dtype": dtype.name, "shape": list(shape)}


def digest_of(content: Mapping[str, Any]) -> str:
    """Digest of JSON data, which the data themselves may then contain."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def _unchanged(state: Mapping[str, Array], constants: Mapping[str, Array]) -> set[str]:
    """The tensors that have their initial values, bit for bit."""
    return {
        name
        for name, initial in constants.items()
        if name in state
        and form_of(state, name) == form_of(constants, name)
        and _same_bits(state[name], initial)
    }


def _same_bits(one: Array, other: Array) -> bool:
    a, b = (np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (one, other))
    step = 16 * _CHUNK  # a comparison takes memory of its own
    pieces = (slice(start, start + step) for start in range(0, a.size, step))
    return all(np.array_equal(a[piece], b[piece]) for piece in pieces)


def read_checkpoint(
    path: Path,
    program: str | None,
    expect: Mapping[str, Array] | None,
    constants: Constants | None = None,
) -> Checkpoint:
    """Read and verify a checkpoint, given its JSON file.

    Args:
        path: Its JSON file.
        program: The required fingerprint; None accepts any.
        expect: Tensors whose names, shapes and dtypes it must have; None accepts any.
        constants: Tensors that it may refer to; without them, they are missing in its state.

    Raises:
        RefusedError: It is damaged or belongs to another program.
    """
    # The JSON, the size and the checksum of the tensor file, then its header.
    content = _read_content(path)
    if program is not None and content["program"] != program:
        raise RefusedError(
            path, f"it belongs to another program ({content['program']}, this one is {program})"
        )
    tensors = _named_tensors(path, content)
    try:
        size = tensors.stat().st_size
        if size != content["file"]["size"]:
            raise RefusedError(tensors, f"it has {size} bytes instead of {content['file']['size']}")
        if _sha256(tensors) != content["file"]["sha256"]:
            raise RefusedError(tensors, "its bytes changed since it was written (sha256 differs)")
        state: Mapping[str, Array] = TensorFile(tensors)
    except FileNotFoundError as error:
        raise RefusedError(tensors, "the tensor file is missing") from error
    except (OSError, ValueError) as error:
        raise RefusedError(tensors, str(error)) from error
    found = {name: _describe(state, name) for name in state}
    if found != content["tensors"]:
        raise RefusedError(tensors, "its tensors differ from those listed in its JSON")
    if "constants" in content and constants is not None:
        state = _completed(path, state, content["constants"], constants)
        found = {name: _describe(state, name) for name in state}
    if expect is not None:
        _check_tensors(tensors, found, {name: _describe(expect, name) for name in expect})
    progress = dict(content["progress"])
    return Checkpoint(int(progress["step"]), path, state, progress, str(content["program"]))


def _completed(
    path: Path, state: Mapping[str, Array], about: Mapping[str, Any], constants: Constants
) -> Mapping[str, Array]:
    """The tensors of a checkpoint, and those of its program that it refers to."""
    names = list(about["names"])
    if about["digest"] != constants.digest or not set(names) <= set(constants.tensors):
        raise RefusedError(
            path, "it needs initial weights of its program, which are others now: convert as before"
        )
    return Overlay(state, Selection(constants.tensors, names))


def _read_content(path: Path) -> dict[str, Any]:
    try:
        content = read_json(path)
    except FileError as error:
        raise RefusedError(path, "the file is missing or is not valid JSON") from error
    if not isinstance(content, dict) or content.get("format") != _FORMAT:
        raise RefusedError(path, "it is not an ortboost checkpoint")
    if content.get("version") not in range(_SELF_CONTAINED, FORMAT_VERSION + 1):
        raise RefusedError(
            path,
            f"it has format version {content.get('version')}, this ortboost reads {FORMAT_VERSION}",
        )
    digest = content.pop("digest", None)
    if digest != digest_of(content):
        raise RefusedError(path, "its text changed since it was written (digest differs)")
    return content


def _check_tensors(path: Path, found: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    for name in wanted:
        if name not in found:
            raise RefusedError(path, f"the tensor '{name}' is missing")
        if found[name] != wanted[name]:
            raise RefusedError(
                path,
                f"the tensor '{name}' is {found[name]['dtype']}{found[name]['shape']}, "
                f"the program needs {wanted[name]['dtype']}{wanted[name]['shape']}",
            )
    for name in found:
        if name not in wanted:
            raise RefusedError(path, f"the program has no tensor '{name}'")
