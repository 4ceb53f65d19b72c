"""The Decoder protocol: from the bytes of records to columns and verdicts.

A decoder is a pure function of each record's own bytes: with any chunks and any neighbours, the columns and the verdict
are the same. It runs on a pool of threads, so it has no mutable state, and it releases the GIL where the format allows.

A decoder of records that schemas of a registry describe also says how the fields are read by each of them: a
`SchemaFit`, which is immutable and of the schema alone; it holds nothing of a record.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from millrace.consumers.errors import NotYetError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Int64s
from millrace.pipelines.schema import Column, Schema

_Key = TypeVar("_Key")
_Known = TypeVar("_Known")
_LADDERS = (
    ("int", "long", "float", "double"),
    ("int32", "int64"),
    ("sint32", "sint64"),
    ("uint32", "uint64"),
    ("float", "double"),
)
"""Types of Avro and of Protobuf, each of which is promoted to those behind it."""
LONGEST_DETAIL = 300
"""Characters of what is said about a schema."""
_MOST_CHANGES = 8
"""Changes of one schema that a sentence has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldFit:
    """How one field is read."""

    place: str | None
    """The schema's own names for it, the outermost first, a dot between; None where the schema does not have it."""
    kind: str = ""
    """Its type there, as the format calls it; several where a union has them."""
    stand_in: str | None = None
    """What is used in its place in every record, in words; None where the schema has it."""
    unfit: str | None = None
    """Why no record of the schema can give it, in words; None where records can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaFit:
    """How all fields are read."""

    number: int
    """The schema's number in the registry."""
    name: str
    """The record or message that it describes: versions of one schema have the same name."""
    fields: Mapping[str, FieldFit]
    """By source."""


def changes(before: SchemaFit | None, now: SchemaFit) -> list[str]:
    """Return what is different for the fields, a clause each; with nothing before, what is not as it is asked for."""
    clauses: list[str] = []
    for source, fit in now.fields.items():
        was = fit if before is None else before.fields.get(source)
        if before is None and fit.place is not None and fit.place != source:
            clauses.append(f"{source!r} is read from {fit.place}")
        elif was is not None:  # else it was not asked for then
            clauses += (f"{source!r} {clause}" for clause in _clauses(was, fit, first=before is None))
    return clauses


def in_a_sentence(clauses: list[str]) -> str:
    """Return the clauses as the end of a sentence."""
    if not clauses:
        return "nothing changes for the fields that are read"
    more = len(clauses) - _MOST_CHANGES
    return "; ".join([*clauses[:_MOST_CHANGES], *([f"and {more} more"] if more > 0 else [])])


def _clauses(was: FieldFit, fit: FieldFit, *, first: bool) -> Iterator[str]:
    if fit.unfit is not None:
        yield f"cannot be read: {fit.unfit}"
    elif fit.place is None:
        if first or was.place is not None:
            yield f"is not in it, {fit.stand_in} is used"
    elif was.place is None:
        yield f"is added ({fit.kind})"
    else:
        if was.place != fit.place:
            yield f"is renamed from {was.place} to {fit.place}"
        if was.kind != fit.kind:
            up = any(was.kind in one and fit.kind in one[one.index(was.kind) + 1 :] for one in _LADDERS)
            how = "is promoted" if up else "changes its type"
            yield f"{how} from {was.kind or 'none that can be read'} to {fit.kind}"


class Refusal(NamedTuple):
    """The verdict on a record that could not be decoded, and is set aside. It names a field, never a value."""

    index: int  # type: ignore[assignment]  # a tuple's method of this name is not wanted
    """The index of the record in the values that were passed in."""
    reason: Reason
    field: str | None = None
    """The record's name of the field at fault; None where it is not the fault of one field."""
    schema: int | None = None
    """The number of the schema that wrote the record; None where it names none."""
    detail: str | None = None
    """Where its schema is at fault, and not the record: how, in words. Every record of the schema is at fault then."""


@dataclass(frozen=True, slots=True)
class DecodedValues:
    """Columns of the records that decode, and verdicts on those that do not."""

    kept: Int64s
    """The index, in the values that were passed in, of each row of the columns; ascending."""
    columns: Mapping[str, Column]
    """One column a field of the value, keyed by `Field.source`; `len(kept)` rows each, C-contiguous."""
    refused: tuple[Refusal, ...]
    """Ascending by index; with `kept` it names every value exactly once."""
    lengths: Mapping[str, Int64s] = dataclasses.field(default_factory=dict)
    """The number of elements in the record, before any cut, row by row, for each source whose lists vary in length."""
    schemas: tuple[tuple[SchemaFit, int], ...] = ()
    """The schemas of a registry that wrote the records, each with the index of its first one; ascending by that."""


def each_known(asked: Iterable[_Key], known: Callable[[_Key], _Known]) -> list[_Known]:
    """Return what is known of each; ask for all of them before NotYetError is raised for one."""
    found, lacks = list[_Known](), None
    for one in asked:
        try:
            found.append(known(one))
        except NotYetError as error:
            lacks = error
    if lacks is not None:
        raise lacks
    return found


class TopicDecoder:
    """Decodes the records of each topic by a decoder of their own; all give columns for the same model.

    `decode_chunk` asks it for the decoder of its chunk. Values without a topic, as of files, are those of `usual`.
    """

    def __init__(self, usual: "Decoder", by_topic: "Mapping[str, Decoder]") -> None:
        self._usual, self._by_topic = usual, dict(by_topic)

    @property
    def schema(self) -> Schema:
        """The schema of the rows."""
        return self._usual.schema

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode values that are of no topic."""
        return self._usual.decode(values)

    def of(self, topic: str) -> "Decoder":
        """Return the decoder of a topic's records."""
        return self._by_topic.get(topic, self._usual)


class Decoder(Protocol):
    """Decodes values by a schema."""

    @property
    def schema(self) -> Schema:
        """The schema that the decoder follows."""

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:
        """Decode any number of values, also none."""
