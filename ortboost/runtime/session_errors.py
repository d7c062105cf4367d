"""Errors of sessions: what onnxruntime says, with a fix.

The runtime has no error codes for these cases, so its messages are matched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from ortboost.core.errors import DependencyError, ModelError, OrtBoostError, first_line

__all__ = ["TooNewError", "not_loaded", "not_opened", "not_supported"]

_BUILDS: Final = {
    "cuda": "Install a build for it: pip install 'ortboost[gpu]' (onnxruntime-gpu) or "
    "'ortboost[cuda]' (onnxruntime-training). Or use --device cpu.",
    "tensorrt": "Install onnxruntime-gpu (pip install 'ortboost[gpu]') and the TensorRT it was "
    "built for, or use --device cpu.",
}
_LIBRARIES: Final = {
    "cuda": "pip install 'ortboost[gpu]' brings CUDA and cuDNN for onnxruntime-gpu, "
    "'ortboost[cuda]' for onnxruntime-training; 'nvidia-smi' shows what the driver supports. "
    "Or use --device cpu.",
    "tensorrt": "Install the TensorRT and CUDA libraries that this onnxruntime-gpu was built for, "
    "or use --device cuda.",
}


class TooNewError(ModelError):
    """The opset of the model is newer than the runtime."""


class _Known(NamedTuple):
    """A message of the runtime that has an error of ours.

    Args:
        message: Regular expression that it contains.
        kind: The class of the error.
        what, where, fix: Its text, with ``{version}`` and the groups of the expression.
    """

    message: str
    kind: type[OrtBoostError]
    what: str
    where: str
    fix: str


_NO_KERNEL: Final = "This onnxruntime has no kernel for {0} of opset {1} and its types."
_OTHER_KERNEL: Final = (
    "If the model is not in float32, export it in float32 ('ortboost convert' accepts it as it is; "
    "--precision bf16 needs opset 22); else with %s, or use another onnxruntime."
)
_KNOWN: Final = (
    _Known(
        r"(?s)(Opset \d+) is .* is till (opset \d+)",
        TooNewError,
        "{0} is too new for this onnxruntime, which supports up to {1}.",
        "onnxruntime {version}",
        "Use a model of {1} or older, or an environment with a newer onnxruntime: "
        "pip install 'ortboost[ort]'.",
    ),
    _Known(
        r"(\w+Grad\w*)\(-?\d+\) is not a registered function",
        DependencyError,
        "This step was made by the native engine: {0} is in onnxruntime-training only.",
        "onnxruntime {version}",
        "Train it in an environment with onnxruntime-training (Python 3.10 to 3.12), or convert "
        "the model again with --engine portable.",
    ),
    _Known(
        r"No Op registered for (\w+) with domain_version of (\d+)",
        ModelError,
        "This onnxruntime has no operator {0} in opset {1}.",
        "{0}, onnxruntime {version}",
        "If a newer opset of ONNX has it, export the model with that; else the exporter did not "
        "know how to write it: use another one, or other layers.",
    ),
    _Known(
        r"([\w.]+):(\w+)\(-?\d+\) is not a registered function",
        ModelError,
        "This onnxruntime has no operator {1} of the domain '{0}'.",
        "{1}, onnxruntime {version}",
        "ortboost loads no libraries of custom operators: export the model with standard operators "
        "only, or with the operator as a function in the file.",
    ),
    _Known(
        r"an implementation for (\w+)\((1)\) node with name( '[^']+'|)",
        ModelError,
        _NO_KERNEL,
        "{0}{2}, onnxruntime {version}",
        _OTHER_KERNEL % "standard operators",
    ),
    _Known(
        r"an implementation for (\w+)\((\d+)\) node with name( '[^']+'|)",
        ModelError,
        _NO_KERNEL,
        "{0}{2}, onnxruntime {version}",
        _OTHER_KERNEL % "an opset below {1}",
    ),
    # An operator that the standard does not have in this type at the model's opset.
    _Known(
        r"Type 'tensor\((bfloat16|double)\)' of input .* operator \((\w+)\) in node \((.*?)\)",
        ModelError,
        "This onnxruntime has no {1} for {0}.",
        "{1} '{2}', onnxruntime {version}",
        "Export the model in float32. 'ortboost convert' accepts it as it is: its program computes "
        "in float32.",
    ),
    _Known(
        r"Node \((.*?)\) Op \((\w+)\) \[ShapeInferenceError\] (.*)",
        ModelError,
        "The model is not valid: the inputs of a node have shapes that its operator cannot take.",
        "{1} '{0}': {2}",
        "Export it again: with the other exporter (torch.onnx.export(..., dynamo=...)), or in "
        "another form. If it is a node of ortboost or of a gradient, use --engine portable, and "
        "report it.",
    ),
)


def not_supported(device: str, offered: Sequence[str]) -> DependencyError:
    """The error for a device that the installed runtime was not built for."""
    return DependencyError(
        f"The device '{device}' was requested, but this onnxruntime does not support it.",
        where=f"providers: {', '.join(offered)}",
        fix=_BUILDS.get(device, "See 'ortboost doctor'."),
    )


def not_loaded(device: str, where: str) -> DependencyError:
    """The error for a device whose libraries are missing."""
    return DependencyError(
        f"The device '{device}' was requested, but its libraries did not load.",
        where=where,
        fix=_LIBRARIES.get(device, "See 'ortboost doctor'."),
    )


def not_opened(error: Exception, device: str, version: str) -> OrtBoostError:
    """The error for a model that the runtime, of this version, does not open."""
    message = str(error)
    library = re.search(r"(?:Please install|Failed to load library).*", message)
    if device != "cpu" and library:
        return not_loaded(device, library[0])
    for known in _KNOWN:
        found = re.search(known.message, message)
        if found:
            texts = [
                text.format(*found.groups(), version=version)
                for text in (known.what, known.where, known.fix)
            ]
            return known.kind(texts[0], where=texts[1], fix=texts[2])
    return ModelError(
        "onnxruntime does not accept the model.",
        where=first_line(error),
        fix="See 'ortboost doctor': another onnxruntime may interfere. If all is well there "
        "and ortboost made this file, report it; else try 'ortboost check'.",
    )
