"""`archive`: where the topics' records are kept beyond Kafka's retention."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, WithJsonSchema

from millrace.consumers.section import Section, from_folder, not_empty
from millrace.consumers.units import Duration, Size

_URL = re.compile(r"[a-z][a-z0-9+.-]*://.+")
_WITH_SECRET = re.compile(r"[^:]*://[^/]*:[^/]*@")
_FILE = "file://"


def _place(value: object) -> object:
    """Return a URL as text, and everything else as a path; a URL of a file is a path, which is safer to write to."""
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError("this is not a path; write a folder, or a URL as in s3://bucket/clicks")  # noqa: TRY004
    if value.startswith(_FILE):
        return Path(value.removeprefix(_FILE))
    if "://" not in value:
        return Path(value)
    if not _URL.fullmatch(value):
        raise ValueError("it is no URL of an object store; write one as in s3://bucket/clicks, or a folder")
    if _WITH_SECRET.match(value):
        # Without the value, which the error would show otherwise.
        raise ValueError("a URL with a password would stand in logs; leave the credentials to the environment")
    return value.rstrip("/")


def _below_folder(place: Path | str, info: ValidationInfo) -> Path | str:
    return place if isinstance(place, str) else from_folder(place, info)


ArchivePlace = Annotated[
    Path | str,
    BeforeValidator(_place),
    BeforeValidator(not_empty),
    AfterValidator(_below_folder),
    WithJsonSchema({"type": "string", "format": "path"}),
]
"""A folder, relative to the config file's; or the URL of one in an object store."""


class ArchiveSettings(Section):
    """The topics' records, kept beyond Kafka's retention."""

    path: ArchivePlace | None = Field(
        None,
        description="The folder into which `millrace archive` writes the topics' records, one folder per topic and "
        "partition below it; or the URL of such a folder in an object store, as s3://bucket/clicks. A "
        "trainer reads the records there that Kafka no longer has. Null: there is no archive.",
        examples=["./archive"],
    )
    format: Literal["parquet", "tfrecord"] = Field(
        "parquet",
        description="The format of new shards: Parquet with zstd, or TFRecord files of tf.train.Example with GZIP, "
        "which are slower and larger. Shards of both formats are read, whatever is set.",
    )
    shard_size: Size = Field(
        128 * 2**20, ge=2**16, description="A shard, which is one file, is closed when it is as large as this."
    )
    shard_age: Duration = Field(
        3600.0,
        ge=1,
        description="A shard is closed this long after its first record came, however small it is. Records that are in "
        "no closed shard are read from Kafka again after a crash.",
    )
