"""The laws of formats: ours keep all of them, and each law finds the format that breaks it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.consumers.reasons import Reason
from millrace.pipelines.formats import FORMATS, Format, format_of
from millrace.pipelines.formats.conformance import findings
from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.row_format import RowFormat
from millrace.pipelines.formats.shared.protocol import DecodedValues, Decoder, Refusal
from millrace.pipelines.schema import Field, Schema, Schemas
from tests.pipelines.formats.decoder_conformance import Conformance
from tests.pipelines.formats.verdicts import SUBJECTS

SCHEMA = Schema(
    features=(
        Field(name="x", source="x", dtype="float32"),
        Field(name="hour", source="hour", dtype="int8"),
        Field(name="seen", source="seen", dtype="bool"),
    ),
    labels=(Field(name="y", source="y", dtype="int64", one_of=(0, 1)),),
)
WITH_TEXT = replace(SCHEMA, features=(*SCHEMA.features, Field(name="ad", source="ad", dtype="string")))


class Given(Format):
    """A format whose decoder is given."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        return self._decoder


@pytest.mark.parametrize("name", ["json", "csv", "raw"])
def test_a_format_that_makes_records_up_keeps_every_law(name: str) -> None:
    form = format_of(name)
    settings = CsvSettings() if name == "csv" else None
    found = [*findings(form, SCHEMA if name == "raw" else WITH_TEXT, settings)]
    assert [finding for finding in found if finding.fault is not None] == []
    assert len(found) == 8


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_decoder_of_every_format_keeps_every_law(subject: Conformance) -> None:
    good = [case.value for case in subject.cases if isinstance(case.outcome, dict) and case.value is not None]
    found = [*findings(Given(subject.decoder), subject.decoder.schema, records=good)]
    assert [finding for finding in found if finding.fault is not None] == []
    assert subject.name.split()[0] in FORMATS


class Pairs(RowFormat):
    """`x=1.5 y=0`, as it should be; the formats below break one law each."""

    is_flat = True

    def read(self, value: bytes) -> Mapping[str, Any]:
        return dict(part.split("=", 1) for part in value.decode().split(" "))

    def write(self, row: Mapping[str, Any]) -> bytes:
        return " ".join(f"{name}={value}" for name, value in row.items()).encode()


class Remembers(Pairs):
    """Gives a record what the one before it had."""

    def __init__(self) -> None:
        self._last: Mapping[str, Any] = {}

    def read(self, value: bytes) -> Mapping[str, Any]:
        self._last = {**self._last, **super().read(value)}
        return self._last


class Rounds(Pairs):
    def read(self, value: bytes) -> Mapping[str, Any]:
        row = dict(super().read(value))
        return {**row, "x": round(float(row["x"]), 2)}


class Loses(Pairs):
    def write(self, row: Mapping[str, Any]) -> bytes:
        return super().write({name: value for name, value in row.items() if name != "x"})


class _Wrapped:
    """Decodes as `Pairs`, and changes what comes of it."""

    def __init__(self, change: Callable[[Sequence[bytes | None], DecodedValues], DecodedValues]) -> None:
        self._inner, self._change = Pairs().decoder(SCHEMA), change
        self.schema = SCHEMA

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        return self._change(values, self._inner.decode(values))


class Changed(Pairs):
    def __init__(self, change: Callable[[Sequence[bytes | None], DecodedValues], DecodedValues]) -> None:
        self._change = change

    def decoder(self, schema: Schema, settings: Any = None, schemas: Schemas | None = None) -> Decoder:
        return _Wrapped(self._change)


def _raises(values: Sequence[bytes | None], decoded: DecodedValues) -> DecodedValues:
    if any(refusal.reason is Reason.MALFORMED for refusal in decoded.refused):
        raise UnicodeDecodeError("utf-8", values[0] or b"", 0, 1, "bad")
    return decoded


def _says_nothing(values: Sequence[bytes | None], decoded: DecodedValues) -> DecodedValues:
    return replace(decoded, refused=())


def _is_float64(values: Sequence[bytes | None], decoded: DecodedValues) -> DecodedValues:
    return replace(decoded, columns={**decoded.columns, "x": decoded.columns["x"].astype(np.float64)})


def _drops_long_chunks(values: Sequence[bytes | None], decoded: DecodedValues) -> DecodedValues:
    if len(values) < 60:
        return decoded
    return DecodedValues(
        decoded.kept[:0],
        {source: column[:0] for source, column in decoded.columns.items()},
        tuple(Refusal(index, Reason.MALFORMED) for index in range(len(values))),
    )


ROUND_TRIP = "records can be made up, and are read as they were written"
BAD_BYTES = "bytes that are no record get a verdict, and raise nothing"
AMONG_OTHERS = "a record is read among others as it is alone"


def test_a_format_of_two_functions_keeps_every_law() -> None:
    assert [finding.fault for finding in findings(Pairs(), SCHEMA)] == [None] * 8


@pytest.mark.parametrize(
    ("form", "law", "says"),
    [
        (Remembers(), AMONG_OTHERS, "among others"),
        (Rounds(), ROUND_TRIP, "'x' was written as"),
        (Loses(), ROUND_TRIP, "set aside as missing, in 'x'"),
        (Changed(_raises), BAD_BYTES, "it raises UnicodeDecodeError"),
        (Changed(_says_nothing), BAD_BYTES, "do not name every value exactly once"),
        (Changed(_is_float64), ROUND_TRIP, "'x' is float64, not float32"),
        (Changed(_drops_long_chunks), "no cut into chunks changes a record", "otherwise"),
    ],
    ids=["remembers", "rounds", "loses", "raises", "silent", "float64", "long chunks"],
)
def test_the_law_that_a_format_breaks_is_found_broken(form: Format, law: str, says: str) -> None:
    faults = {finding.law: finding.fault for finding in findings(form, SCHEMA)}
    assert says in str(faults[law])


def test_a_list_is_refused_by_a_flat_format() -> None:
    schema = Schema(features=(Field(name="x", source="x", dtype="float32", shape=(2,)),))
    (found,) = findings(Pairs(), schema)
    assert "'x' has a shape" in str(found.fault)
