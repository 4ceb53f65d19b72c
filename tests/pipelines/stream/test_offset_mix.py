"""Rows that are drawn by their offsets alone."""

import numpy as np
import pytest

from millrace.consumers.records import Int64s
from millrace.pipelines.stream.offset_mix import mix, one_of_each

SALT, START = np.int64(-4_711), 2**40 + 5


def expected(offsets: Int64s, share: int) -> list[int]:
    """Decide of each offset by itself."""
    hashes = mix(offsets // share + SALT).view(np.uint64)
    found: list[int] = offsets[(hashes % np.uint64(share)).view(np.int64) == offsets % share].tolist()
    return found


@pytest.mark.parametrize("share", [8, 512])
@pytest.mark.parametrize("kept", [1.0, 0.99, 0.5, 0.001], ids="all {0}".format)
def test_the_same_rows_are_drawn_in_whatever_chunks_they_come(share: int, kept: float) -> None:
    random = np.random.default_rng(3)
    offsets = START + np.flatnonzero(random.random(40_000) < kept)
    cuts = np.sort(random.integers(0, len(offsets), 9))
    drawn = list[int]()
    for chunk in np.split(offsets, cuts):
        rows, hashes = one_of_each(chunk, share, SALT)
        assert (mix(chunk[rows] // share + SALT).view(np.uint64) == hashes).all()
        drawn += chunk[rows].tolist()
    assert drawn == expected(offsets, share)
    if kept == 1.0:
        assert len(drawn) in range(len(offsets) // share - 1, len(offsets) // share + 2)


def test_offsets_that_are_far_apart_are_no_burden() -> None:
    offsets = np.array([0, 2**50, 2**62])
    rows, _ = one_of_each(offsets, 8, SALT)
    assert offsets[rows].tolist() == expected(offsets, 8)
