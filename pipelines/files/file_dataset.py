"""Files as a `tf.data.Dataset` of blocks, as tf.data's guides have it: for epochs over what does not move any more.

Several shards are read at a time (`interleave`), in another order each epoch; chunks of rows are decoded on several
threads; a window of rows is permuted, cut into batches of one fixed shape and given to `preprocess`.
The first windows are small, so that the model need not wait until a whole one is read. What all that costs may be kept
(`cache`). The order is not deterministic, unless it is asked for. The last batch is filled up with copies of present
rows of weight 0, as live ones are. Each row carries the place of its shard in `partitions` and its number there in
`offsets`, so that an epoch can tell what it has visited.

Owns the datasets and what `cache` keeps; no generator waits for anything but a disk, so an iterator may be dropped at
any time. `pipelines/files/shard_files.py` reads the shards.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.files.shard_files import AT_ONCE, CHUNK, ShardReader
from millrace.pipelines.files.stage_times import StageTimes
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import Preprocess, as_is, block_spec, preparation


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOptions:
    """How files become blocks."""

    batch_size: int
    batches_per_call: int
    shuffle: int = 65_536
    """Rows of the window that is permuted; 0 keeps the order of the files."""
    cache: str | None = None
    """`memory`, or the folder for a file, of what decoding and `preprocess` give; None keeps nothing."""
    deterministic: bool = False
    seed: int = 0
    threads: int = 2
    window_bytes: int = 64 << 20
    """The most memory of a window, as it is decoded; some windows are in flight."""


@dataclass(slots=True)
class FileBlocks:
    """Blocks of some shards, epoch after epoch."""

    reader: ShardReader
    schema: Schema
    places: Sequence[int]
    """Which of the reader's shards."""
    options: FileOptions
    preprocess: Preprocess | None = None
    times: StageTimes | None = None
    """Hears how long the order and `preprocess` take; None leaves their clocks out of the graph."""
    _kept: Any = field(default=None, init=False)
    _lasting: Any = field(default=None, init=False)
    """The dataset of all epochs, where there is one: to make another traces each of its functions anew."""
    _number: int = field(default=0, init=False)
    """The epoch whose order and seeds an iterator gets that begins now."""
    _prepare: Callable[[Rows], Rows] | None = field(default=None, init=False)

    def epoch(self, number: int) -> Iterator[Rows]:
        """Yield the blocks of an epoch, [k, B, ...]. Raise MillraceError where a file is at fault.

        What `preprocess` raises comes as TensorFlow's OpError.
        """
        try:
            yield from self.dataset(number)
        except tf.errors.OpError as error:
            if self.reader.error is not None:
                raise self.reader.error from error
            if isinstance(error, tf.errors.DataLossError):
                what = error.message.partition("[")[0].strip()
                raise ConfigError(f"a file is damaged ({what}); find it, and leave it out or make it again") from error
            raise
        finally:
            self.reader.close()

    def dataset(self, number: int) -> Any:
        """Return the dataset of an epoch's blocks, to be iterated before the next one is asked for."""
        self._number = number
        if self._lasting is not None:
            return self._lasting
        options = self.options
        if options.cache is None:
            windows = tf.data.Dataset.zip(self._windows(number), self._seeds())
            batches = windows.map(as_is(lambda rows, seed: self._made(rows, self._order(rows, seed))), **self._calls())
        else:
            batches = self._cached()
        if self._window > options.batch_size * options.batches_per_call:
            batches = batches.rebatch(options.batches_per_call)
        settings = tf.data.Options()
        settings.deterministic = options.deterministic
        # Numbers of threads are given, not tuned: an iterator ends only with the tuner's next look, and the time
        # between its looks doubles up to a minute. So an epoch would end seconds after its last block.
        settings.autotune.enabled = False
        settings.threading.private_threadpool_size = max(2, options.threads)
        # Shards are dealt here, and each replica takes its rows of every batch.
        settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
        made = batches.prefetch(2).with_options(settings)
        if self.reader.lasting:
            self._lasting = made
        return made

    @property
    def _window(self) -> int:
        """Rows of a window: a whole number of calls, within a bound of memory."""
        call = self.options.batch_size * self.options.batches_per_call
        within = min(self.options.shuffle, self.options.window_bytes // max(1, self.schema.row_nbytes))
        return call * max(1, within // call)

    def _cached(self) -> Any:
        """Return what the first epoch has decoded and prepared; windows are permuted anew each time."""
        if self._kept is None:
            windows = self._windows(0)
            batches = windows.map(
                as_is(lambda rows: self._made(rows, tf.range(tf.shape(rows.offsets)[0]))), **self._calls()
            )
            where = self.options.cache
            self._kept = batches.cache() if where == "memory" else batches.cache(str(Path(str(where)) / "epoch"))
        return tf.data.Dataset.zip(self._kept, self._seeds()).map(
            as_is(self._permuted),
            num_parallel_calls=self.options.threads,
            deterministic=self.options.deterministic,
        )

    def _windows(self, number: int) -> Any:
        """Return the windows of an epoch: the first is a call's, each of the next twice as large, up to the whole."""
        call = self.options.batch_size * self.options.batches_per_call
        whole = self._window // call
        sizes = [1 << step for step in range((whole - 1).bit_length())]
        if not sizes:
            return self._chunks(number).rebatch(call)
        group = tf.constant([at for at, size in enumerate(sizes) for _ in range(size)], tf.int64)
        growing, last = len(sizes), sum(sizes)

        def group_of(at: Any, _rows: Rows) -> Any:
            return tf.where(at < last, tf.gather(group, tf.minimum(at, last - 1)), growing + (at - last) // whole)

        def size_of(key: Any) -> Any:
            return tf.where(key < growing, tf.bitwise.left_shift(tf.constant(1, tf.int64), key), whole)

        def joined(_key: Any, pieces: Any) -> Any:
            return pieces.map(as_is(lambda _at, rows: rows)).rebatch(self._window)

        pieces = self._chunks(number).rebatch(call).enumerate()
        return pieces.group_by_window(as_is(group_of), as_is(joined), window_size_func=as_is(size_of))

    def _chunks(self, number: int) -> Any:
        # A window holds rows of as many shards as are read beside each other, however small it is.
        most = min(CHUNK, max(1, self._window // min(AT_ONCE, max(1, len(self.places)))))
        chunks = self.reader.dataset(self._shards, epoch=number, most=most, deterministic=self.options.deterministic)
        # `rebatch` needs no chunk of which every record was refused.
        return chunks.filter(as_is(lambda rows: tf.size(rows.offsets) > 0))

    def _shards(self) -> Sequence[int]:
        """Return the places of the shards in the order of the epoch that begins."""
        if not self.options.shuffle:
            return [*self.places]
        order: list[int] = np.random.default_rng([self.options.seed, self._number]).permutation(self.places).tolist()
        return order

    def _seeds(self) -> Any:
        """Return a seed for each window of the epoch that begins."""

        def seeds() -> Iterator[tuple[int, int]]:
            epoch = self.options.seed * 1_000_003 + self._number
            return ((epoch, at) for at in itertools.count())

        return tf.data.Dataset.from_generator(seeds, output_signature=tf.TensorSpec([2], tf.int64))

    def _calls(self) -> dict[str, Any]:
        # A random op gives its numbers in the order of its calls, so deterministic mode allows one call at a time.
        return (
            {} if self.options.deterministic else {"num_parallel_calls": self.options.threads, "deterministic": False}
        )

    def _made(self, rows: Rows, order: Any) -> Rows:
        """Return the rows in this order as batches that are prepared; with clocks around both, if there are times."""
        prepare, times = self._prepared(), self.times
        if times is None:
            return prepare(self._batched(rows, order))

        def note(ordered: Any, prepared: Any) -> Any:
            times.add("shuffling", float(ordered))
            times.add("preprocess", float(prepared))
            return prepared

        began = tf.timestamp()
        batched = self._batched(rows, order)
        with tf.control_dependencies(tf.nest.flatten(batched)):
            between = tf.timestamp()
        with tf.control_dependencies([between]):
            prepared = prepare(tf.nest.map_structure(tf.identity, batched))
        with tf.control_dependencies(tf.nest.flatten(prepared)):
            noted = tf.numpy_function(note, [between - began, tf.timestamp() - between], tf.float64)
        with tf.control_dependencies([noted]):
            made: Rows = tf.nest.map_structure(tf.identity, prepared)
        return made

    def _prepared(self) -> Callable[[Rows], Rows]:
        if self._prepare is None and self.reader.prepares:
            self._prepare = as_is(lambda rows: rows)
        elif self._prepare is None:
            spec = block_spec(self.schema, self.options.batch_size).rows
            self._prepare = preparation(self.preprocess, spec, self.options.batch_size)
        return self._prepare

    def _order(self, rows: Rows, seed: Any) -> Any:
        places = tf.range(tf.shape(rows.offsets)[0])
        if not self.options.shuffle:
            return places
        return tf.random.experimental.stateless_shuffle(places, seed)

    def _batched(self, rows: Rows, order: Any) -> Rows:
        """Cut rows in this order into batches; the last is filled up with copies of rows, as absent ones."""
        size, count = self.options.batch_size, tf.shape(order)[0]
        missing = tf.math.floormod(-count, size)
        order = tf.concat([order, tf.gather(order, tf.range(missing) % count)], 0)
        present = tf.range(count + missing) < count
        taken = tf.nest.map_structure(lambda column: tf.gather(column, order), rows)
        taken = taken._replace(
            weights=tf.where(present, taken.weights, 0.0),
            offsets=tf.where(present, taken.offsets, -1),
            partitions=tf.where(present, taken.partitions, -1),
        )

        def batched(column: Any) -> Any:
            shaped = tf.reshape(column, tf.concat([[-1, size], tf.shape(column)[1:]], 0))
            shaped.set_shape([None, size, *column.shape[1:]])
            return shaped

        cut: Rows = tf.nest.map_structure(batched, taken)
        return cut

    def _permuted(self, rows: Rows, seed: Any) -> Rows:
        """Permute the rows of batches; absent ones stay absent, and no batch can consist of these alone."""
        flat = tf.nest.map_structure(
            lambda column: tf.reshape(column, tf.concat([[-1], tf.shape(column)[2:]], 0)), rows
        )
        order = self._order(flat, seed)

        def placed(column: Any, before: Any) -> Any:
            shaped = tf.reshape(tf.gather(column, order), tf.shape(before))
            shaped.set_shape(before.shape)
            return shaped

        permuted: Rows = tf.nest.map_structure(placed, flat, rows)
        return permuted
