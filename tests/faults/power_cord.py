"""The power cord: what a save asks of the disk, in order, and what of it would survive if the cord were pulled.

A child process makes some saves, a rewind and a pruning. What it asks of the disk is seen in two ways: by Python's
audit hooks and a wrapped fsync inside it, which runs anywhere, and by strace from outside, where there is one. Either
gives the same list of events, which `complaints` holds against the order of durability.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath

ROOT = Path(__file__).parents[2]
SAVES = 7
"""So many are made: number 0, four more, a rewind, one after it."""

_RECORDER = """
import json, os, sys

def tell(kind, *paths):
    os.write(2, (json.dumps([kind, *paths]) + "\\n").encode())

def whole(path, folder=-1):
    path = os.fsdecode(path)
    return path if folder == -1 else os.path.join(os.readlink(f"/proc/self/fd/{folder}"), path)

def heard(event, args):
    if event == "open" and not isinstance(args[0], int) and args[2] & os.O_CREAT:
        tell("create", whole(args[0]))
    elif event == "os.mkdir":
        tell("create", whole(args[0], args[2]))
    elif event in ("os.rename", "os.link"):
        tell(event[3:], whole(args[0], args[2]), whole(args[1], args[3]))
    elif event in ("os.remove", "os.rmdir"):
        tell("remove", whole(args[0], args[1]))

def synced(handle, sync=os.fsync):
    sync(handle)
    tell("sync", os.readlink(f"/proc/self/fd/{handle}"))

os.fsync = synced
sys.addaudithook(heard)
"""

_SAVES = """
import os, sys
from pathlib import Path
import numpy as np
from millrace.consumers.records import Partition
from millrace.training.checkpoints import *
from millrace.training.checkpoints.policies import KeepLast

def say(text):
    os.write(2, f'["say", "{text}"]\\n'.encode())

folder = Folder(Path(sys.argv[1]))
writer = FolderLease.acquire(folder, "a trainer")
store = CheckpointStore(folder, writer, StoreOptions(
    keep=KeepLast(2),
    before_manifest=lambda order: say("letters"),
    on_durable=lambda manifest: say(f"told {manifest.number}"),
))

def request(reason, parent, step):
    positions = {Partition("clicks", 0): 10 * step}
    return SaveRequest(reason=reason, parent=parent, step=step, incarnation=1, positions=positions)

def parts(step):
    return {"model": PartState(arrays={"w": np.full(1000, step)}), "ledger": PartState(facts={"position": 10 * step})}

parent = store.publish(request(SaveReason.START, None, 0), parts(0)).number
for step in range(1, 5):
    parent = store.publish(request(SaveReason.INTERVAL, parent, step), parts(step)).number
target = store.load_verified(3)
parent = store.publish_linked(target, {"ledger": parts(3)["ledger"]}, request(SaveReason.REWIND, 3, 3)).number
store.publish(request(SaveReason.STOP, parent, 4), parts(4))
writer.release()
"""

_CALLS = "openat,write,fsync,fdatasync,rename,renameat,renameat2,link,linkat,mkdir,mkdirat,unlink,unlinkat,rmdir"
_CALL = re.compile(r"^\d+ +(\w+)\((.*)\) += (?:0|[1-9]\d*)(?:<.*>)?$")
_PATHS = re.compile(r"(?:AT_FDCWD|\d+)<([^>]*)>(?:, \"((?:[^\"\\]|\\.)*)\")?|\"((?:[^\"\\]|\\.)*)\"")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that was asked of the disk, or said."""

    kind: str
    """create, write, sync, rename, link, remove or say."""
    path: str
    to: str = ""


def usable_strace() -> str | None:
    """Return where strace is, if it is installed and may trace."""
    strace = shutil.which("strace")
    if strace is None:
        return None
    tried = subprocess.run([strace, "-o", os.devnull, sys.executable, "-c", ""], capture_output=True, check=False)
    return strace if tried.returncode == 0 else None


def recorded(folder: Path) -> list[Event]:
    """Record the saves as the child itself sees them. It does not see what is written after a sync."""
    return list(_told(_run([sys.executable, "-c", _RECORDER + _SAVES, str(folder)])))


def traced(folder: Path, strace: str) -> list[Event]:
    """Trace the saves as the kernel sees them."""
    trace = folder.with_name("trace")
    command = [strace, "-f", "-y", "-s", "200", "-e", f"trace={_CALLS}", "-o", str(trace)]
    _run([*command, sys.executable, "-c", _SAVES, str(folder)])
    return [event for line in trace.read_text().splitlines() for event in _call(line)]


def within(events: Sequence[Event], folder: Path) -> list[Event]:
    """What becomes of the checkpoints in a folder, by paths below it, and all that was said."""
    prefix = f"{folder}/checkpoints"

    def below(path: str) -> str:
        return path.removeprefix(prefix).lstrip("/") or "."

    return [
        event if event.kind == "say" else Event(event.kind, below(event.path), event.to and below(event.to))
        for event in events
        if event.kind == "say" or event.path.startswith(f"{prefix}/") or event == Event("sync", prefix)
    ]


def _run(command: Sequence[str]) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def _told(text: str) -> Iterator[Event]:
    return (Event(*json.loads(line)) for line in text.splitlines() if line.startswith('["'))


def _call(line: str) -> Iterator[Event]:
    """Parse one line of strace into events, for a call that succeeded."""
    found = _CALL.match(line)
    if found is None:
        return
    name, arguments = found.groups()
    paths = [str(PurePath(one[0]) / one[1]) if one[0] else one[2] for one in _PATHS.findall(arguments)]
    match name:
        case "write" if arguments.startswith("2<"):
            yield from _told(json.loads(f'"{_PATHS.findall(arguments)[0][1]}"'))
        case "openat" if "O_CREAT" in arguments:
            yield Event("create", paths[0])
        case "mkdir" | "mkdirat":
            yield Event("create", paths[0])
        case "write":
            yield Event("write", _PATHS.findall(arguments)[0][0])
        case "fsync" | "fdatasync":
            yield Event("sync", paths[0])
        case "rename" | "renameat" | "renameat2" | "link" | "linkat":
            yield Event(name.removesuffix("2").removesuffix("at"), paths[0], paths[1])
        case "unlink" | "unlinkat" | "rmdir":
            yield Event("remove", paths[0])


def complaints(events: Sequence[Event]) -> list[str]:
    """Describe where the order of durability is broken."""
    disk = _Disk()
    return [complaint for event in events for complaint in disk.take(event)]


@dataclass(slots=True)
class _Disk:
    """What would be missing if the cord were pulled now."""

    unwritten: set[PurePath] = field(default_factory=set)
    """Files whose contents are not synced."""
    unnamed: defaultdict[PurePath, set[PurePath]] = field(default_factory=lambda: defaultdict(set))
    """By folder: names in it that are not synced."""
    acknowledged: bool = False
    """Whether the dead letters are, for the save under way."""
    untold: set[PurePath] = field(default_factory=set)
    """Checkpoints that have their number, and nobody was told."""

    def take(self, event: Event) -> Iterator[str]:
        """Move on; what breaks the order is a complaint."""
        path, to = PurePath(event.path), PurePath(event.to)
        match event.kind:
            case "create":
                yield from self._created(path)
            case "write":
                self.unwritten.add(path)
            case "sync":
                self.unwritten.discard(path)
                self.unnamed[path].clear()
            case "link":
                self.unnamed[to.parent].add(to)
            case "rename":
                yield from self._renamed(path, to)
            case "remove":
                if path.parent in self.unnamed[path.parent.parent]:
                    yield f"(6) {path} is removed while its folder may still bear its number"
                self.unwritten.discard(path)
                self.unnamed[path.parent].discard(path)
            case "say" if event.path == "letters":
                self.acknowledged = True
            case "say":
                yield from self._said(event.path)

    def _created(self, path: PurePath) -> Iterator[str]:
        if path.name == "manifest.json":
            if missing := self._missing(path.parent, names=False):
                yield f"(3) {path} is begun before (2) is done: {missing}"
            if not self.acknowledged:
                yield f"(3) {path} is begun before the dead letters are acknowledged"
        if path.parent != PurePath():  # those are files
            self.unwritten.add(path)
        self.unnamed[path.parent].add(path)

    def _renamed(self, path: PurePath, to: PurePath) -> Iterator[str]:
        if path.name.startswith(".saving-"):
            if missing := self._missing(path):
                yield f"(4) {path} gets its number before it is whole: {missing}"
            self.untold.add(to)
        elif self.untold:
            yield f"(6) {path} is pruned before (5) {', '.join(map(str, self.untold))} was told"
        self.unnamed[path.parent].discard(path)
        self.unnamed[to.parent].add(to)

    def _said(self, text: str) -> Iterator[str]:
        path = PurePath(f"{int(text.removeprefix('told ')):010d}")
        if path not in self.untold:
            yield f"(5) {path} is told before (4) it has its number"
        if missing := self._missing(path) or (path in self.unnamed[path.parent] and f"the name {path}"):
            yield f"(5) {path} is told before it is durable: {missing}"
        self.untold.discard(path)
        self.acknowledged = False

    def _missing(self, folder: PurePath, *, names: bool = True) -> str:
        unwritten = [str(path) for path in sorted(self.unwritten) if path.parent == folder]
        return ", ".join(unwritten + [f"the name {path}" for path in sorted(self.unnamed[folder]) if names])
