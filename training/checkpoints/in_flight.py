"""Starts: what each process had in flight when it died, for the one that starts next.

Owns `starts/<term>`, a file of fixed size for each start, written by its own process alone, on the trainer's thread,
through a mapping into memory. A call costs it some microseconds and waits for no disk, and what stands there stays,
whatever the process dies of: SIGKILL, an abort, the lack of memory. A machine that loses power loses it, which no
record brings about. The room is allotted beforehand, since storing into a mapping kills where the disk turns out full.

    5f0c2b9a 00000043           CRC-32 and length of what follows; length 0: nothing is in flight
    41                          the checkpoint that it has gone on from
    clicks:0 1200 1264          a range in flight, its end excluded
    clicks:1 1190 1254

What was torn by the death itself does not match its CRC, and counts as nothing in flight: between two calls.
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

from consumers.records import Partition
from pipelines.blocks import BlockFacts
from training.checkpoints.folder import Folder

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
    """Under which it wrote."""
    number: int
    """The checkpoint that it had gone on from."""
    in_flight: Mapping[Partition, Range]
    """What the call was learning."""


class StartRecord:
    """The file of this process."""

    def __init__(self, path: Path, number: int) -> None:
        """Create it, durably; OSError where that cannot be."""
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
        """Around a call: only a death leaves what it says behind, an error does not."""
        spans = [f"{span.partition} {span.start} {span.end}\n" for span in facts.spans if span.learnt]
        body = "".join([self._began, *spans]).encode()
        if len(body) > _MOST:  # some thousand partitions in one block: those that have room must do
            body = body[: body.rfind(b"\n", 0, _MOST) + 1]
        line = b"%08x %08d\n%b" % (zlib.crc32(body), len(body), body)
        self._memory[: len(line)] = line
        try:
            yield
        finally:
            self._memory[: len(_NOTHING)] = _NOTHING

    def close(self) -> None:
        """An end that is no death: nothing of it stays."""
        self._memory.close()
        _remove(self._path)


def deaths(folder: Folder, number: int, *, before_term: int) -> list[Death]:
    """The starts that died in a call after going on from this checkpoint, the latest first.

    Each that is told of is durable from now on. What other starts left is removed: they came further, or nowhere.
    """
    found: list[Death] = []
    for term in sorted(folder.started_terms(), reverse=True):
        if term < before_term:
            death = _read(folder.start(term), term)
            if death is not None and death.number == number:
                found.append(death)
            else:
                _remove(folder.start(term))
    return found


def forget(folder: Folder) -> None:
    """Remove what every start has left."""
    for term in folder.started_terms():
        _remove(folder.start(term))


def _read(path: Path, term: int) -> Death | None:
    try:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            raw = file.read()
    except OSError as error:
        log.warning("%s cannot be read, so that start counts for nothing: %s", path, error.strerror)
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
    with contextlib.suppress(OSError):  # one that stays is read again, and says the same
        path.unlink(missing_ok=True)
