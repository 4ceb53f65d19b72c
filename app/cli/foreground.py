"""The local broker in the foreground: says where it is, then waits for Ctrl-C, SIGTERM or its end.

Runs on the main thread, which is where signals arrive; the handlers only set a flag.
"""

import json
import signal
import sys
import threading
from types import FrameType

from app.tools.local_broker.broker import LocalBroker
from app.tools.local_broker.errors import LocalBrokerError
from app.tools.local_broker.jars import KAFKA_VERSION, in_cache

_LOOK_EVERY_S = 0.5


def serve(broker: LocalBroker, *, as_json: bool) -> None:
    """Run the broker until a signal comes, then stop it. Its own end is an error."""
    if not in_cache():
        print(f"Getting Kafka {KAFKA_VERSION}, once: about 44 MB.", file=sys.stderr)
    ordered = threading.Event()

    def order(_number: int, _frame: FrameType | None) -> None:
        ordered.set()

    with broker:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, order)
        _announce(broker, as_json=as_json)
        while not ordered.wait(_LOOK_EVERY_S):
            if not broker.running():
                raise LocalBrokerError(f"the broker ended by itself: {broker.last_words()}")


def _announce(broker: LocalBroker, *, as_json: bool) -> None:
    if as_json:
        where = {"bootstrap_servers": broker.bootstrap_servers, "folder": str(broker.folder), "pid": broker.pid}
        print(json.dumps(where), flush=True)
    else:
        print(
            f"Kafka {KAFKA_VERSION} serves on {broker.bootstrap_servers} (process {broker.pid}, data in "
            f"{broker.folder}). Ctrl-C stops it.",
            flush=True,
        )
