"""A stream at half of the capacity, and 50 connections that flood the API: does the learning keep up, is it as fresh?

Everything within one run of the service, on a topic of JSON of its own. (1) Stored records are learnt at full speed:
that is the capacity. (2) Half of it comes as a paced stream, and freshness and lag are noted. (3) The same stream goes
on, and 50 connections ask as fast as they are answered. The flooding client and the producer take their shares of the
same cores. The lag's growth is the slope of a line through its samples, as a share of what is learnt meanwhile.
"""

import argparse
import time

import numpy as np
from rig import Hosted, beside, hosted, place, report, said_by

SETTLING_S = 3.0
CONNECTIONS = 50
NEARLY_ALL = 0.9


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--records", type=int, default=2_500_000, help="stored, to measure the capacity with")
    parser.add_argument("--seconds", type=float, default=25.0, help="of each of the two paced phases")
    given = parser.parse_args()
    topic = f"bench-flood-{time.time_ns()}"
    stream = {"bootstrap": given.bootstrap, "topic": topic, "format": "json"}
    with beside("stored.py", **stream, records=given.records) as filling:
        stored = int(said_by(filling, 300.0)["records"])
    with hosted("higgs_json", place(given.bootstrap, topic)) as host:
        capacity = measured_capacity(host, stored)
        pace = round(capacity / 2)
        lasting = 2 * given.seconds + 4 * SETTLING_S
        with beside("paced.py", **stream, rate=pace, seconds=lasting) as producing:
            host.wait_for(lambda: host.notes.snapshot().learnt > stored, 60.0, "the paced stream")
            host.run_for(SETTLING_S)
            quiet = Phase(host, given.seconds)
            with beside("clients.py", url=host.url, seconds=given.seconds + 2, connections=CONNECTIONS) as flooding:
                flood = Phase(host, given.seconds)
                answers = said_by(flooding, 60.0)
            produced = said_by(producing, lasting)
    rise = flood.freshness["p99"] - quiet.freshness["p99"]
    report(
        {"flood_freshness_rise_ms": round(rise, 1), "flood_lag_growth_share": round(flood.growth, 4)},
        {
            "capacity_records_per_s": round(capacity),
            "pace_records_per_s": pace,
            "produced": produced,
            "flood": answers,
            "quiet": quiet.facts(),
            "flooded": flood.facts(),
        },
    )


def measured_capacity(host: Hosted, stored: int) -> float:
    """Records a second from the first calls until nearly all that is stored is learnt; then the rest is waited for."""
    host.wait_for_calls(5)
    began = time.monotonic()
    host.wait_for(lambda: host.notes.snapshot().learnt >= stored * NEARLY_ALL, 300.0, "through what is stored")
    capacity = host.notes.calls(began, time.monotonic()).rate()
    host.wait_for(lambda: host.notes.snapshot().learnt >= stored, 60.0, "at the end of what is stored")
    return capacity


class Phase:
    """What was seen while some seconds passed."""

    def __init__(self, host: Hosted, seconds: float) -> None:
        lags: list[int] = []
        began = time.monotonic()
        host.run_for(seconds, lambda: lags.append(host.lag()))
        calls = host.notes.calls(began, time.monotonic())
        self.freshness = calls.freshness_ms()
        self.rate = calls.rate()
        self.lags = np.array(lags)

    @property
    def growth(self) -> float:
        """By how much the lag grows, as a share of what is learnt meanwhile."""
        return float(np.polyfit(np.arange(len(self.lags)), self.lags, 1)[0]) / self.rate

    def facts(self) -> dict[str, object]:
        """For the report."""
        return {
            "records_per_s": round(self.rate),
            "freshness_ms": self.freshness,
            "lag_records": {"median": int(np.median(self.lags)), "max": int(self.lags.max())},
            "lag_growth_share": round(self.growth, 4),
        }


if __name__ == "__main__":
    main()
