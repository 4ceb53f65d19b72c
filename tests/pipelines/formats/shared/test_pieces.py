"""Joined records: what is no UTF-8 is found wherever it is."""

import pytest

from millrace.pipelines.formats.shared.pieces import begins_of, joined, not_utf8


@pytest.mark.parametrize("length", [0, 1, 999, 30_000, 200_000])
def test_all_records_that_are_no_utf8_are_found_in_a_text_of_many_pieces(length: int) -> None:
    good, cut, wrong = b"\xc3\xa4" * length, b"x" * length + b"\xc3", b"\xff" + b"y" * length
    records = [wrong, good, cut, cut, good, good, good, wrong, good, cut]
    assert not_utf8(joined(records), begins_of(records)) == [0, 2, 3, 7, 9]
    assert not_utf8(joined([good] * 9), begins_of([good] * 9)) == []
