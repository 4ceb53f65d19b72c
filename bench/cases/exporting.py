"""What exports beside a training at full speed cost it, while their process runs and outside of that.

The service learns a stored topic three times: without exports, with them, and without them again. Exports are made as
`millrace run` makes them, by a child process for each durable checkpoint that is due. The figure is the rate between
calls that returned while no such process ran, over the rate without exports, the mean of before and after. A pause is
the time from the return of one call to the beginning of the next: whoever made a call wait would lengthen it.
"""

import argparse
import contextlib
import os
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from rig import CONFIGS, STATE, Calls, Floats, Hosted, as_environment, hosted, ms, percentile, place, report

from app.service.service import RunOptions
from app.tools.export.child_process import ExportProcess

CONFIG = "higgs_json"
SETTLING_S = 3.0
LOOK_S = 0.01
AT_MOST_S = 1800.0
"""For all exports that are asked for."""
SAVES = {"checkpoints.every": "1s"}
"""In all three, so that only the exports differ."""


@dataclass(frozen=True)
class Pace:
    """What was learnt between returns of calls, and the pauses between these calls."""

    learnt: float
    seconds: float
    pauses_s: Floats

    @property
    def rate(self) -> float:
        """Records a second."""
        return self.learnt / self.seconds

    def facts(self) -> dict[str, float]:
        """The rate and the pauses, rounded."""
        return {"records_per_s": round(self.rate), "pause_p99_ms": ms(percentile(self.pauses_s, 99))}


def pace_of(calls: Calls, chosen: Any) -> Pace:
    """Return the pace over the chosen calls; each is counted from the return of the one before it."""
    since = np.diff(calls.at)[chosen]
    if not len(since):
        raise SystemExit("no call fell into what is measured; more --seconds")
    return Pace(float(calls.learnt[1:][chosen].sum()), float(since.sum()), since - calls.took_s[1:][chosen])


class Watch:
    """Notes when the process of an export runs, on a thread of its own."""

    def __init__(self, host: Hosted) -> None:
        self._host = host
        self._ended = threading.Event()
        self.spans: list[list[float]] = []
        """When each began and ended; the last may still run."""

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Note until this ends."""
        thread = threading.Thread(target=self._watch, name="watch-exports")
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def beside(self, calls: Calls) -> Any:
        """Return, for each call but the first, whether a process ran at any time since the call before returned."""
        begins, ends = np.array(self.spans).T
        return ((calls.at[1:, None] >= begins) & (calls.at[:-1, None] <= ends)).any(axis=1)

    def _watch(self) -> None:
        runs = False
        while not self._ended.wait(LOOK_S):
            figures, now = self._host.service.exporting.now(), time.monotonic()
            ran, runs = runs, figures is not None and figures.running is not None
            if runs and not ran:
                self.spans.append([now - LOOK_S, now])
            elif runs or ran:
                self.spans[-1][1] = now


def plain(where: Mapping[str, str], seconds: float) -> Pace:
    """Learn without exports."""
    with hosted(CONFIG, {**where, **SAVES}) as host:
        host.wait_for_calls()
        host.run_for(SETTLING_S)
        began = time.monotonic()
        host.run_for(seconds)
        calls = host.notes.calls(began)
        check_left(host)
    return pace_of(calls, np.ones(len(calls) - 1, bool))


def exporting(where: Mapping[str, str], exports: int, every_s: float) -> tuple[Pace, Pace, int]:
    """Learn with exports until there are so many; return the pace outside of them and beside them, and their number."""
    with tempfile.TemporaryDirectory(prefix="exports-", dir=STATE) as folder:
        settings = {
            **where,
            **SAVES,
            "checkpoints.path": f"{folder}/checkpoints",
            "export.path": f"{folder}/exports",
            "export.every": f"{every_s:g}s",
            "export.keep": 2,
        }
        os.environ.update(as_environment(settings))  # for the children
        options = RunOptions(run_export=ExportProcess(CONFIGS / f"{CONFIG}.yaml"))
        with hosted(CONFIG, settings, options) as host:
            host.wait_for_calls()
            watch = Watch(host)
            with watch.watching():
                host.run_for(SETTLING_S)
                began = time.monotonic()
                host.wait_for(lambda: made(host) >= exports, AT_MOST_S, f"{exports} exports")
                host.run_for(SETTLING_S)
            calls, number = host.notes.calls(began), made(host)
            check_left(host)
    beside = watch.beside(calls)
    return pace_of(calls, ~beside), pace_of(calls, beside), number


def made(host: Hosted) -> int:
    """How many versions were published; an export that was refused ends the case."""
    figures = host.service.exporting.now()
    if figures is None or figures.refused:
        raise SystemExit(f"an export was refused: {figures and figures.error}")
    return figures.made


def check_left(host: Hosted) -> None:
    """Refuse to measure at the end of the topic."""
    if not host.lag():
        raise SystemExit("the topic does not hold enough records for this time")


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="stored records as JSON, about 300,000 for each second")
    parser.add_argument("--exports", type=int, default=3)
    parser.add_argument("--every-s", type=float, default=10.0)
    parser.add_argument("--seconds", type=float, default=12.0, help="of each time without exports")
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    where = place(given.bootstrap, given.topic)
    before = plain(where, given.seconds)
    outside, beside, number = exporting(where, given.exports, given.every_s)
    for name in ("EXPORT__PATH", "EXPORT__EVERY", "EXPORT__KEEP", "CHECKPOINTS__PATH"):
        del os.environ[f"MILLRACE_{name}"]
    after = plain(where, given.seconds)
    without = (before.rate + after.rate) / 2
    report(
        {"export_throughput_kept": round(outside.rate / without, 4)},
        {
            "exports": number,
            "beside_kept": round(beside.rate / without, 4),
            "without_before": before.facts(),
            "without_after": after.facts(),
            "outside": {**outside.facts(), "seconds": round(outside.seconds, 1)},
            "beside": {**beside.facts(), "seconds": round(beside.seconds, 1)},
            "pause_p99_over_without": round(
                percentile(outside.pauses_s, 99) / percentile(np.append(before.pauses_s, after.pauses_s), 99), 3
            ),
        },
    )


if __name__ == "__main__":
    main()
