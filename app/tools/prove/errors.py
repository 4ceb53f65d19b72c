"""What can go wrong in a proof.

MillraceError
├── WaitedError (TimeoutError)    a condition did not come true in time, or the process ended before
└── UnprovenError (RuntimeError)  the proof cannot be made: nothing was learnt, or a kill did not happen
"""

from millrace.consumers.errors import MillraceError


class WaitedError(MillraceError, TimeoutError):
    """A condition did not come true in time."""


class UnprovenError(MillraceError, RuntimeError):
    """The proof cannot be made."""
