"""A trial of a user's model on the user's records, on this machine, by this process alone.

Runs the service as `run` does, on threads of its own, from the earliest record that Kafka has; the caller waits. It
leaves no trace: checkpoints go to a temporary folder, no offset is committed, no dead letter is sent. It ends after the
given time, or with the last record that was there when it began.
"""

import json
import sys
import tempfile
import threading
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from millrace.app.monitoring.observer import LOOK_EVERY_S, Observation, Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.throughput import throughput_of
from millrace.app.service.group_service import GroupService
from millrace.app.service.logs import configure
from millrace.app.service.native_log import load_tensorflow
from millrace.app.service.service import RunOptions, Service
from millrace.app.service.step_numbers import recorded, with_numbers
from millrace.app.settings import Loaded, Settings, load
from millrace.app.settings.sections.scale import ScaleSettings
from millrace.app.tools.bench.measure import Interval, Limits, Trial
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.positions import Now

POLL_S = 0.05


def bench(loaded: Loaded, seconds: float) -> Trial:
    """Run the trial. Raises what a start would raise, and MillraceError where there are too few records."""
    ended, interval = threading.Event(), Interval(seconds)
    settings = loaded.settings
    with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
        apart = Loaded(set_apart(settings, Path(folder), ScaleSettings()), loaded.origins)
        service = Service(apart, RunOptions(until=Now(), commits=False), on_end=ended.set)
        service.start()
        try:
            # Watch until the service ends or the measurement is complete; return the last observation.
            observer = Observer(partial(take, service))
            looked_at = float("-inf")
            while not ended.wait(POLL_S) and not _complete(service, interval):
                if (now := time.monotonic()) - looked_at >= LOOK_EVERY_S:
                    observer.look()
                    looked_at = now
            _complete(service, interval)
            observation = observer.look()
        finally:
            service.stop()
            service.join(service.grace_left_s())
    if service.error is not None:
        raise service.error
    return interval.trial(settings.name, settings.kafka.topics, limits_of(observation))


def set_apart(settings: Settings, folder: Path, scale: ScaleSettings) -> Settings:
    """Return the settings changed so that nothing is touched that others see."""
    if (found := recorded(settings)) is not None:
        settings = with_numbers(settings, found[0])
    changes = {
        "kafka": {"group": f"millrace-bench-{settings.name}", "start": "earliest", "out_of_range": "earliest"},
        "checkpoints": {"path": folder},
        "model": {"initial_weights": None},
    }
    parts = {name: getattr(settings, name).model_copy(update=update) for name, update in changes.items()}
    letters = settings.records.dead_letters.model_copy(update={"topic": None})
    parts["records"] = settings.records.model_copy(update={"dead_letters": letters})
    return settings.model_copy(update={**parts, "scale": scale})


def limits_of(observation: Observation) -> Limits:
    """Return what holds the trainer back."""
    throughput = throughput_of(observation)
    return Limits(
        arriving_per_s=throughput.arriving_per_s,
        bound_by=throughput.bound_by,
        waiting=throughput.waiting,
        advice=throughput.advice,
    )


def _complete(service: Service, interval: Interval) -> bool:
    metered = service.meter.snapshot()
    return interval.see(time.monotonic(), metered.calls, metered.learnt)


def main() -> int:
    """Learn as one worker of a trial's group, until all is learnt that was there; return the exit code.

    The arguments are the config file and the folder for checkpoints; the environment says which worker it is. Each line
    on stdout is a JSON object: calls and records as they grow, and once a second what limits them. The process that has
    started this one kills it.
    """
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
