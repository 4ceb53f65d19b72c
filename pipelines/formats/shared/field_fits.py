"""How the fields that are asked for are read by one schema of a registry, and what changes from one schema to the next.

A decoder makes one for each schema that has written records. Immutable, pure, and of schemas alone: it holds nothing of
a record.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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
            how = "is promoted" if _promoted(was.kind, fit.kind) else "changes its type"
            yield f"{how} from {was.kind or 'none that can be read'} to {fit.kind}"


def _promoted(was: str, now: str) -> bool:
    return any(was in ladder and now in ladder[ladder.index(was) + 1 :] for ladder in _LADDERS)
