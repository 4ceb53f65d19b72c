"""Kills at random times, in all phases, and what the model has learnt when the topic is drained."""

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from millrace.consumers.reasons import Reason
from tests.faults.campaigns.kills import GATE_RECORDS_PER_S, PARTITIONS, Aftermath, campaign
from tests.faults.harness.fork_server import fork_trainer
from tests.faults.harness.records import POISON

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(1200), pytest.mark.row(1)]

RecordProperty = Callable[[str, object], None]
ROUNDS = 5
"""One at the beginning, two at failpoints, and two at random times, of which one while it learns."""
SEED: int | None = None
"""Draws kills and records; None for another one each time, which is printed."""


@pytest.fixture(scope="module")
def aftermath(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Aftermath]:
    """Run one campaign, which every test of this module looks at."""
    seed = int(time.time()) if SEED is None else SEED
    print(f"seed {seed}")  # noqa: T201 - by it a failed run is repeated
    folder = tmp_path_factory.mktemp("kills")
    history = campaign(
        broker, folder, rounds=ROUNDS, seed=seed, records_per_s=GATE_RECORDS_PER_S, launch=fork_trainer
    )  # `make kills` starts Python each time
    with history as left:
        print(left.figures.summary(), *left.faults, sep="\n")  # noqa: T201 - and this is what it came to
        yield left


def test_sigkills_lose_nothing_and_repeat_nothing(aftermath: Aftermath, record_property: RecordProperty) -> None:
    figures = aftermath.figures
    record_property("kills", figures.summary())
    assert (figures.lost, figures.learnt_twice) == (0, 0)
    assert figures.kills >= ROUNDS
    for partition in range(PARTITIONS):
        assert aftermath.statement.seen[partition] == aftermath.topic.evidence(partition)


def test_some_of_the_kills_hit_a_save(aftermath: Aftermath) -> None:
    assert aftermath.figures.kills_in_save >= ROUNDS // 3


def test_no_valid_checkpoint_is_rejected_and_each_restart_goes_on_from_the_newest(aftermath: Aftermath) -> None:
    figures = aftermath.figures
    assert figures.valid_rejected == 0
    assert figures.restored_newest >= ROUNDS // 2


def test_what_is_read_again_is_at_most_what_lies_between_two_saves_and_a_block(aftermath: Aftermath) -> None:
    figures = aftermath.figures
    assert figures.replay_beyond_bound == 0
    assert figures.replay, "some of the kills came while it learnt"


def test_the_ids_inside_the_records_are_those_of_the_offsets_that_were_counted(aftermath: Aftermath) -> None:
    for partition in range(PARTITIONS):
        ids = list(aftermath.topic.learnable(partition))
        assert aftermath.statement.ids[partition] == (len(ids), sum(ids), sum(i * i for i in ids))


def test_every_offset_is_accounted_for_and_every_reason_counted(aftermath: Aftermath) -> None:
    topic = aftermath.topic
    for partition in range(PARTITIONS):
        account = aftermath.statement.ledger[partition]
        assert account.balanced
        assert (account.start, account.position) == (0, len(topic.verdicts[partition]))
        assert (account.gaps, account.lost, account.skipped) == (0, 0, {})
        assert account.set_aside == topic.set_aside(partition)
        assert account.learnt == topic.evidence(partition).count
    kinds = sum((topic.set_aside(partition) for partition in range(PARTITIONS)), Counter[Reason]())
    assert set(kinds) == set(POISON), "the stream held poison of every kind"
    others = {Reason.UNKNOWN_SCHEMA, Reason.BAD_IMAGE, Reason.CLASS_LIMIT}
    assert set(Reason) - set(POISON) == others, "this JSON has no schema to be unknown, no images, and known classes"


def test_the_dead_letters_are_what_was_set_aside_each_at_least_once_with_its_reason(aftermath: Aftermath) -> None:
    expected = {
        (partition, offset, reason)
        for partition, verdicts in enumerate(aftermath.topic.verdicts)
        for offset, reason in enumerate(verdicts)
        if reason is not None
    }
    assert {(letter.partition, letter.offset, letter.reason) for letter in aftermath.letters} == expected


def test_the_committed_offsets_are_those_of_the_last_checkpoint(aftermath: Aftermath) -> None:
    assert aftermath.committed == aftermath.statement.positions
