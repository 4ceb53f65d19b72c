"""Decode pool: it turns chunks into columns under the model's names, in the order in which chunks were submitted.

Owns a few threads, and the chunks and results between `submit` and `next`. `submit` never waits: the caller bounds
what is in flight, by `statistics()`. `next` returns results in order on the caller's thread, after `admits` has let the
chunk pass and the dead-letter callback has accepted each refused record, also in order; those that it has not accepted
it receives again next time. A chunk whose decoding raised is never skipped: `next` raises the same error again
until `discard`. A chunk that lacks something which is not known yet, as a schema, is decoded again every tenth of a
second, and meanwhile nothing is returned. The pool ends with `close`, which waits for the chunks that are being decoded
and drops their results.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from operator import itemgetter
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from millrace.consumers.errors import NotYetError
from millrace.consumers.fingerprints import Fingerprint
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Chunk, Int64s, Partition
from millrace.pipelines.formats.shared.paths import is_envelope
from millrace.pipelines.formats.shared.protocol import Decoder, Refusal, SchemaFit, TopicDecoder
from millrace.pipelines.schema import Column, Field, Schema
from millrace.pipelines.stream.label_masks import without_marks
from millrace.pipelines.where.selection import SelectingDecoder

_Mask = npt.NDArray[np.bool_]
_ASK_FIRST_S, _ASK_EVERY_S = 0.002, 0.05
_AGAIN_S = 0.1
"""How long a chunk that cannot be decoded yet waits until it is tried again."""
_MENTION_S = 1.0
"""A chunk that waits for less than this is not worth a word."""
_OBJECT_BYTES = 40
"""The memory of a short `bytes` object besides its contents, with its reference in the column."""


class Refused(NamedTuple):
    """A record that could not be decoded."""

    offset: int
    reason: Reason
    field: str | None = None
    """The record's name of the field at fault; None where it is not the fault of one field."""
    schema: int | None = None
    """The number of the schema of a registry that wrote the record; None where it names none."""
    detail: str | None = None
    """Where that schema is at fault, and not the record: how, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A chunk as columns: one row for each record that decodes, one verdict for each that does not."""

    partition: Partition
    incarnation: int
    start: int
    end: int
    fetched_at: float
    lost: int
    offsets: Int64s
    """The offsets of the rows, ascending."""
    event_times: Int64s
    """Milliseconds since 1970, from the schema's event time, or Kafka's timestamp where it has none."""
    features: Mapping[str, Column]
    labels: Mapping[str, Column]
    weights: npt.NDArray[np.float32] | None
    """None where the schema has no weight: every row counts 1."""
    refused: tuple[Refused, ...]
    """Ascending by offset."""
    nbytes: int
    """The approximate memory of its columns."""
    fingerprint: Fingerprint | None = None
    """The fingerprint of the chunk's last record, decoded or refused."""
    truncated: Mapping[str, npt.NDArray[np.bool_]] = field(default_factory=dict)
    """The rows whose list was cut to its bound, by feature. A feature without such rows is left out."""
    schemas: tuple[tuple[SchemaFit, int], ...] = ()
    """The schemas of a registry that wrote its records, each with the offset of its first one."""
    filtered: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    """The offsets of the records that do not match `records.where`, ascending."""
    keys: Column | None = None
    """What labels that come later are found by; None where the schema has no key."""
    timestamps: Int64s | None = None
    """Kafka's timestamps of the rows, in milliseconds since 1970; None where the schema has no key."""
    unread: tuple[tuple[int, Mapping[str, str]], ...] = ()
    """Of some rows, by their places: the types of the fields of their records that nobody reads."""
    slices: Mapping[str, "SliceValues"] = field(default_factory=dict)
    """What live scores are shown by, of each row that decodes; what leaves rows out later leaves these as they are."""
    decoding: tuple[float, float] = field(default=(0.0, 0.0), compare=False)
    """When its decoding began and ended, on the clock of `fetched_at`."""

    def __len__(self) -> int:
        return len(self.offsets)


def decode_chunk(chunk: Chunk, decoder: Decoder) -> Decoded:
    """Decode a chunk, with what is asked of its envelope, and put its columns under the model's names.

    The result depends on the chunk alone.
    """
    if isinstance(decoder, TopicDecoder):
        decoder = decoder.of(chunk.partition.topic)
    schema, whole = decoder.schema, chunk
    filtered, unread = np.empty(0, np.int64), list[Refusal]()
    if isinstance(decoder, SelectingDecoder):
        chunk, filtered, unread = decoder.select(whole)
    decoded = decoder.decode(chunk.values)
    if any(is_envelope(field.source) for field in schema.fields):
        from millrace.pipelines.formats.shared.record_envelope import with_envelope  # noqa: PLC0415 - loads pyarrow

        decoded = with_envelope(chunk, schema, decoded)
    rows = _GoodRows(decoded.kept, decoded.columns, decoded.lengths)
    refused = [*decoded.refused]
    if schema.weight is not None:
        # A float64 that is too large becomes an infinity here, which is refused below: numpy need not warn of it.
        with np.errstate(over="ignore"):
            rows.weights = rows.columns[schema.weight.source].astype(np.float32)
        good = np.isfinite(rows.weights) & (rows.weights >= 0)
        refused += rows.without(schema.weight.source, [(Reason.OUT_OF_RANGE, ~good)])
    if (time := schema.event_time) is not None:
        rows.times, verdicts = _times(rows.columns[time.source], time)
        refused += rows.without(time.source, verdicts)
    for image in [feature for feature in schema.features if feature.image is not None]:
        bad = rows.show(image)
        refused += rows.without(image.source, [(Reason.BAD_IMAGE, bad)])
    columns, lengths, offsets = rows.columns, rows.lengths, chunk.offsets[rows.kept]
    labels, masks = without_marks(schema.labels, columns)
    cut = {field.name: lengths[field.source] > field.shape[0] for field in schema.features if field.pad is not None}
    truncated = {name: beyond for name, beyond in cut.items() if beyond.any()}
    return Decoded(
        partition=chunk.partition,
        incarnation=chunk.incarnation,
        start=chunk.start,
        end=chunk.end,
        fetched_at=chunk.fetched_at,
        lost=chunk.lost,
        offsets=offsets,
        event_times=chunk.timestamps[rows.kept] if rows.times is None else rows.times,
        features={**_named(schema.features, columns), **_lengths(schema, lengths), **rows.pixels},
        labels={**_named(schema.labels, labels), **masks},
        weights=rows.weights,
        refused=tuple(sorted([*_placed(whole, unread), *_placed(chunk, refused)], key=itemgetter(0))),
        nbytes=sum(map(_nbytes, [*columns.values(), *rows.pixels.values()])) + 2 * offsets.nbytes + filtered.nbytes,
        fingerprint=chunk.fingerprint,
        truncated=truncated,
        schemas=tuple((fit, int(chunk.offsets[index])) for fit, index in decoded.schemas),
        filtered=filtered,
        keys=None if schema.key is None else columns[schema.key.source],
        timestamps=None if schema.key is None else chunk.timestamps[rows.kept],
        slices={field.name: SliceValues.of(columns[field.source], field.as_read) for field in schema.slices},
    )


def _placed(chunk: Chunk, refused: Sequence[Refusal]) -> Iterable[Refused]:
    """Return the verdicts by the offsets of their records."""
    offsets = chunk.offsets[[one.index for one in refused]].tolist() if refused else []
    return (Refused._make((offset, *one[1:])) for offset, one in zip(offsets, refused, strict=True))


@dataclass(frozen=True, slots=True)
class SliceValues:
    """The values of a field of which slices are made, row by row."""

    codes: npt.NDArray[np.int32]
    """The place of each row's value in `values`."""
    values: tuple[str, ...]
    """As they are shown."""

    @classmethod
    def of(cls, column: Column, field: Field) -> "SliceValues":
        """Return the values of a decoded column."""
        import pyarrow as pa  # noqa: PLC0415 - not loaded where nothing is sliced

        found = pa.array(column, pa.binary() if column.dtype == object else None).dictionary_encode()
        absent = _absent(field)
        values = [NO_VALUE if value == absent else _shown(value) for value in found.dictionary.to_pylist()]
        return cls(found.indices.to_numpy(), tuple(values))

    def rows(self, first: int, last: int | None) -> "SliceValues":
        """Return some of the rows."""
        return replace(self, codes=self.codes[first:last])


NO_VALUE = "(none)"
"""How the value of a record is shown that lacks it."""
_LONGEST_VALUE = 60


def _absent(field: Field) -> float | bytes | None:
    """Return what stands for a missing value; None where that is a value as well, as a truth value is."""
    if isinstance(field.missing, bool):
        return None
    return field.missing.encode() if isinstance(field.missing, str) else field.missing


def _shown(value: bool | int | bytes) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value).lower()
    return text[:_LONGEST_VALUE]


@dataclass(slots=True)
class _GoodRows:
    """The rows that decode; fewer, where a weight or a time is none."""

    kept: Int64s
    columns: Mapping[str, Column]
    lengths: Mapping[str, Int64s]
    weights: npt.NDArray[np.float32] | None = None
    times: Int64s | None = None
    pixels: dict[str, Column] = field(default_factory=dict)
    """Of the images, by feature."""

    def show(self, image: Field) -> _Mask:
        """Keep the pixels of a feature that is an image; return which rows have none."""
        from millrace.pipelines.formats.image.pixels import pixels_of  # noqa: PLC0415 - loads TensorFlow

        self.pixels[image.name], bad = pixels_of(self.columns[image.source], image)
        return bad

    def without(self, source: str, verdicts: Iterable[tuple[Reason, _Mask]]) -> list[Refusal]:
        """Leave rows out, and return the verdicts on them. A row is in one of the masks at most."""
        found: list[Refusal] = []
        good = np.ones(len(self.kept), np.bool_)
        for reason, bad in verdicts:
            found += [Refusal(index, reason, source) for index in self.kept[bad].tolist()]
            good &= ~bad
        if found:
            self.kept = self.kept[good]
            self.columns = {name: column[good] for name, column in self.columns.items()}
            self.lengths = {name: column[good] for name, column in self.lengths.items()}
            self.pixels = {name: column[good] for name, column in self.pixels.items()}
            self.weights = None if self.weights is None else self.weights[good]
            self.times = None if self.times is None else self.times[good]
        return found


def _times(column: Column, field: Field) -> tuple[Int64s, Iterable[tuple[Reason, _Mask]]]:
    """Return the times in milliseconds, and which of them are none."""
    if field.time is None:
        return column.astype(np.int64, copy=False), ()
    from millrace.pipelines.formats.shared.event_times import milliseconds  # noqa: PLC0415 - loads pyarrow

    return milliseconds(column, field.time)


def _named(fields: tuple[Field, ...], columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns of these fields under the model's names, with the indices of classes for their texts."""
    named = {each.name: columns[each.source] for each in fields}
    for each in [each for each in fields if each.classes is not None]:
        from millrace.pipelines.formats.shared.arrow_columns import indices_of  # noqa: PLC0415 - loads pyarrow

        named[each.name] = indices_of(named[each.name], each)
    return named


def _lengths(schema: Schema, lengths: Mapping[str, Int64s]) -> dict[str, Column]:
    """Return the number of elements of each row after the cut, for each feature that asks for it."""
    named = [(field.lengths, field) for field in schema.features]
    return {
        feature.name: np.minimum(lengths[field.source], field.shape[0]).astype(np.int32)
        for feature, field in named
        if feature is not None
    }


def _nbytes(column: Column) -> int:
    if column.dtype != object:
        return column.nbytes
    strings: list[bytes] = column.ravel().tolist()
    return column.nbytes + _OBJECT_BYTES * len(strings) + sum(map(len, strings))


OnRefused: TypeAlias = Callable[[Chunk, Sequence[Refused]], int]
"""Is given refused records of a chunk, in their order, and returns how many of them it has accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeStatistics:
    """What a decode pool holds at one moment."""

    chunks: int
    """Chunks that were submitted and not yet returned by `next`."""
    records: int
    """Records in those chunks."""
    nbytes: int
    """The memory of those chunks until `next` returns them: undecoded or decoded, whichever is more."""
    lacks: str | None
    """What the next chunk needs and is not known yet, in a sentence, once it has waited for a second; else None."""


@dataclass(slots=True)
class _Submitted:
    """A chunk on its way."""

    chunk: Chunk
    future: "Future[Decoded]"
    nbytes: int
    """Its memory, undecoded or decoded, whichever is more: rows may be padded."""
    reported: int = 0
    """How many of its refused records the callback has accepted."""
    again_at: float | None = None
    """When it is to be decoded again, by the monotonic clock; None where it lacks nothing."""
    ask_in_s: float = _ASK_FIRST_S
    """How soon to ask again whether it may be returned."""
    admitted: bool = False
    """Whether it may be returned, and its refused records given to the callback."""


class DecodePool:
    """Decodes chunks on several threads and returns them in the order of submission, on one thread."""

    def __init__(
        self,
        decoder: Decoder,
        *,
        threads: int,
        on_refused: OnRefused | None = None,
        admits: Callable[[Decoded], bool] | None = None,
        look: Callable[[Chunk, Decoded], tuple[tuple[int, Mapping[str, str]], ...]] | None = None,
    ) -> None:
        """`admits` is asked whether the next chunk may be returned now, until it says so; it never waits.

        `look` gives what a decoded chunk has as `unread`; it is asked on the pool's threads.
        """
        self._decoder = decoder
        self._on_refused = on_refused
        self._admits = admits
        self._look = look
        self._changed = threading.Condition()
        self._queue: deque[_Submitted] = deque()
        self._lacking: tuple[float, str] | None = None
        """Since when the next chunk waits for something, and for what."""
        self._closed = False
        self.held_s = 0.0
        """Seconds for which a decoded chunk was not admitted while `next` waited."""
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="decode")

    @property
    def in_flight(self) -> int:
        """The number of chunks that were submitted and not yet returned by `next`."""
        return len(self._queue)

    @property
    def row_nbytes(self) -> int:
        """The memory of a decoded row, bytes."""
        return self._decoder.schema.row_nbytes

    def statistics(self) -> DecodeStatistics:
        """Return what the pool holds now."""
        with self._changed:
            held, lacking = list(self._queue), self._lacking
        return DecodeStatistics(
            chunks=len(held),
            records=sum(len(entry.chunk) for entry in held),
            nbytes=sum(entry.nbytes for entry in held),
            lacks=lacking[1] if lacking is not None and time.monotonic() - lacking[0] >= _MENTION_S else None,
        )

    def submit(self, chunk: Chunk) -> None:
        """Queue a chunk for decoding; never waits. Raise RuntimeError after `close`."""
        with self._changed:
            future = self._executor.submit(self._decoded, chunk)
            nbytes = max(chunk.nbytes, len(chunk) * self.row_nbytes)
            self._queue.append(_Submitted(chunk, future, nbytes))
        future.add_done_callback(self._wake)

    def next(self, timeout: float | None) -> Decoded:
        """Return the next chunk in the order of submission; raise TimeoutError if it is not decoded in time.

        Raise also what the decoding or the callback raised; the next call tries the same chunk again, as none may be
        skipped. It raises TimeoutError too where the callback has not accepted all refused records, for a chunk that is
        not admitted, and for one that cannot be decoded yet, once it has waited for `timeout`.
        """
        gives_up_at = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            with self._changed:
                if not self._changed.wait_for(self._ready, timeout):
                    raise TimeoutError("no decoded chunk in time")
                if self._closed:
                    raise RuntimeError("the decode pool is closed")
                head = self._queue[0]
            try:
                decoded = head.future.result()
            except NotYetError as error:
                self._decode_again(head, error, gives_up_at)
                continue
            self._lacking = None
            self._await_admission(head, decoded, timeout)
            if self._on_refused is not None and head.reported < len(decoded.refused):
                head.reported += self._on_refused(head.chunk, decoded.refused[head.reported :])
                if head.reported < len(decoded.refused):
                    raise TimeoutError("some refused records are not accepted yet")
            with self._changed:
                # Another thread may have discarded the head while the callback ran.
                if self._queue and self._queue[0] is head:
                    self._queue.popleft()
                    return decoded

    def _decoded(self, chunk: Chunk) -> Decoded:
        began = time.monotonic()
        decoded = decode_chunk(chunk, self._decoder)
        unread = decoded.unread if self._look is None else self._look(chunk, decoded)
        return replace(decoded, unread=unread, decoding=(began, time.monotonic()))

    def discard(self) -> int:
        """Drop all chunks that `next` has not returned; return how many records they held."""
        with self._changed:
            dropped = list(self._queue)
            self._queue.clear()
            self._lacking = None
        for submitted in dropped:
            submitted.future.cancel()
        return sum(len(submitted.chunk) for submitted in dropped)

    def close(self) -> None:
        """Discard, and wait for the threads to end. A waiting `next` raises RuntimeError. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.discard()
        self._executor.shutdown(wait=True, cancel_futures=True)

    def _decode_again(self, head: _Submitted, error: NotYetError, gives_up_at: float) -> None:
        """Have what lacks something decoded again when its time has come; raise TimeoutError if that is too late."""
        now = time.monotonic()
        with self._changed:
            self._lacking = (now if self._lacking is None else self._lacking[0], str(error))
            if head.again_at is None:
                head.again_at = now + _AGAIN_S
            wait = head.again_at - now
            if self._changed.wait_for(lambda: self._closed, max(0.0, min(wait, gives_up_at - now))):
                raise RuntimeError("the decode pool is closed")
            if gives_up_at < head.again_at:
                raise TimeoutError("the next chunk cannot be decoded yet")
            for entry in self._queue:
                if entry.future.done() and isinstance(entry.future.exception(), NotYetError):
                    entry.again_at = None
                    entry.future = self._executor.submit(self._decoded, entry.chunk)
                    entry.future.add_done_callback(self._wake)

    def _await_admission(self, head: _Submitted, decoded: Decoded, timeout: float | None) -> None:
        """Wait until the chunk is admitted; raise TimeoutError if it is not in time."""
        gives_up_at = math.inf if timeout is None else time.monotonic() + timeout
        while not head.admitted:
            if self._admits is None or self._admits(decoded):
                head.admitted = True
                return
            began = time.monotonic()
            if (left := gives_up_at - began) <= 0:
                raise TimeoutError("the next chunk is not admitted yet")
            with self._changed:
                if self._changed.wait_for(lambda: self._closed, min(left, head.ask_in_s)):
                    raise RuntimeError("the decode pool is closed")
            # In a backlog it is admitted soon; a chunk that is long held is not asked for all the time.
            head.ask_in_s = min(2 * head.ask_in_s, _ASK_EVERY_S)
            self.held_s += time.monotonic() - began

    def _ready(self) -> bool:
        return self._closed or (bool(self._queue) and self._queue[0].future.done())

    def _wake(self, _: Future[Decoded]) -> None:
        with self._changed:
            self._changed.notify_all()
