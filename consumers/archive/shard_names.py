"""Where a shard is: the names of its two files, and of the folder of its partition. Pure; runs anywhere.

A key is a file's place in the archive, with slashes, as `clicks/0/00000000000000000000-00000000000000119999.parquet`.
Names are padded with zeros, so that a listing is in order of offsets.
"""

import re
from typing import Literal, NamedTuple

from millrace.consumers.records import Partition

Format = Literal["parquet", "tfrecord"]
SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "tfrecord": ".tfrecord.gz"}
_FORMATS = {suffix: form for form, suffix in SUFFIXES.items()}
_NAME = re.compile(r"(\d{20})-(\d{20})(\.parquet|\.tfrecord\.gz)", re.ASCII)
_FACTS = re.compile(r"\d{20}-\d{20}\.json", re.ASCII)
_TOPIC = re.compile(r"[\w.-]+", re.ASCII)
"""What Kafka lets a topic be called."""
OPEN = ".open-"
"""How the name of a file begins that is being written, or was when its process died."""


class ShardName(NamedTuple):
    """What the name of a shard says."""

    first: int
    """The first offset that it covers, present or not."""
    next_offset: int
    """One past the last offset that it covers."""
    format: Format

    def __str__(self) -> str:
        return f"{self.first:020}-{self.next_offset - 1:020}{SUFFIXES[self.format]}"

    def overlaps(self, other: "ShardName") -> bool:
        """Return whether both cover some offset."""
        return self.first < other.next_offset and other.first < self.next_offset


def shard_name(name: str) -> ShardName | None:
    """Return what a file's name says; None where it is not that of a shard."""
    found = _NAME.fullmatch(name)
    return None if found is None else ShardName(int(found[1]), int(found[2]) + 1, _FORMATS[found[3]])


def home_of(partition: Partition) -> str:
    """Return the folder that holds the shards of a partition."""
    return f"{partition.topic}/{partition.number}"


def facts_name(shard: str) -> str:
    """Return the name, or the key, of the JSON file that belongs to a shard's."""
    home, slash, name = shard.rpartition("/")
    return f"{home}{slash}{name.partition('.')[0]}.json"


def is_facts(name: str) -> bool:
    """Return whether a file is called as the JSON file of a shard is."""
    return _FACTS.fullmatch(name) is not None


def is_topic(name: str) -> bool:
    """Return whether a topic may have this name: a volume may have folders of its own, such as lost+found."""
    return _TOPIC.fullmatch(name) is not None
