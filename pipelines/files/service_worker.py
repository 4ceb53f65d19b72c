"""What a worker of the tf.data service does in Python: reads pieces of Parquet shards, and decodes records.

tf.data's service ships a dataset's graph to workers, and Python does not travel with it: a graph names a Python
function by a token, which means something in the process that made it only. Therefore a worker registers one function,
the first of its process, whose token is always the same; a trainer's graph calls that token with a text that describes
the records. So the records are decoded and judged by the same code as live ones, in any format, and a worker needs no
config. `register` checks the token; a worker of another version refuses the text.

Runs on threads of tf.data in the worker's process.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tensorflow as tf

from millrace.consumers.archive.example_codec import decode
from millrace.consumers.archive.shard_reader import pieces, read_piece
from millrace.consumers.archive.shards import shard_at
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.consumers.records import Int64s, Partition
from millrace.pipelines.files.shard_files import plain_chunk, rows_of
from millrace.pipelines.formats.shared.protocol import Decoder
from millrace.pipelines.stream.decode import decode_chunk

TOKEN = "pyfunc_0"  # noqa: S105 - how TensorFlow names the first Python function of a process
BEGIN, END = "[[millrace ", " millrace]]"
"""Around what a worker complains of: TensorFlow puts its own texts before and behind it."""
Form = Literal["example", "archived", "parquet"]
"""Files of Examples; TFRecord shards of the archive, whose Examples hold a record each; Parquet shards of it."""
_PROTOCOL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """What a trainer asks of a worker."""

    form: Form
    version: str
    """The millrace of the trainer."""
    records: str
    """The settings of the records, as JSON."""
    integers: tuple[str, ...] = ()
    """Of Examples, the float fields that are stored as integers."""
    protocol: int = _PROTOCOL

    def to_text(self) -> str:
        """Return the text that travels with the graph."""
        return json.dumps(asdict(self))


class ServiceWork:
    """The function that a worker registers."""

    def __init__(self, version: str, decoder_of: Callable[[Work], Decoder]) -> None:
        self._version = version
        self._decoder_of = lru_cache(maxsize=32)(decoder_of)
        self._work_of = lru_cache(maxsize=32)(self._parsed)

    def __call__(self, text: bytes, place: Any, path: bytes, numbers: Any, texts: Any) -> list[Any]:
        """Read the piece of a shard that `numbers` name, or decode texts, whose numbers these are.

        `text` begins with `read ` or `decode `. What is refused is raised as one line between marks.
        """
        verb, _, rest = bytes(text).decode().partition(" ")
        try:
            work = self._work_of(rest)
            if verb == "read":
                return self._read(bytes(path).decode(), int(numbers[0]))
            return self._decode(work, int(place), numbers, texts)
        except (MillraceError, OSError, ValueError) as error:
            raise RuntimeError(f"{BEGIN}{' '.join(str(error).split())}{END}") from error

    def _parsed(self, text: str) -> Work:
        given = json.loads(text)
        if given["protocol"] != _PROTOCOL or given["version"] != self._version:
            raise ConfigError(
                f"the trainer has millrace {given['version']}, and a worker of the service has {self._version}; give "
                "both the same"
            )
        return Work(**{**given, "integers": tuple(given["integers"])})

    def _read(self, path: str, index: int) -> list[Any]:
        """Return offsets and values of a piece of a Parquet shard."""
        place, topic, number, name = path.rsplit("/", 3)
        partition = Partition(topic, int(number))
        shard = shard_at(place if "://" in place else Path(place), partition, int(name[:20]))
        if shard is None:
            raise ConfigError(f"{path} is not there: mount the files at the same path where the workers run")
        table = read_piece(pieces(shard)[index], ["offset", "value"])
        values = [value or b"" for value in table.column("value").to_pylist()]
        return [table.column("offset").to_numpy().astype(np.int64), _texts(values)]

    def _decode(self, work: Work, place: int, numbers: Int64s, texts: Any) -> list[Any]:
        """Return the columns of rows, then the numbers of those that are refused, and why."""
        values: Sequence[bytes | None] = texts.tolist()
        if work.form == "archived":
            records = [decode(value or b"") for value in values]
            numbers = np.array([record.offset for record in records], np.int64)
            values = [record.value for record in records]
        decoded = decode_chunk(plain_chunk(Partition("service", 0), numbers, values), self._decoder_of(work))
        refused = [(one.offset, str(one.reason).encode()) for one in decoded.refused]
        return [
            *tf.nest.flatten(rows_of(decoded, place)),
            np.array([offset for offset, _ in refused], np.int64),
            _texts([reason for _, reason in refused]),
        ]


def register(work: ServiceWork) -> Any:
    """Register the function of this process; return what keeps it. ConfigError where the token is another one."""
    with tf.Graph().as_default() as graph:
        tf.numpy_function(work, [tf.constant(""), 0, tf.constant(""), tf.constant([0]), tf.constant([""])], [tf.int64])
        token = next(op.get_attr("token") for op in graph.get_operations() if op.type.startswith("PyFunc"))
    if token != TOKEN.encode():
        raise ConfigError(f"TensorFlow names the worker's function {token!r}, not {TOKEN}; it is another version")
    return graph


def _texts(values: Sequence[bytes]) -> Any:
    column = np.empty(len(values), object)
    column[:] = values
    return column
