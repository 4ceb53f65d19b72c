"""Times a peer as the product and the naive pipeline are timed, and counts how often it guessed right.

Needs nothing but the standard library: every peer has an environment of its own.

Timed: wall clock and CPU of the whole process, the libraries' threads included, from the moment when `--warm-up`
records are learnt until `--records` more are, or `--at-most-s` seconds have passed. Judged: the last `--judged` records
of the warm-up, each before it was learnt, so that all are judged on the same stretch and the judging is not timed
where it is a pass of its own.
"""

import argparse
import time

FEATURES = 28
HIDDEN = 64
BATCH = 1024

SAME_MODEL = "the same MLP 28-64-64-1 with Adam"


def options(doc: str | None) -> argparse.Namespace:
    """What every peer is told."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--warm-up", type=int, default=65_536)
    parser.add_argument("--judged", type=int, default=16_384)
    parser.add_argument("--at-most-s", type=float, default=20.0)
    return parser.parse_args()


class Stopwatch:
    """Told after every batch what was learnt; says whether that is enough."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._warm_up: int = given.warm_up
        self._wanted: int = given.records
        self._judged_from: int = given.warm_up - given.judged
        self._at_most_s: float = given.at_most_s
        self._seen = 0
        self._began: tuple[int, float, float] | None = None
        self._right, self._judged = 0.0, 0
        self._ended: dict[str, float] | None = None

    @property
    def judging(self) -> bool:
        """Whether the next records are to be guessed before they are learnt."""
        return self._judged_from <= self._seen < self._warm_up

    def learnt(self, records: int, right: float = 0.0) -> bool:
        """Take in a batch and how many of it were guessed right; whether more is wanted."""
        if self.judging:
            self._right += right
            self._judged += records
        self._seen += records
        if self._began is None:
            if self._seen >= self._warm_up:
                self._began = (self._seen, time.perf_counter(), time.process_time())
            return True
        first, began, cpu = self._began
        timed, wall_s = self._seen - first, time.perf_counter() - began
        if timed < self._wanted and wall_s < self._at_most_s:
            return True
        self._ended = {"records": timed, "wall_s": wall_s, "cpu_s": time.process_time() - cpu}
        return False

    def result(self) -> dict[str, float]:
        """What was measured."""
        if self._ended is None:
            raise SystemExit(f"the stream ended after {self._seen} records; does the topic hold enough?")
        return {**self._ended, "accuracy": self._right / self._judged, "judged": self._judged}
