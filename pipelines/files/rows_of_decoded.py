"""The rows of a decoded chunk that stand in no batch yet."""

import numpy as np

from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.decode import Decoded


def rows_of(decoded: Decoded, shard: int) -> Rows:
    """Return rows [n, ...], each with the place of its shard."""
    rows = len(decoded)
    return Rows(
        features=decoded.features,
        labels=decoded.labels,
        weights=np.ones(rows, np.float32) if decoded.weights is None else decoded.weights,
        offsets=decoded.offsets,
        partitions=np.full(rows, shard, np.int32),
    )
