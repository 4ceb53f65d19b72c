"""A sample of real records, decoded by the schema: rows on which a start can try the user's code before it trains.

Owns the type and its form as JSON, which keeps every bit. Pure; numpy only. The values are the user's: they go into the
file of the sample and into the model, and nowhere else.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.pipelines.schema import Column, Schema
from millrace.pipelines.stream.decode import Decoded

SAMPLE_BYTES = 1 << 20
"""The most memory that a sample takes, except that it holds at least one record."""
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSample:
    """Rows of the features and labels of a schema, in the order of their offsets by partition."""

    features: Mapping[str, Column]
    labels: Mapping[str, Column]
    rows: int

    def __len__(self) -> int:
        return self.rows

    def taken(self, order: npt.NDArray[np.int64]) -> "RecordSample":
        """Return these rows in this order, which may repeat some."""
        return RecordSample(
            features={name: column[order] for name, column in self.features.items()},
            labels={name: column[order] for name, column in self.labels.items()},
            rows=len(order),
        )

    def in_order_of(self, schema: Schema) -> "RecordSample":
        """Return the same rows with their columns in the schema's order, wherever they were read."""
        return RecordSample(
            features={field.name: self.features[field.name] for field in schema.inputs if field.name in self.features},
            labels={field.name: self.labels[field.name] for field in schema.targets if field.name in self.labels},
            rows=self.rows,
        )

    def fits(self, schema: Schema) -> bool:
        """Return whether the sample has the columns of this schema, each with its dtype and shape."""
        pairs = ((schema.inputs, self.features), (schema.targets, self.labels))
        return all(
            {field.name for field in fields} == columns.keys()
            and all(
                (columns[field.name].dtype, columns[field.name].shape) == (field.numpy_dtype, (self.rows, *field.shape))
                for field in fields
            )
            for fields, columns in pairs
        )


def sample_of(decoded: Sequence[Decoded], most_rows: int, most_bytes: int = SAMPLE_BYTES) -> RecordSample | None:
    """Return the first rows of these chunks, within the bounds; None where there is no row."""
    chunks = [chunk for chunk in sorted(decoded, key=lambda chunk: (chunk.partition, chunk.start)) if len(chunk)]
    if not chunks or not most_rows:
        return None
    whole = RecordSample(
        features={name: np.concatenate([chunk.features[name] for chunk in chunks]) for name in chunks[0].features},
        labels={name: np.concatenate([chunk.labels[name] for chunk in chunks]) for name in chunks[0].labels},
        rows=sum(map(len, chunks)),
    )
    nbytes = np.cumsum(sum(map(_row_bytes, [*whole.features.values(), *whole.labels.values()]), np.zeros(len(whole))))
    within = max(1, int(np.searchsorted(nbytes, most_bytes, side="right")))
    return whole.taken(np.arange(min(most_rows, within, len(whole))))


def to_document(sample: RecordSample) -> dict[str, Any]:
    """Return the sample as JSON can hold it."""
    return {
        "format": _FORMAT,
        "rows": len(sample),
        "features": {name: column_document(column) for name, column in sample.features.items()},
        "labels": {name: column_document(column) for name, column in sample.labels.items()},
    }


def from_document(document: Mapping[str, Any]) -> RecordSample | None:
    """Return the sample of such a document; None where a later version wrote it."""
    if document.get("format") != _FORMAT:
        return None
    return RecordSample(
        features={name: column_of(column) for name, column in document["features"].items()},
        labels={name: column_of(column) for name, column in document["labels"].items()},
        rows=int(document["rows"]),
    )


def _row_bytes(column: Column) -> npt.NDArray[np.float64]:
    """Return the bytes of each row; of texts their contents."""
    if column.dtype != object:
        return np.full(len(column), column.nbytes / max(1, len(column)))
    sizes = np.fromiter((len(text) for text in column.ravel().tolist()), np.float64, column.size)
    summed: npt.NDArray[np.float64] = sizes.reshape(len(column), -1).sum(axis=1)
    return summed


def column_document(column: Column) -> dict[str, Any]:
    """Return a column as JSON can hold it, every bit of it."""
    if column.dtype == object:
        texts = [b64encode(text).decode() for text in column.ravel().tolist()]
        return {"dtype": "string", "shape": list(column.shape), "texts": texts}
    raw = column.astype(column.dtype.newbyteorder("<")).tobytes()
    return {"dtype": column.dtype.name, "shape": list(column.shape), "bytes": b64encode(raw).decode()}


def column_of(document: Mapping[str, Any]) -> Column:
    """Return the column of such a document."""
    shape = tuple(document["shape"])
    if document["dtype"] == "string":
        texts = np.empty(len(document["texts"]), object)
        texts[:] = [b64decode(text) for text in document["texts"]]
        return texts.reshape(shape)
    plain = np.dtype(document["dtype"])
    numbers: Column = np.frombuffer(b64decode(document["bytes"]), plain.newbyteorder("<")).reshape(shape)
    return numbers.astype(plain)
