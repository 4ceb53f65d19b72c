"""Readers of shards: each gives a dataset of the rows of some shards, read beside each other and decoded.

Where rows depend on the records before them, a chain has the shards of each partition one after another.

An archive's shards, or TFRecord files of `tf.train.Example`. Each row carries the place of its shard in `partitions`,
and its number there in `offsets`. A generator here never waits for anything but a disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from millrace.consumers.archive.tfrecord_files import read_frames
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Chunk, Int64s, Partition
from millrace.pipelines.files.image_tree import IMAGE, LABEL, ImageTree
from millrace.pipelines.files.stage_times import StageTimes
from millrace.pipelines.files.tfrecord_frames import first_record
from millrace.pipelines.files.visits import CountedShard, Refusals
from millrace.pipelines.formats.example.decoder import ExampleDecoder, integers_in
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.shaper import Shaper, open_shapers
from millrace.pipelines.stream.assemble import Shape
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import as_is, block_spec
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.slices import Skipped

AT_ONCE = 16
"""Shards that are read beside each other: with fewer, a window would hold rows of few of them."""
CHUNK = 8192
"""The most rows that are decoded and handed over at a time: a chunk costs about a millisecond besides its rows."""

_IMAGES = 64
"""The most images that are read at a time: one may have some megabytes."""

ReadShard = Callable[[int, int], Iterable[Chunk]]
Order = Callable[[], Sequence[int]]
"""Says the places of the shards to read in an epoch, as many each time."""


class ShardReader(Protocol):
    """Reads shards of one kind."""

    @property
    def prepares(self) -> bool:
        """Whether its rows have been through `preprocess`."""
        ...

    @property
    def error(self) -> BaseException | None:
        """What has ended the reading; tf.data loses the type of it."""
        ...

    @property
    def lasting(self) -> bool:
        """Whether a dataset serves all epochs, as each iterator over it asks for the order anew."""
        ...

    def dataset(self, order: Order, *, epoch: int, most: int, deterministic: bool) -> Any:
        """Return a dataset of rows [n, ...] of these shards, read beside each other, so many rows at a time at most."""
        ...

    def first(self) -> Decoded | None:
        """Return the first rows, for a sample; None where there are none."""
        ...

    def close(self) -> None:
        """End what waits for anything but a disk."""
        ...


@dataclass(slots=True)
class _Decoding:
    """Decodes chunks of shards; what is refused is noted, and what is raised is kept."""

    decoder: Decoder
    refusals: Refusals
    times: StageTimes
    error: BaseException | None = None

    @contextmanager
    def keeping(self) -> Iterator[None]:
        """Keep an error before tf.data makes another one of it."""
        try:
            yield
        except Exception as error:
            self.error = error
            raise

    def decoded(self, chunk: Chunk, shard: int) -> Decoded:
        """Decode a chunk of a shard."""
        with self.times.of("decoding"):
            decoded = decode_chunk(chunk, self.decoder)
        if decoded.refused:
            self.refusals.note(shard, ((refused.offset, refused.reason) for refused in decoded.refused))
        if len(decoded.filtered):
            self.refusals.filter(shard, range(chunk.start, chunk.end), decoded.filtered)
        return decoded


class ChunkFiles:
    """Reads shards as chunks of records, in whatever format the records have."""

    def __init__(
        self,
        read: ReadShard,
        decoder: Decoder,
        refusals: Refusals,
        threads: int = 2,
        schema: Schema | None = None,
    ) -> None:
        """`read` gives the chunks of the shard at a place, of so many rows at most.

        `schema` is that of the rows, where it is another one than that of the records.
        """
        self.times = times = StageTimes()
        self._read: ReadShard = lambda place, most: times.drawn("reading", read(place, most))
        self._threads = threads
        self._spec = flat_spec(schema or decoder.schema)
        self._decoding = _Decoding(decoder, refusals, times)

    @property
    def prepares(self) -> bool:
        """Whether its rows have been through `preprocess`."""
        return False

    @property
    def error(self) -> BaseException | None:
        """What has ended the reading."""
        return self._decoding.error

    @property
    def lasting(self) -> bool:
        """Whether a dataset serves all epochs."""
        return True

    def dataset(self, order: Order, *, epoch: int, most: int, deterministic: bool) -> Any:
        """Return a dataset of rows [n, ...] of these shards, read beside each other."""
        del epoch

        def rows(number: Any) -> Iterator[Rows]:
            with self._decoding.keeping():
                yield from self._rows(int(number), most)

        def begun() -> Sequence[int]:
            with self._decoding.keeping():
                return self._begun(order)

        @as_is
        def read_beside(number: Any) -> Any:
            return tf.data.Dataset.from_generator(rows, args=(number,), output_signature=self._spec)

        at_once = min(AT_ONCE, max(1, self._most_at_once(order)))
        numbers = tf.data.Dataset.from_generator(begun, output_signature=tf.TensorSpec([], tf.int32))
        return numbers.interleave(
            read_beside,
            cycle_length=at_once,
            block_length=1,
            num_parallel_calls=min(self._threads, at_once),
            deterministic=deterministic,
        )

    def first(self) -> Decoded | None:
        """Return the first rows, for a sample; None where there are none."""
        decoded = (decode_chunk(chunk, self._decoding.decoder) for chunk in self._read(0, CHUNK))
        return next((rows for rows in decoded if len(rows)), None)

    def close(self) -> None:
        """Do nothing: it waits for disks only."""

    def _begun(self, order: Order) -> Sequence[int]:
        """Begin an epoch; return the numbers of what is read beside each other: of shards."""
        return order()

    def _most_at_once(self, order: Order) -> int:
        """Return how many of these there are."""
        return len(order())

    def _rows(self, number: int, most: int) -> Iterator[Rows]:
        """Yield the rows of one of these that decode."""
        for chunk in self._read(number, most):
            yield rows_of(self._decoding.decoded(chunk, number), number)


def example_files(
    shards: Sequence[CountedShard],
    schema: Schema,
    refusals: Refusals,
    threads: int = 2,
    selected: Callable[[Decoder], Decoder] = lambda decoder: decoder,
) -> ChunkFiles:
    """Return the reader of TFRecord files of `tf.train.Example`, compressed with GZIP or not.

    `selected` returns a decoder of the records that are asked for.
    """
    record = next((found for shard in shards if (found := first_record(Path(shard.path)))), b"")
    decoder = selected(ExampleDecoder(schema, integers_in(record)))
    return ChunkFiles(lambda place, most: example_chunks(shards[place], most), decoder, refusals, threads)


def example_chunks(shard: CountedShard, most: int) -> Iterator[Chunk]:
    """Yield the records of a file, numbered. Raises ConfigError where it is damaged."""
    number = 0
    try:
        for frames in read_frames(Path(shard.path)):
            records = frames.records()
            for at in range(0, len(records), most):
                texts = records[at : at + most]
                yield plain_chunk(Partition(shard.name, 0), np.arange(number, number + len(texts)), texts)
                number += len(texts)
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{shard.path} cannot be read: {error}; leave it out by --skip-damaged, or make it again"
        ) from error


def image_files(
    tree: ImageTree, shards: Sequence[CountedShard], schema: Schema, refusals: Refusals, threads: int = 2
) -> ChunkFiles:
    """Return the reader of images in folders; a shard is some of them, by their numbers."""
    decoder = ExampleDecoder(tree.schema(schema), ())

    def example(number: int) -> bytes:
        texts = zip((IMAGE, LABEL), tree.record(number), strict=True)
        fields = {name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[text])) for name, text in texts}
        made: bytes = tf.train.Example(features=tf.train.Features(feature=fields)).SerializeToString()
        return made

    def read(place: int, most: int) -> Iterator[Chunk]:
        shard, at_once = shards[place], min(most, _IMAGES)
        for first in range(shard.first, shard.end, at_once):
            numbers = np.arange(first, min(first + at_once, shard.end))
            yield plain_chunk(Partition(shard.name, 0), numbers, [example(number) for number in numbers.tolist()])

    return ChunkFiles(read, decoder, refusals, threads)


def plain_chunk(partition: Partition, offsets: Int64s, values: Sequence[bytes | None]) -> Chunk:
    """Return a chunk of values that lie at these offsets and have nothing else."""
    return Chunk(
        partition=partition,
        incarnation=0,
        start=int(offsets[0]) if len(offsets) else 0,
        end=int(offsets[-1]) + 1 if len(offsets) else 0,
        offsets=offsets,
        timestamps=np.zeros(len(values), np.int64),
        keys=(),
        values=values,
        headers=(),
        nbytes=0,
        fetched_at=0.0,
    )


def flat_spec(schema: Schema) -> Rows:
    """Return the signature of rows that are not in batches yet."""
    of_blocks = block_spec(schema, 1).rows
    flat: Rows = tf.nest.map_structure(
        lambda spec: tf.TensorSpec([None, *spec.shape[2:]], spec.dtype, spec.name), of_blocks
    )
    return flat


def rows_of(decoded: Decoded, shard: int) -> Rows:
    """Return rows [n, ...], each with the place of its shard."""
    rows = len(decoded)
    return Rows(
        features=decoded.features,
        labels=decoded.labels,
        weights=np.ones(rows, np.float32) if decoded.weights is None else decoded.weights,
        offsets=decoded.offsets,
        partitions=np.full(rows, shard, np.int32),
    )


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
    """The chains of what is read in an epoch, whose rows are shaped as live ones are.

    A chain goes on with the states of those before it: from shard to shard, and from what is trained on to what is
    validated on. Partitions are read beside each other, in any order, which changes no row.

    Owns the states of the present epoch, each of which begins them again. `begin` is called before a chain of the
    epoch is read; each chain is then read on one thread at a time.
    """

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


class ChainedFiles(ChunkFiles):
    """Reads the shards of each partition in the order of their offsets, and partitions beside each other."""

    def __init__(
        self,
        read: ReadShard,
        decoder: Decoder,
        schema: Schema,
        chains: RowChains,
        refusals: Refusals,
        threads: int = 2,
    ) -> None:
        """Take `schema` for that of the rows; that of the records is the decoder's."""
        super().__init__(read, decoder, refusals, threads, schema)
        self._chains = chains

    def _begun(self, order: Order) -> Sequence[int]:
        return self._chains.begin(order())

    def _most_at_once(self, order: Order) -> int:
        del order
        return len(self._chains.chains)

    def _rows(self, number: int, most: int) -> Iterator[Rows]:
        for place, chunk in self._chains.chunks(number, lambda shard: self._read(shard, most)):
            rows, left_out = self._chains.shape(self._decoding.decoded(chunk, place))
            if left_out:
                self._decoding.refusals.leave_out(place, range(chunk.start, chunk.end), left_out)
            yield rows_of(rows, place)
