"""Witness D as a campaign: a run that is killed again and again ends with the bits of one that never was.

Both learn the same records in deterministic mode, from several partitions, poison included; they save by another
schedule, and only one of them is killed.
"""

import time
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from millrace.app.settings import load, to_schema
from millrace.app.tools.prove.trainer_process import UnprovenError
from millrace.consumers.failpoints import NAMES
from millrace.pipelines.shaping.windows.window_layout import WindowLayout
from tests.faults.harness import members_model, sequences, shaped_model, windowed_model
from tests.faults.harness.faults import AfterStart, AtPoint, KillMethod
from tests.faults.harness.process import Run
from tests.faults.harness.project import FEATURES, Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.shelf import Shelf, Statement
from tests.faults.harness.topics import Topic

PARTITIONS = 4
EXACT = {"deterministic": True, "max_wait": None, "replicas": 1, "shuffle": 512, "batch_size": 64, "passes": 3}
POISON = Mixture(share=0.002)
SHAPED: Mapping[str, Mapping[str, Any]] = {
    "model": {"build": f"{Path(shaped_model.__file__)}:build_model"},
    "balance": {"target": {"0": 0.3, "1": 0.7}, "half_life": 500},
    "reservoir": {"size": 600, "share": "20 %", "by": "label"},
}
"""Everything that makes what is learnt another thing than what came."""
EVERYTHING: Mapping[str, Mapping[str, Any]] = {
    "records": {"features": {**FEATURES, "user": "int64", "past": {"dtype": "int64", "field": "id"}}},
    "model": {"build": f"{Path(windowed_model.__file__)}:build_model"},
    "windows": {
        "by": "user",
        "of": ["x", "past"],
        "length": sequences.LENGTH,
        "lengths": "known",
        "gaps": "gaps",
        "max_bytes": "5kB",
    },
    "balance": {**SHAPED["balance"], "how": "resample"},
    "reservoir": SHAPED["reservoir"],
}
"""Rows that depend on the records before them: sequences, with room for fewer keys than there are, of which some of the
class that is to come less often are left out; rows of the past beside them; and noise."""
MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "model": {"build": f"{Path(members_model.__file__)}:build_model"},
    "training": {**EXACT, "shuffle": 0, "members": {"recent": 300, "since_drift": 2_000, "once": True}},
}
"""Three members, of which one begins anew whenever the labels mean the opposite."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Records of each partition: to begin with, and for each kill, so that the last one still finds some to learn."""

    before: int
    a_kill: int

    def of(self, kills: int) -> int:
        """Return the records of each partition for this many kills."""
        return self.before + kills * self.a_kill


EXTENT, GATE_EXTENT = Extent(8_000, 3_000), Extent(1_500, 1_000)
"""Of a campaign, and of a test of the gate, which kills twice."""
_MOST_CALLS, _MOST_SAVES = 6, 3
"""How often a point of calls, and of saves, is passed before it kills: a save may take as long as many calls, so a run
holds few of them."""
_FINISH_S = 1800.0
"""The last run learns most of the topic, with a save every seven steps."""
_IMPORTS_S = 3.5
"""A forked start is quicker than a cold one by more than this."""
_REPEATED = tuple(name for name in NAMES if name.startswith(("call.", "save.", "journal.", "commit.")))


@dataclass(slots=True, kw_only=True)
class Figures:
    """What the comparison comes to."""

    seed: int
    records: int = 0
    kills: int = 0
    points: Counter[str] = field(default_factory=Counter)
    max_weight_difference: float = float("inf")
    """The greatest difference of any number in weights, seeds and optimizer."""
    steps: int = 0
    same_evidence: bool = False
    """Both have seen every valid offset once."""
    lost: int = 0
    """Offsets that were neither learnt nor accounted for otherwise."""
    learnt_twice: int = 0
    restarts: int = 0
    """With members: how often one has begun anew."""
    sequences: int = 0
    """Records that were learnt as sequences."""
    wrong: int = 0
    """Of them, how many with other records than a plain reference has."""
    seconds: float = 0.0

    @property
    def kept(self) -> bool:
        """Whether the promise held."""
        return self.same_evidence and self.max_weight_difference == 0 and self.wrong == 0

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        counted = {"points": dict(self.points), "seconds": round(self.seconds, 1)}
        return {**asdict(self), **counted, "kept": self.kept}


def compare(
    bootstrap: str,
    folder: Path,
    *,
    kills: int,
    seed: int,
    cold: bool = True,
    shaped: Mapping[str, Mapping[str, Any]] | None = None,
    extent: Extent = EXTENT,
) -> Figures:
    """Learn once undisturbed and once killed `kills` times, and return how far apart the two end.

    `shaped` are sections of the config beside those of a deterministic run.
    """
    sections: Mapping[str, Mapping[str, Any]] = {"training": EXACT, **(shaped or {})}
    began, figures, random = time.monotonic(), Figures(seed=seed), Random(seed)
    with Topic(bootstrap, f"exact-{uuid.uuid4().hex[:8]}", PARTITIONS, POISON, seed) as topic:
        topic.write(extent.of(kills))
        end = ",".join(f"{topic.name}:{number}={len(one)}" for number, one in enumerate(topic.verdicts))
        whole = Project(folder / "whole", topic, checkpoints={"every": "150 steps"}, **sections)
        killed = Project(folder / "killed", topic, checkpoints={"every": "7 steps"}, **sections)
        with Run(whole, "--until", end, cold=cold) as beside:
            if not cold:
                beside.wait_for_first_call()  # what it has proven of the model, the others do not prove again
            kill_often(killed, end, (drawn(random, cold=cold) for _ in range(kills)), figures, cold=cold)
            with Run(killed, "--until", end, cold=cold) as run:
                run.finish(_FINISH_S)
            beside.finish(_FINISH_S)
        compare_ends(figures, topic, whole, killed)
        compare_sequences(figures, topic, killed)
    figures.seconds = time.monotonic() - began
    return figures


def compare_ends(figures: Figures, topic: Topic, whole: Project, other: Project) -> None:
    """Note how far the newest checkpoints of two projects are apart, and whether both have learnt the whole topic."""
    one, two = Shelf(whole.folder).newest(), Shelf(other.folder).newest()
    assert one is not None
    assert two is not None
    figures.records, figures.steps = topic.records, one.manifest.step
    figures.same_evidence = one.seen == two.seen and one.manifest.step == two.manifest.step
    for number, verdicts in enumerate(topic.verdicts):
        account, seen, due = one.ledger[number], one.seen[number], topic.evidence(number).count
        figures.same_evidence &= account == two.ledger[number]
        if account.skipped:  # bad records too are left out, so only the account tells how many good ones are learnt
            due = account.learnt
            figures.same_evidence &= account.balanced and account.position == len(verdicts)
            figures.same_evidence &= set(account.skipped) == {"balance"} and seen.count == due
        else:
            figures.same_evidence &= seen == topic.evidence(number)
        figures.lost += max(0, due - seen.count)
        figures.learnt_twice += max(0, seen.count - due)
    figures.max_weight_difference = difference(one, two)
    figures.restarts = int(next((value for key, value in two.arrays.items() if key.endswith("members/restarts")), 0))


def compare_sequences(figures: Figures, topic: Topic, project: Project) -> None:
    """Note how many sequences of the newest checkpoint are not those of a plain reference; none without windows."""
    settings = load(project.config, {}).settings
    newest = Shelf(project.folder).newest()
    if newest is None or not settings.windows.used:
        return
    capacity = WindowLayout(to_schema(settings.records), settings.windows).capacity
    table = next(value for key, value in newest.arrays.items() if key.endswith("sequences/table"))
    for number, verdicts in enumerate(topic.verdicts):
        figures.sequences += int(np.count_nonzero(table[number, :, 0]))
        figures.wrong += sequences.wrong_sequences(table[number], verdicts, capacity)


def kill_often(project: Project, end: str, faults: Iterable[KillMethod], figures: Figures, *, cold: bool) -> None:
    """Start the run again and again, and kill it by each of these."""
    shelf = Shelf(project.folder)
    for fault in faults:
        with Run(project, "--until", end, failpoints=fault.failpoints, cold=cold) as run:
            fault.bring_about(run, shelf)
            if not run.alive and run.exit_code() == 0:
                raise UnprovenError("it learnt all before it could be killed; give it more records")
        figures.kills += 1
        figures.points[fault.point or type(fault).__name__] += 1


def drawn(random: Random, *, cold: bool, stretch: int = 1) -> KillMethod:
    """Draw a kill: at a failpoint, or now and then at a random time.

    `stretch`: how many times as many calls there are between two saves, and before a kill at one.
    """
    if random.random() < 0.2:
        return AfterStart(max(0.3, random.uniform(2, 9) - (0 if cold else _IMPORTS_S)))
    point = random.choice(_REPEATED)
    return AtPoint(point, random.randrange(_MOST_CALLS * stretch if point.startswith("call.") else _MOST_SAVES))


def difference(one: Statement, other: Statement) -> float:
    """Return the largest difference of any number; infinite where the two do not hold the same arrays."""
    if one.arrays.keys() != other.arrays.keys():
        return float("inf")
    if not any("seed" in key for key in one.arrays):
        raise UnprovenError("the model draws no random numbers, so nothing is shown of those")
    return max(apart(one.arrays[key], other.arrays[key]) for key in one.arrays)


def apart(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    """Return the largest difference of any number of two arrays; infinite where they cannot be compared."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if one.tobytes() == other.tobytes():
        return 0.0
    return float(np.max(np.abs(one.astype(np.float64) - other.astype(np.float64)))) or float("inf")
