"""What every decoder must do with any records: law by law, for a decoder and the verdicts that are known of it.

A decoded record is a function of its own bytes: whatever the chunk, the same row or the same verdict.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from millrace.pipelines.formats.conformance import Outcome, Row, alone, outcomes, same
from millrace.pipelines.formats.shared.protocol import Decoder

__all__ = [
    "Case",
    "Conformance",
    "Outcome",
    "Row",
    "alone",
    "assert_like_alone",
    "chunkings",
    "mutated",
    "outcomes",
    "same",
]


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


def assert_like_alone(decoder: Decoder, values: Sequence[bytes | None]) -> None:
    """Assert that each value has the same outcome among these neighbours as alone."""
    together = outcomes(decoder, values)
    for value, among, apart in zip(values, together, alone(decoder, values), strict=True):
        assert same(among, apart), f"{value!r}: {among} among neighbours, {apart} alone"


def chunkings(count: int, *, step: int = 1) -> Iterator[list[slice]]:
    """Yield ways to cut a run of values: by every fixed size, and in two at every place; or by some of these."""
    for size in range(1, count + 1, step):
        yield [slice(start, start + size) for start in range(0, count, size)]
    for middle in range(1, count, step):
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
