"""Row chains: the shards of each partition one after another, so that its rows are shaped as live ones are.

A chain goes on with the states of those before it: from shard to shard, and from what is trained on to what is
validated on. Partitions are read beside each other, in any order, which changes no row.

Owns the states of the present epoch, each of which begins them anew. `begin` is called before a chain of the epoch is
read; each chain is then read on one thread at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.shaping.shaper import Shaper, open_shapers
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardChain:
    """The shards of one partition."""

    partition: Partition
    places: tuple[int, ...]
    """Of its shards, in the order of their offsets."""
    start: int
    end: int
    """The offset at which what follows begins: at the end of the last shard, or behind it."""


class RowChains:
    """The chains of what is read in an epoch."""

    def __init__(
        self, chains: Sequence[ShardChain], new: Callable[[], Sequence[Shaper]], before: "RowChains | None" = None
    ) -> None:
        """Begin with the states of `before`, which has been read by then, or with `new` ones that remember nothing."""
        self.chains = tuple(chains)
        self.states: Sequence[Shaper] = ()
        """At the end of the last epoch that was read."""
        self._new, self._before = new, before
        self._shape: Shape | None = None
        self._chain_of = {place: number for number, chain in enumerate(chains) for place in chain.places}

    @property
    def ends(self) -> Mapping[Partition, int]:
        """The offsets at which the states end, once an epoch is read."""
        before = {} if self._before is None else self._before.ends
        return {**before, **{chain.partition: chain.end for chain in self.chains}}

    def begin(self, places: Iterable[int]) -> Sequence[int]:
        """Begin the states of an epoch anew; return the numbers of the chains as these shards name them first."""
        states = self._new()
        if self._before is not None:
            for mine, theirs in zip(states, self._before.states, strict=True):
                mine.load(*theirs.saved())
        positions = {**self.ends, **{chain.partition: chain.start for chain in self.chains}}
        self._shape = open_shapers(states, 0, positions, at_once=True)
        self.states = states
        return list(dict.fromkeys(self._chain_of[place] for place in places))

    def chunks(self, number: int, read: Callable[[int], Iterable[Chunk]]) -> Iterator[tuple[int, Chunk]]:
        """Yield the chunks of a chain, each with the place of its shard; every offset is covered by one of them."""
        chain = self.chains[number]
        held: tuple[int, Chunk] | None = None
        reached = chain.start
        for place in chain.places:
            for chunk in read(place):
                if held is not None:
                    yield held
                held = place, replace(chunk, start=reached)
                reached = chunk.end
        if held is not None:
            yield held[0], replace(held[1], end=chain.end)

    def shape(self, decoded: Decoded) -> tuple[Decoded, Sequence[Skipped]]:
        """Return the chunk with its new rows, column by column, and the records that give none."""
        assert self._shape is not None
        rows, left_out = self._shape(decoded)
        # A sequence is made of the records of a chunk where it is copied; tf.data takes arrays alone.
        features = {name: column[:] for name, column in rows.features.items()}
        return replace(rows, features=features), left_out
