"""MindSpore's ``amp``, under the name that its users know: :mod:`ortboost.mindspore.amp`."""

from ortboost.mindspore.amp import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.amp import __all__ as __all__
