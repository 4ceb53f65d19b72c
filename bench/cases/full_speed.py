"""At full speed from a stored topic: what a probe waits for, how late both loops are, and whether memory grows.

A client in a process of its own asks `/livez` 20 times a second, on a new connection each time. The loops' lag is their
own measure, as `/throughput` shows it: the 99th percentile of half a minute, read twice a minute, of which the worst
counts. In a run shorter than half a minute the start still is in that window; then the figure says too much. Anonymous
memory is sampled each second; its slope is taken over the last 80 % of the run.
"""

import argparse
import time

from rig import Hosted, Memory, beside, hosted, place, report, said_by

SETTLING_S = 12.0
"""Twenty seconds after it, the half minute that the loops are judged by holds nothing of the start."""
WINDOW_S = 30


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="stored records, more than can be learnt in the time")
    parser.add_argument("--format", choices=["json", "raw"], required=True)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    with hosted(f"higgs_{given.format}", place(given.bootstrap, given.topic)) as host:
        host.wait_for_calls()
        host.run_for(SETTLING_S)
        watch = Watch(host)
        began = time.monotonic()
        with beside("clients.py", url=host.url, seconds=given.seconds, per_second=20) as probing:
            host.run_for(given.seconds, watch.look)
            ended, left = time.monotonic(), host.lag()
            watch.read_lags()
            probes = said_by(probing, 60.0)
        calls, said = host.notes.calls(began, ended), host.notes.snapshot()
    if not left:
        raise SystemExit(f"{given.topic} does not hold enough for {given.seconds:g} s")
    report(
        {
            "livez_p99_ms": probes["p99_ms"],
            "loop_lag_p99_ms": max(watch.lags_ms.values()),
            "memory_slope_mb_per_min": watch.memory.slope_mb_per_min(),
        },
        {
            "seconds": given.seconds,
            "records_per_s": round(calls.rate()),
            "waiting": {what: round(share, 4) for what, share in said.waiting.items()},
            "livez": probes,
            "loop_lag_ms": watch.lags_ms,
            **watch.memory.facts(),
        },
    )


class Watch:
    """What is read each second while it runs."""

    def __init__(self, host: Hosted) -> None:
        self._host = host
        self.memory = Memory(host)
        self.lags_ms: dict[str, float] = {}

    def look(self) -> None:
        """Take a sample; twice a minute also the loops' lag."""
        self.memory.look()
        if len(self.memory) % WINDOW_S == 0:
            self.read_lags()

    def read_lags(self) -> None:
        """The worst so far of each loop."""
        for loop, lag_ms in self._host.loop_lags_ms().items():
            self.lags_ms[loop] = max(lag_ms, self.lags_ms.get(loop, 0.0))


if __name__ == "__main__":
    main()
