"""Loading the CUDA 11 libraries that ``ortboost[cuda]`` installs as wheels.

onnxruntime-training 1.19.2 looks for CUDA 11.8 and cuDNN 8 on the library path, but the wheels put
them into site-packages. Loading them in advance, dependencies first, makes them available to the
dynamic loader.
"""

from __future__ import annotations

import ctypes
import importlib.util
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["find_libraries", "preload"]

_log = logging.getLogger(__name__)

# Package folder below `nvidia` and library names, dependencies first.
_LIBRARIES: Final = (
    ("cuda_runtime", ("libcudart.so.11.0",)),
    ("cuda_nvrtc", ("libnvrtc.so.11.2",)),
    ("cublas", ("libcublasLt.so.11", "libcublas.so.11")),
    ("cufft", ("libcufft.so.10",)),
    ("curand", ("libcurand.so.10",)),
    (
        "cudnn",
        (
            "libcudnn_ops_infer.so.8",
            "libcudnn_cnn_infer.so.8",
            "libcudnn_adv_infer.so.8",
            "libcudnn_ops_train.so.8",
            "libcudnn_cnn_train.so.8",
            "libcudnn_adv_train.so.8",
            "libcudnn.so.8",
        ),
    ),
)


def find_libraries() -> Iterator[Path]:
    """Paths of the libraries that are installed as wheels, dependencies first."""
    spec = importlib.util.find_spec("nvidia")
    roots = [] if spec is None else [Path(root) for root in spec.submodule_search_locations or ()]
    for package, names in _LIBRARIES:
        for name in names:
            found = (root / package / "lib" / name for root in roots)
            path = next((path for path in found if path.is_file()), None)
            if path is not None:
                yield path


def preload() -> list[Path]:
    """Load the libraries; if one does not load, the system's own is used.

    Returns:
        The paths that were loaded.
    """
    loaded = []
    for path in find_libraries():
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
            loaded.append(path)
        except OSError as error:
            _log.info("%s was not loaded: %s", path.name, error)
    return loaded
