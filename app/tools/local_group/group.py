"""A group on this machine: its workers are started together, kept running as a kubelet would, and ended in order.

Runs on the main thread, since Linux kills a worker when the thread that started it ends.
"""

import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType

from millrace.app.tools.local_group.worker import Worker

FORCED = 1
"""The exit code where a worker had to be killed."""
MISTAKE = 2
"""A worker's exit code where the config or the model is wrong: no new start mends that."""
_LOOK_EVERY_S = 0.1
_LEARNT_ALL_S = 10.0
"""How long a worker that has learnt all waits for the chief's end, before it counts as drained."""


class StopSignals:
    """Counts SIGINT and SIGTERM: the first asks for the end in order, the second forces it."""

    def __init__(self) -> None:
        self.taken = 0

    def install(self) -> None:
        """Take both signals from now on. On the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def _take(self, _number: int, _frame: FrameType | None) -> None:
        self.taken += 1


def run_group(
    workers: Sequence[Worker],
    signals: StopSignals,
    *,
    ends: bool,
    grace_s: float,
    started: Callable[[Worker], None],
) -> int:
    """Run the workers, the chief first in line, until a signal or their end; return the exit code.

    `ends` is whether the group ends by itself, once it has learnt all that it was to learn. `started` is called with
    each worker that was started, also again.
    """
    try:
        for worker in workers:
            worker.start()
            started(worker)
        while not signals.taken:
            time.sleep(_LOOK_EVERY_S)
            for worker in workers:
                worker.pass_on()
            if (code := _ended(workers, ends=ends)) is not None:
                return code
            for worker in workers:
                if worker.exit_code is not None and _again(worker, ends=ends):
                    started(worker)
        return _stop(workers, signals, grace_s)
    finally:
        _stop(workers, signals, grace_s)


def _ended(workers: Sequence[Worker], *, ends: bool) -> int | None:
    """Return the group's exit code where a worker has ended in a way that ends the group; else None."""
    if any(worker.exit_code == MISTAKE for worker in workers):
        return MISTAKE
    return 0 if ends and workers[0].exit_code == 0 else None


def _again(worker: Worker, *, ends: bool) -> bool:
    """Start a worker that has ended again, as soon as its pause is over; return whether it was started."""
    return worker.start_again(_LEARNT_ALL_S if ends and worker.exit_code == 0 else 0.0)


def _stop(workers: Sequence[Worker], signals: StopSignals, grace_s: float) -> int:
    """End all that run, by SIGTERM, and by SIGKILL after the grace or a second signal; return the chief's exit code."""
    for worker in workers:
        worker.terminate()
    ends_at = time.monotonic() + grace_s
    while any(worker.runs for worker in workers):
        if time.monotonic() > ends_at or signals.taken > 1:
            for worker in workers:
                worker.kill()
        time.sleep(_LOOK_EVERY_S)
        for worker in workers:
            worker.pass_on()
    code = workers[0].exit_code
    return FORCED if code is None or code < 0 else code
