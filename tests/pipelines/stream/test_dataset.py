"""The dataset with real TensorFlow: its elements, `preprocess`, the replicas' shares, and taking it down."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError, HandoffBroken
from millrace.consumers.handoff import Handoff
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats.shared.protocol import DecodedValues
from millrace.pipelines.schema import Column, Field, Schema
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.assert_messages import noted
from millrace.pipelines.stream.blocks import Delivery, Rows, Suspect
from millrace.pipelines.stream.dataset import (
    TICK,
    DatasetOptions,
    Deliveries,
    Element,
    Preprocess,
    PreprocessError,
    block_spec,
    flat_preprocess,
    make_dataset,
    replica_rows,
)
from millrace.pipelines.stream.decode import DecodePool
from millrace.pipelines.stream.feed import Feed, FeedOptions

pytestmark = pytest.mark.tensorflow

P0 = Partition("clicks", 0)
BATCH = 4
ID = Field(name="id", source="id", dtype="int64")
PAIR = Field(name="pair", source="pair", dtype="float32", shape=(2,))
WORD = Field(name="word", source="word", dtype="string")
Y = Field(name="y", source="y", dtype="float32")
Z = Field(name="z", source="z", dtype="int32")
SCHEMA = Schema(features=(ID, PAIR, WORD), labels=(Y,))


class Made:
    """A decoder that makes every field of the number that a record is."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        numbers = np.array([int(value or b"0") for value in values], dtype=np.int64)
        columns = {field.source: self._column(field, numbers) for field in self.schema.fields}
        return DecodedValues(np.arange(len(values)), columns, ())

    def _column(self, field: Field, numbers: Any) -> Column:
        if field.dtype == "string":
            return np.array([b"%d" % number for number in numbers], dtype=object)
        column = np.broadcast_to(numbers.reshape(-1, *[1] * len(field.shape)), (len(numbers), *field.shape))
        return np.ascontiguousarray(column.astype(field.dtype))


def chunk(count: int, start: int = 0) -> Chunk:
    offsets = np.arange(start, start + count)
    return Chunk(
        partition=P0,
        incarnation=1,
        start=start,
        end=start + count,
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * count,
        values=[b"%d" % offset for offset in offsets],
        headers=[()] * count,
        nbytes=8 * count,
        fetched_at=0.0,
    )


@contextmanager
def streaming(
    preprocess: Preprocess | None = None,
    schema: Schema = SCHEMA,
    *,
    deterministic: bool = False,
    suspects: Sequence[Suspect] = (),
    tick_s: float = 0.02,
) -> Iterator[tuple[Handoff, Deliveries]]:
    handoff = Handoff(capacity_bytes=1 << 20)
    pool = DecodePool(Made(schema), threads=1)
    assembler = Assembler(schema, AssembleOptions(batch_size=BATCH, batches_per_call=2), [P0], incarnation=1)
    feed = Feed(handoff, pool, assembler, FeedOptions(max_bytes=1 << 20, tick_s=tick_s))
    options = DatasetOptions(batch_size=BATCH, deterministic=deterministic)
    try:
        stream = Deliveries(feed, schema, options, preprocess, suspects)
        try:
            yield handoff, stream
        finally:
            stream.close()
    finally:
        pool.close()


def blocks(stream: Deliveries) -> Iterator[Delivery]:
    """Return what is left to deliver, without ticks."""
    return (delivery for delivery in stream if delivery is not None)


def learnt(
    preprocess: Preprocess | None, count: int = 10, schema: Schema = SCHEMA, *, deterministic: bool = False
) -> list[Rows]:
    """Return the rows of the blocks of this many records."""
    with streaming(preprocess, schema, deterministic=deterministic) as (handoff, stream):
        handoff.offer(chunk(count))
        handoff.end()
        delivered = list(blocks(stream))
        assert [delivery.facts.number for delivery in delivered] == list(range(len(delivered)))
        return [delivery.rows for delivery in delivered]


def test_a_delivery_joins_a_blocks_rows_with_its_facts() -> None:
    with streaming() as (handoff, stream):
        handoff.offer(chunk(10))
        handoff.end()
        deliveries = list(blocks(stream))
        assert [delivery.prepare for delivery in deliveries] == [None, None]
        first, second = (delivery.rows for delivery in deliveries)
        assert first.features["id"].numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert first.features["word"].numpy().tolist() == [[b"0", b"1", b"2", b"3"], [b"4", b"5", b"6", b"7"]]
        assert first.features["pair"].shape == (2, BATCH, 2)
        assert first.labels.numpy().tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert first.partitions.numpy().tolist() == [[0] * 4] * 2
        assert second.features["id"].numpy().tolist() == [[8, 9, 8, 9]]
        assert second.weights.numpy().tolist() == [[1, 1, 0, 0]]
        assert second.offsets.numpy().tolist() == [[8, 9, -1, -1]]
        spans = [delivery.facts.spans[0] for delivery in deliveries]
        assert [(span.start, span.end) for span in spans] == [(0, 8), (8, 10)]
        with pytest.raises(KeyError):
            stream._feed.facts_of(0)


def test_elements_match_the_signature_that_the_schema_gives() -> None:
    spec = block_spec(SCHEMA, BATCH).rows
    (rows, *_) = learnt(None)
    assert spec.features["pair"].shape.as_list() == [None, BATCH, 2]
    for name, column in rows.features.items():
        assert spec.features[name].is_compatible_with(column)
    assert spec.weights.dtype == rows.weights.dtype == tf.float32


@pytest.mark.parametrize("preprocess", [None, lambda features, label, weight: (features, label, weight)])
def test_an_idle_stream_gives_ticks_without_rows(preprocess: Preprocess | None) -> None:
    with streaming(preprocess) as (_, stream):
        element: Element = next(stream._iterator)
        assert element.number == TICK
        assert element.rows.features["pair"].shape == (0, BATCH, 2)
        assert element.rows.offsets.shape == (0, BATCH)
        assert next(stream) is None


@pytest.mark.parametrize(
    ("labels", "kind", "given"),
    [((), dict, type(None)), ((Y,), tf.Tensor, tf.Tensor), ((Y, Z), dict, dict)],
    ids=["none", "one", "several"],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_labels_come_bare_by_name_or_not_at_all(
    labels: tuple[Field, ...], kind: type, given: type, *, mapped: bool
) -> None:
    seen: list[Any] = []

    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        seen.append(label)
        return features, label, weight

    (element, *_) = learnt(preprocess if mapped else None, schema=Schema(features=(ID,), labels=labels))
    assert isinstance(element.labels, kind)
    assert len(tf.nest.flatten(element.labels)) == len(labels)
    assert not mapped or isinstance(seen[0], given)


def test_a_preprocess_that_returns_none_for_a_feature_is_refused() -> None:
    with pytest.raises(ConfigError, match="only the label may be None"):
        learnt(lambda features, label, weight: ({**features, "id": None}, label, weight))


def test_preprocess_maps_rows_and_keeps_their_order() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        wide = tf.stack([features["id"], -features["id"]], axis=1)
        return {"wide": wide, "length": tf.strings.length(features["word"])}, label * 2, weight * 3

    elements = learnt(preprocess, 50)
    assert len(elements) == 7
    wide = np.concatenate([element.features["wide"].numpy().reshape(-1, 2) for element in elements])
    assert (wide[:50] == np.stack([np.arange(50), -np.arange(50)], axis=1)).all()
    assert elements[0].labels.numpy().tolist() == [[0, 2, 4, 6], [8, 10, 12, 14]]
    assert elements[-1].weights.numpy().tolist() == [[3, 3, 0, 0]]
    assert elements[-1].features["length"].shape == (1, BATCH)


def test_preprocess_cannot_give_weight_to_an_absent_row() -> None:
    elements = learnt(lambda features, label, weight: (features, label, tf.ones_like(weight)), 5)
    assert elements[-1].weights.numpy().tolist() == [[1, 1, 1, 1], [1, 0, 0, 0]]


def test_preprocess_may_branch_on_tensors_and_make_the_label() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        pair = features["pair"]
        if tf.reduce_sum(pair) > 1e9:
            pair = pair * 0
        return features, {"pair": pair, "half": pair / 2}, weight

    (element, *_) = learnt(preprocess, schema=Schema(features=(ID, PAIR)))
    assert element.labels["half"].numpy()[0, 1].tolist() == [0.5, 0.5]


def test_a_random_preprocess_repeats_itself_in_deterministic_mode() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        return features, label + tf.random.uniform(tf.shape(label)), weight

    def run() -> list[Any]:
        tf.random.set_seed(7)
        return [element.labels.numpy().tolist() for element in learnt(preprocess, 64, deterministic=True)]

    assert run() == run()


@pytest.mark.parametrize(
    ("preprocess", "words"),
    [
        (lambda features, label, _: (features, label), r"must return \(features by name, label, weight\)"),
        (
            lambda features, label, weight: (
                features,
                label,
                tf.numpy_function(lambda given: given, [weight], tf.float32),
            ),
            "unknown rank.*by set_shape",
        ),
        (lambda features, label, weight: (features["id"], label, weight), "by name"),
        (lambda features, *_: features, "returned dict"),
        (lambda features, label, weight: (features, tf.reduce_sum(label), weight), "as many rows"),
        (lambda features, label, weight: (features["no such"], label, weight), "KeyError.*no such"),
    ],
)
def test_a_preprocess_that_does_not_fit_is_refused_before_the_first_record(preprocess: Preprocess, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        learnt(preprocess)


def test_a_preprocess_that_loses_rows_is_an_error_that_says_so() -> None:
    with pytest.raises(PreprocessError, match=r"as many rows as it was given.* clicks:0 0 to 7$"):
        learnt(lambda features, label, weight: ({"id": features["id"][1:]}, label, weight))


def test_a_preprocess_that_raises_names_the_offsets_and_not_the_values() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        bad = tf.reduce_any(features["id"] == 8)
        with tf.control_dependencies([tf.debugging.Assert(tf.logical_not(bad), ["not this", features["word"]])]):
            return features, tf.identity(label), weight

    with streaming(preprocess) as (handoff, stream):
        handoff.offer(chunk(24))
        handoff.end()
        with pytest.raises(PreprocessError, match=r"^preprocess: InvalidArgumentError.* clicks:0 8 to 15$") as caught:
            list(stream)
        assert caught.value.facts.number == 1
        assert caught.value.__cause__ is not None
        assert noted(caught.value.__cause__) == "not this"
        (after,) = stream
        assert after is not None
        assert after.facts.number == 2, "what comes after it is not lost"
        assert after.rows.offsets.numpy().ravel().tolist() == [*range(16, 24)], "and keeps its own rows"


def _refuses_nine(features: Any, label: Any, weight: Any) -> Any:
    tf.debugging.assert_none_equal(features["id"], tf.constant(9, tf.int64), message="no nines")
    return {"root": tf.sqrt(tf.cast(features["id"], tf.float32)), "word": features["word"]}, label, weight


def test_a_suspect_block_comes_in_order_as_recorded_without_preprocess() -> None:
    with streaming(_refuses_nine, suspects=[Suspect(partition=P0, start=10, end=11)]) as (handoff, stream):
        handoff.offer(chunk(24))
        handoff.end()
        deliveries = list(blocks(stream))
        assert [delivery.facts.number for delivery in deliveries] == [0, 1, 2]
        assert [delivery.rows.weights.shape[0] for delivery in deliveries] == [2, 2, 2]
        assert [delivery.prepare is None for delivery in deliveries] == [True, False, True]
        facts, raw, prepare = deliveries[1].facts, deliveries[1].rows, deliveries[1].prepare
        assert facts.spans[0].start == 8
        assert raw.offsets.numpy().ravel().tolist() == [*range(8, 16)]
        assert raw.features["word"].numpy().ravel().tolist() == [b"%d" % n for n in range(8, 16)]
        assert prepare is not None
        with pytest.raises(tf.errors.InvalidArgumentError):
            prepare(raw)
        prepared = prepare(tf.nest.map_structure(lambda column: column[1:], raw))
        assert np.allclose(prepared.features["root"].numpy() ** 2, [[12.0, 13.0, 14.0, 15.0]])
        assert stream._bypass.take(1) is None, "it is given once"


def test_an_element_without_rows_takes_the_place_of_a_suspect_block() -> None:
    with streaming(_refuses_nine, suspects=[Suspect(partition=P0, start=10, end=11)]) as (handoff, stream):
        handoff.offer(chunk(24))
        handoff.end()
        elements = [element for element in stream._iterator if element.number != TICK]
        assert [int(element.number) for element in elements] == [0, 1, 2]
        assert [element.rows.weights.shape[0] for element in elements] == [2, 0, 2]


def test_rows_prepared_apart_equal_the_datasets_but_for_last_bits() -> None:
    def preprocess(features: Any, label: Any, weight: Any) -> Any:
        x = tf.cast(features["id"], tf.float32)
        return {"x": tf.sin(tf.math.log1p(x) / 3.0) * x * 0.1, "word": features["word"]}, {"a": label, "b": x}, weight

    with streaming(preprocess, suspects=[Suspect(partition=P0, start=0, end=30)]) as (handoff, stream):
        handoff.offer(chunk(13))
        handoff.end()
        apart = [delivery.prepare(delivery.rows) for delivery in blocks(stream) if delivery.prepare is not None]
    through = learnt(preprocess, 13)
    assert len(apart) == len(through) == 2
    for one, other in zip(apart, through, strict=True):
        pairs = zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True)
        for a, b in pairs:
            assert a.dtype == b.dtype
            assert np.array_equal(a, b) if a.dtype == tf.string else np.allclose(a, b, rtol=1e-6)


def test_flat_preprocess_checks_rows_outside_of_a_graph_too() -> None:
    rows = {"id": tf.range(4)}
    with pytest.raises(ConfigError, match="4 went in"):
        flat_preprocess(
            lambda features, label, weight: ({"id": features["id"][:2]}, label, weight), rows, {}, tf.ones(4)
        )


def test_what_broke_the_source_arrives_with_its_own_type() -> None:
    with streaming() as (handoff, stream):
        handoff.fail(OSError("gone"))
        with pytest.raises(HandoffBroken, match="gone"):
            list(stream)


def test_replicas_share_every_batch_and_each_offset_is_seen_once_in_its_step() -> None:
    elements = learnt(None, 13)
    seen = {
        replica: [element.offsets[:, replica_rows(BATCH, 2, replica)].numpy().tolist() for element in elements]
        for replica in range(2)
    }
    assert seen[0] == [[[0, 1], [4, 5]], [[8, 9], [12, -1]]]
    assert seen[1] == [[[2, 3], [6, 7]], [[10, 11], [-1, -1]]]


def test_a_replicas_number_may_be_a_tensor() -> None:
    assert tf.range(6)[replica_rows(6, 3, tf.constant(1))].numpy().tolist() == [2, 3]


def test_a_batch_that_does_not_divide_is_refused() -> None:
    with pytest.raises(ConfigError, match="multiple of 3"):
        replica_rows(4, 3, 0)


def within(seconds: float, body: Callable[[], Any]) -> None:
    raised: list[Exception] = []

    def run() -> None:
        try:
            body()
        except Exception as error:  # noqa: BLE001 - raised again below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    assert not thread.is_alive(), f"not done within {seconds} s"
    assert not raised, raised


@pytest.mark.parametrize("preprocess", [None, lambda features, label, weight: (features, label, weight)])
def test_tensorflows_tuner_cannot_hold_up_the_end_of_a_stream(preprocess: Preprocess | None) -> None:
    # Where it runs, one iterator in four was dropped only at its next look: in the worst case a minute later.
    with streaming() as (_, stream):
        dataset = make_dataset(stream._feed, SCHEMA, DatasetOptions(batch_size=BATCH, deterministic=False), preprocess)
        assert dataset.options().autotune.enabled is False


@pytest.mark.row(23)
@pytest.mark.slow
def test_a_stream_whose_generator_waits_for_records_closes_again_and_again() -> None:
    def once() -> None:
        with streaming(schema=Schema(features=(ID,))) as (handoff, stream):
            assert next(stream) is None
            handoff.offer(chunk(3))
            stream.close()
            stream.close()
            assert list(stream) == []

    for _ in range(12):
        within(20, once)


@pytest.mark.row(23)
@pytest.mark.parametrize("times", [20, pytest.param(100, marks=[pytest.mark.slow, pytest.mark.nightly])])
def test_a_stop_wakes_a_generator_that_waits_on_an_empty_queue(times: int) -> None:
    def once() -> None:
        with streaming(schema=Schema(features=(ID,)), tick_s=3600) as (handoff, stream):
            handoff.offer(chunk(2 * BATCH))
            assert next(stream) is not None
            # It has given its only block and draws the next ahead, for which nothing will come within the hour.
            stream.close()
            assert list(stream) == []

    for _ in range(times):
        within(20, once)


def test_a_stream_that_was_never_iterated_closes_too() -> None:
    def once() -> None:
        with streaming():
            pass

    within(20, once)


def test_what_is_drawn_ahead_comes_next_and_once() -> None:
    with streaming() as (handoff, stream):
        handoff.offer(chunk(40))
        handoff.end()
        numbers = []
        for delivery in stream:
            stream.draw_ahead()
            stream.draw_ahead()
            if delivery is not None:
                numbers.append(delivery.facts.number)
                assert delivery.facts.rows == 8
        assert numbers == list(range(5))


def test_an_error_that_was_drawn_ahead_is_raised_when_it_is_taken() -> None:
    with streaming() as (handoff, stream):
        handoff.offer(chunk(8))
        next(blocks(stream))
        handoff.fail(OSError("gone"))
        stream.draw_ahead()
        with pytest.raises(HandoffBroken, match="gone"):
            deque(stream)


@pytest.mark.row(23)
@pytest.mark.slow
def test_a_stop_wakes_what_draws_ahead_from_an_empty_queue_again_and_again() -> None:
    def once() -> None:
        with streaming(schema=Schema(features=(ID,)), tick_s=3600) as (_, stream):
            stream.draw_ahead()
            stream.close()
            assert list(stream) == []
        assert not any(thread.name == "draw" for thread in threading.enumerate())

    for _ in range(12):
        within(20, once)


def test_closing_while_the_prefetch_is_full_gives_back_what_was_not_learnt() -> None:
    with streaming() as (handoff, stream):
        handoff.offer(chunk(800))
        next(blocks(stream))
        stream.close()
        assert isinstance(stream._feed, Feed)
        balance = stream._feed.statistics().balances[P0]
        assert (balance.handed, balance.held, balance.discarded) == (8, 0, 792)
