"""Every format with poison of some twenty kinds: each record meets the verdict that its writer has written down."""

import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import numpy as np
import pytest

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.stream.decode import decode_chunk
from tests.faults.campaigns.decoders import decoder_of, fuzz_formats
from tests.faults.campaigns.formats import LEARNT, account_for
from tests.faults.harness.forms import Form
from tests.faults.harness.records import ExpectedPosition, good
from tests.pipelines.formats.compiled import without_compiled

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600), pytest.mark.row(38)]
RECORDS, SHARE = 4_000, 0.03
"""Of each format: some of each kind of poison."""


def test_what_is_learnt_or_set_aside_is_what_was_produced_by_kind_and_reason(
    broker: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    seed = int(time.time())
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    figures = account_for(broker, tmp_path, records=RECORDS, seed=seed, share=SHARE)
    record_property("formats", figures.summary())
    assert figures.told == []
    assert figures.unaccounted == 0
    assert figures.records == RECORDS * len(LEARNT)


def test_any_changed_record_meets_the_same_end_among_neighbours_as_alone() -> None:
    figures = fuzz_formats(2_000, seed := int(time.time()))
    assert figures.told == [], f"seed {seed}"
    assert figures.set_aside > figures.cases // 2


@pytest.mark.parametrize("count", [1, 300])
@pytest.mark.parametrize("form", LEARNT.values(), ids=LEARNT)
def test_what_is_bad_is_named_also_where_all_around_it_is_good(form: Form, count: int, tmp_path: Path) -> None:
    """Nothing else in its chunk has a decoder look twice; of many it parses what it would diagnose of a few.

    Where there is no compiled code, nothing is refused before it is parsed.
    """
    decoder = decoder_of(form, tmp_path)
    before, bad, after = (good(ExpectedPosition(0, offset), Random(offset)) for offset in range(3))
    for one in (decoder, without_compiled(decoder)):
        told = {}
        for poison in form.poison:
            values = [form.render(before), *[poison.make(bad)] * count, form.render(after)]
            told[poison.name] = [(no.offset, no.reason) for no in decode_chunk(_chunk(values), one).refused]
        assert told == {poison.name: [(1 + at, poison.reason) for at in range(count)] for poison in form.poison}


def _chunk(values: list[bytes | None]) -> Chunk:
    size = len(values)
    return Chunk(
        partition=Partition("t", 0),
        incarnation=1,
        start=0,
        end=size,
        offsets=np.arange(size),
        timestamps=np.zeros(size, np.int64),
        keys=[None] * size,
        values=values,
        headers=[()] * size,
        nbytes=0,
        fetched_at=0.0,
    )
