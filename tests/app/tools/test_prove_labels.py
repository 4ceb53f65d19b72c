"""A proof with labels that come later joins what is made up as the plain join of the tests does."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from millrace.app.settings import load, to_decoder
from millrace.app.settings.sections.labels import KEY
from millrace.app.tools.prove.made_up_labels import PlainJoin
from millrace.app.tools.prove.prove import set_apart
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import PRESENT
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from tests.app.conftest import FIVE_LINES, LoadText
from tests.faults.harness.plain_join import Jump, Label, Record, Rules, plain_join
from tests.pipelines.stream.test_decode import chunk_of

LABELS = """\
labels:
  topics: [later]
  join: {record: id}
  label: {clicked: {dtype: float32, absent: ABSENT}}
  within: 100ms
  early: 10ms
  take: TAKE
"""
CONFIG = FIVE_LINES.replace(", label: {clicked: float32}", "")
EVERY_MS, RECORDS = 7, 400


def decoded(rows: Sequence[tuple[int, dict[str, object]]], partition: Partition, decoder: Decoder) -> Decoded:
    """Decode records of these times."""
    chunk = chunk_of([json.dumps(row).encode() for _, row in rows])
    times = np.array([time for time, _ in rows], np.int64)
    return decode_chunk(replace(chunk, partition=partition, timestamps=times), decoder)


@pytest.mark.parametrize("absent", ["0.0", "drop", "mask"])
@pytest.mark.parametrize("take", ["first", "last", "max", "sum", "count"])
def test_made_up_labels_are_joined_as_a_plain_join_does(load_text: LoadText, take: str, absent: str) -> None:
    text = CONFIG.replace("}}", "}, label: {other: float32}}") + LABELS.replace("TAKE", take).replace("ABSENT", absent)
    settings, random = load_text(text).settings, Random(7)
    ids = [f"k{random.randrange(60)}" for _ in range(RECORDS)]
    clicks = [(7 * random.randrange(RECORDS), f"k{random.randrange(90)}", float(random.randrange(5))) for _ in ids]
    records = [
        (EVERY_MS * at, {"price": 1.0, "ad": "a", "hour": 1, "other": 0.0, "id": key}) for at, key in enumerate(ids)
    ]
    rules = settings.labels.rules
    by_time = [(time, {"id": key, "clicked": value}) for time, key, value in sorted(clicks)]
    later = decoded(by_time, Partition("later", 0), to_decoder(settings.labels.records()))
    mine = decoded(records, Partition("clicks", 0), to_decoder(settings.records))
    join = PlainJoin(rules, [later], KEY)
    rows, left_out = join.open(1, {mine.partition: 0})(mine)

    none = None if absent == "drop" else 0.0
    asked = Rules(within_ms=100, early_ms=10, absent={"clicked": none}, take=take)
    expected = plain_join(
        asked,
        {0: [Record(at, key, EVERY_MS * at, EVERY_MS * at) for at, key in enumerate(ids)]},
        {0: [Label(at, key, time, {"clicked": value}) for at, (time, key, value) in enumerate(sorted(clicks))]},
        [Jump(0, len(clicks), 10**6)],
        now=10**6,
    )
    assert join.counted(mine.partition, RECORDS) == expected.outcomes(0)
    assert join.counted(mine.partition, 0) == Counter()
    assert rows.offsets.tolist() == expected.learnt(0)
    assert [offset for offset, _ in left_out] == sorted({*range(RECORDS)} - {*expected.learnt(0)})
    learnt = [expected.records[0, at].label for at in expected.learnt(0)]
    assert rows.labels["clicked"].tolist() == [label["clicked"] for label in learnt if label is not None]
    if absent == "mask":
        assert rows.labels["clicked" + PRESENT].sum() == expected.outcomes(0)["labelled"]
    assert 50 < expected.outcomes(0)["labelled"] < RECORDS - 50


def test_a_proof_joins_by_the_brokers_times_and_within_seconds(load_text: LoadText, tmp_path: Path) -> None:
    text = CONFIG.replace("}}", "}, event_time: {field: at}}")
    text += (
        LABELS.replace("TAKE", "last").replace("ABSENT", "0.0").replace("100ms", "30m")
        + "  event_time: {field: at}\n  co_partitioned: true\n"
    )
    theirs = load_text(text).settings
    ours = load(set_apart(theirs, "127.0.0.1:1234", tmp_path / "apart").config, {}).settings
    assert (ours.labels.within, ours.labels.early, ours.labels.take) == (2.0, 0.01, theirs.labels.take)
    assert (ours.labels.event_time, ours.records.event_time) == (None, None)
    assert theirs.labels.co_partitioned
    assert not ours.labels.co_partitioned, "made-up labels lie in any partition"


def test_a_proof_says_that_it_joins_each_record_by_itself(load_text: LoadText, tmp_path: Path) -> None:
    text = CONFIG + LABELS.replace("TAKE", "last").replace("ABSENT", "0.0") + "  match: first_after\n"
    with pytest.raises(ConfigError, match=r"labels\.match: first_after: a proof joins each record by itself"):
        set_apart(load_text(text).settings, "127.0.0.1:1234", tmp_path / "apart")
