"""What can go wrong while something is proved.

MillraceError
├── WaitedError (TimeoutError)    what was waited for did not come in time, or the process ended before
└── UnprovenError (RuntimeError)  the proof cannot be made: nothing was learnt, or a fault never hit
"""

from consumers.errors import MillraceError


class WaitedError(MillraceError, TimeoutError):
    """What was waited for did not come."""


class UnprovenError(MillraceError, RuntimeError):
    """The proof cannot be made."""
