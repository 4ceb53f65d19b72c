"""The gate of served predictions: it keeps for the trainer by what number the server knows the rows that pass.

A row is kept if servers log what they answer for such a row: its offset, and its identity.
"""

from typing import NamedTuple

import numpy as np

from millrace.consumers.records import Int64s
from millrace.pipelines.gates.watching_gate import WatchingGate
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.decode import Decoded
from millrace.pipelines.stream.row_identity import Identities, RowIdentity, in_share


class Identified(NamedTuple):
    """Sampled records of one partition."""

    offsets: Int64s
    """Ascending."""
    identities: Identities


class ServedGate(WatchingGate[Identified, Identified]):
    """Keeps the identities of a share of the records that pass."""

    def __init__(self, schema: Schema, share: float) -> None:
        super().__init__()
        self._identity, self._share = RowIdentity(schema), share

    def keep(self, decoded: Decoded) -> tuple[Int64s, Identified]:
        """Keep the identities of a chunk."""
        found = self._identity.of(decoded.features) if len(decoded) else np.zeros(0, np.uint64)
        rows = np.flatnonzero(in_share(found, self._share))
        offsets = decoded.offsets[rows]
        return offsets, Identified(offsets, found[rows])

    def piece_of(self, kept: Identified, rows: slice, start: int, end: int) -> Identified:
        """Return the identities of some records."""
        del start, end
        return Identified(kept.offsets[rows], kept.identities[rows])
