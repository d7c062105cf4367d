"""Record freeze sequences of MindSpore Boost 2.10.0, drawn after ``np.random.seed(1234)``.

In an environment with mindspore 2.10.0::

    python tools/golden/mindspore_freeze_sequences.py tests/golden/mindspore/freeze_sequences.npz
"""

from __future__ import annotations

import sys

import numpy as np
from mindspore.boost.grad_freeze import GradientFreeze

CASES = [(10, 1, 0.7, 300), (4, 1, 0.3, 200), (2, 1, 0.5, 50), (10, 0, 0.7, 300), (5, 0, 0.25, 64)]

found = {}
for number, strategy, share, steps in CASES:
    np.random.seed(1234)  # noqa: NPY002 - the generator that MindSpore draws from
    maker = GradientFreeze(number, strategy, share, steps)
    sequence = maker.generate_freeze_index_sequence(number, strategy, share, steps)
    found[f"{number}_{strategy}_{share}_{steps}"] = np.array(sequence, np.int64)
np.savez_compressed(sys.argv[1], **found)
