"""A run of the demo from beginning to end, whatever ends it: its time, a signal, an error. Runs on the main thread.

The first Ctrl-C or SIGTERM begins the orderly end, the second ends the process at once, and its children with it.
"""

import json
import os
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

from app.tools.demo.demo import Demo, DemoOptions
from app.tools.demo.screen import Screen
from app.tools.demo.workspace import Workspace

FORCED = 1
"""The exit code of an end that was forced."""


class _Leaving(BaseException):
    """Somebody wants to leave; no error, and nothing that handles errors may take it for one."""


def run(home: Workspace, screen: Screen, *, for_s: float | None, api_port: int | None) -> Mapping[str, Any]:
    """Run it, write the report, and give it."""
    demo = Demo(DemoOptions(home=home, for_s=for_s, api_port=api_port), screen)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _leave)
    try:
        demo.start()
        demo.watch()
    except _Leaving:
        pass
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _force)
        report = demo.end()
    home.report.write_text(json.dumps(report, indent=2) + "\n")
    return report


def _leave(_number: int, _frame: FrameType | None) -> None:
    signal.signal(signal.SIGINT, _force)
    signal.signal(signal.SIGTERM, _force)
    raise _Leaving


def _force(_number: int, _frame: FrameType | None) -> None:
    os._exit(FORCED)
