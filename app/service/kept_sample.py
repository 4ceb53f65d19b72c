"""The sample of real records on which a start tries the user's model: kept beside the checkpoints, or read from Kafka.

The first start reads the first records of each partition from where it will begin, as `validate` does: nothing is
committed, and nothing that the training counts has seen them. It keeps them in a file, so that later starts need not
depend on what Kafka still has. A start without such records goes on with made-up ones.

Owns the file, which is written while the folder's lease is held, and is readable by its owner only.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from millrace.app.settings import Settings, to_decoder
from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import HandoffEmpty, HandoffEnded, MillraceError
from millrace.consumers.handoff import Handoff, ReceiveEnd
from millrace.consumers.kafka.positions import Earliest, Latest
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.shaping.appearing import Numbers
from millrace.pipelines.shaping.shaper import open_shapers
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.pipelines.stream.record_sample import RecordSample, from_document, sample_of, to_document
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.model.probes import ReadSample

log = logging.getLogger(__name__)
_ROWS = 256
"""Records that are read where none are kept."""
_READ_S = 5.0
"""How long Kafka may take for the next records of the sample."""
_OWNER_ONLY = 0o600

Positions = Mapping[Partition, int]
_PATIENCE_S = 15.0
_HELD_BYTES = 64 * 1024 * 1024


def read_between(
    source: KafkaSource,
    incarnation: int,
    start: Positions,
    until: Positions,
    *,
    wait_s: float = _PATIENCE_S,
    counted: bool = True,
) -> Iterator[Chunk]:
    """Yield the records between two positions; stop early where Kafka sends none for some seconds.

    Nothing is committed. Blocks the caller, who has started the source and stops it. Unless `counted`, the
    statistics of the source leave them out.
    """
    handoff = Handoff(capacity_bytes=_HELD_BYTES, partitions=max(1, len(start)))
    source.begin(incarnation, start, handoff, until, counted=counted)
    receiving: ReceiveEnd = handoff
    try:
        while True:
            chunk = receiving.receive(wait_s)
            if len(chunk):
                yield chunk
    except (HandoffEnded, HandoffEmpty):
        return
    finally:
        source.pause()
        receiving.close()


def rows_of(decoded: Sequence[Decoded], settings: Settings) -> list[Decoded]:
    """Return the rows that the model is given of these chunks, with those that shaping would only leave out."""
    made = (section.shaper(schema) for _, section, schema in settings.shapings() if section.other_columns)
    shape = open_shapers([shaper for shaper in made if shaper is not None], 0, {})
    rows = [*decoded]
    if shape is not None:
        rows = [shape(chunk)[0] for chunk in sorted(decoded, key=lambda chunk: (chunk.partition, chunk.start))]
    # Any numbers of classes do, as the model is only tried on the rows.
    numbers = {one.name: Numbers(one.appearing) for one in settings.block_schema.labels if one.appearing is not None}
    for at, chunk in enumerate(rows):
        numbered = {
            name: np.maximum(one.take(chunk.labels[name])[0], 0).astype(one.options.dtype)
            for name, one in numbers.items()
        }
        rows[at] = replace(chunk, labels={**chunk.labels, **numbered})
    return rows


class RecordSamples:
    """Reads and keeps the sample of one model."""

    def __init__(self, settings: Settings, folder: Folder) -> None:
        self._settings = settings
        self._schema = settings.row_schema
        self._path = folder.sample

    @property
    def rows(self) -> int:
        """The most records of a sample."""
        return self._settings.checkpoints.sample or _ROWS

    def sources(self, source: KafkaSource) -> tuple[ReadSample, ...]:
        """Return where a start takes a sample from: the file first, then Kafka, whose records it keeps."""
        if not self._settings.checkpoints.sample:
            try:
                self._path.unlink(missing_ok=True)
            except OSError as error:
                log.warning("checkpoints.sample: %s cannot be removed: %s", self._path, error.strerror)
        return self.kept, lambda: self.keep(self.read(source))

    def kept(self) -> RecordSample | None:
        """Return the sample of the file; None where there is none that fits the schema."""
        try:
            sample = from_document(unseal(self._path.read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError) as error:
            log.warning("%s is not read, and some records are read from Kafka: %s", self._path, type(error).__name__)
            return None
        return sample if sample is not None and sample.fits(self._schema) else None

    def read(self, source: KafkaSource) -> RecordSample | None:
        """Read a sample from Kafka; None where it has no record that decodes, or does not answer."""
        try:
            decoder = to_decoder(self._settings.records, wait_s=_READ_S)
            # Some records of each partition: from its start on, or the last ones before it where there are fewer.
            first, end = source.resolve_start(Earliest()), source.resolve_start(Latest())
            share = -(-self.rows // max(1, len(first)))
            latest = {partition: max(first[partition], end[partition] - share) for partition in first}
            begin = {
                partition: min(offset, latest[partition]) for partition, offset in self._start(source, first).items()
            }
            read = self._read(source, begin, share, end)
            # Compaction leaves long gaps at the beginning of a partition, and hardly any at its end.
            if not any(map(len, read)) and begin != latest:
                read = self._read(source, latest, share, end)
            decoded = (decode_chunk(chunk, decoder) for chunk in read)
            return sample_of(rows_of([*decoded], self._settings), self.rows)
        except MillraceError as error:
            log.warning("no records are read to try the model on: %s", error)
            return None

    def before(self, source: KafkaSource, positions: Positions) -> RecordSample | None:
        """Read the last records before these positions; None where none decodes, or Kafka does not answer."""
        first, share = source.resolve_start(Earliest()), -(-self.rows // max(1, len(positions)))
        begin = {p: max(first.get(p, 0), offset - share) for p, offset in positions.items()}
        held = {p: offset for p, offset in begin.items() if offset < positions[p]}
        if not held:
            return None
        try:
            decoder = to_decoder(self._settings.records, wait_s=_READ_S)
            chunks = self._read(source, held, share, positions)
            decoded = [decode_chunk(chunk, decoder) for chunk in chunks]
            return sample_of(rows_of(decoded, self._settings), self.rows)
        except MillraceError as error:
            log.warning("the last records are not read: %s", error)
            return None

    def keep(self, sample: RecordSample | None) -> RecordSample | None:
        """Write the sample to the file, unless the settings keep none; return it."""
        if sample is not None and self._settings.checkpoints.sample:
            try:
                replace_durably(self._path, seal(to_document(sample)), mode=_OWNER_ONLY)
            except OSError as error:
                log.warning("%s cannot be written, and later starts read records again: %s", self._path, error.strerror)
        return sample

    def _read(self, source: KafkaSource, begin: Positions, share: int, end: Positions) -> list[Chunk]:
        until = {partition: min(offset + share, end[partition]) for partition, offset in begin.items()}
        return [*read_between(source, 0, begin, until, wait_s=_READ_S, counted=False)]

    def _start(self, source: KafkaSource, first: Positions) -> Positions:
        try:
            return {**first, **source.resolve_start(self._settings.kafka.start_position)}
        except MillraceError:
            # A setting that does not fit the topic matters at a first start only, which finds it out by itself.
            return first
