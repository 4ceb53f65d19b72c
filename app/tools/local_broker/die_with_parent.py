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


def dying_with_us(program: Sequence[str]) -> list[str]:
    """The command that runs a program so that it is killed when the thread ends that starts it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *program]


def main() -> None:
    """Take the parent's process id, then the program and its arguments."""
    parent, program = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before the request took hold
        sys.exit("the parent has ended")
    os.execv(program[0], program)  # noqa: S606 - the program is the bundled Java or ours, named by our own code


if __name__ == "__main__":
    main()
