"""With `match` a label belongs to one record of its key: its rivals are read ahead, and again after a restart."""

import time
from collections.abc import Mapping
from typing import Any

import pytest

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.consumers.errors import UnreachableError
from millrace.consumers.records import Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.gates.label_gate import LabelGate
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps
from millrace.pipelines.shaping.labels.join import LabelShaper
from millrace.pipelines.shaping.labels.rivals import RivalReader
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from tests.conftest import WaitFor
from tests.pipelines.shaping.labels.label_log import Click, LabelLog, connected
from tests.pipelines.shaping.test_every_shaper import facts_of

pytestmark = pytest.mark.row(43)
VIEWS = Partition("views", 0)
SCHEMA = Schema(
    features=(Field(name="user", source="key", dtype="int64"),), key=Field(name="key", source="key", dtype="int64")
)
DECODER = make_decoder("json", SCHEMA)
SECTIONS = LabelsSettings.model_validate(
    {
        "topics": ["later"],
        "join": {"record": "key", "dtype": "int64"},
        "label": {"later": {"dtype": "float32", "absent": 0.0}},
        "match": "last_before",
        "take": "count",
        "within": "10s",
        "early": "1s",
        "on_silence": "absent",
    }
)


class Matched:
    """A join of two logs in memory."""

    def __init__(self, views: LabelLog, log: LabelLog, jumps: Jumps, saved: Any = None) -> None:
        self.shaper = LabelShaper(SECTIONS.rules)
        self.labels = connected(self.shaper, log, to_decoder(SECTIONS.records()), jumps)
        assert self.shaper.index.rivals is not None
        assert self.shaper.connected is not None
        self.rivals = RivalReader(SECTIONS.rules, views, DECODER, jumps.beside("rivals"), self.shaper.index.rivals)
        self.shaper.connect(
            self.shaper.connected._replace(rivals=self.rivals, first_rivals=lambda: {VIEWS: (0, NEVER)})
        )
        self.gate = LabelGate(SECTIONS.rules, self.labels, self.rivals)
        if saved is not None:
            self.shaper.load(*saved)
        self.shape = self.shaper.open(1, {VIEWS: 0 if saved is None else 1})

    def stop(self) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
        """End the reading; return what is remembered."""
        saved = self.shaper.saved()
        self.rivals.stop()
        self.labels.stop()
        return saved


def test_a_label_goes_to_the_last_record_before_it_and_to_no_other_one_after_a_restart(wait_for: WaitFor) -> None:
    began = round(time.time() * 1000) - 3_600_000
    views = LabelLog(
        [Click(1, began), Click(1, began + 1_000), Click(2, began + 1_500), Click(1, began + 2_000)], VIEWS
    )
    log = LabelLog([Click(1, began + 500), Click(1, began + 900), Click(1, began + 2_500), Click(2, began + 2_600)])
    jumps, found, saved = Jumps(None), list[list[float]](), None
    for start, end in ((0, 1), (1, 4)):
        joined, records = Matched(views, log, jumps, saved), read(views, start, end)
        wait_for(lambda joined=joined, records=records: joined.gate.admits(records))  # type: ignore[misc]
        found.append(joined.shape(records)[0].labels["later"].tolist())
        if not start:
            joined.shaper.settle(facts_of(VIEWS, 0, 1, 1))
        saved = joined.stop()
    assert found == [[2.0], [0.0, 1.0, 1.0]]


class NoEnds(LabelLog):
    """A log of which nobody knows where it ends."""

    def ends(self) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
        """Do not answer."""
        raise UnreachableError("nobody answers")


def test_records_wait_until_their_rivals_are_read(wait_for: WaitFor) -> None:
    began = round(time.time() * 1000) - 3_600_000
    views, log = NoEnds([Click(1, began)], VIEWS), LabelLog([Click(1, began + 500)])
    joined, record = Matched(views, log, Jumps(None)), read(views, 0, 1)
    joined.gate.admits(record)
    wait_for(lambda: joined.labels.clocks.through() >= began + 10_000)
    assert not joined.gate.admits(record), "the next record may be nearer to the label"
    views.add([Click(1, began + 400), Click(2, began + 11_000)])
    wait_for(lambda: joined.gate.admits(record))
    assert joined.shape(record)[0].labels["later"].tolist() == [0.0]
    joined.stop()


def read(views: LabelLog, start: int, end: int) -> Decoded:
    """Return some records, as they come to be joined."""
    [chunk] = views._chunks(1, 0)
    if end < len(views.clicks):
        chunk, _ = chunk.split(end)
    return decode_chunk(chunk.split(start)[1] if start else chunk, DECODER)
