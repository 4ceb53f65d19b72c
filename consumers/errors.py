"""The errors of the left side.

    MillraceError                 everything that names its way out
    ├── ConfigError (ValueError)      a setting that cannot be: exit 2
    ├── UnreachableError (ConnectionError)   nobody answers, or not yet: exit 3, retriable
    ├── TopicMissingError (LookupError)      exit 3
    ├── DataLossError (RuntimeError)  going on would lose or repeat records: exit 4
    └── HandoffBroken (RuntimeError)  the other end of the hand-off failed

Every text says what, which value, and what to do. `exit_code` is what the command line ends with.
"""


class MillraceError(Exception):
    """An error that a user can mend: shown as one line, without a traceback."""

    exit_code = 1
    retriable = False


class ConfigError(MillraceError, ValueError):
    """A setting, a model or a schema that cannot be."""

    exit_code = 2


class UnreachableError(MillraceError, ConnectionError):
    """Nobody answers where the settings point to."""

    exit_code = 3
    retriable = True


class TopicMissingError(MillraceError, LookupError):
    """The topic is not there."""

    exit_code = 3


class DataLossError(MillraceError, RuntimeError):
    """Going on would lose or repeat records, and nobody has said that this is wanted."""

    exit_code = 4


class HandoffBroken(MillraceError, RuntimeError):  # noqa: N818 - named for the state of the hand-off
    """The sending end of a hand-off failed; `__cause__` holds why."""
