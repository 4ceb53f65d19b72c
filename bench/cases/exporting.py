"""What exports beside a training at full speed cost it, while their process runs and outside of that.

The service learns a stored topic three times: without exports, with them, and without them again. Exports are made as
`millrace run` makes them, by a child process for a durable checkpoint, with a rest between two. The figure is the rate
between calls that returned while no such process ran, over the rate without exports, the mean of before and after. A
pause is the time from the return of one call to the beginning of the next: whoever made a call wait would lengthen it.
The model is so wide that training is what limits the rate: blocks are ready, and a pause is nobody's wait for records.
"""

import argparse
import json
import os
import tempfile
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import numpy as np
from rig import CONFIGS, STATE, Calls, Floats, Hosted, as_environment, hosted, ms, percentile, place, report

from millrace.app.service.exporting import ExportVerdict, RunExport
from millrace.app.service.service import RunOptions
from millrace.app.tools.export.child_process import ExportProcess

CONFIG = "higgs_raw"
SETTLING_S = 3.0
AT_MOST_S, FIRST_AT_MOST_S = 20.0, 240.0
"""For an export, with its rest; and beyond that for the first: a slow machine starts two processes for it."""
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


class TimedExports:
    """Exports as the service does, notes when each process ran, and leaves the training alone for a while after."""

    def __init__(self, run: RunExport, rest_s: float) -> None:
        self._run, self._rest_s = run, rest_s
        self.spans: list[tuple[float, float]] = []
        """When each began and ended."""

    def __call__(self, number: int, within_s: float, stopped: threading.Event) -> ExportVerdict:
        """Export, and rest."""
        began = time.monotonic()
        verdict = self._run(number, within_s, stopped)
        self.spans.append((began, time.monotonic()))
        stopped.wait(self._rest_s)
        return verdict

    def beside(self, calls: Calls) -> Any:
        """Return, for each call but the first, whether a process ran at any time since the call before returned."""
        begins, ends = np.array(self.spans).T
        return ((calls.at[1:, None] >= begins) & (calls.at[:-1, None] <= ends)).any(axis=1)


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


def exporting(where: Mapping[str, str], exports: int, rest_s: float) -> tuple[Pace, Pace, int]:
    """Learn with exports until there are so many; return the pace outside of them and beside them, and their number."""
    with tempfile.TemporaryDirectory(prefix="exports-", dir=STATE) as folder:
        settings = {
            **where,
            **SAVES,
            "checkpoints.path": f"{folder}/checkpoints",
            "export.path": f"{folder}/exports",
            "export.every": "1s",
            "export.keep": 2,
        }
        timed = TimedExports(ExportProcess(CONFIGS / f"{CONFIG}.yaml"), rest_s)
        with (
            patch.dict(os.environ, as_environment(settings)),  # for the children
            hosted(CONFIG, settings, RunOptions(run_export=timed)) as host,
        ):
            host.wait_for_calls()
            host.wait_for(lambda: made(host) >= exports, FIRST_AT_MOST_S + AT_MOST_S * exports, f"{exports} exports")
            calls, number = host.notes.calls(timed.spans[0][0], timed.spans[-1][1] + rest_s), made(host)
            check_left(host)
    beside = timed.beside(calls)
    return pace_of(calls, ~beside), pace_of(calls, beside), number


def made(host: Hosted) -> int:
    """How many versions were published; an export that was refused ends the case."""
    figures = host.service.exporting.figures()
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
    parser.add_argument("--topic", required=True, help="stored raw records, more than can be learnt in the time")
    parser.add_argument("--hidden", type=int, default=512, help="units of each of the model's two layers")
    parser.add_argument("--exports", type=int, default=3)
    parser.add_argument("--rest-s", type=float, default=5.0, help="from the end of an export to the next one")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each time without exports")
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    where = {**place(given.bootstrap, given.topic), "model.args": json.dumps({"hidden": given.hidden})}
    before = plain(where, given.seconds)
    outside, beside, number = exporting(where, given.exports, given.rest_s)
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
