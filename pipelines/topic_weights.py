"""The weights of topics: which topic's rows come next where several have some, and how many of them.

Every record is learnt, whatever its topic weighs: weights decide the sequence alone. Pure.
"""

from collections.abc import Collection, Mapping

from consumers.records import Partition

GRAIN = 64
"""Rows of a topic that come before those of another, where its weight is the least."""
MOST = 4096
"""A topic that weighs far more than another gets so many rows in a row at most, and the other fewer than `GRAIN`."""


def shares(weights: Mapping[str, float], partitions: Collection[Partition], share: int) -> dict[Partition, int]:
    """Return how many rows of each partition come before the turn passes on: `share`, or by the weights of the topics.

    The weight of a topic is that of all its partitions together.
    """
    if not weights:
        return dict.fromkeys(partitions, share)
    count = {topic: sum(partition.topic == topic for partition in partitions) for topic in weights}
    each = {partition: weights[partition.topic] / count[partition.topic] for partition in partitions}
    unit = min(share / min(each.values()), MOST / max(each.values()))
    return {partition: max(1, round(weight * unit)) for partition, weight in each.items()}
