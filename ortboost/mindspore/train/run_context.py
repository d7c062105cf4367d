"""What a callback is given, as in MindSpore: a :class:`RunContext` with the parameters of the run.

``run_context.original_args()`` has the attributes ``epoch_num``, ``batch_num`` (steps per epoch, 0
if unknown), ``cur_epoch_num`` and ``cur_step_num`` (from 1), ``cur_step_in_epoch``, ``network``,
``train_network``, ``loss_fn``, ``optimizer``, ``net_outputs``, ``train_dataset``,
``train_dataset_element``, ``mode``, ``parallel_mode``, ``device_number``; in validation also
``eval_network``, ``valid_dataset``, ``eval_dataset_element`` and, after it, the results as
``metrics`` and, with ``eval_loss``, ``eval_results``. ``Model.eval`` has none of those of training.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["CallbackParam", "RunContext"]


class CallbackParam(dict[str, Any]):
    """A dict whose items are also attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class RunContext:
    """The information for a callback, and its means to stop the run.

    Args:
        original_args: The parameters of the run.

    Example:
        >>> context = RunContext({"cur_step_num": 3})
        >>> context.request_stop()
        >>> context.original_args().cur_step_num, context.get_stop_requested()
        (3, True)
    """

    def __init__(self, original_args: Mapping[str, Any]) -> None:
        if not isinstance(original_args, CallbackParam):
            original_args = CallbackParam(original_args)
        self._original_args = original_args
        self._stop = False

    def original_args(self) -> CallbackParam:
        """The parameters of the run; see the module docstring."""
        return self._original_args

    def request_stop(self) -> None:
        """Request to stop after this step."""
        self._stop = True

    def get_stop_requested(self) -> bool:
        """Whether a stop was requested."""
        return self._stop
