"""Labels that come later: what the join costs, from the bytes of both topics to a learnt block.

The same records are learnt with the label that stands in them, and with one from a topic of labels, in turns, in one
process: first with a label for three of a hundred records, then with one for each. What the join takes in counts too:
labels are decoded, put into the index, found, and settled. Time is that of the CPU.
"""

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from rig import report
from windows import BATCH, BATCHES, FEATURES, PARTITION, build, chunk

from millrace.app.settings import to_decoder
from millrace.app.settings.sections.labels import LabelsSettings
from millrace.app.settings.sections.records import RecordsSettings
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.handoff import JOINED_RECORDS, SendEnd
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.shaping.labels.clock import NEVER, Jumps, LabelClocks
from millrace.pipelines.shaping.labels.join import UNKNOWN, Connected, LabelShaper
from millrace.pipelines.shaping.labels.label_reader import Kept, LabelReader
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions

CLICKS = Partition("clicks", 0)
SECTION: Mapping[str, Any] = {"features": {"x": {"dtype": "float32", "shape": [FEATURES]}}}
STEP_MS = 1
"""Between two records."""
LABELS: Mapping[str, Any] = {
    "topics": ["clicks"],
    "join": {"record": "impression"},
    "label": {"y": {"dtype": "float32", "absent": 0.0}},
    "within": "30s",
    "early": "1s",
}


class NoSource:
    """Labels are handed over by hand."""

    def begin(
        self,
        incarnation: int,
        positions: Mapping[Partition, int],
        handoff: SendEnd,
        *,
        fingerprints: Mapping[Partition, Fingerprint | None],
    ) -> None:
        """Send nothing."""

    def ends(self) -> tuple[Mapping[Partition, int], Mapping[Partition, int]]:
        """Know of no end."""
        return {}, {}

    def pause(self) -> None:
        """Do nothing."""


def chunks_of(values: list[bytes], times: list[int], partition: Partition) -> list[Chunk]:
    """Return chunks as the service joins them in a backlog."""
    found = []
    for at in range(0, len(values), JOINED_RECORDS):
        one = chunk(values[at : at + JOINED_RECORDS], at)
        stamps = np.array(times[at : at + JOINED_RECORDS], np.int64)
        found.append(Chunk(**{**_fields(one), "partition": partition, "timestamps": stamps}))
    return found


def _fields(one: Chunk) -> dict[str, Any]:
    return {name: getattr(one, name) for name in Chunk.__slots__}


class Plain:
    """Learns records that hold their label."""

    def __init__(self, learner: Learner, records: Sequence[Chunk]) -> None:
        self.learner, self.records = learner, records
        section = {**SECTION, "label": {"y": "float32"}}
        self.decoder = to_decoder(RecordsSettings.model_validate(section))

    def learn(self) -> float:
        """Learn all; return the CPU's seconds."""
        began = time.process_time()
        self._learn(None, lambda _: None)
        return time.process_time() - began

    def _learn(self, shape: Any, before: Any) -> None:
        options = AssembleOptions(batch_size=BATCH, batches_per_call=BATCHES)
        assembler = Assembler(self.learner.options.schema, options, [PARTITION], 1, shape=shape)
        for each in self.records:
            before(each)
            assembler.add(decode_chunk(each, self.decoder))
            while (block := assembler.take(0.0)) is not None:
                rows = tf.nest.map_structure(tf.constant, block.rows)
                self.learner.learn(rows._replace(features=rows.features, labels=rows.labels["y"]))
                self.settled(block.facts)

    def settled(self, facts: Any) -> None:
        """Remember nothing."""


class Joined(Plain):
    """Learns the same records with labels of another topic."""

    def __init__(self, learner: Learner, records: Sequence[Chunk], labels: Sequence[Chunk]) -> None:
        super().__init__(learner, records)
        self.settings, self.labels = LabelsSettings.model_validate(LABELS), labels
        section = {**SECTION, "key": {"field": "impression"}}
        self.decoder = to_decoder(RecordsSettings.model_validate(section))
        self.of_labels = to_decoder(self.settings.records())
        self.shaper = LabelShaper(self.settings.rules)

    def learn(self) -> float:
        """Read the labels as records ask for them, and learn all; return the CPU's seconds."""
        rules = self.settings.rules
        self.shaper = shaper = LabelShaper(rules)
        jumps = Jumps(None)
        clocks = LabelClocks(jumps, early_ms=rules.early_ms)
        kept = Kept(shaper.index, clocks, shaper.silence)
        reader = LabelReader(rules, NoSource(), self.of_labels, kept, on_turn=shaper.expire)
        shaper.connect(Connected(reader, jumps, lambda: {CLICKS: (0, NEVER)}, lambda: UNKNOWN))
        began, waiting = time.process_time(), list(self.labels)
        shape = shaper.open(1, {PARTITION: 0})

        def ahead(records: Chunk) -> None:
            """Read the labels up to when these records are due."""
            due = int(records.timestamps[-1]) + rules.within_ms
            while waiting and clocks.through() < due:
                chunk = waiting.pop(0)
                reader._take(chunk, decode_chunk(chunk, self.of_labels))  # noqa: SLF001 - what its thread does with each

        self._learn(shape, ahead)
        took = time.process_time() - began
        reader.stop()
        return took

    def settled(self, facts: Any) -> None:
        """Settle the labels too."""
        self.shaper.settle(facts)


def made_up(records: int, share: float) -> tuple[list[Chunk], list[Chunk]]:
    """Make up records, and labels of some of them."""
    random, began = np.random.default_rng(7), round(time.time() * 1000) - 3_600_000
    x, ids = random.normal(size=(records, FEATURES)).round(4), random.integers(0, 2**63, records)
    keys = [f"{one:016x}" for one in ids.tolist()]
    values = [
        json.dumps({"impression": key, "x": row, "y": float(sum(row) > 0)}).encode()
        for key, row in zip(keys, x.tolist(), strict=True)
    ]
    times = [began + at * STEP_MS for at in range(records)]
    clicked = np.flatnonzero(random.random(records) < share)
    came = sorted(
        (times[at] + int(delay), keys[at])
        for at, delay in zip(clicked, random.integers(0, 30_000, len(clicked)), strict=True)
    )
    came.append((times[-1] + 120_000, "nobody"))
    labels = [json.dumps({"impression": key, "y": 1.0}).encode() for _, key in came]
    return chunks_of(values, times, PARTITION), chunks_of(labels, [at for at, _ in came], CLICKS)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=131_072)
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    ratios, took = dict[str, float](), dict[str, dict[str, float]]()
    for name, share in (("join_of_plain", 0.03), ("join_all_of_plain", 1.0)):
        records, labels = made_up(given.records, share)
        section = RecordsSettings.model_validate({**SECTION, "label": {"y": "float32"}})
        options = LearnerOptions(
            schema=to_decoder(section).schema, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1
        )
        learner = Learner(build, None, options)
        plain, joined = Plain(learner, records), Joined(learner, records, labels)
        turns = [(plain.learn(), joined.learn()) for _ in range(given.rounds + 1)]
        # Of each turn by itself: what slows the machine slows both. The first traces the call.
        ratios[name] = round(statistics.median(one / other for one, other in turns[1:]), 3)
        a_record = [statistics.median(each) / given.records * 1e6 for each in zip(*turns[1:], strict=True)]
        took[name] = {"plain": round(a_record[0], 2), "joined": round(a_record[1], 2)}
    report(ratios, {"cpu_us_a_record": took})


if __name__ == "__main__":
    main()
