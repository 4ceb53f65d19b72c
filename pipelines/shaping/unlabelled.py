"""Records without any label, where each label may be missing: nothing could be learnt from them, so they are skipped.

Nothing is remembered but how far each partition has come.
"""

import numpy as np

from millrace.pipelines.schema import PRESENT, Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, NothingRemembered, Taken
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_counts import skip_under
from millrace.pipelines.stream.slices import Skipped, only

NAME = "unlabelled"
skip_under([NAME])


class UnlabelledShaper(FollowedShaper[NothingRemembered]):
    """Leaves records out that have no label."""

    name = NAME
    setting = "records.label"

    def __init__(self, labels: tuple[str, ...]) -> None:
        super().__init__(NothingRemembered)
        self._masks = [name + PRESENT for name in labels]

    def made(self, decoded: Decoded, state: NothingRemembered) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the rows that have a label, and the records that have none."""
        del state
        taken = Taken(decoded.end, decoded.offsets, {})
        kept = np.zeros(len(decoded), np.bool_)
        for name in self._masks:
            kept |= decoded.labels[name].astype(np.bool_, copy=False)
        if kept.all():
            return decoded, [], taken
        return only(decoded, np.flatnonzero(kept)), [(int(offset), NAME) for offset in decoded.offsets[~kept]], taken


def unlabelled(schema: Schema) -> UnlabelledShaper | None:
    """Return what leaves rows of this schema out that have no label; None if each has one."""
    if not schema.labels or not all(label.masked for label in schema.labels):
        return None
    return UnlabelledShaper(tuple(label.name for label in schema.labels))
