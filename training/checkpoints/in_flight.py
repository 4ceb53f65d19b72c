"""Starts: what each process had in flight when it died, for the process that starts next.

Owns `starts/<term>`, a file of fixed size for each start. Only its own process writes it, on the trainer's thread,
through a memory mapping. A call costs some microseconds and no wait for the disk, and the contents survive any death of
the process: SIGKILL, an abort, the lack of memory. They do not survive a loss of power, but no record causes one. The
whole file is written beforehand, because storing into a mapping kills the process where the disk turns out to be full.

    5f0c2b9a 00000043           CRC-32 and length of what follows; length 0: nothing is in flight
    41                          the checkpoint that the process resumed from
    clicks:0 1200 1264          a range in flight, its end excluded
    clicks:1 1190 1254

A record that the death itself has torn does not match its CRC. It counts as a death between two calls.
"""

import contextlib
import logging
import mmap
import os
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts
from millrace.training.checkpoints.folder import Folder

log = logging.getLogger(__name__)


Range = tuple[int, int]
"""First offset, and one past the last."""
_SIZE = 64 * 1024
_HEAD = re.compile(rb"([0-9a-f]{8}) (\d{8})\n")
_NOTHING = b"00000000 00000000\n"
_MOST = _SIZE - len(_NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Death:
    """A start that died in the middle of a call."""

    term: int
    """The term under which it wrote."""
    number: int
    """The checkpoint that it had resumed from."""
    in_flight: Mapping[Partition, Range]
    """What the call was learning."""


class StartRecord:
    """The file in which this process says what it has in flight."""

    def __init__(self, path: Path, number: int) -> None:
        """Create the file, durably; OSError where that fails. `number` is the checkpoint that was resumed from."""
        self._path = path
        self._began = f"{number}\n"
        path.parent.mkdir(exist_ok=True)
        with path.open("w+b") as file:
            file.write(_NOTHING.ljust(_SIZE, b"\n"))
            file.flush()
            os.fsync(file.fileno())
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    @contextmanager
    def in_flight(self, facts: BlockFacts) -> Iterator[None]:
        """Return a context for one call: its ranges stay behind where the process dies inside, not where it raises."""
        spans = [f"{span.partition} {span.start} {span.end}\n" for span in facts.spans if span.learnt]
        body = "".join([self._began, *spans]).encode()
        if len(body) > _MOST:  # some thousand partitions in one block: only those that have room are recorded
            body = body[: body.rfind(b"\n", 0, _MOST) + 1]
        line = b"%08x %08d\n%b" % (zlib.crc32(body), len(body), body)
        self._memory[: len(line)] = line
        try:
            yield
        finally:
            # An error that is raised is no death: the trainer handles it, so the record must not count.
            self._memory[: len(_NOTHING)] = _NOTHING

    def close(self) -> None:
        """Remove the file: an orderly end leaves nothing behind."""
        self._memory.close()
        _remove(self._path)


def deaths(folder: Folder, number: int, *, before_term: int) -> list[Death]:
    """Return the starts that died in a call after resuming from this checkpoint, the latest first.

    Each returned record is durable from now on. The files of other starts are removed, because their processes came
    further, or not as far as a call.
    """
    matching: list[Death] = []
    for term in sorted(folder.started_terms(), reverse=True):
        if term < before_term:
            death = _read(folder.start(term), term)
            if death is not None and death.number == number:
                matching.append(death)
            else:
                _remove(folder.start(term))
    return matching


def forget(folder: Folder) -> None:
    """Remove the files of all starts."""
    for term in folder.started_terms():
        _remove(folder.start(term))


def _read(path: Path, term: int) -> Death | None:
    try:
        with path.open("rb") as file:
            # Its process wrote through a mapping and never synced; what is counted must survive a loss of power too.
            os.fsync(file.fileno())
            raw = file.read()
    except OSError as error:
        log.warning("%s cannot be read, so that start is not counted: %s", path, error.strerror)
        return None
    head = _HEAD.match(raw)
    if head is None:
        return None
    body = raw[head.end() : head.end() + int(head[2])]
    if not body or zlib.crc32(body) != int(head[1], 16):
        return None
    number, *ranges = body.decode().splitlines()
    return Death(term=term, number=int(number), in_flight=dict(map(_range, ranges)))


def _range(line: str) -> tuple[Partition, Range]:
    partition, start, end = line.split(" ")
    return Partition.parse(partition), (int(start), int(end))


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # a file that stays is read again, with the same result
        path.unlink(missing_ok=True)
