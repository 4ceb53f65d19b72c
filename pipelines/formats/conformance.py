"""What every format must keep, law by law: for a format of ours in the tests, for a user's own in `millrace validate`.

A decoded record is a function of its own bytes: with any chunks and any neighbours, the same row or the same verdict.
The records are made up by the format, and mutated; no record of a topic is needed.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from random import Random
from typing import Any, TypeAlias

import numpy as np

from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.format import Format
from millrace.pipelines.formats.shared.made_up import made_up_columns
from millrace.pipelines.formats.shared.paths import distinct_fields
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal
from millrace.pipelines.schema import Schema, Schemas

Row: TypeAlias = dict[str, object]
Outcome: TypeAlias = Row | tuple[Reason, str | None]
"""A record's values by source, as nested lists, or its verdict and the field at fault."""
Values: TypeAlias = Sequence[bytes | None]

_GOOD, _BAD, _THREADS = 24, 48, 4
_CUTS = (2, 7, 50)
_SHOWN = 80
_BYTES = b'{}[]":,;=0123456789eE.-+ntIN\\ \r\n\0\xff\xc3'


class UnkeptError(AssertionError):
    """A decoder answers what none may answer."""


@dataclass(frozen=True, slots=True)
class FormatFinding:
    """A law, and how a format breaks it."""

    law: str
    fault: str | None = None
    """None where the law is kept."""


def findings(
    form: Format, schema: Schema, settings: Any = None, schemas: Schemas | None = None, records: Sequence[bytes] = ()
) -> Iterator[FormatFinding]:
    """Examine a format on a schema, and yield every law with what was found.

    `records` are good ones of the schema, for a format that makes none up.
    """
    law = "the format gives a decoder for the schema"
    try:
        form.fits(schema, settings, registered=schemas is not None)
        decoder = form.decoder(schema, settings, schemas)
    except Exception as error:  # noqa: BLE001 - a user's own code may raise anything
        yield FormatFinding(law, _gist(error))
        return
    yield FormatFinding(law)
    made_up: Sequence[bytes] = ()
    if not records:
        law = "records can be made up, and are read as they were written"
        try:
            made_up = form.generate(schema, np.random.default_rng(1), _GOOD, settings)
            yield _found(law, lambda: _round_trip(decoder, schema, made_up))
        except Exception as error:  # noqa: BLE001 - as above
            yield FormatFinding(law, _gist(error))
    good = list(records or made_up)
    values = _mixed(good, Random(1))  # noqa: S311 - no secret
    yield _found("no records are no rows", lambda: None if outcomes(decoder, []) == [] else "it makes rows of nothing")
    yield _found("a record without bytes is set aside as empty", lambda: _empty(decoder))
    yield _found("bytes that are no record get a verdict, and raise nothing", lambda: _verdicts(decoder, values))
    yield _found("a record is read among others as it is alone", lambda: _like_alone(decoder, values))
    yield _found("no cut into chunks changes a record", lambda: _cut(decoder, values))
    yield _found("several threads may decode at once", lambda: _at_once(decoder, values))


def outcomes(decoder: Decoder, values: Values) -> list[Outcome]:
    """Return the outcome of each value. Raise UnkeptError where the answer is not whole, or of other shapes."""
    decoded = decoder.decode(values)
    check_form(decoder.schema, decoded, len(values))
    lists = {source: column.tolist() for source, column in decoded.columns.items()}
    found: dict[int, Outcome] = {
        index: {source: column[row] for source, column in lists.items()}
        for row, index in enumerate(decoded.kept.tolist())
    }
    found |= {refusal.index: (refusal.reason, refusal.field) for refusal in decoded.refused}
    return [found[index] for index in range(len(values))]


def check_form(schema: Schema, decoded: DecodedValues, count: int) -> None:
    """Raise UnkeptError unless every value is named once, in order, and columns have the schema's dtypes and shapes."""
    kept, refused = decoded.kept.tolist(), [refusal.index for refusal in decoded.refused]
    _require(decoded.kept.dtype == np.int64, f"kept is {decoded.kept.dtype}, not int64")
    _require(kept == sorted(kept) and refused == sorted(refused), "kept or refused does not ascend")
    _require(sorted(kept + refused) == list(range(count)), "kept and refused do not name every value exactly once")
    _require(all(isinstance(refusal, Refusal) for refusal in decoded.refused), "refused holds more than Refusals")
    sources = {field.source for field in distinct_fields(schema)}
    _require(decoded.columns.keys() == sources, f"the columns are {sorted(decoded.columns)}, not {sorted(sources)}")
    for field in distinct_fields(schema):
        column, shape = decoded.columns[field.source], (len(kept), *field.shape)
        _require(column.dtype == field.numpy_dtype, f"{field.source!r} is {column.dtype}, not {field.numpy_dtype}")
        _require(column.shape == shape, f"{field.source!r} has the shape {column.shape}, not {shape}")
        whole = column.flags.c_contiguous and column.flags.aligned
        _require(whole, f"{field.source!r} is not contiguous, or not aligned")


def same(left: Outcome, right: Outcome) -> bool:
    """Return whether two outcomes agree to the bit: -0.0 is not 0.0, and True is not 1."""
    return repr(left) == repr(right)


def alone(decoder: Decoder, values: Values) -> list[Outcome]:
    """Return the outcome of each value in a chunk of its own."""
    return [outcomes(decoder, [value])[0] for value in values]


def mutant(good: Sequence[bytes], random: Random) -> bytes:
    """Return a record with a few of its bytes changed, cut out, doubled, or taken from another."""
    value = bytearray(random.choice(good))
    for _ in range(random.randint(1, 3)):
        start = random.randrange(len(value) + 1)
        end = min(len(value), start + random.randint(0, 8))
        other = random.choice(good)
        at = random.randrange(len(other) + 1)
        value[start:end] = random.choice(
            [b"", value[start:end] * 2, other[at : at + 12], bytes([random.choice(_BYTES)]), random.randbytes(3)]
        )
    return bytes(value)


def _mixed(good: Sequence[bytes], random: Random) -> list[bytes | None]:
    """Return good records among bad ones, in any order."""
    bad = [mutant(good, random) if good and random.random() < 0.8 else random.randbytes(9) for _ in range(_BAD)]
    values: list[bytes | None] = [*good, *bad, None, b"", b"\0", b"\n", *(record[:-1] for record in good[:8])]
    random.shuffle(values)
    return values


def _found(law: str, check: Callable[[], str | None]) -> FormatFinding:
    try:
        return FormatFinding(law, check())
    except Exception as error:  # noqa: BLE001 - a user's own code may raise anything
        return FormatFinding(law, _gist(error))


def _gist(error: Exception) -> str:
    if isinstance(error, UnkeptError | MillraceError | ConfigError):
        return str(error)
    return f"it raises {type(error).__name__}: {error}"


def _round_trip(decoder: Decoder, schema: Schema, made_up: Sequence[bytes]) -> str | None:
    drawn = made_up_columns(schema, np.random.default_rng(1), len(made_up))
    decoded = decoder.decode(made_up)
    check_form(schema, decoded, len(made_up))
    if decoded.refused:
        first = decoded.refused[0]
        place = "" if first.field is None else f", in {first.field!r}"
        return f"a made-up record is set aside as {first.reason.value}{place}: {made_up[first.index]!r:.{_SHOWN}}"
    time = None if schema.event_time is None else schema.event_time.source
    for field in distinct_fields(schema):
        written = drawn[field.source]
        wanted = np.char.encode(written.astype(str)).tolist() if field.dtype == "string" else written.tolist()
        for want, got in zip(wanted, decoded.columns[field.source].tolist(), strict=True):
            if repr(want) != repr(got) and field.source != time:  # the times are those of two moments
                return f"{field.source!r} was written as {want!r} and is read as {got!r}"
    return None


def _empty(decoder: Decoder) -> str | None:
    found = outcomes(decoder, [None, b""])
    return None if found == [(Reason.EMPTY, None)] * 2 else f"None and b'' become {found}"


def _verdicts(decoder: Decoder, values: Values) -> str | None:
    for value in values:
        try:
            outcomes(decoder, [value])
        except Exception as error:  # noqa: BLE001 - what it must not do
            return f"{_gist(error)}, of {value!r:.{_SHOWN}}"
    return None


def _like_alone(decoder: Decoder, values: Values) -> str | None:
    # In another order, so that a decoder that remembers the record before it is found out.
    apart_by_turn = alone(decoder, values[::-1])[::-1]
    for value, among, apart in zip(values, outcomes(decoder, values), apart_by_turn, strict=True):
        if not same(among, apart):
            return f"of {value!r:.{_SHOWN}}: {among} among others, {apart} alone"
    return None


def _cut(decoder: Decoder, values: Values) -> str | None:
    whole = outcomes(decoder, values)
    for size in _CUTS:
        parts = [outcomes(decoder, values[at : at + size]) for at in range(0, len(values), size)]
        if not all(map(same, whole, [one for part in parts for one in part])):
            return f"in chunks of {size} a record is read otherwise than in one of {len(values)}"
    return None


def _at_once(decoder: Decoder, values: Values) -> str | None:
    whole = outcomes(decoder, values)
    with ThreadPoolExecutor(_THREADS) as pool:
        for found in pool.map(lambda _: outcomes(decoder, values), range(2 * _THREADS)):
            if not all(map(same, whole, found)):
                return "a record is read otherwise while other threads decode; hold no state between two records"
    return None


def _require(kept: object, fault: str) -> None:
    if not kept:
        raise UnkeptError(fault)
