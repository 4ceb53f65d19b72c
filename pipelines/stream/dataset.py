"""Dataset: blocks as a `tf.data.Dataset`, and their delivery to the trainer.

Owns the dataset, its iterator and the prefetched elements. The
feed's generator runs on a thread of tf.data, `preprocess` on other threads of tf.data, `next` and `close` on the
trainer's thread. When the prefetch is full, tf.data does not call the generator. Prefetched blocks are not durable:
those that the trainer has not taken are read again after a restart.

To drop an iterator whose generator still waits is a deadlock: tf.data waits for the generator, which waits for records.
Therefore `Deliveries.close` stops the feed first, waits until nothing of it runs, and only then drops the iterator.
"""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import cached_property
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError, MillraceError
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.assert_messages import note_assertion, stated_texts
from millrace.pipelines.stream.blocks import BlockFacts, Bypass, Delivery, Rows, Suspect
from millrace.pipelines.stream.feed import BlockFeed, Tick
from millrace.pipelines.stream.freed_memory import keep_freed_memory
from millrace.pipelines.stream.label_masks import apart, joined

Preprocess = Callable[[Any, Any, Any], tuple[Any, Any, Any]]
_ROW_COUNT = "preprocess: it must return as many rows as it was given"
NO_LABEL: Mapping[str, Any] = {}
"""The label of rows that have none. Not None, which TensorFlow's structures hold for a column that is no tensor."""
_PYTHON = frozenset({"PyFunc", "PyFuncStateless", "EagerPyFunc"})
log = logging.getLogger(__name__)
T = TypeVar("T")
TICK = -1
"""The number of an element without a block: there is nothing to learn just now."""


class PreprocessError(MillraceError, RuntimeError):
    """`preprocess` failed on a block. The text names the offsets, and no values: these stay in `__cause__`."""

    def __init__(self, text: str, facts: BlockFacts) -> None:
        super().__init__(text)
        self.facts = facts
        """The facts of the block, which is not learnt."""


class Element(NamedTuple):
    """One element of the dataset: a block, or a tick."""

    number: Any
    """The number of the block, by which its facts are found; `TICK` for a tick, whose rows have k = 0."""
    rows: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetOptions:
    """How the dataset runs."""

    batch_size: int
    prefetch: int = 1
    """Elements that are ready while the trainer is busy, besides the one that is drawn ahead."""
    deterministic: bool = False
    """Whether `preprocess` runs on one block at a time, so that a random one gives the same again."""
    threads: int = 2
    """Threads for the generator and `preprocess`, besides those that train."""


def replica_rows(batch_size: int, replicas: int, replica: Any) -> slice:
    """Return the rows of each batch that a replica takes. The number of the replica may be a tensor."""
    if batch_size % replicas:
        raise ConfigError(
            f"training.batch_size: {batch_size} does not divide into {replicas} replicas; take a multiple of {replicas}"
        )
    share = batch_size // replicas
    return slice(replica * share, (replica + 1) * share)


def block_spec(schema: Schema, batch_size: int) -> Element:
    """Return the `output_signature` of the generator; labels are by name here, even a single one."""

    def of(field: Field) -> Any:
        return tf.TensorSpec([None, batch_size, *field.shape], tf.as_dtype(field.dtype), field.name)

    def column(dtype: Any) -> Any:
        return tf.TensorSpec([None, batch_size], dtype)

    rows = Rows(
        features={field.name: of(field) for field in schema.inputs},
        labels={field.name: of(field) for field in schema.targets},
        weights=column(tf.float32),
        offsets=column(tf.int64),
        partitions=column(tf.int32),
    )
    return Element(tf.TensorSpec([], tf.int64), rows)


def flat_preprocess(
    preprocess: Preprocess | None, features: Mapping[str, Any], labels: Mapping[str, Any], weights: Any
) -> tuple[dict[str, Any], Any, Any]:
    """Return rows [n, ...] after `preprocess`, with a single label as it is and no label as `NO_LABEL`.

    `preprocess` gets None for no label, as Keras has it, and may return None. Raise ConfigError if it does not fit the
    rows of the schema, or does not return a row for each row. It is not given which rows have a label.
    """
    labels, masks = apart(labels)
    label = None if not labels else next(iter(labels.values())) if len(labels) == 1 else dict(labels)
    if preprocess is None:
        return dict(features), NO_LABEL if label is None else joined(label, masks), weights
    try:
        result = preprocess(dict(features), label, weights)
    except Exception as error:
        if isinstance(error, tf.errors.OpError) and hasattr(preprocess, "get_concrete_function"):
            traced = preprocess.get_concrete_function(dict(features), label, weights)
            note_assertion(error, stated_texts(traced.graph))
        last_line = (str(error).strip().splitlines() or [repr(error)])[-1].strip()
        raise ConfigError(f"preprocess: {type(error).__name__} on rows of the schema: {last_line}") from error
    if not isinstance(result, tuple) or len(result) != 3 or not isinstance(result[0], Mapping):
        kinds = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
        raise ConfigError(f"preprocess: it must return (features by name, label, weight); it returned {kinds}")
    rows = weights.shape[0] or tf.shape(weights)[0]
    given = (result[0], NO_LABEL if result[1] is None else result[1], result[2])
    features, label, weights = tf.nest.map_structure(lambda column: _same_rows(column, rows), given)
    try:
        return dict(features), joined(label, masks), weights
    except ValueError as lost:
        raise ConfigError(
            f"preprocess: it returns no label {str(lost)!r}, which a record may lack; return the labels as a "
            "dictionary by the outputs' names"
        ) from None


def _same_rows(column: Any, rows: Any) -> Any:
    """Return the column with a check that it has a row for each row that went in; in a graph it runs with the rows."""
    if column is None:
        raise ConfigError("preprocess: it must return tensors; only the label may be None, if there is none")
    column = tf.convert_to_tensor(column)
    if column.shape.rank is None:
        raise ConfigError(
            "preprocess: it returned a tensor of unknown rank, as tf.py_function and tf.numpy_function do: give what "
            "they return a shape by set_shape, such as [None] or [None, 28]"
        )
    known = column.shape[0] if column.shape.rank else 0
    if column.shape.rank == 0 or (isinstance(rows, int) and known not in {None, rows}):
        raise ConfigError(f"{_ROW_COUNT}; {rows} went in, and a tensor of shape {column.shape} came back")
    # Nothing uses the assertion's result, and a graph runs only what something depends on.
    with tf.control_dependencies([tf.debugging.assert_equal(tf.shape(column)[0], rows, _ROW_COUNT)]):
        return tf.identity(column)


def make_dataset(
    feed: BlockFeed,
    schema: Schema,
    options: DatasetOptions,
    preprocess: Preprocess | None = None,
    bypass: Bypass | None = None,
) -> Any:
    """Return the dataset of a feed's `Element`s. Raise ConfigError if `preprocess` does not fit the schema's rows.

    Where the bypass takes a block, an element without rows goes through the dataset in its place.
    """
    spec = block_spec(schema, options.batch_size)
    empty = tf.nest.map_structure(
        lambda column: np.empty((0, *column.shape[1:]), column.dtype.as_numpy_dtype), spec.rows
    )
    aside = bypass or Bypass()

    def elements() -> Iterator[Element]:
        # TensorFlow returns freed memory to the kernel from the first `from_generator` on ("Memory patch applied").
        keep_freed_memory()
        for item in feed:
            if isinstance(item, Tick):
                yield Element(TICK, empty)
            elif aside.takes(item):
                yield Element(item.facts.number, empty)
            else:
                yield Element(item.facts.number, item.rows)

    prepare = preparation(preprocess, spec.rows, options.batch_size)
    dataset = tf.data.Dataset.from_generator(elements, output_signature=spec)
    dataset = dataset.map(
        as_is(lambda element: Element(element.number, prepare(element.rows))),
        # A random op gives its numbers in the order of its calls, so deterministic mode allows one call at a time.
        num_parallel_calls=None if options.deterministic or preprocess is None else max(2, options.threads),
        deterministic=None if options.deterministic or preprocess is None else True,
    )
    settings = tf.data.Options()
    settings.deterministic = True
    # With TensorFlow's tuner, an iterator may end only with its next look, and the time between these doubles up to a
    # minute: so long a rewind or a stop would wait.
    settings.autotune.enabled = False
    settings.threading.private_threadpool_size = max(2, options.threads)  # a generator that waits keeps one for itself
    # A shard would split the first axis, the batches of a block; each replica takes its rows of every batch instead.
    settings.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.prefetch(options.prefetch).with_options(settings)


def preparation(preprocess: Preprocess | None, spec: Rows, batch_size: int) -> Callable[[Rows], Rows]:
    """Return the map over the rows of elements: flatten to rows, `preprocess`, and back to [k, B, ...]."""

    def bare(given: Rows) -> Rows:
        features, labels, weights = flat_preprocess(None, given.features, given.labels, given.weights)
        return given._replace(features=features, labels=labels, weights=weights)

    if preprocess is None:
        return bare
    prepare = row_preparation(preprocess, spec)

    def prepared(given: Rows) -> Rows:
        batches = tf.shape(given.weights)[0]
        flat = tf.nest.map_structure(
            lambda column: tf.reshape(column, tf.concat([[batches * batch_size], tf.shape(column)[2:]], 0)), given
        )
        rows = prepare(flat)

        def batched(column: Any) -> Any:
            shaped = tf.reshape(column, tf.concat([[batches, batch_size], tf.shape(column)[1:]], 0))
            # The call is traced with B and the shape of a row known, which the reshape alone may lose.
            shaped.set_shape([None, batch_size, *column.shape[1:]])
            return shaped

        features, labels, weights = tf.nest.map_structure(batched, (rows.features, rows.labels, rows.weights))
        # Whatever `preprocess` returns, an absent row must not train the model.
        weights = tf.where(given.offsets >= 0, weights, 0.0)
        return given._replace(features=features, labels=labels, weights=weights)

    return prepared


def row_preparation(preprocess: Preprocess | None, spec: Rows) -> Callable[[Rows], Rows]:
    """Return the map over rows that are in no batches, [n, ...], also none; `spec` is that of blocks."""
    function = _traced(preprocess, spec)

    def prepared(rows: Rows) -> Rows:
        flat = (rows.features, rows.labels, rows.weights)
        features, labels, weights = _unless_empty(function, flat, tf.shape(rows.weights)[0])
        return rows._replace(features=features, labels=labels, weights=tf.cast(weights, tf.float32))

    return prepared


def python_in(preprocess: Preprocess | None, spec: Rows) -> str | None:
    """Return the name of an operation of `preprocess` that calls Python, which no other process can; or None."""
    graph = _traced(preprocess, spec).graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return next((str(node.op) for node in nodes if node.op in _PYTHON), None)


def as_is(function: Callable[..., Any]) -> Any:
    """Keep AutoGraph away: our own functions have no Python control flow over tensors, and their errors stay clear."""
    return tf.autograph.experimental.do_not_convert(function)


def _traced(preprocess: Preprocess | None, spec: Rows) -> Any:
    """Trace `preprocess` as one graph over any number of rows; errors in its code are raised here."""
    user = None if preprocess is None else tf.function(preprocess)
    rows = tf.nest.map_structure(
        lambda at: tf.TensorSpec([None, *at.shape[2:]], at.dtype), (spec.features, spec.labels, spec.weights)
    )
    return tf.function(lambda *flat: flat_preprocess(user, *flat), autograph=False).get_concrete_function(*rows)


def _unless_empty(function: Any, flat: Any, batches: Any) -> Any:
    """Call `function` on the rows; for no rows return none without a call, as the user's code may not expect that."""
    out = function.structured_outputs

    def empty() -> list[Any]:
        return [tf.zeros([0, *(size or 0 for size in at.shape[1:])], at.dtype) for at in tf.nest.flatten(out)]

    def full() -> list[Any]:
        return list(tf.nest.flatten(function(*flat)))

    return tf.nest.pack_sequence_as(out, tf.cond(batches > 0, full, empty))


class Ahead(Generic[T]):
    """Draws the next element on its own thread while the caller is busy with the one before.

    To draw an element takes Python's lock, and it wakes the threads that feed the dataset, which take the lock too.
    Drawn between two calls, the trainer would wait for the lock several times, in total about 5 of 220 ms on 2 cores.
    Drawn during a call, it does not wait.

    Owns the thread `draw`. It draws one element ahead at most; with no element to draw the thread waits, and `take`
    waits too. It ends with `close`, once the source of the elements has ended. The thread is a daemon, unlike the
    threads of an executor: a dataset that hangs must not keep the process from ending.

    All methods are for one thread.
    """

    def __init__(self, draw: Callable[[], T], *, patience_s: float = 10.0) -> None:
        self._draw, self._patience_s = draw, patience_s
        self._requests: SimpleQueue[Future[T] | None] = SimpleQueue()
        self._drawn: Future[T] | None = None
        self._thread = threading.Thread(target=self._run, name="draw", daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Begin to draw the next element; does nothing if one is drawn already."""
        if self._drawn is None:
            self._drawn = Future()
            self._requests.put(self._drawn)

    @property
    def ready(self) -> bool:
        """Whether the next element is drawn, so that `take` returns at once."""
        return self._drawn is not None and self._drawn.done()

    def wait(self, timeout_s: float) -> None:
        """Wait until the next element is drawn, for so long at most; returns at once where none is being drawn."""
        if self._drawn is not None:
            wait([self._drawn], timeout_s)

    def take(self) -> T:
        """Return the next element, drawn ahead or now. Raise the error that drawing it has raised."""
        if self._drawn is None:
            return self._draw()
        drawn, self._drawn = self._drawn, None
        return drawn.result()

    def close(self) -> None:
        """Drop the element drawn ahead, and wait until the thread has ended, for `patience_s` at most.

        A function of the user cannot be interrupted: if it takes longer, the thread is left behind, and the element
        that it returns at last is dropped.
        """
        self._requests.put(None)
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            log.warning(
                "preprocess still runs %g s after it was asked to end; its thread is left behind", self._patience_s
            )
        self._drawn = None

    def _run(self) -> None:
        while self._answer(self._requests.get()):
            pass

    def _answer(self, request: Future[T] | None) -> bool:
        """Draw one element for a request; return False for the request to end.

        This is a function of its own, so that the thread keeps no reference to an element while it waits.
        """
        if request is None:
            return False
        try:
            request.set_result(self._draw())
        except BaseException as error:  # noqa: BLE001 - for any error at all: `take` must not wait forever
            request.set_exception(error)
        return True


class Deliveries:
    """The blocks of a feed as the trainer takes them: the one place where the parts of a block are joined.

    A block's parts travel in three ways. Its facts stay with the feed; its rows go through tf.data; the rows of a
    suspect block, as they were recorded, stay in the bypass, and an element without rows goes through tf.data in its
    place. The law: every block that the dataset gives is delivered once, in the feed's order, with its own facts and
    its own rows, joined by the block's number, or else it is named once by a `PreprocessError`. Either way the feed
    counts it as handed to the trainer. After `close` nothing is delivered.

    All methods are for the trainer's thread.
    """

    def __init__(
        self,
        feed: BlockFeed,
        schema: Schema,
        options: DatasetOptions,
        preprocess: Preprocess | None = None,
        suspects: Sequence[Suspect] = (),
    ) -> None:
        self._feed, self._options, self._preprocess = feed, options, preprocess
        self._bypass = Bypass(suspects)
        self._spec = block_spec(schema, options.batch_size).rows
        self._iterator: Any = iter(make_dataset(feed, schema, options, preprocess, self._bypass))
        self._ahead = Ahead(lambda: cast("Element", next(self._iterator)))
        self._following = 0
        self._given: Element | None = None

    def __iter__(self) -> "Deliveries":
        return self

    def __next__(self) -> Delivery | None:
        """Return the next block, or None for a tick. Raise StopIteration at the end, or what ended the feed.

        A PreprocessError concerns its one block; the blocks after it still come.
        """
        self._feed.drop_later(self._given)
        try:
            element = self._ahead.take()
        except tf.errors.OpError as error:
            # tf.data has lost the type of the feed's error, so the feed's own is raised.
            if self._feed.error is not None:
                raise self._feed.error from error
            raise self._blamed(error) from error
        self._given = element
        number = int(element.number)
        if number == TICK:
            return None
        self._following = number + 1
        facts, suspect = self._feed.facts_of(number), self._bypass.take(number)
        if suspect is None:
            return Delivery(element.rows, facts)
        recorded = tf.nest.map_structure(lambda at, column: tf.constant(column, at.dtype), self._spec, suspect.rows)
        return Delivery(recorded, facts, self._prepare)

    @property
    def ready(self) -> bool:
        """Whether the next element is drawn, so that it is given at once."""
        return self._ahead.ready

    def wait(self, timeout_s: float) -> None:
        """Wait until the next element is drawn, for so long at most; returns at once where none is being drawn."""
        self._ahead.wait(timeout_s)

    def draw_ahead(self) -> None:
        """Begin to draw the next element while the caller is busy with this one."""
        self._ahead.begin()

    def close(self) -> None:
        """Stop the feed, wait until nothing of it runs, drop the iterator, in this order. May be called twice."""
        self._feed.close()
        self._ahead.close()
        self._iterator, self._given = iter(()), None

    @cached_property
    def _prepare(self) -> Callable[[Rows], Rows]:
        prepare = preparation(self._preprocess, self._spec, self._options.batch_size)

        def noting(rows: Rows) -> Rows:
            try:
                return prepare(rows)
            except tf.errors.OpError as error:
                note_assertion(error, self._stated)
                raise

        return noting

    @cached_property
    def _stated(self) -> frozenset[str]:
        """What the assertions of `preprocess` state."""
        return frozenset() if self._preprocess is None else stated_texts(_traced(self._preprocess, self._spec).graph)

    def _blamed(self, error: tf.errors.OpError) -> PreprocessError:
        """Return the error of the block after the last that came: elements come in order, so it is the culprit."""
        facts = self._feed.facts_of(self._following)
        self._following += 1
        note_assertion(error, self._stated)
        why = _ROW_COUNT if _ROW_COUNT in str(error) else f"preprocess: {type(error).__name__}"
        spans = ", ".join(f"{span.partition} {span.start} to {span.end - 1}" for span in facts.spans)
        return PreprocessError(f"{why}; it failed on the offsets {spans}", facts)
