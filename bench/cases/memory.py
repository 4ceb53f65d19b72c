"""Anonymous memory at a paced stream of raw records: how much it grows a minute, and whether it keeps to its bound.

Sampled each second; the slope is that of the last 80 % of the run. If the machine does not hold the pace the figure is
of what it holds, and `records_per_s` says so. `memory_of_bound` is what the process ever took beyond what it had before
its first fetch, as a share of `memory.limit`.
"""

import argparse
import time

from rig import Memory, beside, hosted, place, report, said_by

RATE = 50_000
SETTLING_S = 5.0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--seconds", type=float, default=180.0)
    given = parser.parse_args()
    topic = f"bench-paced-{time.time_ns()}"
    stream = {"bootstrap": given.bootstrap, "topic": topic, "format": "raw"}
    with beside("paced.py", **stream, rate=1, seconds=0) as creating:
        said_by(creating, 60.0)
    with hosted("higgs_raw", place(given.bootstrap, topic)) as host:
        host.wait_until_at_work()
        memory = Memory(host)
        with beside("paced.py", **stream, rate=given.rate, seconds=given.seconds + SETTLING_S) as producing:
            host.wait_for_calls(1, 60.0)
            began = time.monotonic()
            host.run_for(given.seconds, memory.look)
            calls, left = host.notes.calls(since=began), host.lag()
            said = said_by(producing, 60.0)
    report(
        {"slope_mb_per_min": memory.slope_mb_per_min()},
        {
            "seconds": given.seconds,
            "records_per_s": round(calls.rate()),
            "lag_records_at_end": left,
            "produced": said,
            **memory.facts(),
        },
    )


if __name__ == "__main__":
    main()
