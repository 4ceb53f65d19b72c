"""Every decoder, through the conformance suite."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.pipelines.formats import FORMATS
from tests.pipelines.formats.decoder_conformance import (
    Case,
    Conformance,
    alone,
    assert_like_alone,
    chunkings,
    mutated,
    outcomes,
    same,
)
from tests.pipelines.formats.verdicts import SUBJECTS

EVERY_CASE = [
    pytest.param(subject, case, id=f"{subject.name}: {case.what}") for subject in SUBJECTS for case in subject.cases
]
every_subject: Callable[[Callable[..., None]], Callable[..., None]] = pytest.mark.parametrize(
    "subject", SUBJECTS, ids=lambda subject: subject.name
)


def test_every_format_is_put_through_the_suite() -> None:
    assert {subject.name.split()[0] for subject in SUBJECTS} == set(FORMATS)


@pytest.mark.parametrize(("subject", "case"), EVERY_CASE)
def test_a_record_alone_gets_the_verdict_of_the_table(subject: Conformance, case: Case) -> None:
    (outcome,) = outcomes(subject.decoder, [case.value])
    assert same(outcome, case.outcome), outcome


@every_subject
def test_no_records_are_no_rows(subject: Conformance) -> None:
    assert outcomes(subject.decoder, []) == []


each_night: Callable[[Callable[..., None]], Callable[..., None]] = pytest.mark.parametrize(
    "parts", [4, pytest.param(None, marks=pytest.mark.nightly)], ids=["some", "all"]
)
"""Into how many parts what can be tried is cut, of which the gate tries the first of each; each night tries all."""


@every_subject
@pytest.mark.slow
@each_night
def test_every_pair_of_records_is_decoded_as_each_is_alone(subject: Conformance, parts: int | None) -> None:
    """Here each record stands before and behind its next one, itself and some at even distances."""
    cases = subject.cases
    step = max(1, len(cases) // parts) if parts else 1
    for distance in {1, *range(0, len(cases), step)}:
        for number, first in enumerate(cases):
            second = cases[(number + distance) % len(cases)]
            found = outcomes(subject.decoder, [first.value, second.value])
            assert same(found[0], first.outcome), (first.what, second.what)
            assert same(found[1], second.outcome), (first.what, second.what)


@pytest.mark.slow
@every_subject
@each_night
def test_no_cut_into_chunks_changes_a_record(subject: Conformance, parts: int | None) -> None:
    values = subject.values
    for cuts in chunkings(len(values), step=max(1, len(values) // parts) if parts else 1):
        found = [outcome for cut in cuts for outcome in outcomes(subject.decoder, values[cut])]
        assert all(same(outcome, case.outcome) for outcome, case in zip(found, subject.cases, strict=True))


@pytest.mark.slow
@every_subject
@pytest.mark.parametrize("copies", [1, 40])
def test_no_order_changes_a_record(subject: Conformance, copies: int) -> None:
    for seed in range(6 if copies == 1 else 1):
        cases = list(subject.cases) * copies
        random.Random(seed).shuffle(cases)
        found = outcomes(subject.decoder, [case.value for case in cases])
        assert all(same(outcome, case.outcome) for outcome, case in zip(found, cases, strict=True))


@pytest.mark.slow
@pytest.mark.row(38)
@every_subject
def test_one_bad_record_among_many_good_ones_is_found_wherever_it_stands(subject: Conformance) -> None:
    good = next(case for case in subject.cases if isinstance(case.outcome, dict))
    for case in subject.cases:
        for at in (0, 99, 199):
            values: list[bytes | None] = [good.value] * 200
            values[at] = case.value
            found = outcomes(subject.decoder, values)
            assert same(found.pop(at), case.outcome), case.what
            assert all(same(outcome, good.outcome) for outcome in found), case.what


@every_subject
@settings(max_examples=20)  # `make fuzz-formats` tries a million
@given(data=st.data())
@pytest.mark.slow
def test_mutated_records_are_decoded_among_any_neighbours_as_they_are_alone(
    subject: Conformance, data: st.DataObject
) -> None:
    whole = [value for value in subject.values if value]
    records = st.one_of(st.sampled_from(subject.values), mutated(whole), mutated(whole), st.binary(max_size=40))
    assert_like_alone(subject.decoder, data.draw(st.lists(records, max_size=12)))


@every_subject
@pytest.mark.slow
def test_a_flood_of_mutated_records_is_decoded_as_each_is_alone(subject: Conformance) -> None:
    generator = random.Random(7)
    whole = [value for value in subject.values if value]
    records = []
    for _ in range(200):  # `make fuzz-formats` tries a million
        record = bytearray(generator.choice(whole))
        for _ in range(generator.randint(0, 2)):
            record[generator.randrange(len(record))] = generator.choice(b'{}[]":,;0123456789eE.-ntIN\\ \r\n\0\xc3')
        records.append(bytes(record))
    apart = alone(subject.decoder, records)
    for size in (200, 37):
        found = [
            outcome
            for start in range(0, len(records), size)
            for outcome in outcomes(subject.decoder, records[start : start + size])
        ]
        assert all(map(same, found, apart))
