"""What a dead letter is as a record of Kafka: key, value and headers, whole or shortened. Pure functions."""

from typing import Any, NamedTuple

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from millrace.consumers.dead_letters.letter import HEADER_PREFIX, DeadLetter

_SHORTENED_BYTES = 16 * 1024
"""How much is sent of the value, and of the key, of a letter that is too large."""


class LetterContents(NamedTuple):
    """A letter as it is written to its topic."""

    key: bytes | None
    value: bytes
    headers: list[tuple[str, bytes]]

    @property
    def nbytes(self) -> int:
        """Its size in a request, at most."""
        return int(DefaultRecordBatchBuilder.estimate_size_in_bytes(*self))

    def append_to(self, batch: Any) -> bool:
        """Append it to a batch of aiokafka's producer; return whether the batch had room.

        The timestamp is now, not the record's: with an old one, retention could remove the letter at once.
        """
        return batch.append(timestamp=None, key=self.key, value=self.value, headers=self.headers) is not None


def contents_of(letter: DeadLetter) -> LetterContents:
    """Return the record that was set aside, with its headers and ours."""
    headers = letter.all_headers()
    if letter.value is None:
        # In a compacted topic a letter without a value would delete those of its key. So an empty value is sent, and
        # the header tells it from a value that was empty.
        headers.append(("millrace.value", b"null"))
    return LetterContents(letter.key, letter.value or b"", headers)


def shortened_contents_of(letter: DeadLetter) -> LetterContents:
    """Return the beginning of the record's value and key, without its headers.

    Ours say where the whole record is.
    """
    value, key = letter.value or b"", letter.key
    ours = [(name, text) for name, text in letter.all_headers() if name.startswith(HEADER_PREFIX)]
    ours.append(("millrace.value_bytes", str(len(value)).encode()))
    return LetterContents(key and key[:_SHORTENED_BYTES], value[:_SHORTENED_BYTES], ours)
