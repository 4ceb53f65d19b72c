"""Which member reads which partitions. Pure."""

from collections.abc import Mapping

from millrace.consumers.records import Partition

Deal = tuple[tuple[Partition, ...], ...]
"""The partitions of each member, by its number."""


def deal(lags: Mapping[Partition, int], workers: int) -> Deal:
    """Share partitions out so that the members have about as many records to catch up with.

    The partitions with the most go first, each to the member that has the least so far; without any lag each gets as
    many partitions.
    """
    dealt: list[list[Partition]] = [[] for _ in range(workers)]
    load = [0] * workers
    for partition in sorted(lags, key=lambda partition: (-lags[partition], partition)):
        least = min(range(workers), key=lambda number: (load[number], len(dealt[number]), number))
        dealt[least].append(partition)
        load[least] += lags[partition]
    return tuple(tuple(sorted(partitions)) for partitions in dealt)
