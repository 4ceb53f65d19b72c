"""Shards that are read, decoded and prepared by the workers of a tf.data service, and counted here.

What a worker gets is the dataset's graph: it takes shards as the dispatcher deals them (dynamic sharding), reads and
decodes them by the function that `service_worker` has registered there, and runs `preprocess`. Shuffling, batches and
learning stay here.

tf.data's service gives an element at most once, and tells nobody when one is lost with its worker: its rows simply do
not come, and where the worker does not come back, neither does the end. Therefore each row says which one it is, the
rows are counted here, and the epoch ends when all have come, when the service says so, or when none has come for long.
`Visits` then names what is missing.

Owns a thread an epoch, which waits for the service, so that nobody else does.
"""

import hashlib
import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import tensorflow as tf

from millrace.consumers.errors import ConfigError, UnreachableError
from millrace.consumers.reasons import Reason
from millrace.pipelines.files.service_worker import BEGIN, END, TOKEN, Work
from millrace.pipelines.files.shard_files import Order, ShardReader, flat_spec
from millrace.pipelines.files.visits import Refusals
from millrace.pipelines.schema import Schema
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import Preprocess, as_is, block_spec, python_in, row_preparation
from millrace.pipelines.stream.decode import Decoded

log = logging.getLogger(__name__)

FIRST_S, STALLED_S, TIMES = 120.0, 30.0, 10.0
"""How long the first rows may take; and later ones, or so many times the longest wait of the epoch, if that is longer.
TensorFlow's client waits for ever for a worker that does not come back, and up to two minutes for one that does."""
_AT_ONCE = 2
"""Shards that a worker reads beside each other: what it holds is lost with it, and is not dealt to another one."""
_CHUNK, _READ_AHEAD = 1024, 4 << 20
"""Rows that a worker decodes and sends at a time; bytes that it reads."""
_ELEMENTS = 8
"""Chunks that wait here."""
_LOOK_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceJob:
    """Where the service is, and with whom its work is shared."""

    address: str
    """The dispatcher's, host:port."""
    job: str | None = None
    """The name under which trainers share one job, each row going to one of them; None shares with nobody."""
    trainer: str | None = None
    """With a job: the name of this trainer, each of which gets all rows out of the workers' cache."""
    key: str = ""
    """What else must be equal for a job to be shared: the user's code."""
    most_asked: int | None = None
    """How many chunks are asked of the workers at a time; None leaves it to TensorFlow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedShard:
    """A file as the workers find it."""

    name: str
    path: str
    """Its path, or its URL."""
    rows: int
    compression: str = ""
    pieces: int = 0
    """Of a Parquet shard."""


@dataclass(slots=True)
class _Arrivals:
    """What the thread has fetched of one epoch."""

    elements: "queue.Queue[Any]" = field(default_factory=lambda: queue.Queue(_ELEMENTS))
    """Rows, their shard and what was refused of it; an error; or None at the end."""
    closed: threading.Event = field(default_factory=threading.Event)

    def put(self, element: Any) -> bool:
        """Wait for room; return False where nobody takes it any more."""
        while not self.closed.is_set():
            try:
                self.elements.put(element, timeout=_LOOK_S)
            except queue.Full:
                continue
            return True
        return False

    def fetch(self, dataset: Any) -> None:
        """Take everything that a dataset gives."""
        try:
            for element in dataset:
                if not self.put(tf.nest.map_structure(lambda column: column.numpy(), element)):
                    return
            self.put(None)
        except Exception as error:  # noqa: BLE001 - raised by whoever takes the elements
            self.put(error)


class ServiceFiles:
    """Reads shards by the workers of a service; its rows have been through `preprocess`."""

    def __init__(
        self,
        shards: Sequence[ServedShard],
        work: Work,
        schema: Schema,
        preprocess: Preprocess | None,
        service: ServiceJob,
        local: ShardReader,
        refusals: Refusals,
    ) -> None:
        """`local` reads the same shards in this process, for a sample."""
        self._shards, self._work, self._schema = shards, work, schema
        self._service, self._local, self._refusals = service, local, refusals
        spec = block_spec(schema, 1).rows
        if (operation := python_in(preprocess, spec)) is not None:
            raise ConfigError(
                f"--service: preprocess calls Python ({operation}, as tf.py_function does), and the workers of the "
                "service do not have your code; write it with TensorFlow's operations"
            )
        self._prepare = row_preparation(preprocess, spec)
        self._error: BaseException | None = None
        self._arrivals = _Arrivals()

    @property
    def prepares(self) -> bool:
        """Whether its rows have been through `preprocess`."""
        return True

    @property
    def error(self) -> BaseException | None:
        """What has ended the reading."""
        return self._error

    def first(self) -> Decoded | None:
        """Return the first rows, for a sample; None where there are none."""
        return self._local.first()

    @property
    def lasting(self) -> bool:
        """Whether a dataset serves all epochs: no, as each is a job of its own."""
        return False

    def dataset(self, order: Order, *, epoch: int, most: int, deterministic: bool) -> Any:
        """Return a dataset of rows [n, ...] of these shards, in the order in which workers give them."""
        del most  # a worker reads few shards beside each other, and each chunk of them travels by itself
        if deterministic:
            raise ConfigError("--service: workers give rows in no deterministic order; leave --deterministic out")
        cached = self._service.trainer is not None
        # One job for all trainers and epochs has one order; the rows of a window are permuted all the same.
        places = order()
        given = self._on_workers(sorted(places) if cached else places)
        if cached:
            given = given.repeat()  # TensorFlow keeps what workers made for datasets without an end only
        name = self._job_name(epoch)
        experimental = tf.data.experimental.service
        distributed = given.apply(
            experimental.distribute(
                experimental.ShardingPolicy.DYNAMIC,
                f"grpc://{self._service.address}",
                job_name=name,
                cross_trainer_cache=experimental.CrossTrainerCache(self._service.trainer) if cached else None,
                max_outstanding_requests=self._service.most_asked,
            )
        )
        total = sum(self._shards[place].rows for place in places)
        return tf.data.Dataset.from_generator(
            lambda: self._rows(distributed, total, name), output_signature=distributed.element_spec[0]
        )

    def close(self) -> None:
        """End what is being read."""
        self._arrivals.closed.set()

    def _on_workers(self, order: Sequence[int]) -> Any:
        """Return the dataset whose graph the workers get: rows, and the numbers and reasons of what is refused."""
        shards = [self._shards[place] for place in order]
        files = tf.data.Dataset.from_tensor_slices(
            (
                np.array(order, np.int32),
                [shard.path for shard in shards],
                [shard.compression for shard in shards],
                np.array([shard.pieces for shard in shards], np.int64),
            )
        )
        text, spec = self._work.to_text(), flat_spec(self._schema)
        kinds = [column.dtype for column in tf.nest.flatten(spec)] + [tf.int64, tf.string]

        @as_is
        def of_parquet(place: Any, path: Any, _compression: Any, pieces: Any) -> Any:
            def piece(index: Any) -> Any:
                read = _call([f"read {text}", place, path, index[None], [""]], [tf.int64, tf.string])
                for column in read:
                    column.set_shape([None])
                chunks = tf.data.Dataset.from_tensors(tuple(read)).rebatch(_CHUNK)
                return chunks.map(as_is(lambda numbers, texts: (place, numbers, texts)))

            return tf.data.Dataset.range(pieces).flat_map(as_is(piece))

        @as_is
        def of_tfrecords(place: Any, path: Any, compression: Any, _pieces: Any) -> Any:
            texts = tf.data.TFRecordDataset(path, compression, _READ_AHEAD).batch(_CHUNK).enumerate()
            return texts.map(as_is(lambda at, chunk: (place, at * _CHUNK + _numbers(chunk), chunk)))

        @as_is
        def decoded(place: Any, numbers: Any, texts: Any) -> Any:
            *columns, refused, reasons = _call([f"decode {text}", place, "", numbers, texts], kinds)
            for column, known in zip(columns, tf.nest.flatten(spec), strict=True):
                column.set_shape(known.shape)
            refused.set_shape([None])
            reasons.set_shape([None])
            rows = self._prepare(cast("Rows", tf.nest.pack_sequence_as(spec, columns)))
            return rows, place, refused, reasons

        chunks = files.interleave(
            of_parquet if self._work.form == "parquet" else of_tfrecords,
            cycle_length=_AT_ONCE,
            num_parallel_calls=_AT_ONCE,
            deterministic=False,
        )
        return chunks.map(decoded, num_parallel_calls=tf.data.AUTOTUNE, deterministic=False).prefetch(2)

    def _job_name(self, epoch: int) -> str | None:
        """Return a name that is another one wherever rows would be; TensorFlow compares names alone."""
        if self._service.job is None:
            return None
        facts = [self._work.to_text(), self._service.key, *(f"{shard.path} {shard.rows}" for shard in self._shards)]
        digest = hashlib.sha256("\n".join(facts).encode()).hexdigest()[:12]
        each = "" if self._service.trainer is not None else f"-epoch-{epoch + 1}"
        return f"{self._service.job}-{digest}{each}"

    def _rows(self, distributed: Any, total: int, name: str | None) -> Iterator[Rows]:
        self._arrivals = arrivals = _Arrivals()
        threading.Thread(target=arrivals.fetch, args=(distributed,), name="service", daemon=True).start()
        try:
            yield from self._counted(arrivals, total, name)
        except Exception as error:
            self._error = error
            raise
        finally:
            arrivals.closed.set()

    def _counted(self, arrivals: _Arrivals, total: int, name: str | None) -> Iterator[Rows]:
        came, last, limit = 0, time.monotonic(), FIRST_S
        while came < total and not arrivals.closed.is_set():
            try:
                element = arrivals.elements.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() - last > limit:
                    return self._stalled(came, total, limit)
                continue
            if came:
                limit = max(limit, TIMES * (time.monotonic() - last))
            if element is None:
                return self._ended(came, name)
            if isinstance(element, Exception):
                raise _explained(element) from element
            rows, place, numbers, reasons = element
            if len(numbers):
                found = [Reason(bytes(reason).decode()) for reason in reasons.tolist()]
                self._refusals.note(int(place), zip(numbers.tolist(), found, strict=True))
            if not came:
                limit = STALLED_S
            came += len(rows.offsets) + len(numbers)
            yield rows
            last = time.monotonic()  # what the trainer takes is no wait for the service
        return None

    def _stalled(self, came: int, total: int, limit: float) -> None:
        if not came:
            raise UnreachableError(
                f"--service: {self._service.address} has given no row for {limit:.0f} s: see whether "
                "workers have found it, by the log of `millrace data-service worker`; nothing was saved"
            )
        log.warning(
            "the service has given nothing for %.0f s: %d of %d rows did not come, because a worker was lost; the "
            "epoch ends without them",
            limit,
            total - came,
            total,
        )

    def _ended(self, came: int, name: str | None) -> None:
        if came:
            return
        if name is None:
            raise UnreachableError(f"--service: the workers of {self._service.address} were lost with every row")
        raise ConfigError(
            f"--job-name: the job {name} of the service has ended already, so it has no row left; take a name that was "
            "not used before"
        )


def _call(inputs: Sequence[Any], kinds: Sequence[Any]) -> list[Any]:
    """Call the function of the worker."""
    return list(tf.raw_ops.PyFunc(input=[tf.convert_to_tensor(one) for one in inputs], token=TOKEN, Tout=[*kinds]))


def _numbers(chunk: Any) -> Any:
    return tf.range(tf.size(chunk, tf.int64), dtype=tf.int64)


def _explained(error: Exception) -> Exception:
    """Return what a worker complained of as a line; else the error as it is, which may be `preprocess`'s own."""
    text = str(error)
    if BEGIN in text:
        return ConfigError(f"--service: {text.partition(BEGIN)[2].partition(END)[0]}")
    if "Could not find callback" in text:
        return ConfigError("--service: one of its workers was not started by `millrace data-service worker`")
    if isinstance(error, tf.errors.NotFoundError):
        what = text.partition(";")[0].rpartition("}} ")[2]
        return ConfigError(f"--service: a worker cannot read a file ({what}): mount it at the same path there")
    if isinstance(error, tf.errors.DataLossError):
        return ConfigError(f"a file is damaged ({text.partition('[')[0].strip()}); leave it out, or make it again")
    return error
