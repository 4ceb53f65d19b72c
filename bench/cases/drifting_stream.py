"""One drifting stream, learnt by the product from a topic: how often it was right about records before it learnt them.

The service learns the topic in order, up to the end that it has at the start. Every `--window` records the live
accuracy is read between two calls. A batch is scored whole before its first update. Prints the accuracy overall and of
each window, and the CPU of the whole process a record, from the return of the first call to that of the last.
"""

import argparse
import time
from itertools import pairwise
from typing import Any

from rig import START_S, Notes, hosted, place, report

from millrace.app.service.service import Running, RunOptions, Service
from millrace.consumers.kafka.positions import Now

AT_MOST_S = 3600.0


class Scores(Notes):
    """The service's meter, which also notes what the live accuracy has come to at the return of each call."""

    def __init__(self) -> None:
        super().__init__()
        self.service: Service | None = None
        self.points: list[tuple[int, float]] = []
        """Records so far, and how many of them were guessed right."""
        self.cpu_s: list[float] = []

    def called(self, *call: Any) -> None:
        super().called(*call)
        assert self.service is not None
        assert isinstance(self.service.running, Running)
        live = self.service.running.live.look()
        self.points.append((live.cumulative_records, live.cumulative["accuracy"] * live.cumulative_records))
        self.cpu_s.append(time.process_time())

    def curve(self, window: int) -> list[float]:
        """The accuracy of each window, as far as calls end where windows do."""
        ends = {0: 0.0, **dict(self.points)}
        marks = [records for records in ends if records % window == 0 or records == self.points[-1][0]]
        return [(ends[b] - ends[a]) / (b - a) for a, b in pairwise(marks)]


def main() -> None:
    """Read the options, learn the topic, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--stream", required=True)
    parser.add_argument("--records", type=int, required=True)
    parser.add_argument("--window", type=int, required=True)
    parser.add_argument("--passes", type=int, required=True)
    parser.add_argument("--rate", type=float, required=True)
    given = parser.parse_args()
    scores = Scores()
    settings = {"training.passes": given.passes, "model.args.learning_rate": given.rate}
    settings = {**place(given.bootstrap, given.topic), **settings}
    with hosted(f"stream_{given.stream}", settings, RunOptions(until=Now()), scores) as host:
        scores.service = host.service
        if not host.ended.wait(START_S + AT_MOST_S):
            raise SystemExit(f"{scores.points[-1:]} of {given.records} records in {AT_MOST_S:g} s")
    learnt, right = scores.points[-1]
    if learnt != given.records:
        raise SystemExit(f"it has learnt {learnt} records, not {given.records}")
    cpu_s = scores.cpu_s[-1] - scores.cpu_s[0]
    report(
        {"accuracy": right / learnt},
        {"curve": scores.curve(given.window), "cpu_us_per_record": cpu_s / (learnt - scores.points[0][0]) * 1e6},
    )


if __name__ == "__main__":
    main()
