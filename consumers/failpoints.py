"""Failpoints: named points in the code at which a test makes the process die, stop, wait or fail.

Owns the list of names and the armed actions; runs on the thread that passes the point. Nothing is armed unless the
environment variable is set when this module is imported. A point that is not armed costs one lookup in an empty dict.

    MILLRACE_FAILPOINTS="save.before_manifest=kill:after=3, commit.before=sleep:0.5:once"

Actions: `kill` (SIGKILL to itself), `stop` (SIGSTOP to itself), `raise` (FailpointError), `full` (the OSError of a full
disk), `sleep:SECONDS`. `:after=N` ignores the first N hits; `:once` acts a single time. Each action first writes a line
to standard error, so that a test can prove that its fault has hit.
"""

import errno
import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from millrace.consumers.errors import ConfigError

VARIABLE = "MILLRACE_FAILPOINTS"

NAMES: Mapping[str, str] = {
    "term.before_record": "the folder is taken, the record of the term is not written",
    "term.after_record": "the record of the term is durable, those that it holds are not removed",
    "start.before_zero": "positions are resolved, number 0 is not published",
    "start.after_zero": "number 0 is durable, nothing was fetched",
    "restore.before": "a checkpoint is chosen, its state is not loaded",
    "restore.after": "the state is loaded, nothing was fetched",
    "call.before": "a block has arrived, its call has not begun",
    "call.after": "a call has returned, the ledger has not moved",
    "call.settled": "the ledger has moved",
    "save.before_data": "the state is copied, nothing is written",
    "save.after_data": "every file is written and synced, under a temporary name",
    "save.before_manifest": "dead letters are acknowledged and the term is checked; no manifest yet",
    "save.after_manifest": "the manifest is synced, still under a temporary name",
    "journal.after_segment": "the journal has a checkpoint's segment, the checkpoint has no number yet",
    "save.after_rename": "the checkpoint is durable, no listener was notified",
    "save.before_prune": "all listeners were notified, nothing is pruned",
    "pins.before_rename": "a checkpoint may go and is not pinned, it has its number",
    "pins.before_second_look": "a checkpoint that may go has lost its number, its pins are not read again",
    "prune.before_files": "a checkpoint that may go has lost its number, its files are there",
    "commit.before": "a checkpoint is durable, its positions are not committed",
    "commit.after": "its positions are committed",
    "rewind.before_order": "the stream has stopped, the rewind is not published",
    "rewind.after_order": "the rewind is durable, nothing was loaded",
    "rewind.after_restore": "the target's state is loaded, no position was sought",
    "fallback.before_restore": "a call has raised, the stream has stopped, the durable state is not loaded",
    "fallback.after_restore": "the durable state is loaded, no position was sought",
    "careful.culprit": "a culprit is found, its block is not settled",
    "group.before_meeting": "all workers have come to the lobby, this one has not met the others yet",
    "group.before_share": "all workers have agreed to save, this one has given nothing yet",
    "group.after_share": "all have given their shares, the chief has not begun the save",
    "group.before_stream": "the chief's state is taken over, nothing was fetched",
    "export.before_save": "a checkpoint is verified and its model built, nothing is written",
    "export.after_proof": "a fresh process has answered as the model does, the export's files are not synced",
    "export.after_files": "every file of the export is synced under a temporary name, its manifest is not written",
    "export.before_rename": "the export's manifest is synced, the export has no number yet",
    "export.after_rename": "the export has its number, which is not synced",
    "export.before_files_go": "an export that may go has lost its number, its files are there",
    "announce.before_note": "a version's record is acknowledged, which is not written down",
    "mirror.before_marker": "every file of a checkpoint is in the mirror, its marker is not",
    "mirror.before_files_go": "a mirrored checkpoint that may go has lost its marker, its files are there",
    "mirror.before_rename": "a mirrored checkpoint is on the volume again, it has no number there yet",
    "archive.after_data": "a shard is written and synced under a temporary name, its description is not",
    "archive.after_facts": "the shard's description is durable, the shard has no name yet",
    "archive.after_rename": "the shard has its name, which is not synced",
}
"""Every failpoint, and what is true when it is passed."""


class FailpointError(RuntimeError):
    """An armed failpoint raised; in a test it stands for a crash."""


@dataclass(slots=True, kw_only=True)
class _Action:
    action: str
    seconds: float = 0.0
    after: int = 0
    once: bool = False
    hits: int = 0
    spent: bool = False


_armed: dict[str, _Action] = {}
_lock = threading.Lock()


def failpoint(name: str) -> None:
    """Pass the point `name`. Nothing happens unless it is armed."""
    if _armed:
        _pass(name)


def arm(text: str) -> None:
    """Replace everything that is armed by `text`, written as in the environment variable. An empty text disarms all."""
    faults = dict(_parse(entry.strip()) for entry in text.split(",") if entry.strip())
    with _lock:
        _armed.clear()
        _armed.update(faults)


def _pass(name: str) -> None:
    with _lock:
        fault = _armed.get(name)
        if fault is None or fault.spent:
            return
        fault.hits += 1
        if fault.hits <= fault.after:
            return
        fault.spent = fault.once
    # Unbuffered, because the action may kill the process. Outside of the lock, because it may sleep, and other threads
    # pass points meanwhile.
    os.write(2, f"failpoint {name}: {fault.action}\n".encode())
    match fault.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "sleep":
            time.sleep(fault.seconds)
        case "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case _:
            raise FailpointError(name)


def _parse(entry: str) -> tuple[str, _Action]:
    name, _, rest = entry.partition("=")
    action, *options = rest.split(":")
    if name not in NAMES or action not in {"kill", "stop", "raise", "full", "sleep"}:
        raise ConfigError(f"{VARIABLE}: {entry!r} is not a failpoint; write name=kill|stop|raise|full|sleep:SECONDS")
    fault = _Action(action=action)
    try:
        if action == "sleep":
            fault.seconds = float(options.pop(0))
        for option in options:
            if option == "once":
                fault.once = True
            else:
                fault.after = int(option.removeprefix("after="))
    except (IndexError, ValueError) as error:
        raise ConfigError(f"{VARIABLE}: {entry!r}: options are :after=N and :once, seconds are a number") from error
    return name, fault


arm(os.environ.get(VARIABLE, ""))
