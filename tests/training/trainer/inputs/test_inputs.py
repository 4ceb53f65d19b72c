"""A field that has changed is named, with what, where and since when; others are not; and the state is exact."""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from millrace.consumers.reasons import Reason
from millrace.pipelines.gates.input_gate import SHARE, InputGate
from millrace.pipelines.schema import PRESENT, Field, Schema
from millrace.pipelines.stream.decode import Decoded, Refused, SliceValues
from millrace.training.checkpoints.parts import PartState
from millrace.training.telemetry.events import EventKind, Severity
from millrace.training.trainer.inputs.changes import ComparedWindow
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.inputs.open_window import MOST_ROWS, WindowRows
from tests.training.trainer.inputs.world import (
    CALL,
    DAY_S,
    FAULTS,
    PARTITION,
    RATE,
    Columns,
    Watch,
    World,
    call_of,
    chunk_of,
    other_of,
    planted,
)

WARM_S = 62.0
Warm = tuple[World, PartState, float, int]


@pytest.fixture(scope="module")
def warm() -> Warm:
    """A world of one field of each kind, and what is known of it after a minute."""
    watch = Watch(World(16, seed=1))
    watch.go(WARM_S)
    assert watch.marks == []
    return watch.world, watch.inputs.snapshot(), watch.world.at_s, watch.world.offset


@pytest.fixture(scope="module")
def small() -> Warm:
    """The same with three fields."""
    watch = Watch(World(3, seed=1))
    watch.go(WARM_S)
    return watch.world, watch.inputs.snapshot(), watch.world.at_s, watch.world.offset


def resumed(warm: Warm) -> Watch:
    world, state, at_s, offset = warm
    world.at_s, world.offset = at_s, offset
    watch = Watch(world)
    watch.inputs.restore(state)
    return watch


def with_fault(kind: str, world: World) -> tuple[str, Callable[[Columns], None]]:
    """Return the field that has a fault, and what plants it."""
    name = world.of_kind(FAULTS[kind][0])[0]
    return name, planted(kind, name, world, np.random.default_rng(3))


@pytest.mark.parametrize("kind", FAULTS)
def test_the_field_with_a_fault_is_named_first_within_ten_seconds_of_records(warm: Warm, kind: str) -> None:
    watch = resumed(warm)
    name, fault = with_fault(kind, watch.world)
    began_s, offset = watch.world.at_s, watch.world.offset
    watch.go(10.0, fault)
    [(_, first, text, others)] = watch.marks
    swapped = {name, other_of(watch.world, name)} if kind.startswith("swapped") else {name}
    assert {first} | {*others} <= swapped
    assert text.startswith(f"{first}: ")
    changed = watch.inputs.view.changed[first] if watch.inputs.view else None
    assert changed is not None
    # The first record of a sample; one of eight is sampled, and where a fault has some records alone, fewer.
    assert offset - 8 * SHARE <= changed.offset <= offset + 8 * SHARE
    assert changed.since_ms == pytest.approx(began_s * 1000, abs=8 * SHARE)


def test_a_mark_says_what_has_changed_and_in_which_slice(warm: Warm) -> None:
    watch = resumed(warm)
    _, fault = with_fault("one app", watch.world)
    watch.go(10.0, fault)
    [(_, _, text, _)] = watch.marks
    assert " → " in text
    assert "of the records with app=5.2" in text
    assert "clicks:0 offset" in text


def test_the_texts_of_events_hold_no_text_of_a_record(warm: Warm) -> None:
    watch = resumed(warm)
    _, fault = with_fault("new category", watch.world)
    watch.go(10.0, fault)
    [(_, _, text, _)] = watch.marks
    assert "C99" not in text
    share = re.search(r"0 % → (\d\d) % of the records", text)
    assert share is not None
    assert int(share[1]) == pytest.approx(30, abs=6)


def test_a_fault_that_lasts_is_one_mark_and_its_end_is_none(small: Warm) -> None:
    watch = resumed(small)
    name, fault = with_fault("scaled", watch.world)
    watch.go(150.0, fault)
    assert len(watch.marks) == 1
    assert watch.inputs.view is not None
    assert [*watch.inputs.view.changed] == [name]
    watch.go(100.0)
    assert len(watch.marks) == 1, "it is as before again, which is no news"
    assert watch.inputs.view.changed == {}
    watch.go(30.0, fault)
    assert [first for _, first, _, _ in watch.marks] == [name, name]


def test_fields_that_change_within_a_minute_are_one_mark_and_later_ones_another(small: Warm) -> None:
    watch = resumed(small)
    (one, first), (two, then), (three, last) = (with_fault(kind, watch.world) for kind in ("scaled", "shifted", "zero"))
    assert watch.inputs.score_names == ("inputs.changed",)
    watch.go(10.0, first)
    assert watch.inputs.scores() == {"inputs.changed": 1.0}
    watch.go(10.0, lambda columns: (first(columns), then(columns))[-1])
    assert [name for _, name, _, _ in watch.marks] == [one]
    assert watch.inputs.view is not None
    assert {name: changed.first for name, changed in watch.inputs.view.changed.items()} == {one: one, two: one}
    assert watch.inputs.scores() == {"inputs.changed": 2.0}
    watch.go(80.0, lambda columns: (first(columns), then(columns))[-1])
    watch.go(10.0, last)
    assert [name for _, name, _, _ in watch.marks][:2] == [one, three]


def test_an_id_and_a_clock_which_always_move_are_not_named_and_neither_is_anything_else() -> None:
    watch = Watch(World(16, seed=2))
    watch.go(120.0)
    assert watch.marks == []
    moves = watch.inputs.view.effects.max(axis=1) if watch.inputs.view else np.zeros(0)
    names = [field.name for field in watch.inputs.fields]
    assert {name for name, far in zip(names, moves, strict=True) if far > 0.5} == {"clock_0", "serial_0"}


@pytest.mark.slow
def test_nothing_is_named_in_a_day_and_a_night_sixty_times_as_fast() -> None:
    watch = Watch(World(16, seed=5))
    watch.go(DAY_S)
    assert watch.marks == []


def test_a_jump_that_recurs_is_named_twice_and_then_is_how_the_field_is(small: Warm) -> None:
    watch = resumed(small)
    [name] = watch.world.of_kind("age")

    def jumped(columns: Columns) -> None:
        columns[name] = columns[name] + 12

    for _ in range(5):
        watch.go(120.0, jumped)
        watch.go(120.0)
    assert 1 <= len([first for _, first, _, _ in watch.marks if first == name]) <= 3


# The state.


def lives(random: np.random.Generator, world: World, cuts: bool) -> Iterator[Any]:
    """Yield the states of a watcher at the same offsets, however the records were cut, and whatever was killed."""
    chunks = [chunk_of(world.records(CALL), world.offset - CALL, round(1000 * world.at_s)) for _ in range(90)]
    watch = Watch(world)
    ahead = 0
    for number, chunk in enumerate(chunks):
        while ahead <= number + (int(random.integers(0, 3)) if cuts else 0) and ahead < len(chunks):
            for piece in halves(chunks[ahead], random) if cuts else [chunks[ahead]]:
                # A gate is asked about a chunk again that another one holds back.
                watch.gate.admits(piece)
                watch.gate.admits(piece)
            ahead += 1
        watch.inputs.called(call_of(chunk.start, chunk.end))
        if number % 10 == 9:
            state = watch.inputs.snapshot()
            yield state
            if cuts:  # a kill: what was read ahead is gone, and read again
                watch = Watch(world)
                watch.inputs.restore(state)
                ahead = number + 1


def halves(chunk: Decoded, random: np.random.Generator) -> list[Decoded]:
    at = int(random.integers(0, len(chunk) + 1))
    return [
        replace(
            chunk,
            start=int(chunk.offsets[0]) + first,
            end=int(chunk.offsets[0]) + last,
            offsets=chunk.offsets[first:last],
            event_times=chunk.event_times[first:last],
            features={name: column[first:last] for name, column in chunk.features.items()},
        )
        for first, last in ((0, at), (at, len(chunk)))
        if last > first
    ]


@pytest.mark.row(42)
def test_the_state_has_the_same_bits_through_kills_and_however_records_are_cut_into_chunks() -> None:
    whole = [*lives(np.random.default_rng(1), World(16, seed=4), cuts=False)]
    cut = [*lives(np.random.default_rng(2), World(16, seed=4), cuts=True)]
    assert len(whole) == len(cut) == 9
    for one, other in zip(whole, cut, strict=True):
        assert one.facts == other.facts
        assert {name: (array.dtype, array.shape) for name, array in one.arrays.items()} == {
            name: (array.dtype, array.shape) for name, array in other.arrays.items()
        }
        assert all(array.tobytes() == other.arrays[name].tobytes() for name, array in one.arrays.items())
    assert whole[-1].facts["past"] == 8


def test_records_with_other_fields_and_a_checkpoint_without_the_part_begin_anew(warm: Warm) -> None:
    _, state, _, _ = warm
    watch = Watch(World(3, seed=1))
    fresh = watch.inputs.snapshot()
    for other in (state, PartState()):
        watch.inputs.restore(other)
        again = watch.inputs.snapshot()
        assert again.facts == fresh.facts
        assert again.arrays.keys() == fresh.arrays.keys()


def test_no_texts_and_no_numbers_are_no_problem() -> None:
    for kinds in (("age",), ("user",)):
        world = World(16, seed=1)
        world.kinds = {name: kind for name, kind in world.kinds.items() if kind in kinds}
        watch = Watch(world)
        watch.go(30.0)
        watch.inputs.restore(watch.inputs.snapshot())
        watch.go(30.0)
        assert watch.marks == []


# What is seen of a record.

FIELDS = Schema(
    features=(
        # Not the same number in float32, beside columns that are kept in float64.
        Field(name="x", source="x", dtype="float32", shape=(2, 2), missing=-0.1),
        Field(name="image", source="image", dtype="float32", shape=(20, 20)),
        Field(name="colour", source="c", dtype="int64", classes=("red", "green"), missing=1),
        Field(name="words", source="words", dtype="int64", shape=(8,), pad=0),
    ),
    labels=(Field(name="y", source="y", dtype="float32", masked=True),),
    slices=(Field(name="shop", source="shop", dtype="string", missing="(none)"),),
)


class Told:
    """Keeps the events."""

    def __init__(self) -> None:
        self.events: list[tuple[EventKind, str, dict[str, Any]]] = []

    def __call__(self, kind: EventKind, text: str, severity: Severity = Severity.INFO, **facts: Any) -> None:
        assert severity is Severity.WARNING
        self.events.append((kind, text, facts))


def decoded(count: int, start: int = 0, refused: tuple[Refused, ...] = ()) -> Decoded:
    random = np.random.default_rng(start)
    x = random.normal(size=(count, 2, 2)).astype(np.float32)
    x[::2, 1, 0] = -0.1
    return Decoded(
        partition=PARTITION,
        incarnation=1,
        start=start,
        end=start + count + len(refused),
        fetched_at=0.0,
        lost=0,
        offsets=np.arange(start, start + count),
        event_times=(start + np.arange(count)) * 1000 // RATE,
        features={
            "x": x,
            "image": random.random((count, 20, 20)).astype(np.float32),
            "colour": np.arange(count) % 2,
            "words": np.ones((count, 8), np.int64),
        },
        labels={"y": np.zeros(count, np.float32), "y" + PRESENT: np.arange(count) % 4 > 0},
        weights=None,
        refused=refused,
        nbytes=0,
        slices={"shop": SliceValues(np.arange(count, dtype=np.int32) % 2, ("a", "b"))},
    )


def test_of_each_eight_offsets_one_is_sampled_the_same_whichever_of_them_have_records() -> None:
    whole = decoded(4003, start=13)
    _, all_of_them = InputGate(FIELDS).keep(whole)
    assert {*np.diff(np.unique(all_of_them.sample.offsets // SHARE, return_counts=True)[1])} == {0}
    assert 4003 // SHARE <= len(all_of_them.sample.offsets) <= 4003 // SHARE + 2
    assert {*(all_of_them.sample.offsets % SHARE)} == {*range(SHARE)}
    assert all_of_them.sample.hashes.max() < 2**64 // SHARE
    there = np.flatnonzero(np.arange(4003) % 5 > 0)
    some = replace(
        whole,
        offsets=whole.offsets[there],
        event_times=whole.event_times[there],
        features={name: column[there] for name, column in whole.features.items()},
        labels={name: column[there] for name, column in whole.labels.items()},
        slices={"shop": SliceValues(whole.slices["shop"].codes[there], whole.slices["shop"].values)},
    )
    offsets, kept = InputGate(FIELDS).keep(some)
    same = np.isin(all_of_them.sample.offsets, some.offsets)
    assert offsets.tolist() == all_of_them.sample.offsets[same].tolist()
    assert kept.sample.hashes.tolist() == all_of_them.sample.hashes[same].tolist()
    (numbers, texts), (due, words) = (
        one.rows(np.flatnonzero(which)) for one, which in ((kept.sample, same[same]), (all_of_them.sample, same))
    )
    np.testing.assert_array_equal(numbers, due)
    assert texts.tolist() == words.tolist()


def test_elements_classes_images_lists_labels_and_slices_are_watched() -> None:
    gate, told = InputGate(FIELDS), Told()
    inputs = Inputs(gate, ["shop"], told)
    gate.begin({})
    for start in range(0, 16_000, 500):
        assert gate.admits(decoded(500, start))
        inputs.called(call_of(start, start + 500))
    assert inputs.figures() is not None
    assert told.events == []
    view = inputs.view
    assert view is not None
    names = [field.name for field in view.fields]
    assert names == ["x[0][0]", "x[0][1]", "x[1][0]", "x[1][1]", "image", "words", "y", "colour", "shop"]
    missing = {name: round(view.now_of(at).missing, 1) for at, name in enumerate(names)}
    assert {name: share for name, share in missing.items() if share} == {"x[1][0]": 0.5, "y": 0.2, "colour": 0.5}
    assert {*view.now_of(names.index("colour")).top} == {b"red", b"green"}
    assert {*view.now_of(names.index("shop")).top} == {b"a", b"b"}
    assert view.now_of(names.index("image")).quantile(0.5) == pytest.approx(0.5, abs=0.05)


def test_a_label_that_is_a_feature_too_is_one_field() -> None:
    schema = replace(FIELDS, labels=(Field(name="x", source="x", dtype="float32", shape=(2, 2), ahead=3),))
    assert [column.name for column in InputGate(schema).numbers] == [
        column.name for column in InputGate(replace(FIELDS, labels=())).numbers
    ]


def test_records_that_are_set_aside_for_a_field_are_counted_and_named() -> None:
    gate, told = InputGate(FIELDS), Told()
    inputs = Inputs(gate, (), told)
    gate.begin({})
    for at, start in enumerate(range(0, 80_000, 500)):
        bad = at >= 130
        refused = tuple(Refused(start + 375 + n, Reason.OUT_OF_RANGE, "y") for n in range(125)) if bad else ()
        assert gate.admits(decoded(375 if bad else 500, start, refused))
        inputs.called(call_of(start, start + 500))
    assert inputs.figures() is not None
    [(kind, text, facts)] = told.events
    assert kind is EventKind.INPUT_CHANGED
    assert facts["cause"] == "refused"
    assert re.match(r"y: set aside for it 0(\.\d+)? % → 2\d %", text)
    assert inputs.view is not None
    assert inputs.view.refused["y"]["out_of_range"] % 125 == 0


def test_a_chunk_of_which_no_record_decodes_is_no_problem() -> None:
    gate = InputGate(FIELDS)
    inputs = Inputs(gate)
    gate.begin({})
    for start in (0, 100):
        assert gate.admits(decoded(0, start, tuple(Refused(start + n, Reason.MALFORMED) for n in range(100))))
        inputs.called(call_of(start, start + 100))
    assert gate.admits(decoded(500, 200))
    inputs.called(call_of(200, 700))
    assert inputs.snapshot().facts["open"]["records"] == 700


@pytest.mark.parametrize("good", [0, 4000])
def test_a_window_of_which_no_record_decodes_is_no_problem(good: int) -> None:
    gate = InputGate(FIELDS)
    inputs = Inputs(gate)
    gate.begin({})
    if good:
        assert gate.admits(decoded(good))
        inputs.called(call_of(0, good))
    records = 1 << 19
    for start in range(good, good + records, 8192):
        assert gate.admits(decoded(0, start, tuple(Refused(start + n, Reason.MALFORMED) for n in range(8192))))
        inputs.called(call_of(start, start + 8192))
    assert inputs.figures() is not None
    restored = Inputs(gate)
    restored.restore(inputs.snapshot())
    for one in (inputs, restored):
        gate.begin({PARTITION: good + records})
        assert gate.admits(decoded(8000, good + records))
        one.called(call_of(good + records, good + records + 8000))
        one.figures()
    assert restored.snapshot().facts == inputs.snapshot().facts


def test_a_slice_that_a_change_is_in_is_told_by_its_name_where_several_are_alike() -> None:
    texts = np.array([[bytes([ord("A") + at % 26])] for at in range(2600)], object)
    places = np.arange(2600)
    rows = WindowRows(
        hashes=places.astype(np.uint64),
        partitions=places.astype(np.int32),
        offsets=places,
        times=places,
        numbers=np.zeros((2600, 1), np.float32),
        texts=texts,
    )
    fields = (Field(name="x", source="x", dtype="float32"), Field(name="shop", source="shop", dtype="string"))
    unused: Any = None
    window = ComparedWindow(
        gate=InputGate(Schema(features=fields)),
        slices=[0],
        partitions=(),
        number=0,
        rows=rows,
        now=unused,
        then=unused,
        usual=unused,
        refused=unused,
    )
    found = window._concentrated(0, texts[:, 0] <= b"J", rows)
    assert found is not None
    assert found[0] == "in 100 % of the records with shop=A"


def test_a_sample_of_numbers_is_within_two_and_a_half_percent_of_the_ranks() -> None:
    watch = Watch(World(16, seed=1))
    seen = list[Any]()
    watch.go(45.0, lambda columns: seen.append(columns["tail_0"]))
    assert watch.inputs.view is not None
    at = [field.name for field in watch.inputs.fields].index("tail_0")
    now, whole = watch.inputs.view.now_of(at), np.sort(np.concatenate(seen))
    for share in (0.05, 0.25, 0.5, 0.75, 0.95):
        # 512 rows of a window of four seconds, of a stream of a thousand a second; 4,000 of a fast one.
        assert whole.searchsorted(now.quantile(share)) / len(whole) == pytest.approx(share, abs=0.07)


@pytest.mark.row(42)
def test_a_window_is_the_same_whenever_it_was_saved() -> None:
    states = list[PartState]()
    for saves in (1, 3, 20):
        gate = InputGate(FIELDS)
        inputs = Inputs(gate)
        gate.begin({})
        for call in range(20):
            # The times of all are within a window.
            chunk = decoded(4000, 4000 * call)
            assert gate.admits(replace(chunk, event_times=chunk.event_times // 25))
            inputs.called(call_of(chunk.start, chunk.end))
            if call % saves == 0:
                inputs.snapshot()
        states.append(inputs.snapshot())
    one, *others = states
    assert (len(one.arrays["open.hashes"]), one.facts["open"]["records"]) == (MOST_ROWS, 80_000)
    for other in others:
        assert one.facts == other.facts
        assert all(array.tobytes() == other.arrays[name].tobytes() for name, array in one.arrays.items())


def test_records_that_could_not_be_decoded_are_seen_by_the_call_that_settles_them() -> None:
    gate = InputGate(FIELDS)
    gate.begin({})
    assert gate.admits(decoded(10, 0, tuple(Refused(10 + n, Reason.OUT_OF_RANGE, "y") for n in range(10))))
    assert gate.admits(decoded(5, 20))
    for start, end in ((0, 4), (4, 12), (12, 22), (22, 25)):
        seen = gate.take(PARTITION, end)
        assert [one.offset for each in seen for one in each.refused()] == [*range(max(10, start), min(20, end))]
    assert gate.take(PARTITION, 30) == []
