"""Makes ``tests.support`` importable in every import mode of pytest, and fixes the seeds of hypothesis.

The suite tries the same examples everywhere and every time. ``make random`` tries others: it takes the
profile ``random``, and prints how to reproduce what it finds.
"""

from __future__ import annotations

import sys
from pathlib import Path

from hypothesis import HealthCheck, settings

ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

# No deadline and no check of speed: a slow machine is no failure.
_UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", _UNTIMED, derandomize=True, database=None)
settings.register_profile("random", _UNTIMED, derandomize=False, print_blob=True)
settings.load_profile("fixed")  # --hypothesis-profile=random comes before it where it is given
