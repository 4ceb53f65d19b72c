"""Compiled code for CSV: it gives what pyarrow gives, to the bit, and takes what is usual."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from millrace.pipelines.formats.csv import CsvSettings
from millrace.pipelines.formats.csv.decoder import CsvDecoder
from millrace.pipelines.schema import Field, Schema
from tests.pipelines.formats.compiled import assert_alike, without_compiled
from tests.pipelines.formats.decoder_conformance import Conformance, mutated, outcomes, same
from tests.pipelines.formats.verdicts import SUBJECTS

CSVS = [subject for subject in SUBJECTS if subject.name.startswith("csv")]
FIELDS = (
    Field(name="float", source="float", dtype="float32"),
    Field(name="double", source="double", dtype="float64", missing=-1),
    Field(name="whole", source="whole", dtype="int64", missing=0),
    Field(name="small", source="small", dtype="uint8", missing=7),
    Field(name="yes", source="yes", dtype="bool", missing=False),
    Field(name="text", source="text", dtype="string", missing="none"),
    Field(name="three", source="three", dtype="float32", shape=(3,)),
    Field(name="some", source="some", dtype="int64", shape=(2,), pad=0),
    Field(name="tags", source="tags", dtype="string", shape=(2,), pad="-"),
)
COLUMNS = ("other", "float", "double", "whole", "small", "yes", "more", "text", "three", "some", "tags")
RULES = (
    Field(name="float", source="float", dtype="float32", max=0.5, min=-1),
    Field(name="double", source="double", dtype="float64", one_of=(-2.25, 0)),
    Field(name="whole", source="whole", dtype="int64", one_of=(7, 2**62 + 1)),
    Field(name="small", source="small", dtype="uint8"),
    Field(name="yes", source="yes", dtype="bool"),
    Field(name="text", source="text", dtype="string"),
    Field(name="three", source="three", dtype="float32", shape=(3,), min=1),
    Field(name="some", source="some", dtype="int64", shape=(2,), pad=0, max=5),
    Field(name="tags", source="tags", dtype="string", shape=(2,), missing="a"),
)
DECODERS = [
    CsvDecoder(Schema(features=FIELDS), CsvSettings(columns=COLUMNS, lists=";")),
    CsvDecoder(Schema(features=FIELDS), CsvSettings(columns=COLUMNS, lists="|", quote="'", delimiter=";")),
    CsvDecoder(Schema(features=FIELDS), CsvSettings(columns=COLUMNS, lists=" ", quote=None, delimiter="\t")),
    CsvDecoder(Schema(features=FIELDS[:7]), CsvSettings(columns=("other", *(field.name for field in FIELDS[:7])))),
    CsvDecoder(Schema(features=RULES), CsvSettings(columns=COLUMNS, lists=";")),
    CsvDecoder(Schema(features=RULES[::-1]), CsvSettings(columns=COLUMNS, lists="|", quote="'", delimiter=";")),
    CsvDecoder(Schema(features=RULES[:7]), CsvSettings(columns=("other", *(field.name for field in RULES[:7])))),
]
NUMBER = st.one_of(
    st.floats().map(repr),
    st.floats(width=32).map(repr),
    st.integers(-(2**65), 2**65).map(str),
    st.from_regex(r"[ +-]?[0-9]{1,4}(\\.[0-9]{0,9})?([eE][+-]?[0-9]{1,2})? ?", fullmatch=True),
)
WORD = st.text(st.sampled_from("ab \"'ü;,|\n\r1.\t"), max_size=5)
CELL = st.one_of(
    NUMBER,
    NUMBER,
    WORD,
    st.sampled_from(
        ["", "true", "0", "False", "1;2", "1|2|3", "a b", '""', "1 2", "\ufeff", "0.5000001", "inf", "256", "1;2;nan"]
    ),
)


def test_csv_has_compiled_code() -> None:
    assert all(decoder._plain is not None for decoder in DECODERS)


@st.composite
def rows(draw: st.DrawFn) -> bytes:
    """Draw a row of the layouts, in which some columns are in quotes."""
    delimiter, quote = draw(st.sampled_from([(",", '"'), (";", "'"), ("\t", "")]))
    typical = ["x", "0.5", "-2.25", "7", "9", "1", "", "word", "1;2;3", "4", "a;b"]
    cells = [draw(CELL) if draw(st.integers(0, 3)) == 0 else cell for cell in typical]
    return delimiter.join(quote + cell + quote if draw(st.integers(0, 5)) == 0 else cell for cell in cells).encode()


@pytest.mark.parametrize("decoder", DECODERS)
@settings(max_examples=40)
@given(values=st.lists(st.one_of(rows(), rows().flatmap(lambda row: mutated([row]))), min_size=1, max_size=6))
@example(values=[b"x,1,2,3,4,0,,,1;2;3,,", b'x,"1",2,3,4,0,,"",1;2;3,4,""', b'x,"",2,3,4,"",,"",1;;3,1;,;'])
@example(values=[b"x,1,2,3,4," + yes + b",,a,1;2;3,4,a" for yes in (b"yes", b"word", b"TRUE", b"1", b"tRUE", b"01")])
def test_every_record_has_the_outcome_that_it_has_by_pyarrow(decoder: CsvDecoder, values: list[bytes]) -> None:
    assert_alike(decoder, [*values])


@pytest.mark.parametrize("subject", CSVS, ids=lambda subject: subject.name)
def test_every_verdict_is_the_same_without_the_code(subject: Conformance) -> None:
    found = outcomes(without_compiled(subject.decoder), subject.values)
    assert all(same(here, case.outcome) for here, case in zip(found, subject.cases, strict=True))


@pytest.mark.parametrize(
    "row",
    [
        b"x,0.5,-1e3,7,9,true,,a word,1;2;3,4,a;b",
        '"a, b",0.5,12,-7,0,0,,"a word; ü","1;2;3","4;5",""'.encode(),
        b"x,1,,,,,,,1;2;3,,",
    ],
)
def test_what_is_usual_is_plain(row: bytes) -> None:
    plain = DECODERS[0]._plain
    assert plain is not None
    found = plain.of([row, row])
    assert found is not None
    assert np.array_equal(found.indices, [0, 1])
