"""MindSpore's ``nn``, under the name that its users know: :mod:`ortboost.mindspore.nn`."""

from ortboost.mindspore.nn import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.nn import __all__ as __all__
