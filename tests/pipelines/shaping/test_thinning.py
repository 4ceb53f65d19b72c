"""Thinning: which records are left."""

from typing import Any

import numpy as np
import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.shaping import ThinningSettings
from tests.pipelines.shaping.test_every_shaper import COUNT, PARTITIONS, SCHEMA, decoded_of


def kept(thinning: ThinningSettings, partition: Partition) -> tuple[list[int], dict[str, list[Any]]]:
    """Return the offsets that are left of a partition, and the columns."""
    shaper = thinning.shaper(SCHEMA)
    assert shaper is not None
    rows, _ = shaper.open(1, {partition: 0})(decoded_of(partition, 0, COUNT))
    return rows.offsets.tolist(), {name: np.asarray(column).tolist() for name, column in rows.features.items()}


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_about_the_share_of_the_records_is_left_others_in_each_partition(share: float) -> None:
    left = [set(kept(ThinningSettings(share=share), partition)[0]) for partition in PARTITIONS]
    for partition, offsets in zip(PARTITIONS, left, strict=True):
        there = len(decoded_of(partition, 0, COUNT))
        # Five standard deviations of as many coins.
        assert abs(len(offsets) - share * there) < 5 * (there * share * (1 - share)) ** 0.5
    assert left[0] != left[1]


@pytest.mark.parametrize("by", ["user", "kind"])
def test_all_records_of_a_key_are_left_or_none_in_any_partition(by: str) -> None:
    found, there = set[Any](), set[Any]()
    for partition in PARTITIONS:
        found |= set(kept(ThinningSettings(share=0.5, by=by), partition)[1][by])
    for partition in PARTITIONS:
        column = decoded_of(partition, 0, COUNT).features[by].tolist()
        there |= set(column)
        assert kept(ThinningSettings(share=0.5, by=by), partition)[1][by] == [key for key in column if key in found]
    assert found < there


def test_a_larger_share_holds_every_record_of_a_smaller_one() -> None:
    small, large = (set(kept(ThinningSettings(share=share), PARTITIONS[0])[0]) for share in (0.1, 0.3))
    assert small < large
