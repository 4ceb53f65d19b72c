"""Readers of shards: each gives a dataset of the rows of some shards, read beside each other and decoded.

An archive's shards, or TFRecord files of `tf.train.Example`. Each row carries the place of its shard in `partitions`,
and its number there in `offsets`. A generator here never waits for anything but a disk.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from millrace.consumers.archive.tfrecord_files import read_frames
from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.files.rows_of_decoded import rows_of
from millrace.pipelines.files.tfrecord_frames import first_record
from millrace.pipelines.files.visits import CountedShard, Refusals
from millrace.pipelines.formats.example.decoder import ExampleDecoder, integers_in
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import as_is, block_spec
from millrace.pipelines.stream.decode import Decoded, decode_chunk

AT_ONCE = 16
"""Shards that are read beside each other: with fewer, a window would hold rows of few of them."""
CHUNK = 8192
"""The most rows that are decoded and handed over at a time: a chunk costs about a millisecond besides its rows."""

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
        decoded = decode_chunk(chunk, self.decoder)
        if decoded.refused:
            self.refusals.note(shard, ((refused.offset, refused.reason) for refused in decoded.refused))
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
        self._read, self._threads = read, threads
        self._spec = flat_spec(schema or decoder.schema)
        self._decoding = _Decoding(decoder, refusals)

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
        for chunk in self._read(0, CHUNK):
            return decode_chunk(chunk, self._decoding.decoder)
        return None

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


def example_files(shards: Sequence[CountedShard], schema: Schema, refusals: Refusals, threads: int = 2) -> ChunkFiles:
    """Return the reader of TFRecord files of `tf.train.Example`, compressed with GZIP or not."""
    record = next((found for shard in shards if (found := first_record(Path(shard.path)))), b"")
    decoder = ExampleDecoder(schema, integers_in(record))
    return ChunkFiles(lambda place, most: _examples(shards[place], most), decoder, refusals, threads)


def _examples(shard: CountedShard, most: int) -> Iterator[Chunk]:
    """Yield the records of a file, numbered. Raises ConfigError where it is damaged."""
    number = 0
    try:
        for frames in read_frames(Path(shard.path)):
            records = frames.records()
            for at in range(0, len(records), most):
                texts = records[at : at + most]
                yield _chunk(shard, number, texts)
                number += len(texts)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shard.path} cannot be read: {error}; leave it out, or make it again") from error


def _chunk(shard: CountedShard, start: int, texts: Sequence[bytes]) -> Chunk:
    return Chunk(
        partition=Partition(shard.name, 0),
        incarnation=0,
        start=start,
        end=start + len(texts),
        offsets=np.arange(start, start + len(texts)),
        timestamps=np.zeros(len(texts), np.int64),
        keys=(),
        values=texts,
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
