"""Watches a service until Ctrl-C: reads its status once a second and draws it. Runs on the caller's thread.

While a service does not answer, the view stays and shows for how long: the service may be restarting.
"""

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from rich.console import Console
from rich.live import Live

from millrace.app.tools.service_client import Remote
from millrace.app.tools.status.status_readings import StatusReadings
from millrace.app.tools.status.status_view import drawn
from millrace.consumers.errors import UnreachableError

_EVERY_S = 1.0
_ANSWER_S = 3.0


def watch(remote: Remote, first: Mapping[str, Any], screen: Console) -> None:
    """Show the service until Ctrl-C."""
    watched, heard = StatusReadings.of(first), time.monotonic()
    with suppress(KeyboardInterrupt), Live(drawn(watched), console=screen, auto_refresh=False) as live:
        while True:
            live.update(drawn(watched), refresh=True)
            time.sleep(_EVERY_S)
            try:
                watched.see(remote.ask("/status", within_s=_ANSWER_S))
                heard = time.monotonic()
            except UnreachableError:
                watched.miss(time.monotonic() - heard)
