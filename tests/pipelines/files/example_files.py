"""Files of `tf.train.Example`, and the rows that a dataset makes of them."""

import gzip
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.pipelines.files.tfrecord_frames import count_records
from millrace.pipelines.files.visits import CountedShard
from millrace.pipelines.stream.blocks import Rows

Features = Mapping[str, object]
"""Numbers or bytes by name, alone or in lists."""


def example(features: Features) -> bytes:
    """Return a serialised Example; the first element says of which type a feature is, and no element that of none."""
    made = {}
    for name, value in features.items():
        values: list[Any] = [*value] if isinstance(value, (list, tuple)) else [value]
        if not values:
            made[name] = tf.train.Feature()
        elif isinstance(values[0], bytes):
            made[name] = tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        elif isinstance(values[0], int):
            made[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=values))
        else:
            made[name] = tf.train.Feature(float_list=tf.train.FloatList(value=values))
    found: bytes = tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()
    return found


def write(path: Path, records: Iterable[bytes]) -> CountedShard:
    """Write a TFRecord file, compressed where its name ends with gz."""
    kind = "GZIP" if path.suffix == ".gz" else ""
    with tf.io.TFRecordWriter(str(path), tf.io.TFRecordOptions(compression_type=kind)) as file:
        for record in records:
            file.write(record)
    rows = count_records(path)
    return CountedShard(name=path.name, path=str(path), rows=rows, end=rows)


def cut_short(path: Path) -> None:
    """Take the last bytes of a file's records away."""
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    assert len(raw) > struct.calcsize("<Q")
    path.write_bytes(gzip.compress(raw[:-3]) if path.suffix == ".gz" else raw[:-3])


def present(blocks: Iterable[Rows]) -> list[tuple[int, int, float]]:
    """Return shard, row and the feature `x` of each present row, in the order of the blocks."""
    found = []
    for rows in blocks:
        offsets, shards = rows.offsets.numpy(), rows.partitions.numpy()
        x = rows.features["x"].numpy()
        assert (rows.weights.numpy()[offsets < 0] == 0).all()
        here = offsets >= 0
        assert here.any(axis=1).all(), "no batch consists of absent rows"
        found += list(zip(shards[here].tolist(), offsets[here].tolist(), np.asarray(x[here]).tolist(), strict=True))
    return found
