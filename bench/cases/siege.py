"""A thousand half-open connections and fifty flooding ones: what do probes wait for?

A paced stream is learnt meanwhile. The half-open connections send half of a head and come again where they are closed;
the flooding ones ask as fast as they are answered; each kind in a process of its own. Two clients ask `/livez` 20 times
a second, on a new connection each time: one at `api.probes`, one at the listener under siege. An answer that is not 200
fails the case.
"""

import argparse
import time

from rig import beside, hosted, place, report, said_by

CONNECTIONS, HALF_OPEN = 50, 1000
PER_SECOND = 20
RATE = 2_000
SETTLING_S = 3.0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--seconds", type=float, default=30.0)
    given = parser.parse_args()
    topic, lasting = f"bench-siege-{time.time_ns()}", given.seconds + 4 * SETTLING_S
    stream = {"bootstrap": given.bootstrap, "topic": topic, "format": "json"}
    with beside("stored.py", **stream, records=RATE) as filling:
        stored = int(said_by(filling, 300.0)["records"])
    settings = {**place(given.bootstrap, topic), "api.probes": "127.0.0.1:0"}
    with hosted("higgs_json", settings) as host:
        host.wait_for(lambda: host.notes.snapshot().learnt >= stored, 60.0, "at the end of what is stored")
        with (
            beside("paced.py", **stream, rate=RATE, seconds=lasting),
            beside("clients.py", url=host.url, seconds=given.seconds + SETTLING_S, half_open=HALF_OPEN) as holding,
            beside("clients.py", url=host.url, seconds=given.seconds + SETTLING_S, connections=CONNECTIONS) as flooding,
        ):
            host.run_for(SETTLING_S)
            probing = {"seconds": given.seconds, "per_second": PER_SECOND}
            with (
                beside("clients.py", url=host.probes_url, **probing) as own,
                beside("clients.py", url=host.url, **probing) as main_one,
            ):
                host.run_for(given.seconds)
                probes = {"own": said_by(own, 60.0), "main": said_by(main_one, 60.0)}
            siege = {"half_open": said_by(holding, 60.0), "flood": said_by(flooding, 60.0)}
    if unanswered := {name: found["failed"] for name, found in probes.items() if found["failed"]}:
        raise SystemExit(f"probes that were not answered by 200: {unanswered}")
    report(
        {"siege_probe_p99_ms": probes["own"]["p99_ms"], "siege_main_probe_p99_ms": probes["main"]["p99_ms"]},
        {"probes": probes, **siege},
    )


if __name__ == "__main__":
    main()
