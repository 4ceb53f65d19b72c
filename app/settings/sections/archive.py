"""`archive`: where the topics' records are kept beyond Kafka's retention."""

from typing import Literal

from pydantic import Field

from app.settings.section import ConfigPath, Section
from app.settings.units import Duration, Size


class ArchiveSettings(Section):
    """Where the topics' records are kept beyond Kafka's retention."""

    path: ConfigPath | None = Field(
        None,
        description="The folder into which `millrace archive` writes the topics' records, one folder per topic and "
        "partition below it. A trainer reads there what Kafka no longer has. null: there is no archive.",
        examples=["./archive"],
    )
    format: Literal["parquet", "tfrecord"] = Field(
        "parquet",
        description="How new shards are written: Parquet with zstd, or TFRecord files of tf.train.Example with GZIP, "
        "which are slower and larger. Both are read, whatever is set.",
    )
    shard_size: Size = Field(
        128 * 2**20, ge=2**16, description="A shard, which is one file, is closed when it is as large as this."
    )
    shard_age: Duration = Field(
        3600.0,
        ge=1,
        description="A shard is closed this long after its first record came, however small it is. What is in no "
        "closed shard is read from Kafka again after a crash.",
    )
