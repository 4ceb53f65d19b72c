"""How fresh what was learnt is: from a record's timestamp to the return of the call that learnt it.

Records come at a steady rate with the time of their writing, linger 0, to a topic of their own; batches of 256 rows,
`max_wait` 200 ms. Measured are all calls from two seconds after the first record to the last; of each call the oldest
record counts, so the figures are upper bounds. With --shuffle rows are shuffled among so many.
"""

import argparse
import time

from rig import beside, hosted, place, report, said_by

SETTLING_S = 2.0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--shuffle", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=40.0)
    given = parser.parse_args()
    topic = f"bench-fresh-{time.time_ns()}"
    stream = {"bootstrap": given.bootstrap, "topic": topic, "format": "json"}
    with beside("paced.py", **stream, rate=1, seconds=0) as creating:
        said_by(creating, 60.0)
    settings = {"training.batch_size": 256, "training.max_wait": "200ms", "training.shuffle": given.shuffle}
    with hosted("higgs_json", {**place(given.bootstrap, topic), **settings}) as host:
        host.wait_until_at_work()
        with beside("paced.py", **stream, rate=given.rate, seconds=given.seconds + SETTLING_S) as producing:
            host.wait_for_calls(1, 60.0)
            began = time.monotonic() + SETTLING_S
            said = said_by(producing, given.seconds + 60.0)
        count = int(said["records"])
        host.wait_for(lambda: host.notes.snapshot().learnt >= count, 30.0, f"{count} records learnt")
        calls = host.notes.calls(since=began)
        own = max(calls.took_s)
    fresh = calls.freshness_ms()
    details = {**fresh, "calls": len(calls), "records": int(calls.learnt.sum()), "produced": said}
    report({"p99_ms": fresh["p99"]}, {**details, "slowest_call_ms": round(own * 1000, 1), "rate": given.rate})


if __name__ == "__main__":
    main()
