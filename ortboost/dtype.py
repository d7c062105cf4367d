"""MindSpore's ``dtype``, under the name that its users know: :mod:`ortboost.mindspore.core.dtype`."""

from ortboost.mindspore.core.dtype import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.core.dtype import __all__ as __all__
