"""MindSpore's ``boost``, under the name that its users know: :mod:`ortboost.mindspore.boost`."""

from ortboost.mindspore.boost import *  # noqa: F403  the names are those of its __all__
from ortboost.mindspore.boost import __all__ as __all__
