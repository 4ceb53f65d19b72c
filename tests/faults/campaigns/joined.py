"""Labels that come later as a campaign: two topics, a run that is killed again and again, and a plain join of both.

    python -m tests.faults.campaigns.joined --kills 20
    python -m tests.faults.campaigns.joined --kills 20 --records 1000000 --clicked 0.03     about 10 minutes

Records and labels are out of order; labels come before their records, twice, too late, for nobody, and after an outage
of their producer in one burst; some of both cannot be read. A partition of labels falls silent, counts as read up to a
moment, and goes on when that has passed. A rewind cuts some labels out of history. In deterministic mode, the run that
was killed has the bits of one that never was, which goes by the same moments; both have learnt each record with the
label of a join in plain Python of what is in Kafka, and have its account of every record and label; and the newest
checkpoint can be made again.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.app.tools.child_process import millrace_command
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.arrivals import in_sample, salt_of
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.parts import PartState
from millrace.training.ledger.offset_checksum import Evidence
from tests.faults.campaigns.exactness import EXACT, PARTITIONS, Extent, Figures, difference, drawn, kill_often
from tests.faults.campaigns.kills import broker
from tests.faults.harness import joined_model
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.joined_model import number_of
from tests.faults.harness.later_labels import (
    Click,
    Drawn,
    Traffic,
    clicks_of,
    draw,
    impressions_of,
    labels_in,
    read,
    records_in,
    write,
)
from tests.faults.harness.plain_join import (
    DUPLICATE,
    LATE,
    REFUSED,
    TOO_OLD,
    UNUSED,
    USED,
    WAITING,
    Expected,
    Jump,
    Rules,
    plain_join,
)
from tests.faults.harness.process import Run
from tests.faults.harness.project import FEATURES, Project
from tests.faults.harness.shelf import Shelf, Statement

AGO_MS = 6 * 3_600_000
CLICKED = 0.1
_SCORED = 0.25
"""The share of the records that is scored on arrival; all of them came before the run, so none has a prediction."""
_ABSENT = 0.0
_SAVES_EVERY, _FURTHER = 7, 1_700
"""Steps between two saves of the run that is killed, and records by which it comes on between two kills at most."""
_LEARNS_S, _VERB_S = 3_600.0, 600.0
"""Within which a run learns all of it, and within which a verb is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """How long a campaign is, and what its traffic is like for that."""

    extent: Extent
    within_ms: int
    bad: float
    odd: float


LENGTH = Length(extent=Extent(10_000, 3_000), within_ms=60_000, bad=0.002, odd=0.0003)
GATE_LENGTH = Length(extent=Extent(4_000, 1_000), within_ms=24_000, bad=0.006, odd=0.002)
"""Of a campaign, and of a test of the gate: shorter, with shorter limits, and as much that is rare."""
MATCHES = ("all", "last_before", "first_after")
_USERS = 1_000
"""With `match`: then a user's impressions come about every 5 seconds."""
TAKES = ("first", "last", "max", "sum", "count")
_QUIET = 0
"""The partition of labels that falls silent."""
_JUMPS = 2
"""Jumps of each partition of labels that are on disk before the first start."""
_USED, _FITTED = 1, 2
"""Flags of a label that waits, as a checkpoint has them; another flag says that it was late."""


@dataclass
class JoinedFigures(Figures):
    """What the comparison comes to."""

    take: str = ""
    match: str = "all"
    labelled: int = 0
    wrong_labels: int = 0
    """Records that were learnt with another label than that of a plain join."""
    false_negatives: int = 0
    """Of these, those that have a label in a plain join and were learnt as if there were none."""
    unaccounted: int = 0
    """Records and labels by which the account is off."""
    off: Counter[str] = field(default_factory=Counter)
    """The same, by what should have become of them; of labels and records that the account has too many of, below 0."""
    outcomes: Counter[str] = field(default_factory=Counter)
    """Of records and labels, of how many what became, by the plain join."""
    jumps: int = 0
    """Those that the killed run has written itself."""
    rebuilt: bool = False
    """Whether the newest checkpoint was made again to the bit."""

    def note(self, found: Counter[str], expected: Counter[str]) -> None:
        """Add by how much an account is off."""
        for name in found.keys() | expected.keys():
            if apart := expected[name] - found[name]:
                self.unaccounted += abs(apart)
                self.off[name] += apart

    @property
    def joined(self) -> bool:
        """Whether each record was learnt once, with its label, and all is accounted for."""
        faults = self.lost + self.learnt_twice + self.wrong_labels + self.false_negatives + self.unaccounted
        return self.same_evidence and not faults

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return self.joined and self.rebuilt and self.max_weight_difference == 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        counters = {name: dict(getattr(self, name)) for name in ("points", "off", "outcomes")}
        counted = {**counters, "seconds": round(self.seconds, 1)}
        return {**asdict(self), **counted, "kept": self.kept}


class Topics(NamedTuple):
    """Both topics, as projects ask for one."""

    name: str
    bootstrap: str
    traffic: Traffic

    @property
    def labels(self) -> str:
        """The name of the other topic."""
        return f"{self.name}.clicks"


def sections(topics: Topics, take: str, match: str = "all", *, masked: bool = False) -> Mapping[str, Any]:
    """Return the sections of the config; `masked` has a second output, which learns the labels that came alone."""
    label: dict[str, Any] = {"clicked": {"dtype": "float32", "absent": _ABSENT}}
    if masked:
        label["masked"] = {"field": "clicked", "dtype": "float32", "absent": "mask"}
    features = {name: one for name, one in FEATURES.items() if name != "curse"}
    return {
        "records": {"features": features, "label": None, "event_time": {"field": "at"}},
        "labels": {
            "topics": [topics.labels],
            "join": {"record": "impression_id"},
            "label": label,
            "take": take,
            "match": match,
            "within": f"{topics.traffic.within_ms}ms",
            "early": f"{topics.traffic.early_ms}ms",
            "event_time": {"field": "at"},
            "on_silence": "absent",
        },
        "model": {
            "build": f"{Path(joined_model.__file__)}:build_{'masked_' * masked}model",
            "args": {"each": topics.traffic.each},
        },
        "training": EXACT,
    }


def compare(
    bootstrap: str,
    folder: Path,
    *,
    kills: int,
    seed: int,
    cold: bool = True,
    take: str | None = None,
    match: str | None = None,
    masked: bool = False,
    records: int | None = None,
    clicked: float = CLICKED,
    length: Length = LENGTH,
) -> JoinedFigures:
    """Learn once undisturbed and once killed `kills` times, and return how far apart the two end.

    `take` is which of several labels a record gets, and `match` which of several records gets a label; None: the seed
    draws it. The kills are spread over `records`; None:
    there are as many as that many kills need. `clicked` is the share of the records that labels come for.
    """
    began, random = time.monotonic(), Random(seed)
    figures = JoinedFigures(
        seed=seed, take=take or random.choice(TAKES), match=match or MATCHES[random.randrange(len(MATCHES))]
    )
    each = length.extent.of(kills) if records is None else records // PARTITIONS
    stretch = 1 if records is None else max(1, records // max(1, kills) // _FURTHER)
    traffic = Traffic(
        each=each,
        began=round(time.time() * 1000) - AGO_MS,
        clicked=clicked,
        calm_at=each // 2,
        within_ms=length.within_ms,
        bad=length.bad,
        odd=length.odd,
        users=None if figures.match == "all" else _USERS,
    )
    topics, all_of_it = Topics(f"joined-{uuid.uuid4().hex[:8]}", bootstrap, traffic), draw(traffic, seed)
    create_topic(bootstrap, topics.name, traffic.partitions)
    create_topic(bootstrap, topics.labels, traffic.label_partitions)
    given = sections(topics, figures.take, figures.match, masked=masked)
    whole = Project(folder / "whole", topics, checkpoints={"every": "150 steps"}, **given)  # type: ignore[arg-type]
    # Nothing that is learnt depends on a score on arrival, so only one of both has it.
    scored = {**given, "labels": {**given["labels"], "score_on_arrival": _SCORED}}
    every = f"{_SAVES_EVERY * stretch} steps"
    killed = Project(folder / "killed", topics, checkpoints={"every": every}, **scored)  # type: ignore[arg-type]
    before = some_jumps(topics, all_of_it, random)
    append_jumps(killed.folder, topics, before)
    parts, ends = parts_of(traffic, all_of_it), list[str]()
    cut = _some_of(parts[1].clicks, after=parts[0].clicks)
    for part, strikes in zip(parts, (kills // 2, kills - kills // 2), strict=True):
        ends.append(written(topics, part))
        if part.start:
            _cut_out(killed, topics, cut, cold=cold)
        faults = (drawn(random, cold=cold, stretch=stretch) for _ in range(strikes))
        kill_often(killed, ends[-1], faults, figures, cold=cold)
        _learn(killed, ends[-1], cold=cold)
    whole.folder.label_jumps.parent.mkdir(parents=True)
    for path in killed.folder.label_jumps.parent.iterdir():
        shutil.copy(path, whole.folder.label_jumps.parent)
    for part, end in zip(parts, ends, strict=True):
        if part.start:
            _cut_out(whole, topics, cut, cold=cold)
        _learn(whole, end, cold=cold)
    figures.jumps = len(jumps_of(killed.folder, topics.labels)) - len(before)
    _compare_ends(figures, topics, cut, whole.folder, killed.folder)
    figures.rebuilt = _millrace(killed, "rebuild", cold=cold)
    figures.seconds = time.monotonic() - began
    return figures


def _learn(project: Project, end: str, *, cold: bool) -> None:
    with Run(project, "--until", end, cold=cold) as run:
        run.finish(_LEARNS_S)


def _some_of(clicks: Mapping[int, list[Click]], *, after: Mapping[int, list[Click]]) -> dict[int, range]:
    """Return offsets of some of these clicks of each partition, which were appended after others."""
    begins = {number: len(after[number]) + len(log) // 4 for number, log in clicks.items()}
    return {number: range(begin, begin + len(clicks[number]) // 8) for number, begin in begins.items()}


def _cut_out(project: Project, topics: Topics, cut: Mapping[int, range], *, cold: bool) -> None:
    """Cut labels out of history by a rewind, from where the run stands."""
    ranges = [f"--skip={topics.labels}:{number}:{one[0]}-{one[-1]}" for number, one in cut.items()]
    assert _millrace(project, "rewind", "--to", "latest", "--reason", "fraud", *ranges, cold=cold)


class Part(NamedTuple):
    """What is written before a run is started: impressions from and up to an offset, and clicks."""

    drawn: Drawn
    start: int
    end: int
    clicks: Mapping[int, list[Click]]


def parts_of(traffic: Traffic, drawn: Drawn) -> tuple[Part, Part]:
    """Cut both topics in two. In the first part, one partition of clicks falls silent before all records are due.

    What it would have had comes with the second part. The others end with a click for nobody, by whose time exactly
    all records of the first part are due.
    """
    cut = traffic.calm_at
    due = traffic.appended(cut - 1) + traffic.within_ms + traffic.early_ms
    ends = dict.fromkeys(range(traffic.label_partitions), due) | {_QUIET: due - traffic.within_ms // 2}
    first = {number: [one for one in log if one.appended < ends[number]] for number, log in enumerate(drawn.clicks)}
    second = {number: log[len(first[number]) :] for number, log in enumerate(drawn.clicks)}
    for number, log in first.items():
        if number != _QUIET:
            log.append(Click(due, due, "nobody"))
    return Part(drawn, 0, cut, first), Part(drawn, cut, traffic.each, second)


def written(topics: Topics, part: Part) -> str:
    """Write a part, and return where its impressions end."""
    logs = enumerate(part.drawn.impressions)
    write(
        topics.bootstrap,
        topics.name,
        {number: impressions_of(topics.traffic, number, log[: part.end], part.start) for number, log in logs},
    )
    write(topics.bootstrap, topics.labels, {number: clicks_of(log) for number, log in part.clicks.items()})
    return ",".join(f"{topics.name}:{number}={part.end}" for number in range(topics.traffic.partitions))


# The jumps lie in a file beside the checkpoints: a line `topic:partition offset milliseconds` each.


def some_jumps(topics: Topics, drawn: Drawn, random: Random) -> list[Jump]:
    """Draw jumps to a little after the times of the clicks around them, as quiet partitions would have made them."""
    within = topics.traffic.within_ms
    return [
        Jump(number, end, log[end].appended + random.randrange(within // 2))
        for number, log in enumerate(drawn.clicks)
        for end in random.sample(range(len(log) // 10, len(log) // 3), _JUMPS)
    ]


def append_jumps(folder: Folder, topics: Topics, jumps: Iterable[Jump]) -> None:
    """Write jumps as if a run had made them."""
    folder.label_jumps.parent.mkdir(parents=True)
    lines = [f"{topics.labels}:{jump.partition} {jump.end} {jump.at}\n" for jump in jumps]
    folder.label_jumps.write_text("".join(lines))


def jumps_of(folder: Folder, topic: str, name: str = "jumps") -> list[Jump]:
    """Return the jumps of a topic that lie beside the checkpoints, in a file of this name."""
    path = folder.label_jumps.with_name(name)
    words = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    jumps = [(Partition.parse(name), int(end), int(at)) for name, end, at in words]
    return [Jump(partition.number, end, at) for partition, end, at in jumps if partition.topic == topic]


def _compare_ends(
    figures: JoinedFigures, topics: Topics, cut: Mapping[int, range], whole: Folder, killed: Folder
) -> None:
    """Hold both ends against each other, and against a plain join of what is in Kafka."""
    one, two = (Shelf(folder).newest() for folder in (whole, killed))
    assert one is not None
    assert two is not None
    figures.steps = one.manifest.step
    figures.same_evidence = one.manifest.step == two.manifest.step and one.ledger == two.ledger
    compare_with_plain_join(figures, topics, whole, killed, cut=cut)
    figures.max_weight_difference = difference(one, two)
    table = next(value for key, value in two.arrays.items() if key.endswith("labels/table"))
    learnt = (np.flatnonzero(table[number][:, 0]) for number in range(topics.traffic.partitions))
    arrivals = Shelf(killed).part(two.number, "arrivals").facts
    found = Counter(missed=arrivals["missed"], scored=arrivals["sums"]["records"])
    figures.note(found, Counter(missed=sum(sampled(topics.name, *one) for one in enumerate(learnt))))


def sampled(topic: str, number: int, offsets: npt.NDArray[np.int64]) -> int:
    """Return how many of these records of a partition are in the sample that is scored on arrival."""
    salts = np.full(len(offsets), salt_of(Partition(topic, number)))
    return int(in_sample(salts, offsets, _SCORED).sum())


def compare_with_plain_join(
    figures: JoinedFigures, topics: Topics, *folders: Folder, cut: Mapping[int, range] = MappingProxyType({})
) -> None:
    """Hold the newest checkpoints of these folders against a plain join of what is in Kafka and not cut out."""
    traffic = topics.traffic
    records = {at: records_in(log) for at, log in read(topics.bootstrap, topics.name, traffic.partitions).items()}
    clicks = read(topics.bootstrap, topics.labels, traffic.label_partitions)
    labels = {at: labels_in(log) for at, log in clicks.items()}
    rules = Rules(
        within_ms=traffic.within_ms,
        early_ms=traffic.early_ms,
        absent={"clicked": _ABSENT},
        take=figures.take,
        match=figures.match,
    )
    figures.records = traffic.each * traffic.partitions
    left_out = {(number, offset) for number, offsets in cut.items() for offset in offsets}
    for folder in folders:
        shelf = Shelf(folder)
        statement = shelf.newest()
        assert statement is not None
        quiet, woken = jumps_of(folder, topics.labels), jumps_of(folder, topics.name)
        now = round(time.time() * 1000)
        ahead = jumps_of(folder, topics.name, "rival_jumps")
        expected = plain_join(rules, records, labels, quiet, now=now, of_records=woken, of_rivals=ahead, cut=left_out)
        part = shelf.part(statement.number, "labels")
        for number in range(traffic.partitions):
            _compare_partition(figures, traffic, number, expected, statement)
            figures.note(record_counts(part)[number], expected.outcomes(number))
        fates = expected.fates(positions(part))
        figures.note(label_counts(part), fates)
    figures.outcomes = fates + sum((expected.outcomes(number) for number in range(traffic.partitions)), Counter[str]())


def _compare_partition(
    figures: JoinedFigures, traffic: Traffic, number: int, expected: Expected, statement: Statement
) -> None:
    """Hold what the weights have seen of a partition, and its account, against a plain join."""
    due, account, outcomes = expected.learnt(number), statement.ledger[number], expected.outcomes(number)
    unreadable = traffic.each - outcomes.total()
    figures.same_evidence &= account.balanced and account.position == traffic.each and not outcomes[WAITING]
    figures.same_evidence &= dict(account.skipped) == +Counter({"labels": outcomes[TOO_OLD]})
    figures.same_evidence &= dict(account.set_aside) == +Counter({Reason.MALFORMED: unreadable})
    figures.same_evidence &= statement.seen[number] == Evidence.of(due)
    table = next(value for key, value in statement.arrays.items() if key.endswith("labels/table"))[number]
    passes = EXACT["passes"]
    assert isinstance(passes, int)
    for offset, (times, total) in enumerate(table.tolist()):
        got = expected.records.get((number, offset))
        label = None if got is None or got.label is None else got.label["clicked"]
        figures.lost += label is not None and times < passes
        figures.learnt_twice += times > passes * (label is not None)
        if not times or label is None:
            continue
        wrong = (total - times * number_of(label)) % 2**64 != 0
        figures.labelled += not wrong and label != _ABSENT
        figures.wrong_labels += wrong
        figures.false_negatives += wrong and (total - times * number_of(_ABSENT)) % 2**64 == 0


# How a checkpoint holds what became of records and labels: its part `labels`.


def record_counts(part: PartState) -> dict[int, Counter[str]]:
    """Return the records of each partition by their outcome."""
    found = {Partition.parse(name).number: one["counts"] for name, one in part.facts["partitions"].items()}
    return {number: Counter(counts) for number, counts in found.items()}


def positions(part: PartState) -> dict[int, int]:
    """Return the offset up to which each partition of labels is read."""
    about = part.facts["labels"]["partitions"]
    return {Partition.parse(name).number: int(one["position"]) for name, one in about.items()}


def label_counts(part: PartState) -> Counter[str]:
    """Return the labels that were read by what became of them, with those that wait as what they are by now."""
    about = part.facts["labels"]
    found = Counter[str](about["expired"]) + Counter({LATE: about["late"], REFUSED: about["refused"]})
    flags = [flag for name, array in part.arrays.items() if name.endswith("/flags") for flag in array.tolist()]
    for flag in flags:
        found[USED if flag & _USED else DUPLICATE if flag == _FITTED else LATE] += 1
    found[UNUSED] += about["waiting"] - len(flags)
    return found


def _millrace(project: Project, verb: str, *words: str, cold: bool) -> bool:
    """Do what these words say with a project; return whether it was done."""
    command = [verb, "-c", str(project.config), *words]
    root = Path(__file__).parents[3]  # wherever this process is, the model's file finds what it imports
    if cold:
        done = subprocess.run(
            millrace_command(command), capture_output=True, text=True, check=False, timeout=_VERB_S, cwd=root
        )
    else:
        done = run_forked(command, cwd=root, env=os.environ, timeout=_VERB_S)
    if done.returncode:
        print(done.stdout, done.stderr, sep="\n")  # noqa: T201 - why it was not
    return done.returncode == 0


def main() -> None:
    """Read the options, compare, print."""
    parser = argparse.ArgumentParser(description="Join labels that come later, killed on the way.")
    parser.add_argument("--kills", type=int, default=20, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the kills and the records")
    parser.add_argument("--records", type=int, help="how many; without it, as many as the kills need")
    parser.add_argument("--clicked", type=float, default=CLICKED, help="the share of records that labels come for")
    parser.add_argument("--take", choices=TAKES, help="which of several labels a record gets; the seed draws it")
    parser.add_argument("--match", choices=MATCHES, help="which of several records gets a label; the seed draws it")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-joined-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        there = Path(folder) / "joined"
        of = {name: getattr(options, name) for name in ("kills", "seed", "take", "match", "records", "clicked")}
        found = compare(bootstrap, there, **of)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
