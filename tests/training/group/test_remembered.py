"""What shaping remembers, dealt to any number of members: together it is what one process remembers, row for row."""

import json
from collections.abc import Mapping, Sequence
from random import Random

import pytest

from millrace.consumers.records import Partition
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.balance.balance import ResampleShaper
from millrace.pipelines.shaping.shaper import Shaper, open_shapers
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from millrace.pipelines.shaping.windows.windows import WindowSettings, WindowShaper
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.checkpoints.parts import PartState
from millrace.training.errors import NotOneStateError
from millrace.training.group.one_state import deal, remembered_of, remembered_portion
from tests.properties.test_windows import Log, chunk_of, made_up, schema

pytestmark = pytest.mark.row(31)
PARTITIONS = [Partition("clicks", number) for number in (0, 1, 2, 11, 12)]
STAGE = 400
LAYOUT = WindowLayout(schema("string", (0, 2)), WindowSettings(by="user", length=4, gaps="gaps", max_bytes="3000B"))
CLASSES = BalanceSettings(target={"0": 0.1, "1": 0.5, "2": 0.4}, by="user", how="resample")


def new() -> list[Shaper]:
    return [WindowShaper(LAYOUT), ResampleShaper(CLASSES, LAYOUT.shaped)]


def ledger_at(end: int) -> PartState:
    return PartState(facts={"partitions": {str(partition): {"position": end} for partition in PARTITIONS}})


def saved(states: Sequence[Shaper]) -> list[PartState]:
    """Return what is remembered, as it travels."""
    parts = [one.saved() for one in states]
    return [PartState(arrays=arrays, facts=json.loads(json.dumps(facts))) for arrays, facts in parts]


def learnt(
    states: Sequence[Shaper], logs: Mapping[Partition, Log], mine: Sequence[Partition], start: int, incarnation: int
) -> dict[tuple[Partition, int], str]:
    """Shape and settle a stage of some partitions, in chunks of any size; return the rows."""
    found, random = dict[tuple[Partition, int], str](), Random(incarnation)
    shape = open_shapers(states, incarnation, dict.fromkeys(mine, start))
    assert shape is not None
    for index, partition in enumerate(mine):
        at = start
        while at < start + STAGE:
            end = min(start + STAGE, at + random.randrange(1, 90))
            rows, _ = shape(chunk_of(logs[partition], partition, at, end, incarnation))
            columns = {name: column[:].tolist() for name, column in rows.features.items()}
            assert rows.weights is not None
            for row, offset in enumerate(rows.offsets.tolist()):
                found[partition, offset] = repr([[column[row] for column in columns.values()], rows.weights[row]])
            span = Span(partition=partition, index=index, start=at, end=end, learnt=end - at)
            for one in states:
                one.settle(facts_of(span, incarnation))
            at = end
    return found


def facts_of(span: Span, incarnation: int) -> BlockFacts:
    return BlockFacts(
        number=0,
        incarnation=incarnation,
        spans=(span,),
        batches=1,
        rows=span.learnt,
        seed=0,
        fetched_at=0.0,
        oldest_ms=0,
        newest_ms=0,
    )


def test_groups_of_two_three_and_one_make_the_rows_of_one_process() -> None:
    random = Random(3)
    logs = {partition: made_up(random, "string", 3 * STAGE) for partition in PARTITIONS}
    alone, whole = new(), saved(new())
    for stage, workers in enumerate((2, 3, 1)):
        start, rows, shares = stage * STAGE, dict[tuple[Partition, int], str](), list[list[PartState]]()
        for mine in deal({partition: partition.number for partition in PARTITIONS}, workers):
            states = new()
            for one, state in zip(states, whole, strict=True):
                portion = remembered_portion(state, mine)
                one.load(portion.arrays, portion.facts)
            rows |= learnt(states, logs, mine, start, 1)
            shares.append(saved(states))
        assert rows == learnt(alone, logs, PARTITIONS, start, stage + 5)
        assert len(rows) > STAGE
        whole = [remembered_of(list(each), ledger_at(start + STAGE)) for each in zip(*shares, strict=True)]
        for together, expected in zip(whole, saved(alone), strict=True):
            assert together.facts == expected.facts
            assert {name: array.tolist() for name, array in together.arrays.items()} == {
                name: array.tolist() for name, array in expected.arrays.items()
            }


def test_what_is_not_remembered_of_every_record_that_is_settled_is_refused() -> None:
    logs = {partition: made_up(Random(1), "string", STAGE) for partition in PARTITIONS}
    states = new()
    learnt(states, logs, PARTITIONS, 0, 1)
    for share in saved(states):
        assert remembered_of([share], ledger_at(STAGE)).facts["partitions"].keys() == {str(one) for one in PARTITIONS}
        with pytest.raises(NotOneStateError, match=r"is at \('clicks:0', 400\) and the ledger at \('clicks:0', 401\)"):
            remembered_of([share], ledger_at(STAGE + 1))
        with pytest.raises(NotOneStateError, match="what shaping remembers is at"):
            remembered_of([share, share], ledger_at(STAGE))
        with pytest.raises(NotOneStateError, match="what shaping remembers is at"):
            remembered_of([remembered_portion(share, PARTITIONS[1:])], ledger_at(STAGE))
