"""Errors of sessions: what onnxruntime says, with a fix.

The runtime has no error codes for these cases, so its messages are matched.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from ortboost.core.errors import DependencyError, ModelError, OrtBoostError, first_line

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
    library = re.search(r"(?:Please install|Failed to load library).*", str(error))
    if device != "cpu" and library:
        return not_loaded(device, library[0])
    known = re.search(r"(Opset \d+) is .* is till (opset \d+)", str(error), re.DOTALL)
    if known:
        return TooNewError(
            f"{known[1]} is too new for this onnxruntime, which supports up to {known[2]}.",
            where=f"onnxruntime {version}",
            fix=f"Use a model of {known[2]} or older, or an environment with a newer "
            "onnxruntime: pip install 'ortboost[ort]'.",
        )
    native = re.search(r"(\w+Grad\w*)\(-?\d+\) is not a registered function", str(error))
    if native:
        return DependencyError(
            f"This step was made by the native engine: {native[1]} is in onnxruntime-training "
            "only.",
            where=f"onnxruntime {version}",
            fix="Train it in an environment with onnxruntime-training (Python 3.10 to 3.12), "
            "or convert the model again with --engine portable.",
        )
    unknown = re.search(r"No Op registered for (\w+) with domain_version of (\d+)", str(error))
    if unknown:
        return ModelError(
            f"This onnxruntime has no operator {unknown[1]} in opset {unknown[2]}.",
            where=f"{unknown[1]}, onnxruntime {version}",
            fix="If a newer opset of ONNX has it, export the model with that; else the exporter "
            "did not know how to write it: use another one, or other layers.",
        )
    custom = re.search(r"([\w.]+):(\w+)\(-?\d+\) is not a registered function", str(error))
    if custom:
        return ModelError(
            f"This onnxruntime has no operator {custom[2]} of the domain '{custom[1]}'.",
            where=f"{custom[2]}, onnxruntime {version}",
            fix="ortboost loads no libraries of custom operators: export the model with standard "
            "operators only, or with the operator as a function in the file.",
        )
    missing = re.search(r"an implementation for (\w+)\((\d+)\) node with name '(.*?)'", str(error))
    if missing:
        op_type, since, node = missing.groups()
        named = f" '{node}'" if node else ""
        older = "standard operators" if since == "1" else f"an opset below {since}"
        return ModelError(
            f"This onnxruntime has no kernel for {op_type} of opset {since} and its types.",
            where=f"{op_type}{named}, onnxruntime {version}",
            fix="Export the model in float32, if it is in another type (--precision bf16 needs "
            f"opset 22); else with {older}, or use an environment with another onnxruntime.",
        )
    # An operator that the standard does not have in this type at the model's opset.
    invalid = re.search(
        r"Type 'tensor\((bfloat16|double)\)' of input .* operator \((\w+)\) in node \((.*?)\)",
        str(error),
    )
    if invalid:
        dtype, op_type, node = invalid.groups()
        return ModelError(
            f"This onnxruntime has no {op_type} for {dtype}.",
            where=f"{op_type} '{node}', onnxruntime {version}",
            fix="Export the model in float32. 'ortboost convert' accepts it as it is: its program "
            "computes in float32.",
        )
    return ModelError(
        "onnxruntime does not accept the model.",
        where=first_line(error),
        fix="See 'ortboost doctor': another onnxruntime may interfere. If all is well there "
        "and ortboost made this file, report it; else try 'ortboost check'.",
    )
