"""Alias of :mod:`ortboost.mindspore.communication`, under the name that MindSpore's users know."""

from ortboost.mindspore.communication import get_group_size, get_rank, init, release

__all__ = ["get_group_size", "get_rank", "init", "release"]
