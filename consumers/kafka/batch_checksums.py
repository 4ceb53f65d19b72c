"""The checksums of a response's batches, by the processor's own instruction, which aiokafka does not use.

aiokafka hides a batch's bytes, so its fetcher is given records that keep those of the response. Where they are not
kept, or a checksum seems wrong, aiokafka's own check has the word. So a batch is never called damaged on the word of
this module, and never right unless the checksum in its header is that of its bytes.
"""

from typing import Any

import google_crc32c
from aiokafka.consumer import fetcher
from aiokafka.record.memory_records import MemoryRecords

_LENGTH_AT, _BEHIND_LENGTH, _MAGIC_AT, _CRC_AT, _COVERED_AT = 8, 12, 16, 17, 21
_NATIVE = google_crc32c.implementation == "c"
"""In plain Python, where there is no wheel for the platform, it takes longer than aiokafka's own."""
_SINCE_MAGIC = 2
"""Older formats have another checksum."""


class KeptRecords(MemoryRecords):  # type: ignore[misc]  # to mypy aiokafka's classes are Any
    """The records of a response, which also keep its bytes."""

    def __init__(self, raw: bytes) -> None:
        super().__init__(raw)
        self.raw = raw


def keep_bytes() -> None:
    """Have aiokafka's fetchers of this process keep the bytes of what they have fetched from now on."""
    fetcher.MemoryRecords = KeptRecords


class BatchChecksums:
    """Checks the batches of one `MemoryRecords`, in their order, from the first on."""

    def __init__(self, records: Any) -> None:
        self._raw: bytes | None = records.raw if _NATIVE and type(records) is KeptRecords else None
        self._at = 0

    def passes(self, batch: Any) -> bool:
        """Return whether the next batch, which is this one, is what was written. Asked once for each."""
        raw, at = self._raw, self._at
        if raw is not None:
            self._at = end = at + _BEHIND_LENGTH + int.from_bytes(raw[at + _LENGTH_AT : at + _BEHIND_LENGTH], "big")
            written = int.from_bytes(raw[at + _CRC_AT : at + _COVERED_AT], "big")
            if raw[at + _MAGIC_AT] >= _SINCE_MAGIC and google_crc32c.value(raw[at + _COVERED_AT : end]) == written:
                return True
        return bool(batch.validate_crc())
