"""How partitions are dealt to the members of a group."""

from collections import Counter

import hypothesis.strategies as st
from hypothesis import given

from millrace.consumers.records import Partition
from millrace.training.group.one_state import deal

PARTITIONS = st.dictionaries(st.builds(Partition, st.sampled_from(["a", "b"]), st.integers(0, 20)), st.integers(0, 99))


@given(PARTITIONS, st.integers(1, 5))
def test_every_partition_is_dealt_to_one_member(lags: dict[Partition, int], workers: int) -> None:
    dealt = deal(lags, workers)
    assert len(dealt) == workers
    assert Counter(partition for mine in dealt for partition in mine) == Counter(lags.keys())


@given(PARTITIONS, st.integers(1, 5))
def test_without_lag_every_member_gets_as_many_partitions(lags: dict[Partition, int], workers: int) -> None:
    counts = [len(mine) for mine in deal(dict.fromkeys(lags, 0), workers)]
    assert max(counts) - min(counts) <= 1


@given(PARTITIONS, st.integers(2, 5))
def test_no_member_is_ahead_of_another_by_more_than_one_partition(lags: dict[Partition, int], workers: int) -> None:
    loads = [sum(lags[partition] for partition in mine) for mine in deal(lags, workers)]
    assert max(loads) - min(loads) <= max(lags.values(), default=0)
