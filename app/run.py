"""The process: the service on its threads, the HTTP side and the signals on the main one, and the exit code.

The main thread's loop serves HTTP; the thread `signals` waits for a signal or the service's end. The HTTP side ends
after the service. Where the end takes longer than the grace, the process exits without waiting, and logs that.
"""

import logging
import os
import sys
import threading

from millrace.app.api.server import ApiServer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.verdict import ending_of
from millrace.app.service.beginning_again import begin_again
from millrace.app.service.process import FORCED, Signals
from millrace.app.service.service import RunOptions, Service
from millrace.app.settings import Loaded
from millrace.consumers.errors import MillraceError

log = logging.getLogger(__name__)
_HURRIED_S = 1.0
"""How long a stop waits for a start that is still under way, before the process exits without waiting."""


def run_service(loaded: Loaded, options: RunOptions, signals: Signals) -> int:
    """Run until the service ends; return the exit code."""
    signals.begin()
    service = service_of(loaded, options)
    server = ApiServer(service, loaded.settings.api)
    server.bind()
    watcher = threading.Thread(target=_watch, args=(signals, service, server), name="signals", daemon=True)
    service.start()
    watcher.start()
    try:
        server.serve()
    finally:
        service.stop()
    # The exit code, and a line that explains it.
    if not service.join(service.grace_left_s()):
        log.error(
            "the service did not end within stop.grace (%g s) and was not waited for; the next start "
            "resumes from the newest durable checkpoint",
            service.settings.stop.grace,
        )
        sys.stderr.flush()
        os._exit(FORCED)
    error = service.error
    if (again := service.again()) is not None:
        begin_again(again, signals.asked)
        log.info("ended before it met its group again: there is nothing to save")
        return 0
    if error is None:
        if (summary := ending_of(take(service))) is not None:
            log.info("ended: %s", summary)
        return 0
    if isinstance(error, MillraceError):
        raise error
    return 1


def service_of(loaded: Loaded, options: RunOptions) -> Service:
    """Return the service: of this process alone, or of one worker of a group."""
    if loaded.settings.scale.workers == 1:
        return Service(loaded, options)
    from millrace.app.service.group_service import GroupService  # noqa: PLC0415 - nothing of it is loaded for one process alone

    return GroupService(loaded, options)


def _watch(signals: Signals, service: Service, server: ApiServer) -> None:
    """Wait for a signal or the service's end, then carry the end out."""
    while not signals.asked.wait(0.1):
        if service.join(0.0):
            server.stop()
            return
    service.stop()
    if not service.join(_HURRIED_S) and service.nothing_to_save and service.error is None:
        log.info("ended while starting: nothing was learnt yet, so there is nothing to save")
        sys.stderr.flush()
        os._exit(0)  # a model's tracing cannot be interrupted, and may take longer than any grace
    service.join(service.grace_left_s())
    server.stop()
