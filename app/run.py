"""The process: the service on its threads, the HTTP side and the signals on the main one, and the exit code.

The main thread's loop serves HTTP; the thread `signals` waits for whoever asks for the end. When the service has ended,
the HTTP side does. What took longer than the grace is left behind, with a line that says so.
"""

import logging
import os
import sys
import threading

from app.api.server import ApiServer
from app.service.service import RunOptions, Service
from app.service.signals import FORCED, Signals
from app.settings import Loaded
from consumers.errors import MillraceError

log = logging.getLogger(__name__)
_HURRIED_S = 1.0
"""How long a start that is to end may go on with what it is at, before it is left behind."""


def run_service(loaded: Loaded, options: RunOptions, signals: Signals) -> int:
    """Run until the service ends; the exit code."""
    signals.begin()
    service = Service(loaded, options)
    server = ApiServer(service, loaded.settings.api)
    server.bind()
    watcher = threading.Thread(target=_watch, args=(signals, service, server), name="signals", daemon=True)
    service.start()
    watcher.start()
    try:
        server.serve()
    finally:
        service.stop()
    return _ending(service)


def _watch(signals: Signals, service: Service, server: ApiServer) -> None:
    """Wait for a signal or the service's end, then see the end through."""
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


def _ending(service: Service) -> int:
    """The exit code, and the line that explains it."""
    if not service.join(service.grace_left_s()):
        log.error(
            "the service did not end within stop.grace (%g s) and is left behind; the next start goes on from "
            "the newest durable checkpoint",
            service.settings.stop.grace,
        )
        sys.stderr.flush()
        os._exit(FORCED)
    error = service.error
    if error is None:
        return 0
    if isinstance(error, MillraceError):
        raise error
    return 1
