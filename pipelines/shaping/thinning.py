"""Thinning: only a share of the records is learnt, chosen by a hash, so that a restart and a rewind choose the same.

Without a key the choice is by topic, partition and offset: a uniform sample. With one, all records of a key are learnt
or none, as of a share of the users. Nothing is remembered but how far each partition has come.
"""

from typing import Any

import numpy as np
from pydantic import Field

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Int64s
from millrace.consumers.units import Share
from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.shaping.followed_states import FollowedShaper, NothingRemembered, Taken
from millrace.pipelines.shaping.shaper import ShapingSection
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.offset_mix import drawn, salt_of
from millrace.pipelines.stream.slices import Skipped, only

NAME = "thinning"


class ThinningSettings(ShapingSection):
    """Learning only a share of the records."""

    share: Share | None = Field(
        None,
        gt=0,
        lt=1,
        description="The share of the records that is learnt, as 0.1 or 10 %; the others are skipped. Null: all are "
        "learnt.",
    )
    by: str | None = Field(
        None,
        min_length=1,
        description="The feature whose value is the key, a whole number or a text: all records of a key are learnt, or "
        "none. Null: each record is chosen by itself.",
        examples=["user_id"],
    )

    @property
    def used(self) -> bool:
        """Whether the settings ask for it."""
        return self.share is not None

    def shaper(self, schema: Schema) -> "ThinningShaper | None":
        """Return what leaves records out; ConfigError if there is no such key."""
        if self.share is None:
            return None
        known = {field.name: field for field in schema.features}
        if self.by is not None and self.by not in known:
            raise ConfigError(f"thinning.by: there is no feature {self.by!r}; name one of {', '.join(known)}")
        if self.by is not None and (known[self.by].shape or known[self.by].numpy_dtype.kind not in "iubO"):
            raise ConfigError(
                f"thinning.by: {self.by!r} is {known[self.by].dtype}{list(known[self.by].shape) or ''}, and a key is "
                "one whole number, or a text"
            )
        return ThinningShaper(self.share, self.by)

    def without_effect(self) -> str | None:
        """Return a warning of a key by which nothing is chosen."""
        if self.used or self.by is None:
            return None
        return (
            "thinning.by has no effect: all records are learnt without a share; write thinning.share, or leave it out"
        )


class ThinningShaper(FollowedShaper[NothingRemembered]):
    """Leaves all records out but a share of them."""

    name = setting = NAME

    def __init__(self, share: float, by: str | None) -> None:
        super().__init__(NothingRemembered)
        self._share, self._by = share, by

    def made(self, decoded: Decoded, state: NothingRemembered) -> tuple[Decoded, list[Skipped], Taken]:
        """Return the rows that are chosen, and the records that are left out."""
        del state
        if self._by is None:
            # A salt of its own: what else draws by offsets must not draw the same.
            places, salt = decoded.offsets, salt_of(f"{NAME} {decoded.partition}")
        else:
            places, salt = _numbers(decoded.features[self._by]), salt_of(NAME)
        chosen = drawn(places, salt) < self._share
        left_out = [(int(offset), NAME) for offset in decoded.offsets[~chosen]]
        return only(decoded, np.flatnonzero(chosen)), left_out, Taken(decoded.end, decoded.offsets, {})


def _numbers(keys: Column) -> Int64s:
    """Return a number for each key, the same for equal keys."""
    if keys.dtype != object:
        return keys.astype(np.int64)
    texts: list[Any] = keys.tolist()
    of_each = {text: salt_of(text) for text in set(texts)}
    return np.fromiter(map(of_each.__getitem__, texts), np.int64, len(texts))
