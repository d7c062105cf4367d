"""Alias of :mod:`ortboost.mindspore.core.dtype`, under the name that MindSpore's users know."""

from ortboost.mindspore.core.dtype import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.core.dtype import __all__ as __all__
