"""How an archive is read where rows depend on the records before them: by windows, or by leaving records out.

The shards of each partition are read in the order of their offsets, with the very states that live rows are made by,
and at the archive's end these are a part of checkpoint 0. So the live model goes on with whole sequences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from millrace.app.settings import Settings
from millrace.app.tools.pretrain.shard_sources import ShardSource
from millrace.app.tools.pretrain.topic_range import TopicRange
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Offsets
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.row_chains import RowChains, ShardChain
from millrace.pipelines.shaping.shaper import Shaper


@dataclass(frozen=True, slots=True)
class ShapedReading:
    """The chains of what is trained on, and of what is validated on."""

    training: RowChains | None = None
    """None where each row is made of one record."""
    validation: RowChains | None = None

    @property
    def states(self) -> Sequence[Shaper]:
        """What is remembered at the archive's end, once all was read; nothing where nothing is."""
        last = self.validation or self.training
        return () if last is None else last.states


def require_order(
    settings: Settings, source: ShardSource | TopicRange, position: Offsets | None, *, served: bool
) -> None:
    """Raise ConfigError where rows depend on the records before them, and the source does not say which these are."""
    shaping = settings.shapers()
    if not shaping:
        return
    what = shaping[0].setting
    if served:
        raise ConfigError(f"--service: its workers read shards in no order, which {what} cannot do: leave it out")
    if isinstance(source, TopicRange):
        if position is not None:
            raise ConfigError(f"--position: with {what} live training begins where the range ends: leave it out")
        return
    if not source.archived:
        raise ConfigError(
            f"{what}: a file of Examples names no partition and no offset, and rows depend on the records before "
            "them: pretrain on the archive, or on a range of the topics by --from"
        )
    ends = source.positions or {}
    for partition, offset in () if position is None else sorted(position.offsets.items()):
        if offset != ends.get(partition, offset):
            raise ConfigError(
                f"--position: with {what} {partition} goes on at {ends[partition]}, where the archive ends, and not at "
                f"{offset}: leave it out"
            )


def shaped_reading(
    settings: Settings,
    training: ShardSource,
    validation: ShardSource | None,
    ends: Mapping[Partition, int] | None,
) -> ShapedReading:
    """Return the chains of a source's two parts; `ends` has the offsets that follow the whole."""
    if not settings.shapers():
        return ShapedReading()
    ends = ends or {}
    validated = () if validation is None else chains_of(validation, ends)
    begins = {chain.partition: chain.start for chain in validated}
    chains = RowChains(chains_of(training, {**ends, **begins}), settings.shapers)
    return ShapedReading(chains, None if validation is None else RowChains(validated, settings.shapers, chains))


def chains_of(source: ShardSource, following: Mapping[Partition, int]) -> tuple[ShardChain, ...]:
    """Return the chain of each partition; `following` says where what comes after it begins."""
    places = dict[Partition, list[int]]()
    for place in sorted(range(len(source.shards)), key=lambda place: source.shards[place].first):
        places.setdefault(source.archived[place].partition, []).append(place)
    return tuple(
        ShardChain(
            partition=partition,
            places=tuple(mine),
            start=source.shards[mine[0]].first,
            end=following.get(partition, source.shards[mine[-1]].end),
        )
        for partition, mine in sorted(places.items())
    )
