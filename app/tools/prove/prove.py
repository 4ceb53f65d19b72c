"""The proof on a user's model: its trainer, or the workers of its group, are killed while they learn generated records.

The records come from a local broker. Everything lies in one temporary folder, which is removed at the end: broker,
checkpoints, logs. The trainer must have learnt what was written, except what is in the dead letters; both are compared
per partition with the weights' own witness.
"""

import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import numpy as np

from millrace.app.service.kept_sample import read_between
from millrace.app.service.step_numbers import as_recorded
from millrace.app.settings import Settings, load, own_settings, records_of, to_decoder, to_format, to_schema
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.labels import KEY
from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.prove.campaign import Campaign, Expected, Figures, SaveSchedule
from millrace.app.tools.prove.checkpoint_reader import Shelf, Statement
from millrace.app.tools.prove.group_campaign import GroupCampaign
from millrace.app.tools.prove.kills import TRAINER_POINTS, GroupKill, KillMethod, group_plan, plan
from millrace.app.tools.prove.made_up_labels import (
    BY_BROKER,
    LABELS_FROM,
    RECORDS_FROM,
    SHARE,
    PlainJoin,
    in_time,
    with_keys,
)
from millrace.app.tools.prove.trainer_process import UnprovenError, WaitedError
from millrace.app.tools.traffic.single_writer import ExpectedPosition, SingleWriter, Verdict
from millrace.app.tools.traffic.topic_reader import dead_letters
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.consumers.user_class import UserClass
from millrace.pipelines.formats import Format
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.labels.rules import NAME as LABELS
from millrace.pipelines.shaping.shaper import open_shapers
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.where.selection import some_matching
from millrace.training.checkpoints.folder import Folder

_PARTITIONS = 4
_RECORDS_PER_S = 1000.0
_BACKLOG = 500
_MOST_AHEAD, _BLOCKS_AHEAD = 10_000, 4
"""Records, and blocks where these are more, that writers are ahead of the newest checkpoint of a group."""
_NOT_FOR_SURE = ("fallback.", "careful.", "prune.")
"""Failpoints that need a record on which the model raises, or more checkpoints than the user's settings keep."""
POINTS = tuple(name for name in TRAINER_POINTS if not name.startswith(_NOT_FOR_SURE))
Drain = Callable[[Expected], Statement]
OnStrike = Callable[[KillMethod | GroupKill, Figures], None]

_CONNECT_S = 15.0
_LATER_S = 0.5

EVERY_S = 1.0
"""How often it saves: often, so that many kills fall into a save."""
_KAFKA_KEPT = ("topics", "weights", "isolation_level", "fetch_bytes", "chunk_records")
_LOOPBACK = "127.0.0.1"

_POOL = 256
_BAD = 0.005
"""The share of records that must be set aside."""
_NEVER_ADMITTED = b"\0\n\xff"
"""At the end of a record: a byte too many, no JSON, two rows."""


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


class Generated:
    """A stream of a schema's records."""

    def __init__(self, form: Format, schema: Schema, seed: int, settings: Any = None, *, framed: bool = False) -> None:
        """Draw the pool. ConfigError where records of this format cannot be generated.

        `settings` are those of the format; `framed`: whether a record begins with the number of a schema in a registry.
        """
        if framed:
            raise ConfigError(
                "records.registry: no records can be made up that begin with the number of a schema there; for a proof "
                "copy the config, and leave the registry out of the copy"
            )
        self._pool = form.generate(schema, np.random.default_rng(seed), _POOL, settings)

    def draw(self, place: ExpectedPosition, random: Random) -> tuple[bytes | None, Verdict]:  # noqa: ARG002 - a stream's signature
        """Draw one record and its verdict."""
        value = random.choice(self._pool)
        if random.random() >= _BAD:
            return value, None
        return random.choice([(None, Reason.EMPTY), (value + _NEVER_ADMITTED, Reason.MALFORMED)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Apart:
    """Where the trainer of a proof lives."""

    path: Path
    cwd: Path
    config: Path
    port: int
    folder: Folder
    """Its checkpoints."""
    dead_letters: str
    """The topic that they go to."""


def prove(settings: Settings, *, kills: int, seed: int, on_strike: OnStrike, workers: int = 1) -> ProofResult:
    """Kill the trainer, or the workers of the group, `kills` times. UnprovenError where that shows nothing."""
    settings = as_recorded(settings)
    with (
        tempfile.TemporaryDirectory(prefix="millrace-prove-") as folder,
        LocalBroker(Path(folder) / "broker", settings=BY_BROKER if settings.labels.used else None) as broker,
    ):
        there, random = Path(folder) / "trainer", Random(seed)  # noqa: S311 - the same kills for the same seed
        if workers == 1:
            homes: Sequence[Apart] = [set_apart(settings, broker.bootstrap_servers, there)]
        else:
            homes = set_group_apart(settings, broker.bootstrap_servers, there, workers)
        create_topic(broker.bootstrap_servers, homes[0].dead_letters)
        shelf = Shelf(homes[0].folder)
        # The workers of a group may share few cores, and learn slower than records come: its writers wait for it.
        paced_by, partitions = (None, _PARTITIONS) if workers == 1 else (shelf, max(_PARTITIONS, workers))
        with _streams(settings, broker.bootstrap_servers, seed, partitions, paced_by) as streams:
            try:
                figures = Figures(seed=seed)
                if workers == 1:
                    drain = _kill_trainer(settings, homes[0], shelf, figures, plan(random, kills, POINTS), on_strike)
                    return _compare(settings, homes[0], streams, figures, drain)
                with GroupCampaign(homes, shelf, figures) as campaign:
                    campaign.wage(group_plan(random, kills, workers), lambda kill: on_strike(kill, figures))
                    return _compare(settings, homes[0], streams, figures, campaign.drain)
            except (UnprovenError, WaitedError) as error:
                # Beside the error the last line of the trainer's log; the rest is removed with the folder.
                first, *others = [line.strip() for line in str(error).splitlines() if line.strip()]
                last = f" Its last line: {others[-1]}" if others else ""
                raise UnprovenError(
                    f"nothing is proved: {first}{last} (does `millrace run` work with this config?)"
                ) from error


@contextmanager
def _streams(
    settings: Settings, bootstrap: str, seed: int, partitions: int, paced_by: Shelf | None
) -> Iterator[list[SingleWriter]]:
    """Write every topic of the settings: first a backlog, then records that keep coming. Those of labels are the last.

    With `paced_by` no more are written while its newest checkpoint is far behind.
    """
    records, training, labels = settings.records, settings.training, settings.labels

    def draws(topic: str) -> Generated:
        of_labels = topic in labels.topics
        own = labels.records() if of_labels else records_of(records, topic)
        made_up = some_matching(own.where, to_schema(own))
        if labels.used:
            of_record, of_label, _ = labels.rules.key
            made_up = with_keys(made_up, *((of_label, LABELS_FROM) if of_labels else (of_record, RECORDS_FROM)))
        return Generated(to_format(own), made_up, seed, own_settings(own), framed=own.registry is not None)

    block = training.numbers.batch_size * training.batches_per_call
    most_ahead = max(_MOST_AHEAD, _BLOCKS_AHEAD * block)
    waits_for_whole_blocks = training.max_wait is None
    rate = max(_RECORDS_PER_S, block / 2) if waits_for_whole_blocks else _RECORDS_PER_S
    with ExitStack() as stack:
        topics = settings.kafka.topics
        every = (*topics, *labels.topics)
        writers = [
            SingleWriter(bootstrap, topic, partitions, draws(topic), seed + at) for at, topic in enumerate(every)
        ]

        def is_wanted() -> bool:
            return paced_by is None or sum(writer.records for writer in writers) < paced_by.settled() + most_ahead

        for writer in writers:
            stack.enter_context(writer)
        for writer in writers[: len(topics)]:
            writer.write(max(_BACKLOG, block // partitions if waits_for_whole_blocks else 0))
            writer.flow(rate / len(topics), is_wanted)
        for writer in writers[len(topics) :]:
            writer.flow(rate * SHARE / len(labels.topics), is_wanted)
        yield writers


def _kill_trainer(
    settings: Settings, home: Apart, shelf: Shelf, figures: Figures, faults: Iterator[KillMethod], on_strike: OnStrike
) -> Drain:
    """Kill one trainer by the plan; return what lets it learn the rest."""
    training = settings.training
    pace = SaveSchedule(every_s=EVERY_S, block_rows=training.numbers.batch_size * training.batches_per_call)
    most_waiting = training.numbers.batch_size - 1 if training.partial_batches == "wait" else 0
    campaign = Campaign(home, shelf, pace, figures, most_waiting=most_waiting)
    campaign.wage(faults, lambda fault: on_strike(fault, figures))
    return campaign.drain


def _compare(
    settings: Settings, home: Apart, streams: list[SingleWriter], figures: Figures, drain: Drain
) -> ProofResult:
    """End the streams, and compare what is learnt at their ends with what was written."""
    for stream in streams:
        stream.still()
    own = load(home.config, {}).settings
    if settings.labels.used:
        time.sleep(own.labels.due_after + _LATER_S)  # by the labels that come after it all records are due
        for stream in streams[len(settings.kafka.topics) :]:
            stream.write(1)
    streams = streams[: len(settings.kafka.topics)]
    figures.records = sum(stream.records for stream in streams)
    set_aside: dict[tuple[str, int, int], Reason] = {}
    joins = list[PlainJoin]()

    def expected() -> dict[Partition, list[int]]:
        letters = dead_letters(streams[0].bootstrap, home.dead_letters)
        set_aside.update({(letter.topic, letter.partition, letter.offset): letter.reason for letter in letters})
        joins.extend(plain_joins(own))
        skipped = left_out(own, joins)
        return {
            Partition(stream.name, number): [
                offset
                for offset in range(len(written))
                if (stream.name, number, offset) not in set_aside
                and (Partition(stream.name, number), offset) not in skipped
            ]
            for stream in streams
            for number, written in enumerate(stream.verdicts)
        }

    statement = drain(expected)
    for join in joins:
        for partition, account in statement.accounts.items():
            counts, told = join.counted(partition, account.position), Counter(statement.joined[partition])
            figures.labelled += counts["labelled"]
            figures.joined_otherwise += max((counts - told).total(), (told - counts).total())
    counted = Counter(set_aside.values())
    if not any(account.learnt for account in statement.accounts.values()):
        why = ", ".join(f"{count} {reason}" for reason, count in counted.items())
        raise UnprovenError(f"none of the {figures.records:,} records made up by the schema could be learnt: {why}")
    return ProofResult(name=settings.name, figures=figures, set_aside=counted)


def set_apart(
    settings: Settings, bootstrap: str, path: Path, scale: Mapping[str, Any] = MappingProxyType({"workers": 1})
) -> Apart:
    """Write the config. The trainer runs in the present folder, so that the model finds the files that it opens.

    `scale` says which worker of which group it is.
    """
    path.mkdir(parents=True, exist_ok=True)
    # The dead letters' topic is none of those that are read.
    port, letters = free_port(), "set-aside"
    while letters in settings.kafka.topics:
        letters += "-too"
    values, build = settings.model_dump(mode="json"), settings.model.build
    values["kafka"] = {**{key: values["kafka"][key] for key in _KAFKA_KEPT}, "bootstrap_servers": [bootstrap]}
    values["model"]["build"] = f"{build.file}:{build.function}"
    form = settings.records.format
    values["records"]["format"] = form if isinstance(form, str) else form.place
    for topic, one in settings.records.by_topic.items():
        of_topic = one.format
        values["records"]["by_topic"][topic]["format"] = of_topic.place if isinstance(of_topic, UserClass) else of_topic
    values["training"] |= {"detectors": [*settings.training.detector_places.values()], "pause_on_mark": False}
    # No model of made-up records where others look for versions or scores, and no record of the user's archive.
    values["export"] = {"formats": [*settings.export.writers.values()]}
    values["archive"]["path"] = values["serve"]["log"]["topic"] = None
    values["checkpoints"]["mirror"] = None
    values["golden"] = values["mlflow"] = values["opentelemetry"] = {}
    if settings.labels.used:
        form = settings.labels.format
        values["labels"]["format"] = form if isinstance(form, str) else form.place
        in_time(values, settings.labels)
    values["records"]["dead_letters"]["topic"] = letters
    values["checkpoints"] = {"path": str(path / "checkpoints"), "every": f"{EVERY_S:g}s"}
    values["model"]["initial_weights"] = None
    values["api"] = {"listen": f"{_LOOPBACK}:{port}"}
    values["logs"] = {"format": "text", "level": "info"}
    values["scale"] = dict(scale)
    config = path / "millrace.yaml"
    config.write_text(json.dumps(values, indent=1))  # JSON is YAML
    folder = Folder(path / "checkpoints" / settings.name)
    return Apart(path=path, cwd=Path.cwd(), config=config, port=port, folder=folder, dead_letters=letters)


def set_group_apart(settings: Settings, bootstrap: str, path: Path, workers: int) -> Sequence[Apart]:
    """Write a config for each worker, the chief's first; ConfigError where the settings do not suit so many."""
    kept = settings.scale.model_dump(mode="json", include={"patience", "timeout"})
    addresses = [f"{_LOOPBACK}:{free_port()}" for _ in range(workers)]
    group = {**kept, "workers": workers, "addresses": addresses}
    members = [
        set_apart(settings, bootstrap, path / f"worker-{index}", {**group, "index": index}) for index in range(workers)
    ]
    load(members[0].config, {})
    return members


def plain_joins(settings: Settings) -> Sequence[PlainJoin]:
    """Return a join of all labels in their topics, as far as they are there; none where records hold their own."""
    labels = settings.labels
    if not labels.used:
        return ()
    options = replace(kafka_options(settings.kafka), topics=labels.topics)
    return (PlainJoin(labels.rules, decoded_again(options, to_decoder(labels.records())), KEY),)


def left_out(settings: Settings, joins: Sequence[PlainJoin]) -> set[tuple[Partition, int]]:
    """Return the partition and offset of each record that is filtered, or gives no row by the shaping: it is no loss.

    Reads all records once more, as far as they are there, and makes their rows apart from any trainer. They get their
    labels by `joins`.
    """
    shapers = [joins[0] if shaper.name == LABELS else shaper for shaper in settings.shapers()]
    shape = open_shapers(shapers, 0, {})
    if shape is None and not settings.records.where:
        return set()
    found = set[tuple[Partition, int]]()
    for decoded in decoded_again(kafka_options(settings.kafka), to_decoder(settings.records)):
        _, skipped = (decoded, ()) if shape is None else shape(decoded)
        offsets = (*decoded.filtered.tolist(), *(one for one, _ in skipped))
        found |= {(decoded.partition, offset) for offset in offsets}
    return found


def decoded_again(options: KafkaOptions, decoder: Decoder) -> Iterator[Decoded]:
    """Read topics from their beginnings to their ends."""
    source = KafkaSource(options)
    source.start(_CONNECT_S)
    try:
        for chunk in read_between(source, 0, source.resolve_start(Earliest()), source.resolve_start(Latest())):
            yield decode_chunk(chunk, decoder)
    finally:
        source.stop(_CONNECT_S)
