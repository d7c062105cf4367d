"""The counters of a program on the host: no step needs to read them from the device."""

from __future__ import annotations

from ortboost.program import names
from ortboost.program.config import step_plan
from ortboost.program.program import Program
from ortboost.runtime.state import DeviceState

__all__ = ["StepCounters"]


class StepCounters:
    """Counts what the step graphs count.

    Attributes:
        updates: Applied updates.
        micro_steps: Steps in the window of accumulation; 0 after an update.
        consecutive_skips: Steps skipped since the last one that was not.
        total_skips: All skipped steps.
    """

    def __init__(self, program: Program) -> None:
        self._plan = step_plan(program.config, program.graphs)
        self._window = program.config.accumulate
        self._known = {entry.name for entry in program.catalogue.state}
        self.updates = self.micro_steps = self.consecutive_skips = self.total_skips = 0

    @property
    def group(self) -> int:
        """The freeze group of the next update; the plan repeats."""
        return int(self._plan[self.updates % len(self._plan)])

    def read(self, state: DeviceState) -> None:
        """Take over the counters of a state; those that the program does not keep are 0."""

        def number(name: str) -> int:
            return int(state.read(name)) if name in self._known else 0

        self.updates, self.micro_steps = number(names.STEP), number(names.MICRO_STEPS)
        self.consecutive_skips = number(names.CONSECUTIVE_SKIPS)
        self.total_skips = number(names.TOTAL_SKIPS)

    def count(self, overflow: bool) -> None:
        """Count a step."""
        if overflow:
            self.consecutive_skips += 1
            self.total_skips += 1
            return
        self.consecutive_skips = 0
        self.micro_steps += 1  # also without accumulation, with a window of 1
        if self.micro_steps == self._window:
            self.count_update()

    def count_update(self) -> None:
        """Count an update, which ends the window."""
        self.micro_steps = 0
        self.updates += 1
