"""A memory of the past: a uniform sample of what was learnt, learnt again beside each batch, and never scored."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain
from pathlib import Path
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.pipelines.shaping.figures import ReservoirFigures
from millrace.pipelines.shaping.followed_states import unpacked
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.offset_mix import mix
from millrace.training.checkpoints.parts import PartState
from millrace.training.group.membership import Membership
from millrace.training.group.one_state import GroupState, Opening
from millrace.training.ledger.ledger import Ledger
from millrace.training.model.call.held_rows import memory_limit
from millrace.training.model.call.reservoir import (
    Classes,
    Replays,
    Reservoir,
    joined,
    last_of_each,
    share_of,
)
from millrace.training.model.call.witness import Witness
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import states_add_up
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.variables import read
from millrace.training.trainer.state import Progress
from tests.training.conftest import BATCH, SCHEMA, block, largest_difference, mlp, options_of, state_of, with_feature
from tests.training.learner_pool import POOL

pytestmark = pytest.mark.tensorflow
SIZE = 50
FEW = ReservoirSettings(size=SIZE, share=0.25)
CLASSED = replace(SCHEMA, labels=(replace(SCHEMA.labels[0], one_of=(0, 1)),))
CROSS_ENTROPY = keras.losses.BinaryCrossentropy()


def sgd(*layers: Any, **given: Any) -> Any:
    """Build a model whose update is linear in its gradients, so that sums of rows show."""
    model = mlp(*layers, **given)
    model.compile(optimizer=keras.optimizers.SGD(0.5), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def remembering(options: ReservoirSettings | None = FEW, build: Any = sgd, **given: Any) -> Learner:
    """Return a learner with a reservoir as it is when it has just been built."""
    extra = {name: given.pop(name) for name in ("balance", "augment", "beside") if name in given}
    return POOL.lend(build, replace(options_of(**given), reservoir=options, **extra))


def reservoir_of(learner: Learner) -> Reservoir:
    """Return the learner's reservoir."""
    assert learner.call.shaping.reservoir is not None
    return learner.call.shaping.reservoir


def held(learner: Learner) -> dict[str, Any]:
    """Return what is held, by column."""
    return {name: np.array(column) for name, column in reservoir_of(learner).snapshot().arrays.items()}


def drawn(learner: Learner, rows: Rows) -> Replays:
    """Return what a call with these rows learns again."""
    replay = tf.constant(True)  # noqa: FBT003 - a tensor's value
    return reservoir_of(learner).draw(rows, learner.witness.identity(), tf.constant(0), replay=replay)


def plain_copy(learner: Learner) -> Any:
    """Return the model with the present weights, for Keras alone."""
    plain = sgd()
    plain.jit_compile = False
    for variable, mine in zip(plain.variables, learner.model.variables, strict=True):
        variable.assign(read(mine))
    return plain


def assert_same_weights(learner: Learner, plain: Any) -> None:
    for mine, theirs in zip(learner.model.variables, plain.variables, strict=True):
        np.testing.assert_allclose(np.asarray(mine), np.asarray(theirs), rtol=1e-4, atol=1e-6)


class Reference:
    """Algorithm R, record by record."""

    def __init__(self, identity: int, size: int) -> None:
        self.identity, self.size = identity, size
        self.slots: list[tuple[int, Any]] = []
        self.seen = 0

    def take(self, offsets: Any, rows: Any) -> None:
        """Take rows in, in their sequence."""
        for offset, row in zip(offsets, rows, strict=True):
            self.seen += 1
            if len(self.slots) < self.size:
                self.slots.append((self.seen, row))
                continue
            [hashed] = mix(mix(np.array([offset])) ^ np.int64(self.identity)).astype(np.uint64) >> np.uint64(11)
            at = int(float(hashed) * 2.0**-53 * self.seen)
            if at < self.size:
                self.slots[at] = self.seen, row


def labelled(labels: Any, first: int = 0, *, one_hot: int = 0) -> Rows:
    """Return a block of one batch with these labels, whose feature is the row's offset."""
    offsets = np.arange(first, first + len(labels))[None]
    return Rows(
        features={"x": tf.constant(offsets), "text": tf.constant([[str(offset) for offset in offsets[0]]])},
        labels=tf.constant(np.eye(one_hot, dtype=np.float32)[labels] if one_hot else np.array(labels, np.int64))[None],
        weights=tf.ones(offsets.shape),
        offsets=tf.constant(offsets),
        partitions=tf.zeros(offsets.shape, tf.int32),
    )


def of_classes(size: int = 12, *, members: int = 1, classes: int = 3, one_hot: int = 0) -> Reservoir:
    """Return a reservoir for rows such as `labelled` makes."""
    rows, known = labelled([0], one_hot=one_hot), Classes("y", tuple(range(classes))) if classes else None
    return Reservoir(size // members, 4, rows, seed=1, classes=known, members=members)


def kept(reservoir: Reservoir, rows: Rows) -> None:
    """Have the rows learnt."""
    reservoir.keep(rows, tf.constant([77], tf.int64), tf.ones(rows.offsets.shape, tf.bool))


def stream(rows: int, first: int = 0, *, one_hot: int = 0) -> Rows:
    """Return rows of which about three in a hundred are of class 1, seven of class 2; and a few of class 3, a text."""
    shares = [0.9, 0.03, 0.07] if one_hot else [0.89, 0.03, 0.07, 0.01]
    return labelled(np.random.default_rng(first).choice(len(shares), rows, p=shares), first, one_hot=one_hot)


def texts_of(*states: PartState) -> list[list[bytes]]:
    """Return the texts that each state holds, sorted."""
    return [sorted(unpacked(state.arrays, "feature.text", ()).tolist()) for state in states]


@pytest.mark.row(36)
def test_it_holds_what_algorithm_r_would_however_batches_are_cut_into_calls() -> None:
    learner = remembering()
    reference = Reference(int(learner.witness.identities.numpy()[0]), SIZE)
    first = 0
    for seed, batches in enumerate((1, 3, 20, 2, 7)):
        rows = block(batches, rows=batches * BATCH - 5, seed=seed, first=first)
        learner.learn(rows)
        present = rows.offsets.numpy().ravel() >= 0
        reference.take(rows.offsets.numpy().ravel()[present], rows.features["x"].numpy().reshape(-1, 6)[present])
        first += batches * BATCH
    columns = held(learner)
    assert columns["number"].tolist() == [number for number, _ in reference.slots]
    np.testing.assert_array_equal(columns["feature.x"], [row for _, row in reference.slots])
    figures = reservoir_of(learner).figures()
    assert (figures.rows, figures.size, figures.seen) == (50, 50, reference.seen)


@pytest.mark.slow
def test_the_sample_is_uniform() -> None:
    learner = remembering(ReservoirSettings(size=400, share=0.01), batch=480)
    for seed in range(20):
        learner.learn(block(2, batch=480, seed=seed, first=seed * 960))
    numbers = held(learner)["number"]
    # Of even numbers up to n the mean has a standard deviation of n / sqrt(12 * 400), here 277.
    assert abs(numbers.mean() - 9600) < 4 * 277
    assert len(np.unique(numbers)) == 400
    tenths = np.bincount((numbers - 1) // 1920, minlength=10)
    assert (tenths.min() > 15, tenths.max() < 70) == (True, True), tenths
    assert abs(reservoir_of(learner).figures().age - 9600) < 2000


# On one replica rows of the past weigh what they do in plain Keras in the test of their classes, below.
@pytest.mark.parametrize("replicas", [2, pytest.param(1, marks=pytest.mark.nightly)])
def test_a_batch_is_learnt_beside_rows_of_the_past_and_scored_alone(replicas: int) -> None:
    learner = remembering(replicas=replicas)
    learner.learn(block(3, seed=1))
    plain = plain_copy(learner)
    columns = held(learner)
    rows = block(1, seed=2, first=100)
    again = drawn(learner, rows)
    past = again.features["x"][0].numpy()
    assert {tuple(row) for row in past} <= {tuple(row) for row in columns["feature.x"]}
    x, y = rows.features["x"][0].numpy(), rows.labels[0].numpy()
    # Plain Keras on both together.
    scored = float(CROSS_ENTROPY(y[:, None], plain.predict_on_batch(x)))
    accuracy = float(np.mean((plain.predict_on_batch(x)[:, 0] > 0.5) == y))
    plain.train_on_batch(np.concatenate([x, past]), np.concatenate([y, again.labels[0].numpy()]))
    result = learner.learn(rows).result
    assert result.losses[0] == pytest.approx(scored, rel=1e-5)
    assert result.states[0] / result.states[1] == pytest.approx(accuracy)
    assert result.states[1] == BATCH
    assert_same_weights(learner, plain)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("layers", "reduction"),
    [
        ((), "sum"),
        ((lambda: keras.layers.Dropout(0.5), keras.layers.BatchNormalization), "sum_over_batch_size"),
    ],
    ids=["a sum", "layers that learn otherwise than they predict"],
)
def test_the_loss_that_is_shown_is_of_the_batch_alone(layers: Any, reduction: str) -> None:
    def build() -> Any:
        model = mlp(*(layer() for layer in layers))
        with_reduction = keras.losses.BinaryCrossentropy(reduction=reduction)
        model.compile(optimizer=keras.optimizers.SGD(0.01), loss=with_reduction, metrics=["accuracy"])
        return model

    learner = remembering(build=build)
    learner.learn(block(3, seed=1))
    rows = block(1, seed=2, first=100)
    predicted = learner.model(rows.features["x"][0], training=False)
    expected = float(learner.model.loss(rows.labels[0][:, None], predicted))
    assert learner.learn(rows).result.losses[0] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_rows_of_the_past_have_the_weight_of_their_class_too() -> None:
    halves = BalanceSettings(target={"0": 0.5, "1": 0.5}, half_life=1000)
    learner = remembering(balance=halves)
    learner.learn(block(3, seed=1))
    assert learner.call.shaping.balance is not None
    learner.call.shaping.balance.counts.assign([110.0, 10.0])
    weights = learner.call.shaping.balance.weights().numpy()
    plain = plain_copy(learner)
    rows = block(1, seed=2, first=100)
    again = drawn(learner, rows)
    x = np.concatenate([rows.features["x"][0], again.features["x"][0]])
    y = np.concatenate([rows.labels[0], again.labels[0]])
    plain.train_on_batch(x, y, weights[y.astype(int)])
    learner.learn(rows)
    assert_same_weights(learner, plain)


@pytest.mark.slow
# What is given again on two replicas is compared with plain Keras above.
@pytest.mark.parametrize("replicas", [1, pytest.param(2, marks=pytest.mark.nightly)])
def test_the_proofs_at_a_start_hold_and_keep_no_row(replicas: int) -> None:
    learner = remembering(ReservoirSettings(size=30, share=0.3), replicas=replicas)
    findings = [*ModelProof(learner).findings(), *states_add_up(learner)]
    assert {finding.holds for finding in findings} == {True}, findings
    assert reservoir_of(learner).figures().seen == 0


@pytest.mark.row(36)
@pytest.mark.parametrize(("by", "passes"), [("y", 1), pytest.param(None, 3, marks=pytest.mark.slow)])
def test_a_restored_checkpoint_continues_with_the_same_bits(by: str | None, passes: int) -> None:
    options = FEW.model_copy(update={"by": by})
    whole, second = (remembering(options, passes=passes, schema=CLASSED) for _ in range(2))
    for seed in range(3):
        whole.learn(block(4, seed=seed, first=48 * seed))
    for part, saved in zip(second.parts, whole.parts, strict=True):
        part.restore(saved.snapshot())
    for seed in range(3, 6):
        for learner in (whole, second):
            learner.learn(block(4, seed=seed, first=48 * seed))
    assert largest_difference(state_of(whole), state_of(second)) == 0
    one, other = held(whole), held(second)
    assert all(np.array_equal(one[name], other[name]) for name in one)


@pytest.mark.row(36)
@pytest.mark.parametrize("one_hot", [0, 3])
def test_each_class_has_as_many_places_and_a_uniform_sample_of_its_own(one_hot: int) -> None:
    reservoir, references = of_classes(one_hot=one_hot), [Reference(77, 4) for _ in range(3)]
    for first, size in ((0, 7), (1000, 100), (2000, 1), (3000, 400)):
        rows = stream(size, first, one_hot=one_hot)
        kept(reservoir, rows)
        labels = rows.labels[0].numpy()
        for number, reference in enumerate(references):
            mine = rows.offsets[0].numpy()[labels[:, number] == 1 if one_hot else labels == number]
            reference.take(mine, mine)
    state = reservoir.snapshot()
    assert state.arrays["feature.x"].tolist() == [row for one in references for _, row in one.slots]
    assert state.facts["shares"] == [{"held": [4, 4, 4], "seen": [one.seen for one in references]}]
    assert references[1].seen < 30, "a rare class has as many rows"


def test_a_class_that_has_not_come_leaves_its_places_empty_and_is_not_drawn() -> None:
    reservoir = of_classes(size=9)
    kept(reservoir, labelled([2, 0, 2, 2, 2, 2], 50))
    rows = labelled([0], 100)
    again = reservoir.draw(rows, tf.constant([77], tf.int64), tf.constant(0), replay=tf.constant(True))  # noqa: FBT003
    assert set(again.features["x"].numpy().ravel()) <= set(range(50, 56))
    assert reservoir.figures() == ReservoirFigures(rows=4, size=9, seen=6, age=reservoir.figures().age)


def test_members_of_a_group_go_on_with_their_own_rows_and_another_number_shares_them() -> None:
    two = [of_classes(24, members=2) for _ in range(2)]
    for number, one in enumerate(two):
        kept(one, stream(300, 1000 * number))
    whole = joined([one.snapshot() for one in two])
    apart = texts_of(*(one.snapshot() for one in two))
    assert texts_of(share_of(whole, 0, 2), share_of(whole, 1, 2)) == apart
    chief = of_classes(24, members=2)
    chief.restore(whole)
    assert chief.snapshot() is whole, "until each member has its share"
    chief.take(share_of(whole, 0, 2))
    kept(chief, stream(300, 5000))
    kept(two[0], stream(300, 5000))
    assert texts_of(chief.snapshot()) == texts_of(two[0].snapshot())
    # Of three members each gets as much of each class; one process gets all.
    three = [share_of(whole, number, 3) for number in range(3)]
    assert {tuple(one.facts["shares"][0]["held"]) for one in three} <= {(3, 3, 2), (2, 3, 3), (3, 2, 3), (3, 3, 3)}
    assert sorted(chain(*texts_of(*three))) == sorted(chain(*apart))
    alone = of_classes(24)
    alone.restore(whole)
    assert texts_of(alone.snapshot()) == [sorted(chain(*apart))]
    assert alone.figures().seen == 600 - sum(int(np.sum(stream(300, first).labels == 3)) for first in (0, 1000))


class Exchange:
    """What members on threads of one process say to each other."""

    def __init__(self, index: int, said: list[Any], barrier: Barrier) -> None:
        self.index, self.said, self.barrier = index, said, barrier

    def gather(self, mine: Any) -> list[Any]:
        """Return what all have said."""
        self.said[self.index] = mine
        self.barrier.wait()
        found = [*self.said]
        self.barrier.wait()
        return found

    def collect(self, mine: Any) -> list[Any]:
        """Return to the chief what all have said."""
        found = self.gather(mine)
        return [] if self.index else found

    def broadcast(self, mine: Any) -> Any:
        """Return what the chief has said."""
        return self.gather(mine)[0]

    spread = broadcast

    def rows(self, mine: Any) -> Any:
        """Return the rows of all."""
        return np.stack(self.gather(mine))


@pytest.mark.row(31)
def test_a_save_of_a_group_holds_the_rows_of_all_and_a_new_deal_leaves_each_its_own() -> None:
    dealt = [Partition("clicks", number) for number in range(2)]
    reservoirs, said, barrier = [of_classes(24, members=2) for _ in dealt], [None, None], Barrier(2, timeout=60)
    members = list[GroupState]()
    for number, reservoir in enumerate(reservoirs):
        kept(reservoir, stream(300, 1000 * number))
        ledger = Ledger()
        ledger.join(dealt[number], 0)
        learner: Any = SimpleNamespace(
            variables=[],
            shaping_state=[],
            witness=Witness(),
            call=SimpleNamespace(shaping=SimpleNamespace(reservoir=reservoir)),
        )
        live: Any = SimpleNamespace(snapshot=PartState, restore=lambda _state: None)
        membership = Membership(index=number, addresses=["one", "two"], timeout_s=60)
        group: Any = SimpleNamespace(membership=membership, exchange=Exchange(number, said, barrier))
        members.append(GroupState(group=group, learner=learner, ledger=ledger, live=live, progress=Progress()))
    before = [texts_of(one.snapshot()) for one in reservoirs]

    def reopened(member: GroupState) -> PartState:
        whole = member.whole(0, dealt, {})
        chief = member.group.membership.is_chief
        if chief:
            member.take_whole(whole)
            assert reservoirs[0].snapshot().facts["shares"] == whole.parts()["reservoir"].facts["shares"]
        opening = Opening(deal=((dealt[1],), (dealt[0],)), number=7, positions={})
        member.spread(opening if chief else None, weights=True)
        return whole.parts()["reservoir"]

    with ThreadPoolExecutor(2) as threads:
        whole, nothing = threads.map(reopened, members)
    assert texts_of(whole) == [sorted(chain(*before[0], *before[1]))]
    assert nothing == PartState(release=nothing.release), "only the chief holds what all remember"
    assert [texts_of(one.snapshot()) for one in reservoirs] == before


def test_rows_of_an_earlier_version_or_of_other_classes_are_sorted_into_these() -> None:
    plain = of_classes(size=40, classes=0)
    kept(plain, stream(200, 0))
    state = plain.snapshot()
    [share] = state.facts["shares"]
    earlier = {"columns": state.facts["columns"], "held": share["held"][0], "seen": share["seen"][0]}
    same = of_classes(size=40, classes=0)
    same.restore(replace(state, facts=earlier))
    assert texts_of(same.snapshot()) == texts_of(state)
    reservoir = of_classes(size=40)
    reservoir.restore(replace(state, facts=earlier))
    labels, columns = state.arrays["label"], reservoir.snapshot()
    counts = np.bincount(labels, minlength=4)[:3]
    assert columns.facts["shares"][0]["held"] == np.minimum(counts, 13).tolist()
    assert columns.arrays["label"].tolist() == sorted(columns.arrays["label"].tolist())
    assert columns.facts["shares"][0]["seen"] == np.maximum(200 * counts // 40, counts).tolist()
    without = of_classes(size=40, classes=0)
    without.restore(columns)
    assert texts_of(without.snapshot()) == texts_of(columns)
    [share] = columns.facts["shares"]
    assert without.snapshot().facts["shares"] == [{key: [sum(each)] for key, each in share.items()}]


def test_a_label_whose_classes_are_not_known_is_refused() -> None:
    def of(by: str, **label: Any) -> tuple[str, tuple[float, ...]] | None:
        field = Field(name="kind", source="kind", **label)
        return ReservoirSettings(size=9, by=by).classes_of(Schema(features=(), labels=(field,)))

    assert of("label", dtype="int32", one_of=(0, 1, 2), classes=("a", "b", "c")) == ("kind", (0.0, 1.0, 2.0))
    assert of("kind", dtype="uint8", min=1, max=3) == ("kind", (1.0, 2.0, 3.0))
    assert of("label", dtype="bool") == ("kind", (0.0, 1.0))
    with pytest.raises(
        ConfigError, match=r"reservoir.by: which classes kind has is not known; list them in its one_of"
    ):
        of("label", dtype="float32", min=0, max=1)
    with pytest.raises(ConfigError, match=r"reservoir.by: 'x' is no label; there is kind"):
        of("x", dtype="bool")
    with pytest.raises(ConfigError, match=r"reservoir.by: a label of float32 and the shape \[2\] is no class of 3"):
        of_classes(one_hot=2)


def test_of_rows_that_go_to_one_slot_the_last_one_stays_each_slot_once() -> None:
    given = tf.constant([7, 2, 7, 9, 2, 7], tf.int64)
    slots, places = last_of_each(given, tf.range(6, dtype=tf.int64), tf.constant(8, tf.int64))
    assert dict(zip(slots.numpy().tolist(), places.numpy().tolist(), strict=True)) == {2: 4, 7: 5, 9: 3}
    assert len(slots) == 3


def test_what_is_set_aside_is_not_kept_and_no_row_of_the_past_is_blamed_on_others() -> None:
    learner = remembering(ReservoirSettings(size=1000, share=0.25))
    bad = with_feature(block(2), BATCH + 2, float("nan"))
    assert learner.learn(bad).culprits.offsets == ((0, BATCH + 2),)
    assert reservoir_of(learner).figures().seen == 2 * BATCH - 1
    assert np.isfinite(held(learner)["feature.x"]).all()
    # Rows that were tame once may not be so for the weights of today.
    reservoir_of(learner)._columns["feature.x"].assign(np.full((1000, 6), np.inf, np.float32))
    lesson = learner.learn(block(1, seed=4, first=500))
    assert lesson.culprits.offsets == ()
    assert all(np.isfinite(read(variable)).all() for variable in learner.model.variables)


def test_a_pretraining_fills_it_in_the_first_epoch_and_learns_as_if_there_were_none() -> None:
    filling, plain = remembering(ReservoirSettings(size=1000, share=0.25), beside=0), remembering(None)
    for visit in range(3):
        for learner in (filling, plain):
            learner.call(block(4), visit=visit)
    assert reservoir_of(filling).figures().seen == 4 * BATCH
    assert largest_difference(state_of(filling), state_of(plain)) == 0
    live = remembering(ReservoirSettings(size=1000, share=0.25))
    reservoir_of(live).restore(reservoir_of(filling).snapshot())
    assert reservoir_of(live).figures().rows == 4 * BATCH


@pytest.mark.slow
def test_a_smaller_reservoir_goes_on_with_a_sample_and_a_larger_one_with_all() -> None:
    learner = remembering(ReservoirSettings(size=100, share=0.25))
    learner.learn(block(20))
    saved = reservoir_of(learner).snapshot()
    smaller, larger = (remembering(ReservoirSettings(size=size, share=0.25)) for size in (30, 200))
    for other in (smaller, larger):
        reservoir_of(other).restore(saved)
    numbers = set(saved.arrays["number"].tolist())
    assert len(numbers & set(held(smaller)["number"].tolist())) == 30
    assert set(held(larger)["number"].tolist()) == numbers
    larger.learn(block(5, first=1000))
    assert reservoir_of(larger).figures().rows == 160, "what comes fills the room first"


@pytest.mark.slow
def test_texts_are_kept_and_other_columns_begin_anew(caplog: pytest.LogCaptureFixture) -> None:
    def rows(texts: list[list[str]], first: int = 0) -> Rows:
        offsets = np.arange(first, first + 3)[None]
        return Rows(
            features={"words": tf.constant([texts])},
            labels={},
            weights=tf.ones([1, 3]),
            offsets=tf.constant(offsets, tf.int64),
            partitions=tf.zeros([1, 3], tf.int32),
        )

    some = rows([["a", "bc"], ["", "straße"], ["d", "e"]])
    one, other = (Reservoir(50, 4, some, seed=1) for _ in range(2))
    one.keep(some, tf.zeros([1], tf.int64), tf.ones([1, 3], tf.bool))
    other.restore(one.snapshot())
    again = other.draw(some, tf.zeros([1], tf.int64), tf.constant(0), replay=tf.constant(True))  # noqa: FBT003
    drawn = {tuple(row) for row in again.features["words"][0].numpy().tolist()}
    assert drawn <= {(b"a", b"bc"), (b"", "straße".encode()), (b"d", b"e")}
    assert again.labels == {}
    [three] = {tuple(each) for each in [other.snapshot().arrays["feature.words.lengths"].tolist()]}
    assert three == (1, 2, 0, 7, 1, 1)
    learner = remembering()
    reservoir_of(learner).restore(one.snapshot())
    assert "starts empty" in caplog.text
    assert reservoir_of(learner).figures().rows == 0


def test_more_rows_than_memory_holds_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"reservoir.size: 1,000,000,000,000 rows take 40,000.0 GB, and this process"):
        Reservoir(10**12, 4, block(1), seed=1)
    assert memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("max\n")
    assert memory_limit(tmp_path) is None
    (tmp_path / "memory.max").write_text("1073741824\n")
    assert memory_limit(tmp_path) == 2**30


@pytest.mark.parametrize(("share", "replicas", "rows"), [(0.2, 1, 3), (0.5, 2, 12), (0.01, 2, 2), (0.75, 1, 36)])
def test_a_share_is_of_all_rows_that_are_learnt(share: float, replicas: int, rows: int) -> None:
    assert ReservoirSettings(size=9, share=share).beside(BATCH, replicas) == rows
