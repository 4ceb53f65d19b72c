"""Becomes the program in its arguments, after asking Linux to kill that program when the parent's thread ends.

Runs as a file of its own, before exec, because code between fork and exec in a process with threads may deadlock. On
other systems the program just runs. Its process id stays the same.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def dying_with_parent(program: Sequence[str]) -> list[str]:
    """Return the command that runs a program which Linux kills when the thread that started it ends."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def die_with_parent() -> None:
    """Ask Linux to kill this process when the thread that started it ends; elsewhere do nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Take the parent's process id, then the program and its arguments, from the command line; become the program."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    die_with_parent()
    if os.getppid() != parent:  # the parent ended before the request took effect, so no signal would come
        sys.exit("the parent has ended")
    os.execv(program[0], program)  # noqa: S606 - our own code names the program: the bundled Java or this Python


if __name__ == "__main__":
    main()
