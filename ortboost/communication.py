"""MindSpore's ``communication``, under the name that its users know: :mod:`ortboost.mindspore.communication`."""

from ortboost.mindspore.communication import get_group_size, get_rank, init, release

__all__ = ["get_group_size", "get_rank", "init", "release"]
