"""The judge: scores a copy of the model that has learnt nothing since a drift began, on what came after it.

A process of its own, beside the trainer, which knows nothing of it. It is told which weights to take (a line of JSON on
stdin: drift, file, and the offset to begin at) and reads one partition of the topic from there, apart. For each second
of the stream it says how many records there were, and how many the copy got right (a line of JSON on stdout). It ends
when stdin does.
"""

import json
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from app.settings.environment import quiet_tensorflow
from app.tools.demo import drifting_stream

PARTITION = 0
"""The sample: one partition of those that the trainer learns from."""
_WAIT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """What to judge."""

    drift: int
    file: str
    """The weights, as a checkpoint holds them."""
    offset: int
    """Where to begin."""


def main() -> None:
    """Judge what is ordered until stdin ends."""
    quiet_tensorflow()
    from app.settings import load  # noqa: PLC0415 - slow to import, after TensorFlow is told to be quiet

    orders: SimpleQueue[JudgeRequest | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(orders,), name="orders", daemon=True).start()
    settings = load(Path(sys.argv[1]), {}).settings
    from app.tools.demo.model_copies import Copy  # noqa: PLC0415 - loads TensorFlow, after it is told to be quiet
    from app.tools.traffic.partition_follower import Follower  # noqa: PLC0415 - as above

    copy = Copy(settings)
    with Follower(settings.kafka.bootstrap_servers[0], drifting_stream.TOPIC, PARTITION) as follower:
        while (order := orders.get()) is not None:
            copy.take(Path(order.file))
            follower.seek(order.offset)
            _judge(order, copy, follower, orders)


def _listen(orders: "SimpleQueue[JudgeRequest | None]") -> None:
    for line in sys.stdin:
        orders.put(JudgeRequest(**json.loads(line)))
    orders.put(None)


def _judge(order: JudgeRequest, copy: Any, follower: Any, orders: "SimpleQueue[JudgeRequest | None]") -> None:
    """Follow the stream with one copy until the next order comes."""
    seconds = _Seconds(order.drift)
    while orders.empty():
        rows = [(offset, row) for offset, value in follower.read(_WAIT_S) if (row := _row(value)) is not None]
        if rows:
            hits = copy.hits([row for _, row in rows])
            for score in seconds.add([offset for offset, _ in rows], hits):
                sys.stdout.write(json.dumps(score) + "\n")
            sys.stdout.flush()


def _row(value: bytes) -> dict[str, Any] | None:
    try:
        row: dict[str, Any] = json.loads(value)
    except ValueError:
        return None
    return row


class _Seconds:
    """Adds up by second of the stream; a second is told when the next one has begun."""

    def __init__(self, drift: int) -> None:
        self._drift, self._second, self._records, self._hits = drift, -1, 0, 0

    def add(self, offsets: list[int], hits: list[bool]) -> Iterator[dict[str, int]]:
        """Take in what came; gives the seconds that are over."""
        for offset, hit in zip(offsets, hits, strict=True):
            second = int(drifting_stream.seconds(PARTITION, offset))
            if second != self._second:
                if self._records:
                    yield self._score()
                self._second, self._records, self._hits = second, 0, 0
            self._records += 1
            self._hits += hit

    def _score(self) -> dict[str, int]:
        return {"drift": self._drift, "second": self._second, "records": self._records, "hits": self._hits}


if __name__ == "__main__":
    main()
