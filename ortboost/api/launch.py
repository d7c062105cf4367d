"""``python -m ortboost.api.launch``: torchrun with the exit status of the process that failed.

After an error in a process, torchrun itself prints a traceback of its own and ends with status 1.
This ends with the exit status of the process that failed first.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from ortboost.core.errors import LostProcessError
from ortboost.runtime.process_group import require_torch

__all__ = ["main"]

_SIGNALLED = 128  # plus the number of the signal: status of a process that a signal has ended
_ASKED = (130, 143)  # by Ctrl-C or SIGTERM, with the state saved


def main(arguments: Sequence[str]) -> int:
    """Run torchrun with these arguments; returns the exit status.

    Raises:
        DependencyError: torch is not installed.
    """
    require_torch()
    from torch.distributed import run
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    try:
        run.run(run.parse_args([*arguments]))
    except ChildFailedError as error:
        status = int(error.get_first_failure()[1].exitcode)
        died = status < 0 or (status > _SIGNALLED and status not in _ASKED)
        return LostProcessError.exit_status if died else status
    except SignalException as error:
        return _SIGNALLED + int(error.sigval)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
