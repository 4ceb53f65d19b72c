"""Reader of shards whose rows depend on the records before them: a chain of shards for each partition."""

from collections.abc import Iterator, Sequence

from millrace.pipelines.files.rows_of_decoded import rows_of
from millrace.pipelines.files.shard_files import ChunkFiles, Order, ReadShard
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping.row_chains import RowChains
from millrace.pipelines.stream.blocks import Rows


class ChainedFiles(ChunkFiles):
    """Reads the shards of each partition in the order of their offsets, and partitions beside each other."""

    def __init__(
        self,
        read: ReadShard,
        decoder: Decoder,
        schema: Schema,
        chains: RowChains,
        refusals: Refusals,
        threads: int = 2,
    ) -> None:
        """Take `schema` for that of the rows; that of the records is the decoder's."""
        super().__init__(read, decoder, refusals, threads, schema)
        self._chains = chains

    def _begun(self, order: Order) -> Sequence[int]:
        return self._chains.begin(order())

    def _most_at_once(self, order: Order) -> int:
        del order
        return len(self._chains.chains)

    def _rows(self, number: int, most: int) -> Iterator[Rows]:
        for place, chunk in self._chains.chunks(number, lambda shard: self._read(shard, most)):
            rows, left_out = self._chains.shape(self._decoding.decoded(chunk, place))
            if left_out:
                self._decoding.refusals.leave_out(place, range(chunk.start, chunk.end), left_out)
            yield rows_of(rows, place)
