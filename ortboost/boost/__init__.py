"""MindSpore Boost's names; empty in this version.

``BoostTrainOneStepCell`` and ``BoostTrainOneStepWithLossScaleCell`` come with the boosts they run.
Until then :class:`ortboost.nn.TrainOneStepCell` and
:class:`ortboost.nn.TrainOneStepWithLossScaleCell` do what those two do with all boosts off.
"""

from __future__ import annotations

__all__: list[str] = []
