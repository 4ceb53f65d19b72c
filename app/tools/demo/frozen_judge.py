"""The judge: scores a copy of the model that has learnt nothing since a drift began, on the records after it.

A process of its own, of which the trainer knows nothing. A request (a line of JSON on stdin) names the drift, the file
with the weights, and the offset to begin at; the judge reads one partition of the topic from there. For each second of
the stream it writes the number of records and of correct guesses (a line of JSON on stdout). It ends when stdin does.
"""

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from millrace.app.service.native_log import load_tensorflow
from millrace.app.tools.demo import drifting_stream

PARTITION = 0
"""The sample: one partition of those that the trainer learns from."""
_WAIT_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeRequest:
    """What to judge, and from where."""

    drift: int
    file: str
    """The weights, as a checkpoint holds them."""
    offset: int
    """Where to begin."""


def main() -> None:
    """Judge what is requested until stdin ends."""
    load_tensorflow()
    from millrace.app.settings import load  # noqa: PLC0415 - slow to import, after TensorFlow is made quiet

    requests: SimpleQueue[JudgeRequest | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), name="requests", daemon=True).start()
    settings = load(Path(sys.argv[1]), {}).settings
    from millrace.app.tools.demo.model_copies import Copy  # noqa: PLC0415 - loads TensorFlow, after it is made quiet
    from millrace.app.tools.traffic.topic_reader import Follower  # noqa: PLC0415 - as above

    copy = Copy(settings)
    with Follower(settings.kafka.bootstrap_servers[0], drifting_stream.TOPIC, PARTITION) as follower:
        while (request := requests.get()) is not None:
            copy.take(Path(request.file))
            follower.seek(request.offset)
            # Follow the stream with one copy until the next request comes.
            seconds = _Seconds(request.drift)
            while requests.empty():
                rows = {}
                for offset, value in follower.read(_WAIT_S):
                    with suppress(ValueError):  # a record that is cut short
                        rows[offset] = json.loads(value)
                if rows:
                    for score in seconds.add(list(rows), copy.hits(list(rows.values()))):
                        sys.stdout.write(json.dumps(score) + "\n")
                    sys.stdout.flush()


def _listen(requests: "SimpleQueue[JudgeRequest | None]") -> None:
    for line in sys.stdin:
        requests.put(JudgeRequest(**json.loads(line)))
    requests.put(None)


class _Seconds:
    """Adds up scores by second of the stream; a second is complete when the next one begins."""

    def __init__(self, drift: int) -> None:
        self._drift, self._second, self._records, self._hits = drift, -1, 0, 0

    def add(self, offsets: list[int], hits: list[bool]) -> Iterator[dict[str, int]]:
        """Take in the scores of some offsets; give the seconds that are complete."""
        for offset, hit in zip(offsets, hits, strict=True):
            second = int(drifting_stream.seconds(PARTITION, offset))
            if second != self._second:
                if self._records:
                    yield {"drift": self._drift, "second": self._second, "records": self._records, "hits": self._hits}
                self._second, self._records, self._hits = second, 0, 0
            self._records += 1
            self._hits += hit


if __name__ == "__main__":
    main()
