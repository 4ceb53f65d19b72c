"""The process of one worker of a trial's group: it learns as `run` does, and prints what it has learnt.

Its arguments are the config file and the folder for checkpoints; which worker it is comes with the environment. Each
line that it prints on stdout is a JSON object: calls and records as they grow, and once a second what limits it.
Whoever has started it kills it.
"""

import json
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from millrace.app.monitoring.observer import LOOK_EVERY_S, Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.service.group_service import GroupService
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.service.service import RunOptions
from millrace.app.settings import Loaded, load
from millrace.app.tools.bench.trial import POLL_S, limits_of, set_apart
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.positions import Now


def main() -> int:
    """Learn until all is learnt that was there; return the exit code."""
    config, folder = sys.argv[1:]
    found = load(config)
    settings = found.settings
    configure(name=settings.name, form=settings.logs.format, level="warning")
    load_tensorflow()
    apart = Loaded(set_apart(settings, Path(folder), settings.scale), found.origins)
    service = GroupService(apart, RunOptions(until=Now(), commits=False))
    service.start()
    observer = Observer(partial(take, service))
    calls, looked_at, over = 0, float("-inf"), False
    while not over:
        over = service.join(POLL_S)
        metered = service.meter.snapshot()
        if metered.calls > calls:
            calls = metered.calls
            _say(calls=calls, learnt=metered.learnt)
        if over or time.monotonic() - looked_at >= LOOK_EVERY_S:
            looked_at = time.monotonic()
            _say(limits=asdict(limits_of(observer.look())))
    if service.error is None:
        return 0
    code = getattr(service.error, "exit_code", MillraceError.exit_code)
    _say(error=" ".join(str(service.error).split()), exit_code=code)
    return int(code)


def _say(**facts: Any) -> None:
    sys.stdout.write(f"{json.dumps(facts)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
