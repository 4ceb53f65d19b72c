"""The errors of `consumers`, from which all other errors of the project derive.

    MillraceError                 an error that a user can correct
    ├── ConfigError (ValueError)      an invalid setting, model or schema: exit 2
    ├── UnreachableError (ConnectionError)   no answer, or none yet: exit 3, retriable
    │   ├── ArchiveAwayError          the object store of the archive, or of the mirror, does not answer, or refuses
    │   └── NotYetError               what decoding a chunk needs is not known yet: it can be decoded later
    ├── TopicMissingError (LookupError)      exit 3
    ├── DataLossError (RuntimeError)  continuing would lose or repeat records: exit 4
    │   ├── TopicRecreatedError       the topic was deleted and created again under the same name
    │   └── ArchiveDamagedError       the archive is not what was written
    ├── ArchiveBusyError (RuntimeError)      another process writes into the archive: exit 4
    ├── SourceError (RuntimeError)    Kafka refuses permanently: authorization, a corrupt log
    └── HandoffBroken (RuntimeError)  the other end of the hand-off failed

    HandoffSignal                 the other states of a hand-off: not errors, their text is never shown
    ├── HandoffEmpty (TimeoutError)   nothing arrived in time, or the receiver was woken
    ├── HandoffEnded (EOFError)       everything was sent and received
    └── HandoffClosed (BrokenPipeError)      the receiver has closed the hand-off

    DeadLettersStopped            the dead letters were stopped

Every text says what is wrong, with which value, and what to do. `exit_code` is the exit code of the command line.
"""

import re
from collections.abc import Mapping

from millrace.consumers.records import Partition

_ADDRESS = re.compile(r"\(['\"]([^'\"]*)['\"], (\d+), <AddressFamily\.\w+: \d+>\)")
_CLAUSE_ENDS = re.compile(r"; |\. |: (?=\w+-?\w*\.sh\b)")


def text_of(error: BaseException) -> str:
    """Return what a library raised in one line: its type once, and addresses as `host:port`.

    aiokafka's errors have their type in their text, and may show addresses as Python writes them.
    """
    name = type(error).__name__
    text = _ADDRESS.sub(r"\1:\2", " ".join(str(error).split()))
    if not text:
        return name
    return text if name in text else f"{name}: {text}"


def first_clause(text: str) -> str:
    """Return what an error says is wrong, without what it says to do about it."""
    return _CLAUSE_ENDS.split(text, maxsplit=1)[0].rstrip(".;: ")


class MillraceError(Exception):
    """An error that a user can correct: shown as one line, without a traceback."""

    exit_code = 1
    retriable = False


class ConfigError(MillraceError, ValueError):
    """A setting, a model or a schema is invalid."""

    exit_code = 2


class UnreachableError(MillraceError, ConnectionError):
    """Kafka does not answer at the address in the settings."""

    exit_code = 3
    retriable = True


class ArchiveAwayError(UnreachableError):
    """The object store of the archive or the mirror does not answer, or refuses. Nothing is said of what it holds."""


class NotYetError(UnreachableError):
    """What decoding a chunk needs, as the schema of its records, is not known yet. The same chunk can be decoded later.

    Its text says what is needed, from where, and why it is not there.
    """


class TopicMissingError(MillraceError, LookupError):
    """The topic does not exist."""

    exit_code = 3


class DataLossError(MillraceError, RuntimeError):
    """Continuing would lose or repeat records, and no setting permits that."""

    exit_code = 4


class TopicRecreatedError(DataLossError):
    """The topic was deleted and created again under the same name, so its offsets mean other records."""

    def __init__(self, text: str, beginnings: Mapping[Partition, int], *, fatal: bool = True) -> None:
        super().__init__(text)
        self.beginnings = dict(beginnings)
        """The first offset that each affected partition has now."""
        self.fatal = fatal
        """Whether the trainer must end; False where the settings permit to start at the first record."""


class ArchiveDamagedError(DataLossError):
    """A shard of the archive, or the file that describes it, is not what was written."""


class ArchiveBusyError(MillraceError, RuntimeError):
    """Another process writes into the archive."""

    exit_code = 4


class SourceError(MillraceError, RuntimeError):
    """Kafka refuses permanently; a retry would not help."""


class HandoffBroken(MillraceError, RuntimeError):  # noqa: N818 - named for the state of the hand-off
    """The sending end of a hand-off failed."""

    def __init__(self, text: str, *, exit_code: int = 1, why: BaseException | None = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.why = why
        """The sender's error. Unlike `__cause__` it stays when this error is raised again from another one."""


class HandoffSignal(Exception):  # noqa: N818 - a state of the hand-off, no error
    """A state of the hand-off that the caller handles."""


class HandoffEmpty(HandoffSignal, TimeoutError):  # noqa: N818 - a state of the hand-off, no error
    """Nothing arrived in time, or the receiver was woken."""


class HandoffEnded(HandoffSignal, EOFError):  # noqa: N818 - a state of the hand-off, no error
    """The sender has ended, and nothing is left that the receiver would take."""


class HandoffClosed(HandoffSignal, BrokenPipeError):  # noqa: N818 - a state of the hand-off, no error
    """The receiver has closed the hand-off, which accepts nothing more."""


class DeadLettersStopped(Exception):  # noqa: N818 - a state of the dead letters, no error
    """The caller gave up waiting for room, or the dead letters were stopped. The letter was not accepted."""
