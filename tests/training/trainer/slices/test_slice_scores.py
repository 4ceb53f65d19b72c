"""The score of each slice is that of its records alone, and a part of the state, through kills and a rewind."""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from millrace.consumers.records import Partition
from millrace.pipelines.gates.slice_gate import SliceGate
from millrace.pipelines.schema import Field
from millrace.pipelines.stream.blocks import Rows, Span
from millrace.pipelines.stream.decode import SliceValues
from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.watcher import Call
from millrace.training.trainer.slices.figures import SliceFigures, worst_scores
from millrace.training.trainer.slices.slice_scores import ALL, MOST_VALUES, OTHER, SliceScores
from tests.training.trainer_rig import Clock

pytestmark = pytest.mark.tensorflow
PARTITIONS = [Partition("clicks", number) for number in range(3)]
FIELDS = ("country", "age")
RECORDS = 4000


def _country(number: int) -> bytes:
    """Return the name of a country; one is called as the rest is."""
    return OTHER.encode() if number == 2 else f"c{number}".encode()


@dataclass
class Stream:
    """Records of some partitions, which a reader gets in chunks and a trainer in blocks, each cut as chance has it."""

    random: np.random.Generator
    kind: Labels = Labels.BINARY
    classes: int = 4
    columns: dict[Partition, dict[str, npt.NDArray[Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for partition in PARTITIONS:
            countries = np.array([_country(n) for n in self.random.geometric(0.05, size=RECORDS)], object)
            p = self.random.random(RECORDS).astype(np.float32)
            wide = self.random.dirichlet(np.ones(self.classes), size=RECORDS).astype(np.float32)
            self.columns[partition] = {
                "country": countries,
                "age": self.random.integers(20, 24, size=RECORDS),
                "label": {  # type: ignore[dict-item]  # each is an array
                    Labels.BINARY: (self.random.random(RECORDS) < p).astype(np.float32),
                    Labels.CLASSES: self.random.integers(0, self.classes, size=RECORDS),
                    Labels.NUMBERS: self.random.normal(size=RECORDS).astype(np.float32),
                }[self.kind],
                "answer": wide if self.kind is Labels.CLASSES else p[:, None],
            }

    def chunk(self, partition: Partition, start: int, end: int) -> Any:
        """Return a decoded chunk; nothing but what the gate looks at."""
        mine = self.columns[partition]
        text, number = (Field(name=name, source=name, dtype="string", missing="") for name in FIELDS)
        slices = {
            "country": SliceValues.of(mine["country"][start:end], text),
            "age": SliceValues.of(mine["age"][start:end], number),
        }
        return SimpleNamespace(partition=partition, end=end, offsets=np.arange(start, end), slices=slices)

    def call(self, spans: Mapping[Partition, tuple[int, int]], left_out: int = 0) -> Call:
        """Return a call of these records, shuffled, of which the first ones are not learnt."""
        places = [(partition, offset) for partition, (start, end) in spans.items() for offset in range(start, end)]
        self.random.shuffle(places)
        columns = [self.columns[partition] for partition, _ in places]
        values = {
            name: np.array([mine[name][offset] for mine, (_, offset) in zip(columns, places, strict=True)])
            for name in ("label", "answer")
        }
        rows = Rows(
            features={},
            labels=tf.constant(values["label"][None]),
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
        learnt = (np.arange(len(places)) >= left_out)[None]
        outputs = values["answer"][None]
        return Call(facts=facts, rows=[(rows, learnt)], scored=(), outputs=[outputs], step=1, records=len(places))


@dataclass
class Life:
    """A process: it reads chunks ahead, and learns blocks, from where a state stands."""

    stream: Stream
    positions: dict[Partition, int]
    state: Any = None
    in_group: bool = False

    def __post_init__(self) -> None:
        self.read = dict(self.positions)
        self.gate = SliceGate(FIELDS)
        self.gate.begin(self.positions)
        plan = BaselinePlan(labels=self.stream.kind)
        self.scores = SliceScores(self.gate, plan, 600.0, Clock(), in_group=self.in_group)
        if self.state is not None:
            self.scores.restore(self.state)

    def learns(self, calls: int) -> None:
        """Learn some blocks, as far as there are records."""
        random = self.stream.random
        for _ in range(calls):
            self.learns_to({p: min(RECORDS, at + int(random.integers(0, 120))) for p, at in self.positions.items()})

    def learns_to(self, ends: Mapping[Partition, int]) -> None:
        """Learn one block, up to these offsets."""
        random = self.stream.random
        for partition, end in ends.items():
            while self.read[partition] < end:
                start = self.read[partition]
                self.read[partition] = min(RECORDS, start + int(random.integers(1, 200)))
                chunk = self.stream.chunk(partition, start, self.read[partition])
                # A gate is asked about a chunk again that another one holds back.
                assert all(self.gate.admits(chunk) for _ in range(int(random.integers(1, 3))))
        self.scores.called(self.stream.call({p: (self.positions[p], end) for p, end in ends.items()}))
        self.positions = dict(ends)


def plain_auc(labels: npt.NDArray[Any], answers: npt.NDArray[Any]) -> float:
    """Return the share of the pairs of both labels that are answered in their order; ties count by half."""
    above = answers[labels > 0.5][:, None] - answers[labels < 0.5][None, :]
    return float((above > 0).mean() + (above == 0).mean() / 2)


def in_bins(p: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return probabilities rounded to a 32nd in the log-odds, by which a slice's area is that of its records."""
    p = np.clip(p.astype(np.float32), np.float32(1e-7), np.float32(1 - 1e-7))
    return np.asarray(np.clip(np.ceil(np.log(p / (1 - p)) * 32), -255, 256))


def expected(labels: npt.NDArray[Any], answers: npt.NDArray[Any], kind: Labels) -> dict[str, float]:
    """Return the scores of some records, by plain numpy."""
    if kind is Labels.NUMBERS:
        errors = answers[:, 0].astype(np.float64) - labels
        return {"mae": np.abs(errors).mean(), "rmse": np.sqrt((errors**2).mean()), "bias": errors.mean()}
    if kind is Labels.CLASSES:
        of_label = answers[np.arange(len(labels)), labels].astype(np.float64)
        right = answers.argmax(axis=1) == labels
        return {"accuracy": right.mean(), "log_loss": -np.log(np.clip(of_label, 1e-7, 1)).mean()}
    p = np.clip(answers[:, 0].astype(np.float64), 1e-7, 1 - 1e-7)
    found = {
        "accuracy": ((p > 0.5) == (labels > 0.5)).mean(),
        "log_loss": -np.where(labels > 0.5, np.log(p), np.log(1 - p)).mean(),
    }
    return found if len(set(labels.tolist())) < 2 else {**found, "auc": plain_auc(labels, in_bins(answers[:, 0]))}


@pytest.mark.parametrize("kind", [Labels.BINARY, Labels.CLASSES, Labels.NUMBERS])
def test_slices_equal_a_plain_sum_over_their_records_through_kills_and_a_rewind(kind: Labels) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    stream = Stream(np.random.default_rng(seed), kind)
    life = Life(stream, dict.fromkeys(PARTITIONS, 0))
    saved: list[tuple[dict[Partition, int], Any]] = [(dict(life.positions), life.scores.snapshot())]
    for kill in range(20):
        life.learns(int(stream.random.integers(1, 6)))
        saved.append((dict(life.positions), life.scores.snapshot()))
        life.learns(int(stream.random.integers(0, 4)))
        # A kill loses what came after the newest checkpoint; a rewind, what came after an older one.
        positions, state = saved[-1 if kill != 12 else 6]
        life = Life(stream, dict(positions), state)
    life.learns(200)
    assert life.positions == dict.fromkeys(PARTITIONS, RECORDS)
    found = life.scores.figures()
    whole = {name: np.concatenate([stream.columns[p][name] for p in PARTITIONS]) for name in stream.columns[P0]}
    groups = {ALL: np.ones(len(whole["label"]), bool)}
    groups |= {f"age={age}": whole["age"] == age for age in range(20, 24)}
    held = life.scores.snapshot().facts["held"]["country"]
    assert len(held) == MOST_VALUES
    texts = np.array([text.decode() for text in whole["country"]])
    groups |= {f"country={name}": texts == name for name in held}
    groups[f"country={OTHER}"] = ~np.isin(texts, held) | (texts == OTHER)
    assert found.keys() <= groups.keys()
    for name, mine in groups.items():
        if name in found:
            assert found[name].cumulative_records == mine.sum(), name
            of_them = expected(whole["label"][mine], whole["answer"][mine], kind)
            assert found[name].cumulative == pytest.approx(of_them, abs=1e-6, rel=1e-6), name
    if kind is Labels.BINARY:
        exact = plain_auc(whole["label"][groups["age=20"]], whole["answer"][groups["age=20"], 0])
        assert found["age=20"].cumulative["auc"] == pytest.approx(exact, abs=1e-3), "the bins are fine"
    assert life.gate.take(PARTITIONS[0], RECORDS) == []


P0 = PARTITIONS[0]


def answers(labels: Any, p: Any, countries: list[bytes], **more: int) -> SliceScores:
    """Return the scores of one call."""
    stream = Stream(np.random.default_rng(1))
    mine = stream.columns[P0]
    mine["label"][: len(labels)], mine["answer"][: len(labels), 0] = labels, p
    mine["country"][: len(countries)] = countries
    life = Life(stream, {P0: 0})
    life.gate.admits(stream.chunk(P0, 0, len(labels)))
    life.scores.called(stream.call({P0: (0, len(labels))}, **more))
    return life.scores


def test_the_worst_is_first_unless_chance_alone_may_have_made_it_so() -> None:
    random, each = np.random.default_rng(2), 1000
    p = random.random(2 * each + 4)
    good = random.random(2 * each + 4) < p
    labels = np.where(np.arange(len(p)) >= each, random.random(len(p)) < 0.5, good).astype(np.float32)
    # Four records, all answered wrongly: the worst area that there is, and little to tell by.
    labels[-4:], p[-4:] = [1, 1, 0, 0], [0.2, 0.3, 0.7, 0.8]
    scores = answers(labels, p, [b"fine"] * each + [b"broken"] * each + [b"few"] * 4)
    found = scores.figures()
    order = [name for name in found if name.startswith("country")]
    assert next(iter(found)) == ALL
    assert order.index("country=broken") < order.index("country=fine")
    assert found["country=few"].values["auc"] == 0.0
    assert order[-1] == "country=few", "there is no interval to tell by"
    low, value, high = (
        of["auc"]
        for of in (found["country=broken"].lowest, found["country=broken"].values, found["country=broken"].highest)
    )
    assert low < value < high
    assert (low, high) == pytest.approx((0.5 - 0.036, 0.5 + 0.036), abs=0.04)
    worst = worst_scores(found)
    assert scores.scores() == worst
    assert worst.keys() == {*scores.score_names}
    assert worst["worst_slice.auc"] == value, "of those with a hundred records"
    assert worst["worst_slice.log_loss"] == max(one.values["log_loss"] for one in found.values() if one.records >= 100)
    assert worst_scores(None) == {}
    assert (
        worst_scores(
            {
                "few": SliceFigures(
                    records=9, values={"auc": 0.1}, lowest={}, highest={}, cumulative={}, cumulative_records=9
                )
            }
        )
        == {}
    )


def test_an_interval_of_accuracy_is_wilsons() -> None:
    # Of 10 records 9 are right: Wilson's interval, from a table.
    labels = np.array([1.0] * 9 + [0.0], np.float32)
    found = answers(labels, np.full(10, 0.9), [b"x"] * 10).figures()["country=x"]
    assert (found.records, found.values["accuracy"]) == (10, 0.9)
    assert (found.lowest["accuracy"], found.highest["accuracy"]) == pytest.approx((0.5958, 0.9821), abs=1e-4)


def test_a_record_that_is_not_learnt_is_in_no_slice_and_one_without_a_value_has_its_own() -> None:
    found = answers(np.ones(20, np.float32), np.full(20, 0.9), [b""] * 20, left_out=5).figures()
    assert found["country=(none)"].records == found[ALL].records == 15


def test_fields_that_were_not_sliced_before_begin_anew() -> None:
    before = answers(np.ones(20, np.float32), np.full(20, 0.9), [b"x"] * 20)
    again = SliceScores(SliceGate(("country", "plan")), BaselinePlan(labels=Labels.BINARY), 600.0, Clock())
    state = before.snapshot()
    dropped = {name.replace("country", "allergy"): one for name, one in state.arrays.items()}
    again.restore(replace(state, arrays={**state.arrays, **dropped}))
    kept = {name.rpartition("/")[0] for name in again.snapshot().arrays}
    assert kept == {ALL, "country=x"}
    assert again.snapshot().facts["held"] == {"country": ["x"], "plan": []}
    other = SliceScores(SliceGate(("country",)), BaselinePlan(labels=Labels.NUMBERS), 600.0, Clock())
    other.restore(before.snapshot())
    assert other.snapshot().arrays == {}


def test_a_chunk_that_another_gate_holds_back_is_kept_once() -> None:
    stream, gate = Stream(np.random.default_rng(1)), SliceGate(FIELDS)
    gate.begin({P0: 0})
    for start in (0, 0, 5):
        assert gate.admits(stream.chunk(P0, start, start + 5))
    assert [one.offsets.tolist() for one in gate.take(P0, 7)] == [[*range(5)], [5, 6]]
    assert [one.offsets.tolist() for one in gate.take(P0, 10)] == [[7, 8, 9]]
    gate.begin({P0: 0})
    assert gate.take(P0, 10) == []


def in_turn(members: Sequence[SliceScores]) -> None:
    """Have the members of a group report, as they do at the same time."""
    # Each gives its bytes before it takes those of all: the first round is the chief's values, the second what is new.
    rounds: list[list[bytes]] = [[], []]
    threads = []
    both = threading.Barrier(len(members), timeout=10)
    lock = threading.Lock()

    def agree(number: int, one: SliceScores) -> None:
        at = iter(rounds)

        def gather(mine: bytes) -> list[bytes]:
            said = next(at)
            with lock:
                said.append(number.to_bytes() + mine)
            both.wait()
            return [raw[1:] for raw in sorted(said, key=lambda raw: raw[0])]

        one.agree(gather)

    for number, one in enumerate(members):
        threads.append(threading.Thread(target=agree, args=(number, one)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    members[0].take_shares([one.share() for one in members[1:]])


@pytest.mark.parametrize("kind", [Labels.BINARY, Labels.CLASSES])
@pytest.mark.parametrize("count", [2, 3])
def test_the_chief_of_a_group_shows_the_slices_of_one_worker(kind: Labels, count: int) -> None:
    seed = int(np.random.default_rng().integers(1 << 30))
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    stream = Stream(np.random.default_rng(seed), kind)
    random = stream.random
    alone = Life(stream, dict.fromkeys(PARTITIONS, 0))
    mine = [PARTITIONS[number::count] for number in range(count)]
    members = [Life(stream, dict.fromkeys(some, 0), in_group=True) for some in mine]
    for call in range(80):
        ends = {p: min(RECORDS, at + int(random.integers(0, 30))) for p, at in alone.positions.items()}
        alone.learns_to(ends)
        for some, member in zip(mine, members, strict=True):
            member.learns_to({p: ends[p] for p in some})
        members[0].scores.figures()
        if call % 7 == 0:
            in_turn([one.scores for one in members])
        if call == 21:
            # All begin again; what came after the report that the checkpoint was made by is not lost here.
            state = members[0].scores.snapshot()
            members = [
                Life(stream, dict(one.positions), state if number == 0 else None, in_group=True)
                for number, one in enumerate(members)
            ]
    in_turn([one.scores for one in members])
    expected, found = alone.scores.snapshot(), members[0].scores.snapshot()
    assert found.facts == expected.facts
    assert len(found.facts["held"]["country"]) == MOST_VALUES
    assert found.arrays.keys() == expected.arrays.keys()
    for name, array in expected.arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, name)
    assert members[1].scores.figures() == {}, "only the chief holds what all have tallied"
