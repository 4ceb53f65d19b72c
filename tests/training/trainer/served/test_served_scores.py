"""Each served prediction is scored once, by the label of its row, through kills and whichever comes first."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.pipelines.gates.served_gate import ServedGate
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.blocks import Rows, Span
from millrace.pipelines.stream.row_identity import RowIdentity, in_share
from millrace.pipelines.stream.served_reader import ServedPiece, ServedPrediction, ServedReader
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.watcher import Call
from millrace.training.trainer.served.figures import ServedFigures
from millrace.training.trainer.served.served_scores import MOST_VERSIONS, MOST_WAITING, ServedScores
from tests.training.trainer_rig import Clock

pytestmark = pytest.mark.tensorflow
PARTITIONS = [Partition("clicks", number) for number in range(2)]
LOG = Partition("served", 0)
SCHEMA = Schema(features=(Field(name="x", source="x", dtype="int64"),))
RECORDS, SHARE = 3000, 0.5
IDENTITY = RowIdentity(SCHEMA)


@dataclass
class Topic:
    """What servers have written, and the part of a reader that the score uses."""

    written: list[ServedPrediction] = field(default_factory=list)
    at: int | None = None
    begun_at: Mapping[Partition, int] = field(default_factory=dict)

    def start(self) -> None:
        """Begin where reading was sent to, or at the end."""
        self.at = len(self.written) if self.at is None else self.at
        self.begun_at = {LOG: self.at}

    def read_from(self, positions: Mapping[Partition, int]) -> None:
        self.at, self.begun_at = positions.get(LOG), {}

    def take(self) -> Sequence[ServedPiece]:
        """Return some of what is written and not read, in a piece or several."""
        assert self.at is not None
        first, self.at = self.at, min(len(self.written), self.at + 100)
        middle = (first + self.at) // 2
        cuts = ((first, middle), (middle, self.at))
        return [ServedPiece(LOG, end, self.written[start:end]) for start, end in cuts if end > start]


class World:
    """Two partitions of records, and versions that answer for each of them."""

    def __init__(self, seed: int, kind: Labels = Labels.BINARY) -> None:
        self.random, self.kind, self.topic = np.random.default_rng(seed), kind, Topic()
        self.x = {p: self.random.permutation(RECORDS) * 2 + at for at, p in enumerate(PARTITIONS)}
        count = 2 * RECORDS
        p = self.random.random(count).astype(np.float32)
        self.label = (
            (self.random.random(count) < p).astype(np.float32)
            if kind is Labels.BINARY
            else self.random.normal(size=count).astype(np.float32)
        )
        self.live = np.clip(p + self.random.normal(0, 0.1, count), 0.01, 0.99).astype(np.float32)
        self.served = np.clip(p + self.random.normal(0, 0.3, count), 0.01, 0.99).astype(np.float32)

    def identities(self, x: Any) -> Any:
        return IDENTITY.of({"x": np.asarray(x, np.int64)})

    def write(self, x: int, version: int) -> None:
        (identity,) = self.identities([x]).tolist()
        self.topic.written.append(ServedPrediction(identity, version, self.served[x : x + 1], 0.0))

    def chunk(self, partition: Partition, start: int, end: int) -> Any:
        features = {"x": self.x[partition][start:end]}
        return _Chunk(partition, end, np.arange(start, end), features)

    def call(self, spans: Mapping[Partition, tuple[int, int]]) -> Call:
        places = [(partition, offset) for partition, (start, end) in spans.items() for offset in range(start, end)]
        self.random.shuffle(places)
        x = np.array([self.x[partition][offset] for partition, offset in places], np.int64)
        rows = Rows(
            features={},
            labels=tf.constant(self.label[x][None]),
            weights=tf.ones([1, len(places)]),
            offsets=tf.constant([[offset for _, offset in places]], tf.int64),
            partitions=tf.constant([[PARTITIONS.index(partition) for partition, _ in places]], tf.int32),
        )
        facts: Any = SimpleNamespace(
            spans=[
                Span(partition=p, index=PARTITIONS.index(p), start=s, end=e, learnt=e - s, set_aside={}, skipped={})
                for p, (s, e) in spans.items()
            ]
        )
        learnt, outputs = np.ones((1, len(places)), np.bool_), self.live[x][None, :, None]
        return Call(facts=facts, rows=[(rows, learnt)], scored=(), outputs=[outputs], step=1, records=len(places))


@dataclass
class _Chunk:
    partition: Partition
    end: int
    offsets: Any
    features: Any

    def __len__(self) -> int:
        return len(self.offsets)


class Life:
    """A process, from where a state stands."""

    def __init__(self, world: World, positions: Mapping[Partition, int], state: Any = None) -> None:
        self.world, self.positions = world, dict(positions)
        self.gate = ServedGate(SCHEMA, SHARE)
        self.gate.begin(self.positions)
        self.read = dict(self.positions)
        self.clock = Clock()
        clocks = (self.clock, lambda: 0.0)
        plan = BaselinePlan(labels=world.kind)
        self.scores = ServedScores(self.gate, cast("ServedReader", world.topic), plan, 600.0, clocks)
        if state is not None:
            self.scores.restore(state)
        self.scores.begin()
        self.now = 0.0

    def learns(self, most: int = 80) -> None:
        spans = dict[Partition, tuple[int, int]]()
        for partition in PARTITIONS:
            start = self.positions[partition]
            end = min(RECORDS, start + int(self.world.random.integers(1, most)))
            while self.read[partition] < end:
                until = min(RECORDS, self.read[partition] + int(self.world.random.integers(1, 100)))
                self.gate.admits(self.world.chunk(partition, self.read[partition], until))
                self.read[partition] = until
            if end > start:
                spans[partition] = (start, end)
                self.positions[partition] = end
        if spans:
            self.scores.called(self.world.call(spans))
        self.looks()

    def looks(self) -> None:
        self.now += 1.0
        self.scores.between_calls(self.now)

    def figures(self) -> Mapping[str, ServedFigures]:
        self.scores._seen_at = float("-inf")
        return self.scores.figures()


def scored(world: World, asked: Mapping[int, int]) -> dict[str, tuple[int, float, float]]:
    """Return by version how many rows are scored, and two scores: served, and of the model in training."""
    found = {}
    for version in sorted(set(asked.values())):
        x = np.array([one for one, by in asked.items() if by == version])
        x = x[in_share(world.identities(x), SHARE)]
        right = [((answers[x] > 0.5) == (world.label[x] > 0.5)).mean() for answers in (world.served, world.live)]
        if world.kind is Labels.NUMBERS:
            right = [np.abs(answers[x] - world.label[x]).mean() for answers in (world.served, world.live)]
        found[str(version)] = (len(x), float(right[0]), float(right[1]))
    return found


@pytest.mark.row(48)
@pytest.mark.parametrize(("kind", "score"), [(Labels.BINARY, "accuracy"), (Labels.NUMBERS, "mae")])
@pytest.mark.parametrize("seed", range(3))
def test_each_prediction_is_scored_once_by_its_label_through_kills(kind: Labels, score: str, seed: int) -> None:
    world, positions, state, asked = World(seed, kind), dict.fromkeys(PARTITIONS, 0), None, dict[int, int]()
    life = Life(world, positions)
    kept = (dict(positions), life.scores.snapshot())
    everything = world.random.permutation(2 * RECORDS).tolist()
    while any(end < RECORDS for end in life.positions.values()):
        # A server answers for some rows: of these some come later, some were learnt already.
        for x in [everything.pop() for _ in range(min(len(everything), int(world.random.integers(0, 60))))]:
            asked[x] = 7 + len(asked) // 1000
            if in_share(world.identities([x]), SHARE)[0]:
                world.write(x, asked[x])
        life.learns()
        chance = world.random.random()
        if chance < 0.1:
            kept = (dict(life.positions), life.scores.snapshot())
        elif chance < 0.2:
            positions, state = kept
            life = Life(world, positions, state)
    for _ in range(40):
        life.looks()
    found = life.figures()
    wanted = scored(world, asked)
    assert found.keys() == wanted.keys()
    assert [*found] == sorted(found, key=int, reverse=True)
    for version, (count, served, live) in wanted.items():
        one = found[version]
        assert (one.cumulative_records, one.read) == (count, count)
        assert one.cumulative[score] == pytest.approx(served, abs=1e-6)
        total = life.scores._tallies.total[f"{version}/live"]
        assert life.scores._tallies.total.keys() >= {version}
        if kind is Labels.NUMBERS:
            assert total["absolute_error"][0] / count == pytest.approx(live, abs=1e-6)
    assert not [*life.scores._predictions]


def test_what_waits_is_bounded_and_so_are_the_versions() -> None:
    world = World(5)
    life = Life(world, dict.fromkeys(PARTITIONS, 0))
    life.learns()
    world.topic.written += [
        ServedPrediction(at, 1, world.served[:1], 0.0) for at in range(10**9, 10**9 + MOST_WAITING + 300)
    ]
    for _ in range(MOST_WAITING // 100 + 10):
        life.looks()
    waiting = [*life.scores._predictions]
    assert len(waiting) == MOST_WAITING
    assert waiting[0].identity == 10**9 + 300
    sampled = [x for x in range(2 * RECORDS) if in_share(world.identities([x]), SHARE)[0]]
    for version in range(2, 20):
        for x in sampled[version * 40 : version * 40 + 40]:
            world.write(x, version)
    for _ in range(400):
        life.learns()
    found = life.figures()
    assert len(found) == MOST_VERSIONS
    assert [*found] == [str(version) for version in range(19, 9, -1)]
    assert all(one.records == 40 for one in found.values())
    assert len(life.scores._tallies.total) == 2 * MOST_VERSIONS


def test_predictions_of_a_model_with_other_outputs_are_not_scored() -> None:
    world = World(6)
    life = Life(world, dict.fromkeys(PARTITIONS, 0))
    life.learns()
    sampled = [x for x in range(2 * RECORDS) if in_share(world.identities([x]), SHARE)[0]]
    for x in sampled[:50]:
        (identity,) = world.identities([x]).tolist()
        world.topic.written.append(ServedPrediction(identity, 3, np.zeros(2, np.float32), 0.0))
    for _ in range(100):
        life.learns()
    assert (life.figures()["3"].read, life.figures()["3"].cumulative_records) == (50, 0)
