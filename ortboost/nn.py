"""MindSpore's ``nn``, under the name that its users know: :mod:`ortboost.mindspore.nn`."""

from typing import NoReturn

from ortboost.mindspore.nn import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.nn import __all__ as __all__


def __getattr__(name: str) -> NoReturn:
    raise AttributeError(
        f"module 'ortboost.nn' has no attribute '{name}': layers come with the network, from "
        "ortboost.load(FILE.onnx); only some of MindSpore's losses, optimizers, schedules and "
        "metrics are supported, see docs/mindspore.md"
    )
