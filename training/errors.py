"""The errors of training. All are `consumers.errors.MillraceError`s, so each has an exit code and names its way out.

MillraceError
├── ConfigError
│   ├── ModelError           the user's model file or model does not fit
│   └── UncapturedStateError the model holds state that no checkpoint could bring back
├── CheckpointError (exit 1)     a save failed; training goes on, the save is tried again
├── StepError (exit 1)           the model or preprocess raises, and setting records aside would not mend it
├── ProfileError (exit 1)        no profile was taken; training goes on
│   └── ProfileBusyError         one is being taken already
├── DataLossError (exit 4)
│   └── LossyRewindError     a rewind would read again what Kafka has no more
├── CorruptError (exit 4)        what is on disk is not what was written
│   └── AllCorruptError          no checkpoint that may be loaded verifies; nothing starts afresh unasked
├── NewerFormatError (exit 4)    a later version wrote it; this one neither reads nor deletes it
├── MissingCheckpointError (exit 2)  no checkpoint has that number
├── OtherModelError (exit 2)     a checkpoint of another model
├── FolderBusyError (exit 4)     another trainer holds the folder
└── PassedError (exit 4)         another trainer took over: this one must end
"""

import re

from consumers.errors import ConfigError, DataLossError, MillraceError

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_KERAS_WRAPPING = ("Exception encountered when calling", "Arguments received by")


def gist(error: BaseException) -> str:
    """What the user's own code has raised, in one line: its kind, and the first thing that it says.

    Keras puts a line of its own before what a layer raised, and colours it.
    """
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines()]
    said = next((line for line in lines if line and not line.startswith(_KERAS_WRAPPING)), "no message")
    return f"{type(error).__name__}: {said}"


class ModelError(ConfigError):
    """The user's model cannot be loaded, built or trained as it is."""


class UncapturedStateError(ConfigError):
    """The model holds state that a checkpoint could not bring back."""


class CheckpointError(MillraceError, OSError):
    """A checkpoint could not be written. Nothing was committed; the next save tries again."""

    retriable = True


class StepError(MillraceError, RuntimeError):
    """A training step or `preprocess` raised, and it is not for us to set records aside."""


class ProfileError(MillraceError, RuntimeError):
    """No profile could be taken. The learning goes on."""


class ProfileBusyError(ProfileError):
    """One is being taken already."""


class LossyRewindError(DataLossError):
    """A rewind would read again what Kafka has no more, and the settings do not allow to lose it."""


class CorruptError(MillraceError, ValueError):
    """What is on disk is not what was written."""

    exit_code = 4


class AllCorruptError(CorruptError):
    """There are checkpoints, and none that may be loaded verifies. Nothing starts afresh unless told to."""


class NewerFormatError(MillraceError, ValueError):
    """A later version of millrace wrote it: this one neither reads nor deletes it."""

    exit_code = 4


class MissingCheckpointError(MillraceError, LookupError):
    """No checkpoint has that number."""

    exit_code = 2


class OtherModelError(ConfigError):
    """A checkpoint of another model: names and shapes differ."""


class FolderBusyError(MillraceError, RuntimeError):
    """Another trainer holds the folder."""

    exit_code = 4


class PassedError(MillraceError, RuntimeError):
    """Another trainer has taken over with a greater term; this one must end and publish nothing."""

    exit_code = 4
