"""The golden set: records by which checkpoints are judged. Those of them that are in the topics are never learnt.

A folder of an archive says of each record where it was in the topics, so a stream that comes to it skips it, as the
pretraining on an archive does. A file says nothing of the topics, and nothing is skipped. What checkpoints score on the
set is in `training/model/golden/`.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from millrace.consumers.records import Int64s, Partition
from millrace.consumers.section import ConfigPath
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, NothingRemembered, Taken
from millrace.pipelines.shaping.shaper import ShapingSection
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.slices import Skipped, only

NAME = "golden"
SETTING = "golden.path"


class GoldenSettings(ShapingSection):
    """Records that are never learnt, and are scored with the weights of each checkpoint."""

    is_recorded: ClassVar[bool] = False

    path: ConfigPath | None = Field(
        None,
        description="The records: a Parquet file with a column for each field, a TFRecord file of tf.train.Example, or "
        "the folder of an archive, whose offsets are skipped where the topics hold them; 100,000 at most. Each "
        "checkpoint has the scores of its weights on them, which export.only_if may name as golden.auc; "
        "`millrace pretrain` validates on them. Null: there is no golden set.",
        examples=["./golden.parquet"],
    )

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return self.path is not None

    def shaper(self, schema: Schema) -> "GoldenShaper | None":  # noqa: ARG002 - rows stay as they are
        """Return what leaves the records out of what is learnt, if it is known where the topics have them."""
        return GoldenShaper(self.path) if self.path is not None and self.path.is_dir() else None


class GoldenShaper(FollowedShaper[NothingRemembered]):
    """Leaves out the records at the offsets that an archive covers."""

    name = NAME
    setting = SETTING

    def __init__(self, folder: Path) -> None:
        super().__init__(NothingRemembered)
        self._folder = folder

    @cached_property
    def _covered(self) -> Mapping[Partition, Int64s]:
        """The offsets of each partition: a row [start, end) for each range, ascending."""
        ranges = dict[Partition, list[list[int]]]()
        from millrace.consumers.archive.shards import listing  # noqa: PLC0415 - loads Arrow

        for shard in listing(self._folder):
            mine = ranges.setdefault(shard.partition, [])
            if mine and mine[-1][1] == shard.first:
                mine[-1][1] = shard.next_offset
            else:
                mine.append([shard.first, shard.next_offset])
        return {partition: np.array(found, np.int64) for partition, found in ranges.items()}

    def depends_on(self) -> dict[str, Any]:
        """Return the offsets, by which a checkpoint knows the set again."""
        return {"covered": {str(partition): found.tolist() for partition, found in self._covered.items()}}

    def begins_anew(self, *, others: bool) -> str | None:
        """Return a warning that records of the set may have been learnt."""
        what = "of another set" if others else "without a golden set"
        return f"{SETTING}: the checkpoint was made {what}: what it has read of {self._folder} may have been learnt"

    def made(self, decoded: Decoded, state: NothingRemembered) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the rows of a chunk that the set does not hold, and the records that it holds."""
        del state
        taken = Taken(decoded.end, decoded.offsets, {})
        covered = self._covered.get(decoded.partition)
        if covered is None:
            return decoded, [], taken
        # An even place is outside of every range.
        held = covered.reshape(-1).searchsorted(decoded.offsets, "right") % 2 == 1
        left_out = [(int(offset), NAME) for offset in decoded.offsets[held]]
        return only(decoded, np.flatnonzero(~held)), left_out, taken
