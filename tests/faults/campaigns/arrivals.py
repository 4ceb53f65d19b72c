"""The score on arrival as a campaign: a live stream, a trainer that is killed, and an oracle that learns it again.

    python -m tests.faults.campaigns.arrivals --minutes 4 --kills 3

Impressions and clicks come as they would live, and the rule that says who clicks turns into its opposite now and then.
All impressions are predicted when they come. The model's answers say how many batches it had learnt by then, and its
weights say which records each batch had. So plain Keras learns the same batches in the same order, and answers for each
record with the weights of when it came: that is the score that the trainer has to show, within 0.2 points. What came
between the newest checkpoint before a kill and the next start has no score, and counts as missed.
"""

import argparse
import asyncio
import heapq
import json
import sys
import tempfile
import threading
import time
import uuid
from collections import defaultdict
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
from aiokafka import AIOKafkaProducer

from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.records import Partition
from tests.faults.campaigns.kills import broker
from tests.faults.harness import testifying_model
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.shelf import Shelf

PARTITIONS = 2
_A_SECOND, _TICK_S = 400, 0.05
"""Impressions a second, and between two of their batches."""
_TURNS_S = 40
"""After this long the rule turns into its opposite."""
_WITHIN_S, _EARLY_S = 8, 1
_LATEST_S = 7.0
"""How late a click comes at most."""
_BATCH = 32
_KEEP, _SAVES_EVERY_S = 10_000, 2
"""All checkpoints are kept: each prediction waits through some of them, and is read there."""
_MOST_POINTS = 0.2
_DRAINS_S = 120.0


class Topics(NamedTuple):
    """Both topics, as projects ask for one."""

    name: str
    bootstrap: str

    @property
    def labels(self) -> str:
        """The name of the other topic."""
        return f"{self.name}.clicks"


@dataclass(slots=True, kw_only=True)
class ArrivalFigures:
    """What it comes to; scores are shares of the records that were answered rightly."""

    seed: int
    records: int = 0
    kills: int = 0
    scored: int = 0
    missed: int = 0
    unaccounted: int = 0
    """Records by which scored and missed are off."""
    unseen: int = 0
    """Of those scored, how many no checkpoint shows: they came while a trainer was starting, and soon were due."""
    score: float = 0.0
    """The score on arrival, as the trainer has it."""
    oracle: float = 0.0
    """The same by plain Keras, each record with the weights of when it came."""
    live: float = 0.0
    """How the same records were answered by the weights of when they were learnt."""
    points: float = 100.0
    """By how many points of a hundred the score on arrival and the oracle differ."""
    live_points: float = 0.0
    """By how many the live score and the oracle differ."""
    answers_apart: float = 1.0
    """The greatest difference of an answer to that of the oracle."""
    behind_s: float = 0.0
    """By how much the newest record that the model knew was older than what it answered for; the median."""

    @property
    def kept(self) -> bool:
        """Whether the promise held, of a stream of which the live score says something else."""
        found = 0 <= self.unseen < self.scored // 100 and not self.unaccounted
        return self.points <= _MOST_POINTS < self.live_points and found

    def summary(self) -> dict[str, Any]:
        """Return the figures as the report holds them."""
        return {**asdict(self), "kept": self.kept}


@dataclass(frozen=True, slots=True)
class Stream:
    """The impressions, by their numbers; each second one is of the other partition."""

    x: np.ndarray[Any, np.dtype[np.float32]]
    clicked: np.ndarray[Any, np.dtype[np.bool_]]
    late_s: np.ndarray[Any, np.dtype[np.float64]]
    """How late the click of each comes."""

    @classmethod
    def drawn(cls, records: int, seed: int) -> "Stream":
        """Draw so many."""
        random = np.random.default_rng(seed)
        x = random.uniform(-1, 1, (records, testifying_model.WIDTH)).round(3).astype(np.float32)
        turned = np.arange(records) // (_TURNS_S * _A_SECOND) % 2 == 1
        return cls(x, (x.sum(1) > 0) != turned, random.uniform(0.1, _LATEST_S, records))

    async def live(self, topics: Topics) -> None:
        """Write both topics as they would come."""
        began, waiting, at = time.monotonic(), list[tuple[float, int]](), 0
        async with AIOKafkaProducer(bootstrap_servers=topics.bootstrap, linger_ms=5) as producer:
            while at < len(self.x) or waiting:
                now = time.monotonic() - began
                for number in range(at, min(len(self.x), round(now * _A_SECOND))):
                    told = {"x": self.x[number].tolist(), "number": number, "impression_id": f"i{number}"}
                    await _send(producer, topics.name, number, told)
                    if self.clicked[number]:
                        heapq.heappush(waiting, (now + self.late_s[number], number))
                    at = number + 1
                while waiting and waiting[0][0] <= now:
                    _, number = heapq.heappop(waiting)
                    await _send(producer, topics.labels, number, {"impression_id": f"i{number}", "clicked": 1.0})
                await asyncio.sleep(_TICK_S)


async def _send(producer: AIOKafkaProducer, topic: str, number: int, told: object) -> None:
    await producer.send(topic, json.dumps(told).encode(), partition=number % PARTITIONS)


def watch(bootstrap: str, folder: Path, *, minutes: float, kills: int, seed: int) -> ArrivalFigures:
    """Have a trainer learn a live stream while it is killed, and compare its score on arrival with an oracle's."""
    figures, random = ArrivalFigures(seed=seed, records=round(minutes * 60 * _A_SECOND)), Random(seed)
    topics, stream = Topics(f"arriving-{uuid.uuid4().hex[:8]}", bootstrap), Stream.drawn(figures.records, seed)
    for name in (topics.name, topics.labels):
        create_topic(bootstrap, name, PARTITIONS)
    project = Project(folder, topics, **_sections(topics, figures.records))  # type: ignore[arg-type]
    run = _started(project)
    writer = threading.Thread(target=lambda: asyncio.run(stream.live(topics)), daemon=True)
    began = time.monotonic()
    writer.start()
    try:
        for at in range(kills):
            # Neither at the beginning nor at the end.
            time.sleep(
                max(0.0, began + minutes * 60 * (at + random.uniform(0.3, 1.0)) / (kills + 1) - time.monotonic())
            )
            run.kill()
            figures.kills += 1
            run = _started(project)
        writer.join(minutes * 60 + _DRAINS_S)
        run.wait_for(lambda: run.settled() == figures.records, "all records are learnt")
        run.terminate()
        run.finish()
    finally:
        run.__exit__(None, None, None)
    _compare(figures, stream, Shelf(project.folder))
    return figures


def _started(project: Project) -> Run:
    run = Run(project)
    run.wait_for(run.ready, "the trainer is ready")
    return run


def _sections(topics: Topics, most: int) -> dict[str, dict[str, Any]]:
    return {
        "records": {
            "features": {"x": {"dtype": "float32", "shape": [testifying_model.WIDTH]}, "number": "int64"},
            "label": {},
        },
        "labels": {
            "topics": [topics.labels],
            "join": {"record": "impression_id"},
            "label": {"clicked": {"dtype": "float32", "absent": 0.0}},
            "within": f"{_WITHIN_S}s",
            "early": f"{_EARLY_S}s",
            "on_silence": "absent",
            "score_on_arrival": 1.0,
        },
        "model": {"build": f"{Path(testifying_model.__file__)}:build_model", "args": {"most": most}},
        "training": {"batch_size": _BATCH, "batches_per_call": 2, "max_wait": "200ms"},
        "checkpoints": {"every": f"{_SAVES_EVERY_S}s", "keep": {"last": _KEEP}},
    }


def _compare(figures: ArrivalFigures, stream: Stream, shelf: Shelf) -> None:
    """Learn what the weights say that was learnt, and hold what was predicted against what is answered then."""
    newest = shelf.newest()
    assert newest is not None
    learnt_in = next(array for name, array in newest.arrays.items() if name.endswith("steps/learnt_in"))
    answers = dict[int, tuple[float, int]]()
    for number in shelf.numbers():
        for name, offsets in (arrays := shelf.part(number, "arrivals").arrays).items():
            if name.endswith("/offsets"):
                partition = name.removesuffix("/offsets")
                outputs = arrays[f"{partition}/outputs/0"].tolist()
                of = Partition.parse(partition).number
                found = zip(offsets.tolist(), outputs, strict=True)
                answers |= {offset * PARTITIONS + of: (answer, round(step)) for offset, (answer, step) in found}
    arrays, facts = (told := shelf.part(newest.number, "arrivals")).arrays, told.facts
    # The state of Keras' mean: how many were right, and of how many.
    total, count = (float(arrays[f"sums/state.{at}"]) for at in range(2))
    figures.scored, figures.missed, figures.score = facts["sums"]["records"], facts["missed"], total / count
    figures.unaccounted = abs(figures.records - figures.scored - figures.missed)
    figures.unaccounted += abs(figures.scored - round(count))
    figures.unseen = figures.scored - len(answers)
    _replay(figures, stream, learnt_in, answers)


def _replay(figures: ArrivalFigures, stream: Stream, learnt_in: Any, answers: dict[int, tuple[float, int]]) -> None:
    model, asked = testifying_model.build_model(figures.records), defaultdict[int, list[int]](list)
    for number, (_, step) in answers.items():
        asked[step].append(number)
    order = np.argsort(learnt_in, kind="stable")
    batches = np.split(order, np.flatnonzero(np.diff(learnt_in[order])) + 1)
    right, live, behind, apart, newest = 0, 0, list[float](), 0.0, 0
    for step, batch in enumerate([np.array([], np.int64), *batches]):
        if step:
            # The rows of a batch that is not full have the weight that they have in a full one.
            rows = np.resize(batch, _BATCH)
            features, y = {"x": stream.x[rows], "number": rows}, stream.clicked[rows].astype(np.float32)
            before = model.predict_on_batch(features)[: len(batch), 0] > 0.5
            scored = np.array([number in answers for number in batch.tolist()])
            live += int(((before == stream.clicked[batch]) & scored).sum())
            model.train_on_batch(features, y, sample_weight=(np.arange(_BATCH) < len(batch)).astype(np.float32))
            newest = max(newest, int(batch.max()))
        if numbers := asked.pop(step, []):
            found = model.predict_on_batch({"x": stream.x[numbers], "number": np.array(numbers)})[:, 0]
            right += int(((found > 0.5) == stream.clicked[numbers]).sum())
            apart = max(apart, *(abs(mine - answers[number][0]) for mine, number in zip(found, numbers, strict=True)))
            behind += [(number - newest) / _A_SECOND for number in numbers if step]
    figures.unaccounted += sum(map(len, asked.values()))
    figures.oracle, figures.live = right / len(answers), live / len(answers)
    figures.points = round(abs(figures.score - figures.oracle) * 100, 4)
    figures.live_points = round(abs(figures.live - figures.oracle) * 100, 4)
    figures.answers_apart, figures.behind_s = float(apart), round(float(np.median(behind)), 2)


def main() -> None:
    """Read the options, watch, print."""
    parser = argparse.ArgumentParser(description="Score records when they arrive, killed on the way.")
    parser.add_argument("--minutes", type=float, default=4.0, help="how long records come")
    parser.add_argument("--kills", type=int, default=3, help="how many")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="draws the records and the kills")
    parser.add_argument("--bootstrap", help="a broker, host:port; without it one is started")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="millrace-arrivals-") as folder,
        broker(options.bootstrap, Path(folder)) as bootstrap,
    ):
        there = Path(folder) / "arrivals"
        found = watch(bootstrap, there, minutes=options.minutes, kills=options.kills, seed=options.seed)
    print(json.dumps(found.summary(), indent=1))  # noqa: T201 - what the command is for
    sys.exit(int(not found.kept))


if __name__ == "__main__":
    main()
