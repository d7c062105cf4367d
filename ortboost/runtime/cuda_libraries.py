"""Loading the CUDA libraries that ``ortboost[cuda]`` and ``ortboost[gpu]`` install as wheels.

onnxruntime looks for CUDA and cuDNN on the library path, but the wheels put them into
site-packages. Loading them in advance, dependencies first, makes them available to the dynamic
loader. onnxruntime-gpu does this itself from 1.21 on, on request; for onnxruntime-training 1.19.2,
which needs CUDA 11.8 and cuDNN 8, we do it.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import io
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["find_libraries", "preload"]

_log = logging.getLogger(__name__)

# Package folder below `nvidia` and library names, dependencies first.
_LIBRARIES: Final = """
cuda_runtime  libcudart.so.11.0
cuda_nvrtc    libnvrtc.so.11.2
cublas        libcublasLt.so.11 libcublas.so.11
cufft         libcufft.so.10
curand        libcurand.so.10
cudnn         libcudnn_ops_infer.so.8 libcudnn_cnn_infer.so.8 libcudnn_adv_infer.so.8
cudnn         libcudnn_ops_train.so.8 libcudnn_cnn_train.so.8 libcudnn_adv_train.so.8 libcudnn.so.8
"""


def find_libraries() -> Iterator[Path]:
    """Paths of the libraries that are installed as wheels, dependencies first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]
    for line in _LIBRARIES.strip().splitlines():
        package, *names = line.split()
        for name in names:
            found = (root / package / "lib" / name for root in roots)
            path = next((path for path in found if path.is_file()), None)
            if path is not None:
                yield path


def preload(runtime: Any) -> str:
    """Load the libraries for ``onnxruntime``; where one does not load, the system's own is used.

    Returns:
        What did not load and why, in the words of the loader; empty if nothing failed.
    """
    if _major(runtime) < 12:
        return "; ".join(filter(None, map(_load, find_libraries())))
    if not hasattr(runtime, "preload_dlls"):
        return ""
    said = io.StringIO()  # it reports by printing
    with contextlib.redirect_stdout(said):
        runtime.preload_dlls(directory="")
    failed = re.findall(r"^Failed to load (\S+): (.*)$", said.getvalue(), re.MULTILINE)
    if not failed:
        return ""
    names = ", ".join(Path(name).name for name, _ in failed)
    return f"{names}: {failed[0][1].removeprefix(f'{failed[0][0]}: ')}"


def _major(runtime: Any) -> int:
    """The major version of CUDA that the runtime was built for; 0 if it does not say."""
    version = str(getattr(runtime, "cuda_version", "") or "")
    major = version.partition(".")[0]
    return int(major) if major.isdigit() else 0


def _load(path: Path) -> str:
    try:
        ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        _log.info("%s was not loaded: %s", path.name, error)
        return f"{path.name}: {error}"
    return ""
