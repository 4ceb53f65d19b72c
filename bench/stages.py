"""Where the product's CPU goes: seconds of each stage in each thread, by the clock of the thread that works.

The functions at which a stage begins and ends are wrapped, in this process only, so the cases that are timed run
without it. A stage's time is its own: what it calls of another stage counts there. Threads of libraries cannot be
wrapped; they are told apart by the names that TensorFlow gives them.
"""

import functools
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from millrace.consumers.handoff import Handoff
from millrace.consumers.kafka import fetching
from millrace.consumers.kafka.aiokafka_internals import ResultReader
from millrace.pipelines.stream import decode
from millrace.pipelines.stream.assemble import Assembler
from millrace.pipelines.stream.dataset import Deliveries
from millrace.pipelines.stream.feed import Feed
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.learner import Learner
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.trainer.saving import Saving

STAGES: tuple[tuple[str, Any, str], ...] = (
    ("fetch", ResultReader, "take"),
    ("chunk", fetching, "chunk_of"),
    ("hand-off", Handoff, "offer"),
    ("hand-off", Handoff, "receive"),
    ("hand-off", Handoff, "take_behind"),
    ("decode", decode, "decode_chunk"),
    ("assemble", Assembler, "add"),
    ("assemble", Assembler, "take"),
    ("feed", Feed, "_step"),
    ("tf.data", Deliveries, "__next__"),
    ("call", Learner, "learn"),
    ("settle", Ledger, "settle"),
    ("live metrics", LiveMetrics, "add"),
    ("saves", Saving, "begin"),
)

ORDER = (
    "fetch",
    "chunk",
    "hand-off",
    "consumer, rest",
    "decode",
    "assemble",
    "feed",
    "tf.data",
    "call",
    "settle",
    "live metrics",
    "saves",
    "trainer, rest",
    "other threads",
)

_RESTS = {"consumer": "consumer, rest", "trainer": "trainer, rest", "checkpoint-writer": "saves", "draw": "tf.data"}
"""What else our threads do, by the name of the thread."""


class StageClock:
    """Adds up each stage's own CPU time, by thread. `look` may be called on any thread."""

    def __init__(self) -> None:
        self._open = threading.local()
        self._spent: Counter[tuple[int, str]] = Counter()

    def install(self) -> None:
        """Wrap what begins and ends a stage, for as long as this process lives."""
        for stage, owner, name in STAGES:
            setattr(owner, name, self._timed(stage, getattr(owner, name)))

    def look(self) -> Mapping[tuple[int, str], int]:
        """Nanoseconds so far, by the thread's id and the stage; what has not returned yet is not in it."""
        return dict(self._spent)

    def _timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def timed(*args: Any, **named: Any) -> Any:
            within = self._open.__dict__.setdefault("within", [])
            within.append(0)
            began = time.thread_time_ns()
            try:
                return function(*args, **named)
            finally:
                took = time.thread_time_ns() - began
                self._spent[threading.get_native_id(), stage] += took - within.pop()
                if within:
                    within[-1] += took

        return timed


def by_stage(
    stages: Mapping[tuple[int, str], int], threads: Mapping[int, int], names: Mapping[int, str]
) -> dict[str, float]:
    """Give each nanosecond that the threads spent to a stage; return seconds.

    `names` are those of Python's threads. Of the others, those of tf.data's pool are its own; the rest compute calls.
    """
    found: Counter[str] = Counter()
    for thread, total in threads.items():
        mine = {stage: spent for (where, stage), spent in stages.items() if where == thread}
        found.update(mine)
        found[_rest_of(thread, names.get(thread), within=bool(mine))] += max(0, total - sum(mine.values()))
    return {stage: found[stage] / 1e9 for stage in ORDER if found[stage]}


def _rest_of(thread: int, name: str | None, *, within: bool) -> str:
    known = next((stage for begin, stage in _RESTS.items() if (name or "").startswith(begin)), None)
    if known is not None:
        return known
    if (name or "").startswith("decode"):
        return "decode"
    comm = Path(f"/proc/self/task/{thread}/comm")
    native = comm.read_text().strip() if comm.exists() else ""
    if within or native.startswith("tf_data"):
        return "tf.data"
    return "call" if native.startswith("tf_") else "other threads"
