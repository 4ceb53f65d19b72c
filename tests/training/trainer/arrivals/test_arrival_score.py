"""The score on arrival is that of the weights of then, and nothing that is learnt depends on it."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.consumers.errors import UnreachableError
from millrace.consumers.handoff import SendEnd
from millrace.consumers.kafka.positions import Start
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats import make_decoder
from millrace.pipelines.shaping.labels.arrivals import ArrivalReader, in_sample, salt_of
from millrace.pipelines.stream.blocks import Delivery, Span
from millrace.training.commands import Rewind, Save
from millrace.training.model.learner import Learner
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import Answered, Tallies, tallies_of_all, truth_columns
from millrace.training.telemetry.watcher import Call
from millrace.training.trainer.arrivals.arrival_score import ArrivalScore
from millrace.training.trainer.arrivals.figures import ArrivalFigures
from tests.conftest import WaitFor
from tests.training.conftest import BATCH, SCHEMA, MakeLearner, block, mlp, state_of
from tests.training.model.golden.test_golden import by_hand, drawing, golden_records
from tests.training.trainer_rig import P0, P1, SHARE, Run, Topic, delivery, live_of, running

pytestmark = [pytest.mark.tensorflow, pytest.mark.row(44)]


class Head:
    """A source of what is appended to a topic; its records have stand-ins for labels, as those that come later."""

    def __init__(self, topic: Topic) -> None:
        self.topic = topic
        self.begun = 0
        self.handoff: SendEnd | None = None

    def resolve_start(self, start: Start) -> Mapping[Partition, int]:
        return dict(self.topic.ends)

    def begin(self, incarnation: int, positions: Mapping[Partition, int], handoff: SendEnd) -> None:
        self.begun, self.handoff = incarnation, handoff

    def append(self, count: int, partition: Partition = P0) -> None:
        """Append records; they are read at once, and learnt when the topic has produced them."""
        start = self.topic.ends[partition]
        values = [self.value(partition, offset) for offset in range(start, start + count)]
        assert self.handoff is not None
        self.handoff.offer(
            Chunk(
                partition=partition,
                incarnation=self.begun,
                start=start,
                end=start + count,
                offsets=np.arange(start, start + count),
                timestamps=np.zeros(count, np.int64),
                keys=[None] * count,
                values=values,
                headers=[()] * count,
                nbytes=sum(map(len, values)),
                fetched_at=time.monotonic(),
            )
        )

    def value(self, partition: Partition, offset: int) -> bytes:
        return json.dumps({"x": self.topic.x(partition, offset).tolist(), "y": 0.0}).encode()


@pytest.fixture
def head(wait_for: WaitFor) -> Iterator[Callable[..., tuple[Head, ArrivalReader]]]:
    """Return what begins to read a topic at its head, for a share of it."""
    readers = list[ArrivalReader]()

    def begin(topic: Topic, share: float = 1.0) -> tuple[Head, ArrivalReader]:
        source = Head(topic)
        reader = ArrivalReader(source, make_decoder("json", SCHEMA), share, lambda decoded: decoded)
        readers.append(reader)
        reader.start()
        wait_for(lambda: source.handoff is not None, timeout=30)
        return source, reader

    yield begin
    for reader in readers:
        reader.stop()


def block_of(topic: Topic, start: int, end: int, partition: Partition = P0) -> Delivery:
    span = Span(partition=partition, index=0, start=start, end=end, learnt=end - start, set_aside={}, skipped={})
    return delivery(topic, [partition], (span,), [(partition, offset) for offset in range(start, end)], (1, 0))


def predicts(score: ArrivalScore, count: int, wait_for: WaitFor) -> None:
    """Predict what has arrived until so many predictions wait."""

    def waiting() -> bool:
        score.between_calls(math.inf)
        return score.figures().waiting >= count

    wait_for(waiting, timeout=30)
    assert score.figures().waiting == count


def settles(score: ArrivalScore, learnt: Delivery) -> ArrivalFigures:
    present = learnt.rows.offsets.numpy() >= 0
    score.called(Call(facts=learnt.facts, rows=[(learnt.rows, present)], scored=(), step=1, records=len(present)))
    return score.figures()


def answered(learner: Learner, topic: Topic, offsets: range) -> dict[str, float]:
    """Return the loss and the accuracy of the model's answers for some records, without Keras' metrics."""
    x = np.array([topic.x(P0, offset) for offset in offsets], np.float32)
    records = golden_records(len(offsets))
    y = (x.sum(axis=1) > 0).astype(np.float32)
    return by_hand(learner.model, type(records)(**{**_fields(records), "features": {"x": x}, "labels": {"y": y}}))


def _fields(records: Any) -> dict[str, Any]:
    return {name: getattr(records, name) for name in records.__dataclass_fields__}


def moves(learner: Learner, calls: int = 30) -> None:
    """Have the model learn something."""
    for seed in range(calls):
        learner.learn(block(2, seed=seed))


Begin = Callable[..., tuple[Head, ArrivalReader]]


def test_a_record_is_scored_by_the_weights_of_when_it_came(
    learner_of: MakeLearner, head: Begin, wait_for: WaitFor
) -> None:
    topic, learner = Topic(), learner_of()
    source, reader = head(topic)
    score = ArrivalScore(learner, live_of(learner), reader)
    source.append(20)
    predicts(score, 20, wait_for)
    first = answered(learner, topic, range(20))
    moves(learner)
    topic.produce(20)
    source.append(30)
    predicts(score, 50, wait_for)
    second = answered(learner, topic, range(20, 50))
    moves(learner)
    now = answered(learner, topic, range(20))
    found = settles(score, block_of(topic, 0, 20))
    assert found.values == pytest.approx(first, rel=1e-5)
    assert (found.records, found.missed, found.waiting) == (20, 0, 30)
    assert abs(now["loss"] - first["loss"]) > 0.01, "the model has learnt meanwhile"
    # Of a block that ends within what is kept, the rest stays; all together the mean of both.
    found = settles(score, block_of(topic, 20, 35))
    assert (found.records, found.waiting) == (35, 15)
    found = settles(score, block_of(topic, 35, 50))
    assert found.values["loss"] == pytest.approx((20 * first["loss"] + 30 * second["loss"]) / 50, rel=1e-5)
    assert (found.scored, found.missed, found.waiting) == (50, 0, 0)


def test_what_waits_is_expected_to_score_as_answers_of_late_came_true(
    learner_of: MakeLearner, head: Begin, wait_for: WaitFor
) -> None:
    topic, learner, known = Topic(), learner_of(), list[Tallies]()
    source, reader = head(topic)
    score = ArrivalScore(learner, live_of(learner), reader, lambda: known[0] if known else None)
    source.append(40)
    predicts(score, 40, wait_for)
    assert score.figures().expected == {}, "no label has come yet"
    x = np.array([topic.x(P0, offset) for offset in range(40)], np.float32)
    p = np.asarray(learner.model(x))
    # Answers like these came true in seven of ten.
    came = (np.arange(400) % 10 < 7).astype(np.float32)[:, None]
    rows = Answered(came, np.repeat(p, 10, axis=0))
    known.append(tallies_of_all(truth_columns(rows, Labels.BINARY), 400))
    right = np.where(p[:, 0] > 0.5, 0.7, 0.3)
    assert score.figures().expected["accuracy"] == pytest.approx(right.mean(), abs=0.02)


def test_predictions_that_wait_are_part_of_the_state(learner_of: MakeLearner, head: Begin, wait_for: WaitFor) -> None:
    topic, learner = Topic(), learner_of()
    source, reader = head(topic)
    score = ArrivalScore(learner, live_of(learner), reader)
    source.append(20)
    predicts(score, 20, wait_for)
    first = answered(learner, topic, range(20))
    settles(score, block_of(topic, 0, 5))
    state = score.snapshot()
    # Afterwards: the process that restores it has not seen these arrive, nor what came before it was there.
    moves(learner)
    again = ArrivalScore(learner, live_of(learner), reader)
    again.restore(state)
    assert again.figures().waiting == 15
    found = settles(again, block_of(topic, 5, 30))
    assert (found.scored, found.missed, found.waiting) == (20, 10, 0)
    assert again.snapshot().facts["sums"]["loss"] / 20 == pytest.approx(first["loss"], rel=1e-5)
    # What was predicted since stays when an older state is restored.
    topic.produce(20)
    source.append(10)
    predicts(score, 25, wait_for)
    score.restore(state)
    assert score.figures().waiting == 25


def test_a_prediction_that_comes_too_late_is_none(learner_of: MakeLearner, head: Begin, wait_for: WaitFor) -> None:
    topic, learner = Topic(), learner_of()
    source, reader = head(topic)
    score = ArrivalScore(learner, live_of(learner), reader)
    found = settles(score, block_of(topic, 0, 12))
    assert (found.missed, found.scored, found.values) == (12, 0, {})
    source.append(20)
    predicts(score, 8, wait_for)
    found = settles(score, block_of(topic, 12, 20))
    assert (found.missed, found.scored) == (12, 8)
    score.forget(P0)
    topic.produce(20)
    source.append(4)
    predicts(score, 4, wait_for)
    score.forget(P0)
    assert score.figures().waiting == 0


def test_a_sample_is_known_again_by_partition_and_offset(
    learner_of: MakeLearner, head: Begin, wait_for: WaitFor
) -> None:
    offsets = np.arange(100_000)
    salts = [np.full(len(offsets), salt_of(one)) for one in (P0, P1)]
    samples = [in_sample(salt, offsets, 0.01) for salt in salts]
    assert all(800 < sample.sum() < 1200 for sample in samples)
    assert (samples[0] & samples[1]).sum() < 40, "of other partitions others"
    assert in_sample(salts[0], offsets, 1.0).all()
    topic, learner = Topic(), learner_of()
    source, reader = head(topic, 0.25)
    score = ArrivalScore(learner, live_of(learner), reader)
    source.append(400)
    expected = int(in_sample(salts[0][:400], offsets[:400], 0.25).sum())
    predicts(score, expected, wait_for)
    found = settles(score, block_of(topic, 0, 400))
    assert (found.scored, found.missed) == (expected, 0)


def test_what_is_learnt_is_the_same_to_the_bit_with_a_score_on_arrival(tmp_path: Path, head: Begin) -> None:
    states, scores = [], []
    for name in ("without", "with"):
        topic = Topic()
        source, reader = head(topic)
        with running(tmp_path / name, topic, build=drawing, arrivals=reader if name == "with" else None) as run:
            for at in range(1, 4):
                source.append(SHARE)
                if name == "with":
                    run.sees(waiting_in(run, SHARE))
                topic.produce(SHARE)
                run.reaches(at * SHARE)
                run.ask(Save())
            states.append({key: value.tobytes() for key, value in state_of(run.learner).items()})
            scores.append((run.live.look().values, run.live.look().cumulative))
            if name == "with":
                figures = kept_by(run)
    assert states[0] == states[1]
    assert scores[0] == scores[1]
    assert any("seed" in key for key in states[0])
    assert (figures["sums"]["records"], figures["missed"]) == (3 * SHARE, 0)


def kept_by(run: Run) -> Mapping[str, Any]:
    """Return the facts that a checkpoint would have."""
    assert run.arrivals is not None
    return run.arrivals.snapshot().facts


def waiting_in(run: Run, count: int) -> Callable[[], bool]:
    """Return what says whether so many predictions wait."""

    def waits() -> bool:
        assert run.arrivals is not None
        return len(run.arrivals.snapshot().arrays.get(f"{P0}/offsets", ())) == count

    return waits


AT_ONCE = 10 * BATCH


class Turning(Topic):
    """A topic whose rule turns into its opposite now and then."""

    def label(self, partition: Partition, offset: int) -> float:
        right = super().label(partition, offset)
        return right if offset // (15 * AT_ONCE) % 2 else 1.0 - right


def test_the_score_is_that_of_a_replay_with_the_delay(learner_of: MakeLearner, head: Begin, wait_for: WaitFor) -> None:
    topic, learner = Turning(), learner_of()
    source, reader = head(topic)
    score = ArrivalScore(learner, live_of(learner), reader)
    plain = mlp()
    plain.jit_compile = False
    plain.set_weights(learner.model.get_weights())
    blocks, delay = 46, 5
    replayed, at_release = list[bool](), list[bool]()

    def of(at: int) -> tuple[Any, Any]:
        offsets = range(at * AT_ONCE, (at + 1) * AT_ONCE)
        return (
            np.array([topic.x(P0, offset) for offset in offsets], np.float32),
            np.array([topic.label(P0, offset) for offset in offsets], np.float32),
        )

    answers = deque[Any]()
    for at in range(blocks):
        source.append(AT_ONCE)
        predicts(score, AT_ONCE * min(at + 1, delay + 1), wait_for)
        answers.append(plain.predict_on_batch(of(at)[0])[:, 0] > 0.5)
        topic.produce(AT_ONCE)
        if at >= delay:
            x, y = of(at - delay)
            replayed += (answers.popleft() == (y > 0)).tolist()
            learnt = block_of(topic, (at - delay) * AT_ONCE, (at - delay + 1) * AT_ONCE)
            for first in range(0, AT_ONCE, BATCH):
                batch = slice(first, first + BATCH)
                at_release += ((plain.predict_on_batch(x[batch])[:, 0] > 0.5) == (y[batch] > 0)).tolist()
                plain.train_on_batch(x[batch], y[batch])
            learner.learn(learnt.rows)
            found = settles(score, learnt)
    assert (found.scored, found.missed) == ((blocks - delay) * AT_ONCE, 0)
    assert abs(found.values["accuracy"] - np.mean(replayed)) < 0.002
    # At release the model knows what came later: after each turn it has learnt the new rule for some time.
    assert np.mean(at_release) - np.mean(replayed) > 0.05


def test_a_restart_and_a_rewind_keep_what_was_predicted(tmp_path: Path, head: Begin) -> None:
    topic = Topic()
    source, reader = head(topic)
    with running(tmp_path, topic, arrivals=reader) as run:
        topic.produce(0)
        source.append(2 * SHARE)
        run.sees(waiting_in(run, 2 * SHARE))
        topic.produce(SHARE)
        run.reaches(SHARE)
        run.ask(Save())
    source, reader = head(topic)
    with running(tmp_path, topic, arrivals=reader) as run:
        topic.produce(2 * SHARE)
        run.reaches(3 * SHARE)
        run.ask(Save())
        facts = kept_by(run)
        assert (facts["sums"]["records"], facts["missed"]) == (2 * SHARE, SHARE)
        run.ask(Rewind(to=1))
        run.reaches(3 * SHARE)
        run.ask(Save())
        assert kept_by(run) == facts


def test_after_an_error_the_reading_begins_again_at_the_end(
    head: Begin, wait_for: WaitFor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millrace.pipelines.shaping.labels.arrivals._AGAIN_S", 0.01)
    topic = Topic()
    source, reader = head(topic)
    source.append(5)
    wait_for(lambda: [len(one) for one in reader.take()] == [5], timeout=30)
    topic.produce(100)
    assert source.handoff is not None
    source.handoff.fail(UnreachableError("nobody answers"))
    wait_for(lambda: source.begun == 2, timeout=30)
    source.append(5)
    [again] = wait_for(reader.take, timeout=30)
    assert again.offsets.tolist() == [*range(100, 105)]
