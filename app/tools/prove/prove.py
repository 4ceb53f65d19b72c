"""The proof on a user's model: its trainer is killed while it learns generated records from the local broker.

Everything lies in one temporary folder, which is removed at the end: broker, checkpoints, logs. The trainer must have
learnt what was written, except what is in the dead letters; both are compared per partition with the weights' own
witness.
"""

import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from app.settings import Settings, to_layout, to_schema
from app.tools.local_broker import LocalBroker
from app.tools.local_broker.topics import create_topic
from app.tools.prove.campaign import Campaign, Figures, SaveSchedule
from app.tools.prove.checkpoint_reader import Shelf
from app.tools.prove.errors import UnprovenError, WaitedError
from app.tools.prove.kills import TRAINER_POINTS, KillMethod, plan
from app.tools.prove.random_records import Generated
from app.tools.prove.sandbox_config import EVERY_S, Apart, set_apart
from app.tools.traffic.single_writer import SingleWriter
from app.tools.traffic.topic_reader import dead_letters
from consumers.reasons import Reason
from consumers.records import Partition

_PARTITIONS = 4
_RECORDS_PER_S = 1000.0
_BACKLOG = 500
_NOT_FOR_SURE = ("fallback.", "careful.", "prune.")
"""Failpoints that need a record on which the model raises, or more checkpoints than the user's settings keep."""
POINTS = tuple(name for name in TRAINER_POINTS if not name.startswith(_NOT_FOR_SURE))
OnStrike = Callable[[KillMethod, Figures], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofResult:
    """The result of a proof."""

    name: str
    figures: Figures
    set_aside: Mapping[Reason, int]

    @property
    def kept(self) -> bool:
        """Whether everything held."""
        return self.figures.kept


def prove(settings: Settings, *, kills: int, seed: int, on_strike: OnStrike) -> ProofResult:
    """Kill the trainer `kills` times. UnprovenError where that shows nothing."""
    with (
        tempfile.TemporaryDirectory(prefix="millrace-prove-") as folder,
        LocalBroker(Path(folder) / "broker") as broker,
    ):
        home = set_apart(settings, broker.bootstrap_servers, Path(folder) / "trainer")
        create_topic(broker.bootstrap_servers, home.dead_letters)
        with _streams(settings, broker.bootstrap_servers, seed) as streams:
            try:
                return _wage(settings, home, streams, plan(Random(seed), kills, POINTS), seed, on_strike)  # noqa: S311
            except (UnprovenError, WaitedError) as error:
                raise _shortened(error) from error


@contextmanager
def _streams(settings: Settings, bootstrap: str, seed: int) -> Iterator[list[SingleWriter]]:
    """Write every topic of the settings: first a backlog, then records that keep coming."""
    records, training = settings.records, settings.training
    draws = Generated(records.format, to_schema(records), seed, to_layout(records))
    block = training.batch_size * training.batches_per_call
    waits_for_whole_blocks = training.max_wait is None
    rate = max(_RECORDS_PER_S, block / 2) if waits_for_whole_blocks else _RECORDS_PER_S
    with ExitStack() as stack:
        topics = settings.kafka.topics
        writers = [SingleWriter(bootstrap, topic, _PARTITIONS, draws, seed + at) for at, topic in enumerate(topics)]
        for writer in writers:
            stack.enter_context(writer)
            writer.write(max(_BACKLOG, block // _PARTITIONS if waits_for_whole_blocks else 0))
            writer.flow(rate / len(topics))
        yield writers


def _wage(
    settings: Settings,
    home: Apart,
    streams: list[SingleWriter],
    faults: Iterator[KillMethod],
    seed: int,
    on_strike: OnStrike,
) -> ProofResult:
    training = settings.training
    figures, shelf = Figures(seed=seed), Shelf(home.folder)
    pace = SaveSchedule(every_s=EVERY_S, block_rows=training.batch_size * training.batches_per_call)
    most_waiting = training.batch_size - 1 if training.partial_batches == "wait" else 0
    campaign = Campaign(home, shelf, pace, figures, most_waiting=most_waiting)
    campaign.wage(faults, lambda fault: on_strike(fault, figures))
    for stream in streams:
        stream.still()
    figures.records = sum(stream.records for stream in streams)
    set_aside: dict[tuple[str, int, int], Reason] = {}

    def expected() -> dict[Partition, list[int]]:
        letters = dead_letters(streams[0].bootstrap, home.dead_letters)
        set_aside.update({(letter.topic, letter.partition, letter.offset): letter.reason for letter in letters})
        return {
            Partition(stream.name, number): [
                offset for offset in range(len(written)) if (stream.name, number, offset) not in set_aside
            ]
            for stream in streams
            for number, written in enumerate(stream.verdicts)
        }

    statement = campaign.drain(expected)
    counted = Counter(set_aside.values())
    if not any(account.learnt for account in statement.accounts.values()):
        why = ", ".join(f"{count} {reason}" for reason, count in counted.items())
        raise UnprovenError(f"none of the {figures.records:,} records made up by the schema could be learnt: {why}")
    return ProofResult(name=settings.name, figures=figures, set_aside=counted)


def _shortened(error: Exception) -> UnprovenError:
    """Return the error with the last line of the trainer's log; the rest is removed with the folder."""
    first, *others = [line.strip() for line in str(error).splitlines() if line.strip()]
    last = f" Its last line: {others[-1]}" if others else ""
    return UnprovenError(f"nothing is proved: {first}{last} (does `millrace run` work with this config?)")
