"""The errors of the left side.

    MillraceError                 everything that names its way out
    ├── ConfigError (ValueError)      a setting that cannot be: exit 2
    ├── UnreachableError (ConnectionError)   nobody answers, or not yet: exit 3, retriable
    ├── TopicMissingError (LookupError)      exit 3
    ├── DataLossError (RuntimeError)  going on would lose or repeat records: exit 4
    │   └── TopicRecreatedError       another topic stands under the name of the one that was learnt
    ├── SourceError (RuntimeError)    Kafka refuses for good: authorization, a corrupt log
    └── HandoffBroken (RuntimeError)  the other end of the hand-off failed

    HandoffSignal                 the other states of a hand-off: no errors, nobody reads their text
    ├── HandoffEmpty (TimeoutError)   nothing arrived in time, or the receiver was woken
    ├── HandoffEnded (EOFError)       all was sent, and all of it received
    └── HandoffClosed (BrokenPipeError)      the receiver has left

    DeadLettersStopped            the caller gave up, or the dead letters were stopped

Every text says what, which value, and what to do. `exit_code` is what the command line ends with.
"""

from collections.abc import Mapping

from consumers.records import Partition


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


class TopicRecreatedError(DataLossError):
    """Another topic stands under the name of the one that was learnt; its offsets mean other records."""

    def __init__(self, text: str, beginnings: Mapping[Partition, int], *, fatal: bool = True) -> None:
        super().__init__(text)
        self.beginnings = dict(beginnings)
        """The first offset of each partition of it that was to be read further on."""
        self.fatal = fatal
        """Whether nobody has said that it may be begun anew."""


class SourceError(MillraceError, RuntimeError):
    """Kafka refuses for good, and asking again would not help."""


class HandoffBroken(MillraceError, RuntimeError):  # noqa: N818 - named for the state of the hand-off
    """The sending end of a hand-off failed."""

    def __init__(self, text: str, *, exit_code: int = 1, why: BaseException | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.why = why
        """What it failed with; unlike `__cause__` it stays when this is raised again from something else."""


class HandoffSignal(Exception):  # noqa: N818 - a state of the hand-off, no error
    """A state of the hand-off that its user acts upon."""


class HandoffEmpty(HandoffSignal, TimeoutError):  # noqa: N818 - a state of the hand-off, no error
    """Nothing arrived in time, or the receiver was woken."""


class HandoffEnded(HandoffSignal, EOFError):  # noqa: N818 - a state of the hand-off, no error
    """All was sent, and nothing is left that the receiver would take."""


class HandoffClosed(HandoffSignal, BrokenPipeError):  # noqa: N818 - a state of the hand-off, no error
    """The receiver has left: nothing more is taken."""


class DeadLettersStopped(Exception):  # noqa: N818 - a state of the dead letters, no error
    """The caller gave up waiting for room, or the dead letters were stopped. The letter was not taken."""
