"""Windows and records left out in a pretraining: the rows are those of a live run, and so is what is remembered."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import Settings, load, to_decoder
from millrace.app.tools.pretrain.inputs import InputOptions, reader_of, training_blocks, validation_blocks
from millrace.app.tools.pretrain.pretrain import require_order, shaped_reading
from millrace.app.tools.pretrain.shard_sources import ShardSource, TopicRange, from_archive, split
from millrace.consumers.archive.shard_names import Format
from millrace.consumers.archive.shards import Shard
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.positions import Ago, Now, Offsets
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.files.visits import Refusals, Visits
from millrace.pipelines.shaping.shaper import Shaper, open_shapers
from millrace.pipelines.stream.assemble import AssembleOptions, Assembler
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.decode import decode_chunk
from tests.consumers.archive import records

pytestmark = pytest.mark.tensorflow
CONFIG: dict[str, Any] = {
    "name": "clicks",
    "kafka": {"bootstrap_servers": ["127.0.0.1:1"], "topics": ["clicks"]},
    "records": {
        "format": "json",
        "features": {"user": "string", "x": "float32", "word": "string"},
        "label": {"y": "int32"},
    },
    "model": {"build": "./model.py:build_model"},
    "training": {"batch_size": 16, "batches_per_call": 2},
    "checkpoints": {"path": "./checkpoints"},
}
WINDOWS = {"by": "user", "length": 5, "lengths": "known", "gaps": "gaps", "every": 2, "max_bytes": "24kB"}
RESAMPLED = {"target": {0: 0.5, 1: 0.5}, "how": "resample"}
SHAPED: dict[str, dict[str, Any]] = {"windows": {"windows": WINDOWS}, "resample": {"balance": RESAMPLED}}
SHAPED["both"] = {**SHAPED["windows"], **SHAPED["resample"]}
LEFT_OUT = {"windows": {"windows"}, "resample": {"balance"}, "both": {"windows", "balance"}}
ENDS = {0: (7, 900, 2000, 3100), 1: (0, 1500, 1501, 2600), 2: (40, 300)}
"""Where the shards of each partition begin and end."""

LONE = 1500
"""The one record of a shard."""

Row = tuple[bytes, ...]
Found = dict[tuple[Partition, int], Row]


def chunk_of(partition: Partition, start: int, end: int) -> Chunk:
    """Return records of few users, one in ten of class 1, with gaps, times that go back, and some that are refused."""
    there, values, times = list[int](), list[bytes](), list[int]()
    for offset in range(start, end):
        random = Random(partition.number * 1_000_003 + offset)
        if random.random() < 0.05 and offset != LONE:
            continue
        record = {"user": f"u{random.randrange(40)}", "x": random.random(), "word": "w" * random.randrange(70)}
        label = {} if random.random() < 0.02 else {"y": int(random.random() < 0.1)}
        there.append(offset)
        values.append(json.dumps(record | label).encode())
        times.append(1_700_000_000_000 + (offset * 7919) % 5000 + offset * 3)
    return replace(records.chunk(start, end, there, partition), values=values, timestamps=np.array(times, np.int64))


def archived(folder: Path, form: Format) -> list[Shard]:
    found = []
    for number, ends in ENDS.items():
        for start, end in pairwise(ends):
            cuts = pairwise([*range(start, end, 700), end])
            chunks = [chunk_of(Partition("clicks", number), *cut) for cut in cuts]
            found.append(records.shard_of(folder, chunks, form))
    return found


def settings_of(folder: Path, shaping: str) -> Settings:
    (folder / "clicks.yaml").write_text(json.dumps({**CONFIG, **SHAPED[shaping]}))
    return load(folder / "clicks.yaml", {}).settings


def found_in(blocks: Iterable[Rows], partition_of: Sequence[Partition]) -> Found:
    """Return each present row by its partition and offset, to the bit; none twice."""
    found: Found = {}
    for rows in blocks:
        offsets, partitions = np.asarray(rows.offsets), np.asarray(rows.partitions)
        labels = rows.labels if isinstance(rows.labels, Mapping) else {"y": rows.labels}
        columns = [np.asarray(one) for named in (rows.features, labels) for _, one in sorted(named.items())]
        columns.append(np.asarray(rows.weights))
        for place in zip(*np.nonzero(offsets >= 0), strict=True):
            key = partition_of[int(partitions[place])], int(offsets[place])
            assert key not in found
            found[key] = tuple(repr(np.asarray(column[place]).tolist()).encode() for column in columns)
    return found


def live(settings: Settings, seed: int) -> tuple[Found, list[Shaper]]:
    """Return the rows of a live run over the same records, in other chunks, and its states at the end."""
    random, decoder, states = Random(seed), to_decoder(settings.records), list(settings.shapers())
    table = [Partition("clicks", number) for number in ENDS]
    positions = {partition: ENDS[partition.number][0] for partition in table}
    shape = open_shapers(states, 1, positions)
    assembler = Assembler(
        settings.row_schema,
        AssembleOptions(batch_size=16, batches_per_call=3, shuffle=48),
        table,
        1,
        shape=shape,
    )
    blocks = []
    waiting = dict(positions)
    while waiting:
        partition = random.choice(sorted(waiting))
        end = min(waiting[partition] + random.randrange(1, 400), ENDS[partition.number][-1])
        chunk = replace(chunk_of(partition, waiting[partition], end), start=waiting[partition], end=end)
        if len(chunk):
            assembler.add(decode_chunk(chunk, decoder))
            waiting[partition] = end
        if waiting[partition] == ENDS[partition.number][-1]:
            del waiting[partition]
        while (block := assembler.take(0.0, flush=not waiting)) is not None:
            blocks.append(block)
            for one in states:
                one.settle(block.facts)
    return found_in([block.rows for block in blocks], table), states


@pytest.mark.parametrize(
    ("shaping", "cache"),
    [
        *(pytest.param(one, None, marks=pytest.mark.nightly) for one in ("windows", "resample")),
        ("both", None),
        ("both", "memory"),
    ],
)
def test_a_pretraining_has_the_rows_of_a_live_run_and_ends_with_its_states(
    tmp_path: Path, shaping: str, cache: str | None
) -> None:
    settings = settings_of(tmp_path, shaping)
    archived(tmp_path / "archive", "parquet" if cache is None else "tfrecord")
    source = from_archive(tmp_path / "archive", ["clicks"])
    training, validation = split(source, 0.3)
    assert validation is not None
    reading = shaped_reading(settings, training, validation, source.positions)
    assert reading.training is not None
    assert len(reading.training.chains) == len(ENDS)
    refusals, options = Refusals(), InputOptions(shuffle=200, cache=cache)
    blocks = training_blocks(
        reader_of(training, settings, refusals, reading.training), training, settings, options, None
    )
    judged = validation_blocks(validation, settings, options, None, reading.validation)
    expected, states = live(settings, seed=3)
    tables = [[shard.partition for shard in part.archived] for part in (training, validation)]
    begins = {chain.partition: chain.start for chain in (reading.validation.chains if reading.validation else ())}
    assert begins, "some partition has shards of both kinds"
    for number in range(2):
        epoch, visits = list(blocks.epoch(number)), Visits(training.shards)
        for rows in epoch:
            here = rows.offsets.numpy() >= 0
            visits.add(rows.partitions.numpy()[here], rows.offsets.numpy()[here])
        assert visits.ended(refusals.of).all
        learnt, scored = found_in(epoch, tables[0]), found_in(judged.epoch(0), tables[1])
        assert learnt.keys().isdisjoint(scored)
        assert all(offset >= begins[partition] for partition, offset in scored)
        assert {**learnt, **scored} == expected
        for mine, theirs in zip(reading.states, states, strict=True):
            (arrays, facts), (live_arrays, live_facts) = mine.saved(), theirs.saved()
            assert facts == live_facts
            assert {name: one.tolist() for name, one in arrays.items()} == {
                name: one.tolist() for name, one in live_arrays.items()
            }
    left_out = refusals.by_setting()
    assert left_out.keys() == LEFT_OUT[shaping]
    kept = sum(shard.rows for shard in training.shards) - sum(left_out.values()) - sum(refusals.by_reason().values())
    assert kept == len(learnt)


def test_shards_of_a_partition_stay_in_order_where_times_go_back(tmp_path: Path) -> None:
    for start, times in ((0, 500), (10, 300), (20, 400)):
        chunk = records.chunk(start, start + 10)
        moved = replace(chunk, timestamps=chunk.timestamps - chunk.timestamps[0] + times)
        records.shard_of(tmp_path, [moved])
    source = from_archive(tmp_path, ["clicks"])
    assert [shard.first for shard in source.archived] == [0, 10, 20]


def test_a_source_that_does_not_say_which_records_come_before_is_refused(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, "both")
    archived(tmp_path / "archive", "parquet")
    source = from_archive(tmp_path / "archive", ["clicks"])
    positions = source.positions
    assert positions is not None
    files = ShardSource(what="TFRecord files", shards=source.shards)
    stretch = TopicRange(start=Ago(60), until=Now())
    elsewhere = Offsets({Partition("clicks", 0): 3000})
    require_order(settings, source, Offsets(dict(positions)), served=False)
    require_order(settings, stretch, None, served=False)
    with pytest.raises(ConfigError, match="--service: its workers read shards in no order, which windows cannot do"):
        require_order(settings, source, None, served=True)
    with pytest.raises(ConfigError, match="windows: a file of Examples names no partition"):
        require_order(settings, files, None, served=False)
    with pytest.raises(ConfigError, match="--position: with windows clicks:0 goes on at 3100, where the archive ends"):
        require_order(settings, source, elsewhere, served=False)
    with pytest.raises(ConfigError, match="--position: with windows live training begins where the range ends"):
        require_order(settings, stretch, elsewhere, served=False)
    resampled = settings_of(tmp_path, "resample")
    with pytest.raises(ConfigError, match=r"balance\.how: resample: a file of Examples"):
        require_order(resampled, files, None, served=False)
    (tmp_path / "clicks.yaml").write_text(json.dumps(CONFIG))
    require_order(load(tmp_path / "clicks.yaml", {}).settings, files, elsewhere, served=True)
