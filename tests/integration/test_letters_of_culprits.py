"""Letters about records that decode and cannot be learnt hold these records, read again from where they came."""

import asyncio
import json
import os
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete

from millrace.app.service.service import post_refused
from millrace.consumers.dead_letters import origins
from millrace.consumers.dead_letters.letter import DeadLetter
from millrace.consumers.dead_letters.origins import OriginReader
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.dead_letters.reader import ReceivedLetter, newest_letters
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

pytestmark = pytest.mark.broker
ROOT = Path(__file__).parents[2]
MODEL = """\
import keras
import tensorflow as tf


def build_model():
    price = keras.Input((), name="price")
    model = keras.Model({"price": price}, keras.layers.Dense(1, name="clicked")(keras.layers.Reshape((1,))(price)))
    model.compile(optimizer=keras.optimizers.SGD(1e-3), loss="mse")
    return model


def preprocess(x, y, w):
    tf.debugging.assert_less(x["price"], tf.constant(1e30))
    return x, y, w
"""
RAISES, OVERFLOWS = {"price": 1e31, "clicked": 1}, {"price": 1e25, "clicked": 1}
WRITTEN = int(time.time() * 1000) - 60_000
CURSED = {17: RAISES, 29: OVERFLOWS}


@contextmanager
def sink(broker: str, source: str, letters: str, **settings: Any) -> Iterator[KafkaDeadLetters]:
    kafka = KafkaOptions(bootstrap_servers=(broker,), topics=(source,), group_id="g", **settings)
    made = KafkaDeadLetters(kafka, DeadLetterOptions(topic=letters))
    made.start(30)
    try:
        yield made
    finally:
        assert made.stop(10) == 0


def arrived(broker: str, letters: str) -> Mapping[int, ReceivedLetter]:
    """Return the letters by the offset of their record."""
    options = KafkaOptions(bootstrap_servers=(broker,), topics=(letters,), group_id="g")
    return {int(letter.ours["offset"]): letter for letter in newest_letters(options, 10_000).newest}


def remove_before(broker: str, topic: str, offset: int) -> None:
    async def remove() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker)
        await admin.start()
        await admin.delete_records({TopicPartition(topic, 0): RecordsToDelete(before_offset=offset)})
        await admin.close()

    asyncio.run(remove())


def produce_whole(broker: str, topic: str, records: list[bytes]) -> None:
    """Write each record with a key, a header whose value is no text, and a timestamp of its own."""

    async def send() -> None:
        async with AIOKafkaProducer(bootstrap_servers=broker) as producer:
            for number, value in enumerate(records):
                await producer.send_and_wait(
                    topic,
                    value,
                    b"key-%d" % number,
                    partition=0,
                    timestamp_ms=WRITTEN + number,
                    headers=[("trace", struct.pack("<q", -number)), ("trace", b"")],
                )

    asyncio.run(send())


@pytest.mark.slow
def test_letters_of_culprits_hold_their_records_byte_for_byte(broker: str, topic: MakeTopic, tmp_path: Path) -> None:
    source, letters = topic(), topic()
    values = [json.dumps(CURSED.get(n, {"price": n / 50, "clicked": n % 2})).encode() for n in range(40)]
    produce_whole(broker, source, values)
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "clicks.yaml").write_text(
        f"name: clicks\nkafka: {{bootstrap_servers: ['{broker}'], topics: [{source}]}}\n"
        f"records: {{features: {{price: float32}}, label: {{clicked: float32}}, dead_letters: {{topic: {letters}}}}}\n"
        "model: {build: './model.py:build_model', preprocess: preprocess}\n"
        "training: {batch_size: 8}\ncheckpoints: {path: ./checkpoints, sample: 0}\napi: {listen: '127.0.0.1:0'}\n"
    )
    run = run_forked(["run", "-c", str(tmp_path / "clicks.yaml"), "--until", "now"], cwd=ROOT, env=os.environ)
    assert run.returncode == 0, run.stderr
    found = arrived(broker, letters)
    reasons = {offset: letter.ours["reason"] for offset, letter in found.items()}
    assert reasons == {17: "step_raised", 29: "update_not_finite"}
    for offset, letter in found.items():
        assert (letter.key, letter.value) == (b"key-%d" % offset, values[offset])
        assert letter.headers == (("trace", struct.pack("<q", -offset)), ("trace", b""))
        assert letter.ours["timestamp"] == str(WRITTEN + offset)
        assert "without_record" not in letter.ours


def test_records_of_many_partitions_are_read_again_each(broker: str, topic: MakeTopic, produce: Produce) -> None:
    source, letters = topic(partitions=3), topic()
    produce(source, [(n % 3, b"%d" % n) for n in range(3000)])
    with sink(broker, source, letters) as made:
        for n in (*range(0, 3000, 31), 5, 2):  # far apart, side by side, and not in order
            post_refused(made, "clicks", Partition(source, n % 3), n // 3, Reason.STEP_RAISED)
        assert made.wait_acknowledged(made.sequence(), 20)
    options = KafkaOptions(bootstrap_servers=(broker,), topics=(letters,), group_id="g")
    found = newest_letters(options, 10_000).newest
    assert len(found) == made.sequence()
    for letter in found:
        assert letter.value == b"%d" % (int(letter.ours["offset"]) * 3 + int(letter.ours["partition"]))


def test_the_letter_of_a_removed_record_says_so(broker: str, topic: MakeTopic, produce: Produce) -> None:
    source, letters = topic(), topic()
    produce(source, [b"%d" % n for n in range(100)])
    remove_before(broker, source, 50)
    with sink(broker, source, letters) as made:
        for offset in (*range(10, 20), 60, 200):  # the last was never written
            post_refused(made, "clicks", Partition(source, 0), offset, Reason.STEP_RAISED)
        assert made.wait_acknowledged(12, 10)
    found = arrived(broker, letters)
    assert (found[60].value, found[60].ours.get("without_record")) == (b"60", None)
    for offset in (10, 19, 200):
        assert (found[offset].value, found[offset].ours["timestamp"]) == (None, "0")
        assert found[offset].ours["without_record"] == "removed"


def test_a_record_that_does_not_come_in_time_holds_no_letter_up(
    broker: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, letters = topic(), topic()
    produce(source, [b"0", b"1"])
    monkeypatch.setattr(origins, "_WITHIN_S", 0.0)
    with sink(broker, source, letters, request_timeout_ms=1500) as made:
        began = time.monotonic()
        for offset in (0, 1):
            post_refused(made, "clicks", Partition(source, 0), offset, Reason.UPDATE_NOT_FINITE)
        # The trainer is not held up, and a save that waits for the letters goes on.
        assert time.monotonic() - began < 0.1
        assert made.wait_acknowledged(2, 10)
    assert {letter.ours["without_record"] for letter in arrived(broker, letters).values()} == {"late"}


def test_a_topic_that_is_gone_holds_no_letter_up(broker: str, topic: MakeTopic) -> None:
    letters = topic()
    with sink(broker, "never-created", letters) as made:
        post_refused(made, "clicks", Partition("never-created", 0), 7, Reason.UPDATE_NOT_FINITE)
        assert made.wait_acknowledged(1, 10)
    assert arrived(broker, letters)[7].ours["without_record"] == "late"


def test_large_records_are_read_again_a_few_at_a_time(
    broker: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, letters = topic(), topic()
    produce(source, [b"%d" % (n % 10) * 50_000 for n in range(30)])
    monkeypatch.setattr(origins, "_MOST_BYTES", 100_000)
    sizes = list[int]()
    complete = OriginReader.complete

    async def measured(
        reader: OriginReader, unread: Mapping[int, DeadLetter], waiting: int
    ) -> Mapping[int, DeadLetter]:
        done = await complete(reader, unread, waiting)
        sizes.append(sum(letter.nbytes for letter in done.values()))
        return done

    monkeypatch.setattr(OriginReader, "complete", measured)
    with sink(broker, source, letters) as made:
        for offset in range(30):
            post_refused(made, "clicks", Partition(source, 0), offset, Reason.STEP_RAISED)
        assert made.wait_acknowledged(30, 20)
    found = arrived(broker, letters)
    assert all(found[offset].value == b"%d" % (offset % 10) * 50_000 for offset in range(30))
    # One batch of the broker comes whole: it holds up to 512 kB.
    assert max(sizes) < 700_000


def test_where_too_many_letters_wait_none_is_held_up(
    broker: str, topic: MakeTopic, produce: Produce, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, letters = topic(), topic()
    produce(source, [b"0"])
    monkeypatch.setattr(origins, "_MOST_WAITING", 0)
    with sink(broker, source, letters) as made:
        post_refused(made, "clicks", Partition(source, 0), 0, Reason.STEP_RAISED)
        assert made.wait_acknowledged(1, 10)
    assert arrived(broker, letters)[0].ours["without_record"] == "too_many"
