"""A container made by hand: a root of its own that is read-only, a numbered user without rights, and named mounts.

What an engine would do with an image and a pod's spec, as far as the process can tell: its own mounts and process ids,
no new privileges, no capabilities. Network and kernel are the machine's, and seccomp is not set. Needs root.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.manifests import ROOT

_OF_THE_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib64")
_OF_ETC = ("/etc/hosts", "/etc/ld.so.cache", "/etc/ssl")
_DIES_WITH_ITS_PARENT = ("setpriv", "--pdeathsig", "KILL")
_DEVICES = ("null", "zero", "full", "random", "urandom")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A folder of the machine, at its place in the sandbox."""

    source: Path
    target: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Sandbox:
    """How a process is shut in."""

    user: int
    group: int
    environment: Mapping[str, str]
    workdir: str
    mounts: Sequence[Mount]

    def start(self, command: Sequence[str], root: Path, output: Path) -> subprocess.Popen[bytes]:
        """Start it as process 1; `root` is an empty folder. Both streams go to `output`, and it dies with us."""
        script = "\n".join(["set -eu", "umask 022", *self._lines(root, command)])
        apart = [*_DIES_WITH_ITS_PARENT, "unshare", "--mount", "--pid", "--fork", "--propagation", "private"]
        with output.open("ab") as log:
            return subprocess.Popen([*apart, "sh", "-c", script], stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _lines(self, root: Path, command: Sequence[str]) -> Iterator[str]:
        yield f"mount -t tmpfs -o mode=755 root {root}"
        for name in (*_OF_THE_SYSTEM, *_OF_ETC, "/sys", sys.base_prefix, ROOT, sys.prefix):
            yield from _shown(root, Path(name))
        yield from _bound(root, Mount(source=Path(sys.prefix), target="/opt/millrace", read_only=True))
        yield f"mkdir {root}/dev {root}/proc && mount -t proc proc {root}/proc"
        for name in _DEVICES:
            yield f"touch {root}/dev/{name} && mount --bind /dev/{name} {root}/dev/{name}"
        for mount in self.mounts:
            yield from _bound(root, mount)
        yield f"mount -o remount,ro {root} && cd {root}"
        # What is asked for here outlives the change of user, which unshare's own --kill-child does not.
        dies = shlex.join(_DIES_WITH_ITS_PARENT[1:])
        yield f"exec chroot . setpriv {dies} {self._as_the_user(command)}"

    def run_beside(self, inner: int, command: Sequence[str], within_s: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a further process where that one is, as the same user with the same environment, to its end."""
        there = f"nsenter --target {inner} --mount --pid --root setpriv {self._as_the_user(command)}"
        return subprocess.run(
            ["sh", "-c", there], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=within_s, check=False
        )

    def _as_the_user(self, command: Sequence[str]) -> str:
        """Return the arguments of `setpriv`."""
        settings = [f"{name}={value}" for name, value in self.environment.items()]
        inside = f"cd {self.workdir} && exec {shlex.join(['env', '-i', *settings, *command])}"
        who = f"--reuid {self.user} --regid {self.group} --clear-groups"
        rights = "--no-new-privs --bounding-set=-all --inh-caps=-all"
        return f"{who} {rights} sh -c {shlex.quote(inside)}"


def _shown(root: Path, path: Path) -> Iterator[str]:
    """What the machine has, at the same place, as it is there: to be read, and a link where it is one."""
    if path.is_symlink():
        yield f"ln -s {path.readlink()} {root}{path}"
    elif path.exists():
        yield from _bound(root, Mount(source=path, target=str(path), read_only=True))


def _bound(root: Path, mount: Mount) -> Iterator[str]:
    target = f"{root}{mount.target}"
    if mount.source.is_dir():
        yield f"mkdir -p {target}"
    else:
        yield f"mkdir -p {Path(target).parent} && touch {target}"
    yield f"mount --bind {mount.source} {target}"
    if mount.read_only:
        yield f"mount -o remount,bind,ro {target}"


def inner_process(process: subprocess.Popen[bytes]) -> int | None:
    """Return the id, outside, of the process that is number 1 inside; None while there is none yet."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(children[0]) if children else None


def may_shut_in() -> bool:
    """Return whether this user may make a sandbox."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return False
    tried = subprocess.run(
        ["unshare", "--mount", "--pid", "--fork", "sh", "-c", "mount -t tmpfs none /tmp && mount -t proc proc /proc"],
        capture_output=True,
        check=False,
        timeout=30,
    )
    return tried.returncode == 0
