"""What every decoder must do with any records: law by law, for a decoder and the verdicts that are known of it.

A decoded record is a function of its own bytes: whatever the chunk, the same row or the same verdict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from hypothesis import strategies as st

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal

Row: TypeAlias = dict[str, object]
Outcome: TypeAlias = Row | tuple[Reason, str | None]
"""A record's values by source, as nested lists, or its verdict and the field at fault."""


@dataclass(frozen=True, slots=True)
class Case:
    """A value and what becomes of it."""

    what: str
    value: bytes | None
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Conformance:
    """A decoder, and cases that between them show every verdict that it gives."""

    name: str
    decoder: Decoder
    cases: Sequence[Case]

    @property
    def values(self) -> list[bytes | None]:
        """The cases' values."""
        return [case.value for case in self.cases]


def outcomes(decoder: Decoder, values: Sequence[bytes | None]) -> list[Outcome]:
    """Return the outcome of each value, after a check that the answer is complete and in the promised shapes."""
    decoded = decoder.decode(values)
    check_form(decoder, decoded, len(values))
    lists = {source: column.tolist() for source, column in decoded.columns.items()}
    found: dict[int, Outcome] = {
        index: {source: column[row] for source, column in lists.items()}
        for row, index in enumerate(decoded.kept.tolist())
    }
    found |= {refusal.index: (refusal.reason, refusal.field) for refusal in decoded.refused}
    return [found[index] for index in range(len(values))]


def check_form(decoder: Decoder, decoded: DecodedValues, count: int) -> None:
    """Assert that every value is named exactly once, in order, and that columns have the schema's dtypes and shapes."""
    kept, refused = decoded.kept.tolist(), [refusal.index for refusal in decoded.refused]
    assert kept == sorted(kept)
    assert refused == sorted(refused)
    assert sorted(kept + refused) == list(range(count))
    assert decoded.kept.dtype == np.int64
    assert all(isinstance(refusal, Refusal) for refusal in decoded.refused)
    assert set(decoded.columns) == {field.source for field in decoder.schema.fields}
    for field in decoder.schema.fields:
        column = decoded.columns[field.source]
        assert column.dtype == field.numpy_dtype
        assert column.shape == (len(kept), *field.shape)
        assert column.flags.c_contiguous
        assert column.flags.aligned


def same(left: Outcome, right: Outcome) -> bool:
    """Return whether two outcomes agree to the bit: -0.0 is not 0.0, and True is not 1."""
    return repr(left) == repr(right)


def alone(decoder: Decoder, values: Sequence[bytes | None]) -> list[Outcome]:
    """Return the outcome of each value in a chunk of its own."""
    return [outcomes(decoder, [value])[0] for value in values]


def assert_like_alone(decoder: Decoder, values: Sequence[bytes | None]) -> None:
    """Assert that each value has the same outcome among these neighbours as alone."""
    together = outcomes(decoder, values)
    for value, among, apart in zip(values, together, alone(decoder, values), strict=True):
        assert same(among, apart), f"{value!r}: {among} among neighbours, {apart} alone"


def chunkings(count: int) -> Iterator[list[slice]]:
    """Yield ways to cut a run of values: by every fixed size, and in two at every place."""
    for size in range(1, count + 1):
        yield [slice(start, start + size) for start in range(0, count, size)]
    for middle in range(1, count):
        yield [slice(0, middle), slice(middle, count)]


@st.composite
def mutated(draw: st.DrawFn, values: Sequence[bytes]) -> bytes:
    """Return a record with a few of its bytes changed, cut out, doubled, or taken from another."""
    value = bytearray(draw(st.sampled_from(values)))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(value)))
        end = draw(st.integers(at, min(len(value), at + 8)))
        other = draw(st.sampled_from(values))
        start = draw(st.integers(0, len(other)))
        value[at:end] = draw(
            st.one_of(
                st.just(b""),
                st.binary(max_size=3),
                st.sampled_from([b'""', b'","', b",,", b";", b"\r\n", b"\r", b" 1", b"0x1F", b"TRUE", b"'"]),
                st.sampled_from([b"{", b"}", b"[", b"]", b'"', b",", b":", b"\\", b"\n", b" ", b"\0", b"}{", b"null"]),
                st.sampled_from(
                    [b"NaN", b"Inf", b"-", b"1e400", b"0", b"\xff", b"\xc3\xa9", b"\\ud800", b"\xef\xbb\xbf"]
                ),
                st.just(bytes(value[at:end]) * 2),
                st.just(other[start : start + 12]),
            )
        )
    return bytes(value)
