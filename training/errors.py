"""The errors of training. All are `consumers.errors.MillraceError`s, so each has an exit code and names its way out.

MillraceError
├── ConfigError
│   ├── ReadOnlyError        the folder of the checkpoints may be read only, and not written
│   ├── ModelError           the user's model file or model does not fit
│   └── UncapturedStateError the model holds state that no checkpoint could bring back
├── CheckpointError (exit 1)     a save failed; training continues, the save is tried again
│   └── NoRoomError              the volume has no room for it, and nothing more may be pruned
├── ExportError (exit 1)         an export could not be written; the next one tries again
│   ├── ExportBusyError          another process is exporting to the same folder
│   └── ExportRefusedError       a fresh process does not answer as the model does, so it is not published
├── StepError (exit 1)           the model or preprocess raises, and setting records aside would not help
├── ProfileError (exit 1)        no profile was taken; training continues
│   └── ProfileBusyError         another profile is being taken
├── DataLossError (exit 4)
│   └── LossyRewindError     a rewind would read again what Kafka no longer has
├── StateNotFiniteError (exit 1) the model's state holds NaN or infinity, so it is not saved
├── CorruptError (exit 4)        the files on disk are not what was written
│   └── AllCorruptError          no checkpoint that may be loaded verifies; only --start-over starts afresh
├── NewerFormatError (exit 4)    a later version wrote the file; this one neither reads nor deletes it
├── NotRebuildableError (exit 4)     a checkpoint cannot be made again of its records
├── RebuiltOtherwiseError (exit 1)   a checkpoint that was made again differs from the one that was published
├── MissingCheckpointError (exit 2)  no checkpoint has that number
├── MissingExportError (exit 2)  no export has that number
├── OtherModelError (exit 2)     the checkpoint is of another model
├── FolderBusyError (exit 4)     another trainer holds the folder
├── GroupError                   the members of a group cannot go on together; each begins again in place
│   ├── PeerLostError            one has ended, or does not answer
│   ├── NotOneGroupError         they have other settings, models or versions: exit 2
│   └── NotOneStateError         their weights or positions differ: exit 4
└── PassedError (exit 4)         another trainer took over; this one must end
"""

import re
from collections.abc import Sequence
from pathlib import Path

from millrace.consumers.errors import ConfigError, DataLossError, MillraceError
from millrace.pipelines.stream.assert_messages import noted

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_NODE = re.compile(r"\{\{(?:function_)?node ([^}]+)\}\}")
_FRAME = re.compile(r'  File "([^"\n]+)", line (\d+)')
_FRAMES = re.compile(r'Detected at node [^\n]*\n(?:  File "[^"\n]+", line \d+[^\n]*\n|\n)+')
_ROOT = Path(__file__).parents[1]
_TRACED = "in user code:"
"""How TensorFlow begins an error in a traced function; the lines of the code follow, and last what was raised."""
_IN_A_GRAPH = "Graph execution error"
"""How TensorFlow begins an error that a compiled function raised while it ran; it says no reason in that line."""
_KERAS_WRAPPING = ("Exception encountered when calling", "Arguments received by")


def gist(error: BaseException) -> str:
    """Return what the user's code raised in one line: the class, and the first line of the message.

    Keras adds a coloured line of its own before the message of a layer; it is left out.
    """
    if isinstance(error, SystemExit):
        return f"SystemExit: it calls sys.exit({error.code!r}), which would end the service; raise an error instead"
    lines = [line.strip() for line in _COLOURS.sub("", str(error)).splitlines()]
    message = next((line for line in lines if line and not line.startswith(_KERAS_WRAPPING)), "no message")
    if message.startswith(_IN_A_GRAPH):
        return op_gist(error)
    if message == _TRACED:
        message = next(line for line in reversed(lines) if line).removeprefix(f"{type(error).__name__}: ")
    return f"{type(error).__name__}: {message}{_shapes_compared(error)}"


def _shapes_compared(error: BaseException) -> str:
    """Return the shapes by record of a label and a prediction that a loss or a metric compared when this was raised.

    What Keras says of two shapes that do not fit each other seldom tells which they are.
    """
    compared, step = None, error.__traceback__
    while step is not None:
        here = step.tb_frame.f_locals
        shapes = [getattr(here.get(name), "shape", None) for name in ("y_true", "y_pred")]
        compared = compared or (shapes if None not in shapes else None)
        step = step.tb_next
    if compared is None:
        return ""
    label, prediction = (tuple(shape)[1:] for shape in compared if shape is not None)
    return "" if label == prediction else f" (by record the label's shape is {label}, the prediction's {prediction})"


def op_gist(error: BaseException, place: str | None = None) -> str:
    """Say in one line what raised and where, and what an assertion states, without the values of any record."""
    text = _COLOURS.sub("", str(error))
    node = _NODE.search(text)
    where = [node[1]] if node else []
    # The frames come first. What follows them may quote a record, whatever it looks like.
    frames = _FRAMES.search(text)
    users = [at for at in _FRAME.findall(frames[0]) if is_users(at[0])] if frames else []
    where += [f"{Path(users[-1][0]).name}, line {users[-1][1]}"] if users else []
    stated = noted(error)
    return "".join(
        (
            type(error).__name__,
            f" in {place}" if place else "",
            f" ({'; '.join(where)})" if where else "",
            f": {stated}" if stated else "",
        )
    )


def is_users(path: str) -> bool:
    """Return whether a file is the user's, and neither a library's nor one of ours."""
    return not Path(path).is_relative_to(_ROOT) and not {"site-packages", "dist-packages"} & {*Path(path).parts}


class ReadOnlyError(ConfigError):
    """The folder of the checkpoints may be read and not written, as on a volume that is mounted read-only."""


class ModelError(ConfigError):
    """The user's model cannot be loaded, built or trained as it is."""


class UncapturedStateError(ConfigError):
    """The model holds state that a checkpoint could not bring back."""


class CheckpointError(MillraceError, OSError):
    """A checkpoint could not be written. Nothing was committed; the next save tries again."""

    retriable = True


class LettersMissingError(CheckpointError):
    """Dead letters of the records before a checkpoint were not acknowledged in time, so it waits for the next save."""


class NoRoomError(CheckpointError):
    """The volume has no room for a checkpoint."""


class ExportError(MillraceError, OSError):
    """An export could not be written. The next one tries again."""

    retriable = True


class ExportBusyError(ExportError):
    """Another process is exporting to the same folder."""


class ExportRefusedError(ExportError):
    """A fresh process does not answer as the model does, so the export is not published."""

    retriable = False


class StepError(MillraceError, RuntimeError):
    """A training step or `preprocess` raised, and setting records aside is not allowed or would not help."""


class StateNotFiniteError(MillraceError, ArithmeticError):
    """The state of the model holds NaN or infinity; it is neither saved nor used any more."""

    def __init__(self, names: Sequence[str]) -> None:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        self.gist = f"NaN or infinity in {names[0]}{more}"
        super().__init__(
            f"{names[0]}{more} hold NaN or infinity, so this state is not saved, and the newest checkpoint is the last "
            "good one; a start learns again from there, and sets the records aside that are the cause"
        )


class ProfileError(MillraceError, RuntimeError):
    """No profile could be taken. The training continues."""


class ProfileBusyError(ProfileError):
    """Another profile is being taken."""


class LossyRewindError(DataLossError):
    """A rewind would read again what Kafka no longer has, and the settings do not allow to lose it."""


class CorruptError(MillraceError, ValueError):
    """The files on disk are not what was written."""

    exit_code = 4


class AllCorruptError(CorruptError):
    """There are checkpoints, but none that may be loaded verifies. Only `--start-over` starts afresh."""


class NewerFormatError(MillraceError, ValueError):
    """A later version of millrace wrote the file; this one neither reads nor deletes it."""

    exit_code = 4


class MissingCheckpointError(MillraceError, LookupError):
    """No checkpoint has that number."""

    exit_code = 2


class MissingExportError(MillraceError, LookupError):
    """No export has that number."""

    exit_code = 2


class OtherModelError(ConfigError):
    """The checkpoint is of another model: names or shapes of variables differ."""


class FolderBusyError(MillraceError, RuntimeError):
    """Another trainer holds the folder."""

    exit_code = 4


class PassedError(MillraceError, RuntimeError):
    """Another trainer has taken over with a greater term; this one must end and publish nothing more."""

    exit_code = 4


class GroupError(MillraceError, RuntimeError):
    """The members of a group cannot go on together as they are."""


class PeerLostError(GroupError):
    """Another member has ended, or does not answer; nothing in memory may be used any more."""

    retriable = True


class NotOneGroupError(GroupError):
    """The members differ in what must be the same before anything is learnt."""

    exit_code = 2


class NotOneStateError(GroupError):
    """The members' weights or positions differ, so nothing is saved."""

    exit_code = 4


class NotRebuildableError(MillraceError, RuntimeError):
    """A checkpoint cannot be made again of its records: some of them, or what it was begun with, are gone."""

    exit_code = 4


class RebuiltOtherwiseError(MillraceError, RuntimeError):
    """A checkpoint that was made again of its records differs from the one that was published."""
