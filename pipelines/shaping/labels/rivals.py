"""The reader of rivals: with `match`, a label belongs to one record of its key, so all records are read ahead.

A record and its rivals, the records of its key around it, may lie in several partitions. So the records' topics are
read once more, by another reader of labels that takes each record for a label of its key and time. What a record gets
then is a function of the same logs: a rival counts for it where a label would have been in time.
"""

from dataclasses import replace

from millrace.consumers.records import Chunk
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.shaping.labels.clock import Jumps, LabelClocks
from millrace.pipelines.shaping.labels.index import LabelIndex
from millrace.pipelines.shaping.labels.join import times_of
from millrace.pipelines.shaping.labels.label_reader import KEY, Kept, LabelReader, LabelSource
from millrace.pipelines.shaping.labels.rules import JoinRules
from millrace.pipelines.shaping.labels.silence import Silence
from millrace.pipelines.stream.decode import Decoded


class RivalReader(LabelReader):
    """Reads the keys and times of records into an index."""

    def __init__(
        self, rules: JoinRules, source: LabelSource, decoder: Decoder, jumps: Jumps, index: LabelIndex
    ) -> None:
        self._clip_ms = rules.early_ms
        kept = Kept(index, LabelClocks(jumps, early_ms=rules.early_ms), Silence(within_ms=rules.within_ms))
        # That no record comes means nothing.
        super().__init__(replace(rules, holds=False), source, decoder, kept, None)

    def _decoded(self, chunk: Chunk) -> Decoded:
        decoded = super()._decoded(chunk)
        assert decoded.keys is not None
        times = times_of(decoded, self._clip_ms)
        return replace(decoded, features={KEY: decoded.keys}, labels={}, event_times=times)
