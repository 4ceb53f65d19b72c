"""How fast a model is pretrained from files: beside the same model fed from memory, and beside a naive pipeline.

All by the product's own loop, which counts every row. The records are the benchmark's JSON records, as the archive has
them in Parquet and in TFRecord files with GZIP; and the same numbers as teams have them, in TFRecord files of Examples
with GZIP. From memory come the very blocks that the loop takes, shuffled, in batches and as tensors, so nothing is left
to do there but to learn.

Where the model is the limit: an MLP of 1,024 by 1,024, as wide as the networks for tabular data that recommenders have;
a row costs it about ten times as much as reading the row. Where the input is the limit: the benchmark's MLP of 64 by
64, whose rates are those of reading; the one from Examples stands beside what a first attempt is: one file, parsed
record by record, no prefetch, no parallel calls, `fit`.

All take turns, some rounds, after an epoch of each that traces and is not counted; ratios are taken inside a round,
and the median is the figure. A ratio by CPU seconds tells the same where the machine does other things too;
`others_cores` says how many cores those took.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import keras
import numpy as np
import produce
import tensorflow as tf
from rig import STATE, other_work_s, report, settings_of

from millrace.app.service.model_setup import build_learner
from millrace.app.tools.pretrain.inputs import InputOptions, reader_of, training_blocks
from millrace.app.tools.pretrain.shard_sources import ShardSource, from_archive, from_files
from millrace.consumers.archive.archiver import OpenShard
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.files.file_dataset import FileBlocks
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.learner import Learner
from millrace.training.pretraining.epochs import Epoch, Pretraining, PretrainingOptions

TOPIC, FEATURES, SHARDS, PIECE = "bench", 28, 8, 16_384
FORMATS: tuple[Format, ...] = ("parquet", "tfrecord")


class Silent:
    """Hears nothing."""

    def began(self, epoch: int, rows: int) -> None: ...

    def advanced(self, rows: int, loss: float) -> None: ...

    def ended(self, epoch: Epoch) -> None: ...


class Memory:
    """Blocks that are kept in memory."""

    def __init__(self, blocks: list[Rows]) -> None:
        self.blocks = blocks

    def epoch(self, _number: int) -> Iterator[Rows]:
        yield from self.blocks


def made(rows: int) -> tuple[Any, Any]:
    """Features and labels of the benchmark's records."""
    raw = np.frombuffer(b"".join(value for part in produce.records(0, rows, "raw") for value in part), "<f4")
    table = raw.reshape(rows, FEATURES + 1)
    return table[:, :FEATURES], table[:, FEATURES]


def write_archive(folder: Path, rows: int, form: Format) -> ShardSource:
    """Write shards as `millrace archive` does."""

    def full(error: OSError) -> None:
        raise error

    every = [value for part in produce.records(0, rows, "json") for value in part]
    for part in np.array_split(np.arange(rows), SHARDS):
        partition, first, end = Partition(TOPIC, 0), int(part[0]), int(part[-1]) + 1
        shard = OpenShard(folder, partition, first, form, full)
        for at in range(first, end, PIECE):
            numbers = np.arange(at, min(at + PIECE, end))
            values = every[at : int(numbers[-1]) + 1]
            shard.add(
                Chunk(
                    partition=partition,
                    incarnation=0,
                    start=at,
                    end=at + len(numbers),
                    offsets=numbers,
                    timestamps=1_700_000_000_000 + numbers,
                    keys=[None] * len(numbers),
                    values=values,
                    headers=[()] * len(numbers),
                    nbytes=0,
                    fetched_at=0.0,
                    fingerprint=Fingerprint.of(int(numbers[-1]), 1_700_000_000_000, None, values[-1]),
                )
            )
            shard.flush()
        shard.close()
    return from_archive(folder, [TOPIC])


def write_examples(folder: Path, x: Any, y: Any, shards: int) -> list[Path]:
    """Write TFRecord files as a team has them."""
    folder.mkdir()
    paths = []
    for number, part in enumerate(np.array_split(np.arange(len(x)), shards)):
        paths.append(folder / f"{number:03}.tfrecord.gz")
        with tf.io.TFRecordWriter(str(paths[-1]), tf.io.TFRecordOptions(compression_type="GZIP")) as file:
            for i in part:
                feature = {
                    "x": tf.train.Feature(float_list=tf.train.FloatList(value=x[i])),
                    "y": tf.train.Feature(float_list=tf.train.FloatList(value=[y[i]])),
                }
                file.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())
    return paths


class Pretrained:
    """One model, and the sources that it learns from."""

    def __init__(self, hidden: int) -> None:
        self.settings = settings_of("higgs_json", {"model.args": json.dumps({"hidden": hidden})}).settings
        self.learner: Learner = build_learner(self.settings)

        self._files: dict[str, tuple[FileBlocks, Refusals]] = {}

    def rate(self, source: ShardSource, memory: list[Rows] | None = None) -> float:
        """Rows a second over an epoch of a source, or of the same rows kept in memory; all of them, or it fails."""
        blocks, refusals = (Memory(memory), Refusals()) if memory is not None else self._blocks(source)
        loop = Pretraining(self.learner, source.shards, blocks, None, refusals, PretrainingOptions())
        (epoch,) = loop.run(Silent()).epochs
        if not epoch.visited.all or epoch.learnt != source.rows:
            raise SystemExit(f"{source.what}: {epoch.visited}")
        return epoch.learnt / epoch.seconds

    def _blocks(self, source: ShardSource) -> tuple[FileBlocks, Refusals]:
        """The blocks of a source, the same each time, as a run of several epochs has them."""
        if (first := source.shards[0].path) not in self._files:
            refusals = Refusals()
            reader = reader_of(source, self.settings, refusals)
            blocks = training_blocks(reader, source, self.settings, InputOptions(), self.learner.preprocess)
            self._files[first] = blocks, refusals
        return self._files[first]

    def in_memory(self, source: ShardSource) -> list[Rows]:
        """The blocks of an epoch, as the model takes them."""
        reader = reader_of(source, self.settings, Refusals())
        return list(training_blocks(reader, source, self.settings, InputOptions(), None).epoch(0))


def naive_rate(path: Path, rows: int, batch: int) -> float:
    """Rows a second of what a first attempt is; the first batches, which trace, are not counted."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "models"))
    from mlp import build_model

    spec = {"x": tf.io.FixedLenFeature([FEATURES], tf.float32), "y": tf.io.FixedLenFeature([], tf.float32)}

    def parsed(record: Any) -> Any:
        example = tf.io.parse_single_example(record, spec)
        return example["x"], example["y"]

    model = build_model()
    dataset = tf.data.TFRecordDataset(str(path), "GZIP").map(parsed).batch(batch, drop_remainder=True)
    model.fit(dataset.take(2), verbose=0)
    began = time.perf_counter()
    model.fit(dataset, verbose=0)
    return rows // batch * batch / (time.perf_counter() - began)


@dataclass(frozen=True)
class Runs:
    """What was found of each run, round by round."""

    rates: Mapping[str, list[float]]
    cpu_s: Mapping[str, list[float]]
    others: list[float]
    """Cores that other processes took meanwhile."""

    def faster(self, one: str, other: str) -> float:
        """How many times as fast one is."""
        return ratio(self.rates[one], self.rates[other])

    def cheaper(self, one: str, other: str) -> float:
        """How many times as many rows of the same it learns in a CPU second."""
        return ratio(self.cpu_s[other], self.cpu_s[one])


def rounds_of(count: int, runs: Mapping[str, Callable[[], float]]) -> Runs:
    """Each run once a round, beginning with another one each time."""
    names = list(runs)
    rates: dict[str, list[float]] = {name: [] for name in names}
    cpu_s: dict[str, list[float]] = {name: [] for name in names}
    others = []
    for number in range(count):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            began, cpu, other = time.monotonic(), time.process_time(), other_work_s(os.getpid())
            rates[name].append(runs[name]())
            cpu_s[name].append(time.process_time() - cpu)
            others.append((other_work_s(os.getpid()) - other) / (time.monotonic() - began))
    return Runs(rates, cpu_s, others)


def ratio(ones: Sequence[float], others: Sequence[float]) -> float:
    return round(statistics.median(a / b for a, b in zip(ones, others, strict=True)), 3)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=196_608, help="for the model that is the limit")
    parser.add_argument("--light-rows", type=int, default=1_048_576, help="for the input that is the limit")
    parser.add_argument("--naive-rows", type=int, default=65_536)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    keras.utils.set_random_seed(1)
    STATE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="pretrain-", dir=STATE) as temporary:
        folder = Path(temporary)
        x, y = made(max(given.rows, given.light_rows))
        sources: dict[str, ShardSource] = {form: write_archive(folder / form, given.rows, form) for form in FORMATS}
        sources["examples"] = from_files(write_examples(folder / "few", x[: given.rows], y[: given.rows], SHARDS))
        many = from_files(write_examples(folder / "many", x[: given.light_rows], y[: given.light_rows], SHARDS))
        (one,) = write_examples(folder / "one", x[: given.naive_rows], y[: given.naive_rows], 1)
        wide, light = Pretrained(1024), Pretrained(64)
        memory = wide.in_memory(sources["parquet"])
        runs = {"memory": lambda: wide.rate(sources["parquet"], memory)}
        runs |= {name: partial(wide.rate, source) for name, source in sources.items()}
        runs |= {f"light_{form}": partial(light.rate, sources[form]) for form in FORMATS}
        runs |= {"light": lambda: light.rate(many), "naive": lambda: naive_rate(one, given.naive_rows, 1024)}
        for name in runs.keys() - {"naive"}:  # the first epoch of each traces
            runs[name]()
        found = rounds_of(given.rounds, runs)
    report(
        {f"{name}_of_memory": found.faster(name, "memory") for name in sources}
        | {"over_naive": found.faster("light", "naive")},
        {f"{name}_rows_per_s": round(statistics.median(rates)) for name, rates in found.rates.items()}
        | {f"{name}_cpu_of_memory": found.cheaper(name, "memory") for name in sources}
        | {
            "others_cores": round(statistics.median(found.others), 2),
            "others_cores_most": round(max(found.others), 2),
            "cores": len(os.sched_getaffinity(0)),
        },
    )


if __name__ == "__main__":
    main()
