"""An outage of Kafka in the middle of a file ends the command, and the next one goes on where that one was."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from millrace.app.tools.folder_producer import BATCH_RECORDS, FolderOptions, FolderProducer, SentFiles
from millrace.consumers.errors import UnreachableError
from millrace.consumers.kafka.topic_writer import Record, TopicWriter


class FailingWriter(TopicWriter):
    """Takes batches until it fails."""

    def __init__(self, taken: list[bytes], *, fails_after: int) -> None:
        self._taken, self._left = taken, fails_after

    def start(self) -> None:
        """Do nothing."""

    def check(self, within_s: float) -> None:
        """Find nothing wrong."""

    def stop(self, deadline_s: float = 0) -> None:
        """Do nothing."""

    def write_all(self, records: Sequence[Record], within_s: float) -> None:
        """Take the records, or none of them."""
        if self._left == 0:
            raise UnreachableError("--topic: kafka:9092 has acknowledged nothing within 60 s; is the broker up?")
        self._left -= 1
        self._taken.extend(record[1] for record in records)


@pytest.mark.parametrize("lines", [True, False])
def test_an_outage_in_the_middle_ends_it_and_the_next_run_sends_the_rest(tmp_path: Path, *, lines: bool) -> None:
    values = [b"%d" % number for number in range(2 * BATCH_RECORDS + 500)]
    if lines:
        (tmp_path / "a.jsonl").write_bytes(b"\n".join(values))
    else:
        for value in values:
            (tmp_path / value.decode()).write_bytes(value)
    taken, bad = list[bytes](), list[str]()

    def producer(fails_after: int) -> FolderProducer:
        options = FolderOptions(folder=tmp_path, lines=lines, quiet_s=0)
        writer = FailingWriter(taken, fails_after=fails_after)
        return FolderProducer(options, SentFiles(tmp_path / ".sent.sqlite"), writer, bad.append)

    with producer(fails_after=1) as first, pytest.raises(UnreachableError, match="has acknowledged nothing"):
        first.send_all()
    assert (len(taken), first.sent.records, bad) == (BATCH_RECORDS, BATCH_RECORDS, [])
    with producer(fails_after=-1) as second:
        second.send_all()
    assert (sorted(taken), bad) == (sorted(values), [])
    assert second.sent.records == len(values) - BATCH_RECORDS
