"""What is watched of the answers: what it costs on the way from bytes to a learnt block, with 28 features.

The same records, JSON and raw, are decoded, made into blocks and learnt by the product's own parts, in turns, in one
thread: without any watcher, in a call that returns no answers; with the calibration; with the inputs besides, both of
which are always on; and with slices by two fields besides, of which the model sees none. Event times are those of a
stream of 100,000 records a second. The inputs are compared every four seconds of event time, so the same records as a
backlog of a stream of 1,000 a second, `replayed`, cost more. Time is that of the CPU, and the ratio of two turns
scatters by a tenth: the two ways whose ratio has a bar take turns in `pairs` of further ones. `in_watchers` is the
share of a turn that is spent in what watches, which leaves out that the call returns answers.

`in_group` is what a group of two pays besides, once a second at 100,000 records a second: the bytes of what a worker
has seen, the milliseconds to gather and pack them, and those that the chief takes to add them to its own.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from rig import report
from windows import PARTITION, chunk

from millrace.app.settings.sections.records import RecordsSettings, slice_fields, to_decoder, to_schema
from millrace.consumers.handoff import JOINED_RECORDS
from millrace.consumers.records import Chunk
from millrace.pipelines.formats import Decoder
from millrace.pipelines.gates.input_gate import InputGate
from millrace.pipelines.gates.slice_gate import SliceGate
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.decode import decode_chunk
from millrace.pipelines.stream.freed_memory import keep_freed_memory
from millrace.training.group.watched_together import WatchedTogether
from millrace.training.model.call import compiled_call
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.telemetry.calibration.calibration import Calibration
from millrace.training.telemetry.watcher import Call, Watcher
from millrace.training.trainer.inputs.input_watch import Inputs
from millrace.training.trainer.metric_guesses import plan_of
from millrace.training.trainer.slices.slice_scores import SliceScores

FEATURES, UNITS, BATCH, BATCHES = 28, 64, 256, 16
COUNTRIES, APPS = 40, 12
SECTION: dict[str, Any] = {
    "features": {"x": {"dtype": "float32", "shape": [FEATURES]}},
    "label": {"field": "y", "dtype": "float32"},
}
WAYS = ("plain", "calibration", "always", "replayed", "eyes")
PAIR = ("plain", "always")
RATE = 100
"""Records a millisecond."""
Watch = Callable[[Learner, RecordsSettings], Sequence[Watcher]]


def build() -> Any:
    """Build a small classifier."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(UNITS, activation="relu")(keras.layers.Dense(UNITS, activation="relu")(x))
    model = keras.Model(x, keras.layers.Dense(1, activation="sigmoid")(hidden))
    model.compile(optimizer=keras.optimizers.Adam(0.001), loss="binary_crossentropy", metrics=["accuracy"])
    return model


def values_of(form: str, records: int) -> list[bytes]:
    """Make records up; those of JSON have their countries as texts, raw ones as numbers behind all else."""
    random = np.random.default_rng(7)
    x = random.normal(size=(records, FEATURES)).round(4)
    y, countries, apps = (
        (x.sum(axis=1) > 0),
        random.integers(COUNTRIES, size=records),
        random.integers(APPS, size=records),
    )
    if form == "raw":
        return [
            row.astype("<f4").tobytes() + np.float32(label).tobytes() + np.array([country, app], "<i8").tobytes()
            for row, label, country, app in zip(x, y, countries, apps, strict=True)
        ]
    return [
        json.dumps({"x": row, "y": float(label), "country": f"country-{country}", "app": int(app)}).encode()
        for row, label, country, app in zip(x.tolist(), y, countries.tolist(), apps.tolist(), strict=True)
    ]


def records_of(form: str, way: str) -> RecordsSettings:
    """Return what a record holds. Raw ones are read whole, so the plain way has both fields without their use."""
    slices = {"country": "string" if form == "json" else "int64", "app": "int64"}
    return RecordsSettings.model_validate(
        {**SECTION, "format": form, **({"slices": slices} if way == "eyes" or form == "raw" else {})}
    )


def learner_of(records: RecordsSettings, *, answers: bool) -> Learner:
    """Build a learner whose calls return answers, or none, as before there were any."""
    most = compiled_call.MOST_COLUMNS
    compiled_call.MOST_COLUMNS = most if answers else 0
    options = LearnerOptions(schema=to_schema(records), batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
    learner = Learner(build, None, options)
    learner.trace(learner.rows_of(learner.probe()), deterministic=False)
    compiled_call.MOST_COLUMNS = most
    return learner


def watchers_of(learner: Learner, records: RecordsSettings, way: str, *, in_group: bool = False) -> list[Watcher]:
    """Return what watches."""
    plan = plan_of(learner.model, learner.call.metrics)
    found: list[Watcher] = [] if way == "plain" else [Calibration(plan, 300.0, time.monotonic)]
    if way in {"always", "replayed", "eyes"}:
        found.append(Inputs(InputGate(learner.options.schema), in_group=in_group))
    if way == "eyes":
        names = [field.name for field in slice_fields(records)]
        found.append(SliceScores(SliceGate(names), plan, 300.0, time.monotonic, in_group=in_group))
    return found


def learnt(
    chunks: Sequence[Chunk], decoder: Decoder, learner: Learner, watchers: Sequence[Watcher]
) -> tuple[float, float]:
    """Learn all records; return the CPU's seconds, and those of them that this thread spent in what watches."""
    began, own = time.process_time(), 0.0
    options = AssembleOptions(batch_size=BATCH, batches_per_call=BATCHES)
    assembler = Assembler(learner.options.schema, options, [PARTITION], 1)
    gates = [gate for one in watchers for gate in one.gates]
    for gate in gates:
        gate.begin({})
    for each in chunks:
        decoded = decode_chunk(each, decoder)
        watching = time.thread_time()
        for gate in gates:
            gate.admits(decoded)
        own += time.thread_time() - watching
        assembler.add(decoded)
        while (block := assembler.take(0.0)) is not None:
            rows = tf.nest.map_structure(tf.constant, block.rows)
            rows = rows._replace(labels=rows.labels["y"])
            outputs = learner.learn(rows).result.outputs
            facts, present = block.facts, rows.offsets.numpy() >= 0
            call = Call(facts=facts, rows=[(rows, present)], scored=(), outputs=[outputs], step=1, records=facts.rows)
            watching = time.thread_time()
            for watcher in watchers:
                watcher.called(call)
            own += time.thread_time() - watching
    for watcher in watchers:
        # The trainer posts once a second.
        watcher.figures()  # type: ignore[attr-defined]  # all of them have some
    return time.process_time() - began, own


class Exchange:
    """What a member sends, and what reaches the chief of it; both have seen the same, so they agree at once."""

    def __init__(self, of_others: bytes = b"") -> None:
        self.sent, self._of_others = b"", of_others

    def gather(self, mine: bytes) -> list[bytes]:
        return [mine, mine]

    def collect(self, mine: bytes) -> list[bytes]:
        self.sent = mine
        return [b"", self._of_others] if self._of_others else []


def report_of(watchers: Sequence[Watcher], exchange: Exchange, *, is_chief: bool) -> float:
    """Make the report of one member; return the seconds of CPU that it took."""
    group: Any = SimpleNamespace(exchange=exchange, membership=SimpleNamespace(is_chief=is_chief))
    together, began = WatchedTogether(group, watchers), time.process_time()
    together.report()
    return time.process_time() - began


def exchanged(chunks: Sequence[Chunk], records: RecordsSettings, learner: Learner, rounds: int) -> dict[str, float]:
    """Return what it costs that the chief takes in what another member has seen of these records, with slices."""
    chiefs, others = (watchers_of(learner, records, "eyes", in_group=True) for _ in range(2))
    gathering, taking, sent = list[float](), list[float](), b""
    for _ in range(rounds + 1):
        for watchers in (chiefs, others):
            learnt(chunks, to_decoder(records), learner, watchers)
        of_member = Exchange()
        gathering.append(report_of(others, of_member, is_chief=False))
        sent = of_member.sent
        taking.append(report_of(chiefs, Exchange(sent), is_chief=True))
    a_second = RATE * 1000 / sum(map(len, chunks))
    return {
        "sent_bytes": round(len(sent) * a_second),
        "gather_ms": round(statistics.median(gathering[1:]) * 1000 * a_second, 2),
        "take_ms": round(statistics.median(taking[1:]) * 1000 * a_second, 2),
    }


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=60)
    given = parser.parse_args()
    keep_freed_memory()  # as the service does: without it what a watcher frees is charged to whoever comes next
    found: dict[str, dict[str, Any]] = {}
    for form in ("json", "raw"):
        values = values_of(form, given.records)
        slow = [chunk(values[first : first + JOINED_RECORDS], first) for first in range(0, len(values), JOINED_RECORDS)]
        chunks = [replace(one, timestamps=one.offsets // RATE) for one in slow]
        settings = {way: records_of(form, way) for way in WAYS}
        learners = {way: learner_of(settings[way], answers=way != "plain") for way in WAYS}
        watchers = {way: watchers_of(learners[way], settings[way], way) for way in WAYS}
        took: dict[str, list[float]] = {way: [] for way in WAYS}
        shares: dict[str, list[float]] = {way: [] for way in WAYS}
        for turn in range(given.rounds + given.pairs + 1):
            ways = WAYS if turn <= given.rounds else PAIR
            for way in ways[turn % len(ways) :] + ways[: turn % len(ways)]:
                seconds, own = learnt(
                    slow if way == "replayed" else chunks, to_decoder(settings[way]), learners[way], watchers[way]
                )
                if turn:
                    took[way].append(seconds)
                    shares[way].append(own / seconds)
        found[form] = {
            "us_a_record": {way: round(statistics.median(each) / given.records * 1e6, 3) for way, each in took.items()},
            "of_plain": {
                way: round(statistics.median(a / b for a, b in zip(took["plain"], took[way], strict=False)), 3)
                for way in WAYS[1:]
            },
            "in_watchers": {way: round(statistics.median(shares[way]), 4) for way in WAYS[1:]},
            "in_group": exchanged(chunks, settings["eyes"], learners["eyes"], given.rounds),
        }
    of_plain = [(form, way, one["of_plain"][way]) for form, one in found.items() for way in WAYS[1:]]
    report(
        {
            "eyes_of_plain": min(share for _, way, share in of_plain if way == "always"),
            "slices_of_plain": min(share for _, way, share in of_plain if way == "eyes"),
        },
        found,
    )


if __name__ == "__main__":
    main()
