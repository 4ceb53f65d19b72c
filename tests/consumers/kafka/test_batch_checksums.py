"""A batch passes if its bytes are those that were written, whatever finds that out."""

from collections.abc import Sequence
from typing import Any

import google_crc32c
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from aiokafka.record.memory_records import MemoryRecords
from hypothesis import given
from hypothesis import strategies as st

from millrace.consumers.kafka import aiokafka_internals
from millrace.consumers.kafka.aiokafka_internals import BatchChecksums, KeptRecords

VALUES = st.lists(st.binary(max_size=40), min_size=1, max_size=4)
_COVERED_AT = 17
"""From the checksum on a change of any byte is found; before it stand the offset, the length and the format."""


def batch_of(values: Sequence[bytes], codec: int = 0) -> bytes:
    built = DefaultRecordBatchBuilder(2, codec, 0, -1, -1, -1, 1 << 20)
    for at, value in enumerate(values):
        built.append(at, 7, None, value, [])
    return bytes(built.build())


def verdicts(raw: bytes) -> list[bool]:
    records = KeptRecords(raw)
    checksums, found = BatchChecksums(records), []
    while records.has_next():
        found.append(checksums.passes(records.next_batch()))
    return found


@given(st.lists(st.tuples(VALUES, st.integers(0, 4)), min_size=1, max_size=4), st.data())
def test_a_changed_byte_is_found_in_its_batch_alone(
    batches: list[tuple[list[bytes], int]], data: st.DataObject
) -> None:
    raws = [batch_of(*batch) for batch in batches]
    assert verdicts(b"".join(raws)) == [True] * len(raws)
    chosen = data.draw(st.integers(0, len(raws) - 1))
    at = data.draw(st.integers(_COVERED_AT, len(raws[chosen]) - 1))
    changed = bytearray(raws[chosen])
    changed[at] ^= data.draw(st.integers(1, 255))
    raws[chosen] = bytes(changed)
    assert verdicts(b"".join(raws)) == [number != chosen for number in range(len(raws))]


class Unasked:
    """A batch whose own check is not to be needed."""

    def __init__(self, batch: Any) -> None:
        self.base_offset = batch.base_offset

    def validate_crc(self) -> bool:
        raise AssertionError("aiokafka has checked it")


def test_the_bytes_that_are_kept_suffice() -> None:
    records = KeptRecords(batch_of([b"a"]) + batch_of([b"b", b"c"], codec=1))
    checksums = BatchChecksums(records)
    while records.has_next():
        assert checksums.passes(Unasked(records.next_batch()))


@pytest.mark.parametrize("magic", [0, 1])
def test_batches_of_older_formats_have_aiokafkas_check(magic: int) -> None:
    built = LegacyRecordBatchBuilder(magic, 0, 1 << 20)
    built.append(0, 7, None, b"value")
    good = bytes(built.build())
    assert verdicts(good + good) == [True, True]
    assert verdicts(good + good[:-1] + b"?") == [True, False]


def test_records_that_keep_no_bytes_have_aiokafkas_check() -> None:
    raw = batch_of([b"a"])
    good, bad = MemoryRecords(raw), MemoryRecords(raw[:-1] + b"?")
    assert BatchChecksums(good).passes(good.next_batch())
    assert not BatchChecksums(bad).passes(bad.next_batch())


def test_without_the_native_code_aiokafkas_check_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert google_crc32c.implementation == "c"
    monkeypatch.setattr(aiokafka_internals, "_NATIVE", False)
    records = KeptRecords(batch_of([b"a"]))
    with pytest.raises(AssertionError, match="aiokafka has checked it"):
        BatchChecksums(records).passes(Unasked(records.next_batch()))
