"""The part of a Protobuf message that fields ask for, as a message type of its own: all else is skipped unread.

A field that nobody reads then costs next to nothing, and keeps no record from being learnt. Numbers and types on the
wire stay the same. An enum becomes an int32; its names are looked up afterwards. All members of a oneof are kept where
one is asked for, because a later member takes the place of an earlier one. Used when a decoder is made.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as member
from typing import Any

import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, wrappers_pb2
from google.protobuf.descriptor import FieldDescriptor as Kind

from millrace.consumers.errors import ConfigError
from millrace.pipelines.formats.shared.arrow_columns import element_type
from millrace.pipelines.formats.shared.paths import PathStep, steps_of
from millrace.pipelines.schema import Field

_PACKAGE = "millrace.asked"
_WRAPPERS = wrappers_pb2.DESCRIPTOR
TIMESTAMP, DURATION = "google.protobuf.Timestamp", "google.protobuf.Duration"
_TIME = "Time"
"""A message with the fields of both: ptars takes the last of several Timestamps, where Protobuf merges them."""
_FLOATS = frozenset({Kind.TYPE_FLOAT, Kind.TYPE_DOUBLE})
_TEXTS = frozenset({Kind.TYPE_STRING, Kind.TYPE_BYTES, Kind.TYPE_ENUM})
_KINDS = {getattr(Kind, name): name.removeprefix("TYPE_").lower() for name in dir(Kind) if name.startswith("TYPE_")}
_NO_INTEGERS = frozenset({*_FLOATS, Kind.TYPE_STRING, Kind.TYPE_BYTES, Kind.TYPE_BOOL, Kind.TYPE_MESSAGE})


class NoSuchFieldError(ConfigError):
    """A message has no field of a name."""


@dataclass(frozen=True, slots=True)
class MessageStep:
    """A field on the way to a value."""

    name: str
    """Its name in the type that is read."""
    repeated: bool = False
    key: bool | int | str | None = None
    """Of a map: the key whose value is asked for."""


@dataclass(frozen=True, slots=True)
class MessagePath:
    """Where a field of the schema is."""

    field: Field
    steps: tuple[MessageStep, ...]
    enum: Mapping[int, bytes] | None = None
    """The names of the numbers, where it is an enum."""
    kind: str = ""
    """Its type in the message, as Protobuf calls it."""
    place: str = ""
    """The message's own names on the way, a dot between."""


@dataclass(slots=True)
class _Made:
    """A message type that is being made."""

    proto: Any
    path: str
    message: Any
    fields: dict[int, Any] = member(default_factory=dict)
    """By number."""
    nested: dict[int, "_Made"] = member(default_factory=dict)
    at: set[tuple[MessageStep, ...]] = member(default_factory=lambda: {()})
    """The ways to it: several where it is the value of several keys."""


class AskedMessage:
    """The message type of some fields."""

    def __init__(self, descriptor: Any, fields: Iterable[Field], known: Any = None) -> None:
        """Raise ConfigError where a field is not there, or does not hold what the schema says.

        `known`: the same message as the settings describe it, by whose numbers the fields are found; None finds them by
        their names.
        """
        file = descriptor_pb2.FileDescriptorProto(
            name=f"{_PACKAGE}.proto", package=_PACKAGE, syntax="proto3", dependency=[_WRAPPERS.name]
        )
        time = file.message_type.add(name=_TIME)
        time.field.add(name="seconds", number=1, label=Kind.LABEL_OPTIONAL, type=Kind.TYPE_INT64)
        time.field.add(name="nanos", number=2, label=Kind.LABEL_OPTIONAL, type=Kind.TYPE_INT32)
        root = _Made(file.message_type.add(name="Asked"), f".{_PACKAGE}.Asked", descriptor)
        self.paths = tuple(_asked(root, one, known) for one in fields)
        self.oneofs = tuple(_close(root))
        """The ways to the members of each oneof that has more than one."""
        self.maps = tuple(_maps(root))
        """The ways to the maps."""
        pool = descriptor_pool.DescriptorPool()
        pool.AddSerializedFile(_WRAPPERS.serialized_pb)
        pool.Add(file)
        self.descriptor: Any = pool.FindMessageTypeByName(f"{_PACKAGE}.Asked")


def _asked(made: _Made, field: Field, known: Any) -> MessagePath:
    """Ask for a field, and return where it is."""
    left, steps, names = list(steps_of(field)), list[MessageStep](), list[str]()
    while True:
        same = None if known is None else known.fields_by_name[left[0].name]
        found, step = _found(made, left.pop(0), field, same), MessageStep("")
        names.append(found.name)
        if (entry := _entry_of(found)) is not None:
            names += [one.name for one in left[:1]]
            made, step = _in_map(made, found, left, field)
            found = entry.fields_by_name["value"]
            same = None if same is None else _entry_of(same).fields_by_name["value"]
        else:
            step = MessageStep(f"f{found.number}", found.is_repeated)
        steps.append(step)
        if not left:
            return MessagePath(field, tuple(steps), _leaf(made, found, field), type_of(found), ".".join(names))
        if found.message_type is None:
            raise _wrong(field, f"{found.full_name} is {_called(found)}, which has no fields")
        made, known = _nested(made, found, field), None if same is None else same.message_type
        made.at = made.at - {()} | {tuple(steps)}


def _found(made: _Made, step: PathStep, field: Field, same: Any) -> Any:
    """Return the field of a step, by the number of `same` where there is one, else by its name."""
    fields = made.message.fields_by_name if same is None else made.message.fields_by_number
    found = fields.get(step.name if same is None else same.number)
    if found is None:
        there = ", ".join(one.name for one in made.message.fields) or "no field"
        by = "" if same is None else f", which has the number {same.number}"
        said = _wrong(field, f"{made.message.full_name} has no {step.name!r}{by}; it has {there}")
        raise NoSuchFieldError(str(said))
    if same is not None and (_entry_of(same) is None) != (_entry_of(found) is None):
        raise _wrong(field, f"of {found.full_name} and {same.full_name} only one is a map")
    if found.type == Kind.TYPE_GROUP:
        raise _wrong(field, f"{found.full_name} is a group, which cannot be read; leave it out")
    if _entry_of(found) is None and step.lists != int(found.is_repeated):
        listed = "a list of one dimension; write [] after it, and give the field a shape"
        raise _wrong(field, f"{found.full_name} is {listed if found.is_repeated else 'no list'}")
    return found


def _in_map(made: _Made, found: Any, left: list[PathStep], field: Field) -> tuple[_Made, MessageStep]:
    """Ask for a map; return the type of its entries, and the step to the value of the key."""
    if not left:
        raise _wrong(field, f"{found.full_name} is a map; name one of its keys, as in {field.source}.KEY")
    named = left.pop(0)
    if named.lists:
        raise _wrong(field, f"the values of {found.full_name} are no lists")
    entry = _nested(made, found, field)
    entry.proto.name = f"F{found.number}Entry"
    made.fields[found.number].type_name = entry.path = f"{made.path}.{entry.proto.name}"
    entry.proto.options.map_entry = True
    kind = found.message_type.fields_by_name["key"].type
    if 1 not in entry.fields:
        entry.fields[1] = entry.proto.field.add(name="key", number=1, label=1, type=kind)
    return entry, MessageStep(f"f{found.number}", key=_key(named.name, kind, found, field))


def _key(name: str, kind: int, found: Any, field: Field) -> bool | int | str:
    if kind == Kind.TYPE_STRING:
        return name
    try:
        return {"false": False, "true": True}[name] if kind == Kind.TYPE_BOOL else int(name)
    except (KeyError, ValueError):
        raise _wrong(field, f"{name!r} is no key of {found.full_name}") from None


def _nested(made: _Made, found: Any, field: Field) -> _Made:
    """Return the type of a message in a message; make it where it is not there yet."""
    number = found.number
    if number not in made.nested:
        one = _field(made, found, field)
        name = f"M{number}"
        one.type, one.type_name = Kind.TYPE_MESSAGE, f"{made.path}.{name}"
        made.nested[number] = _Made(made.proto.nested_type.add(name=name), one.type_name, found.message_type)
    return made.nested[number]


def _leaf(made: _Made, found: Any, field: Field) -> Mapping[int, bytes] | None:
    """Ask for a value; return the names of an enum."""
    _check(found, field)
    if found.number not in made.fields:
        one = _field(made, found, field)
        one.type = Kind.TYPE_INT32 if found.type == Kind.TYPE_ENUM else found.type
        if found.message_type is not None:
            name = found.message_type.full_name
            one.type_name = f".{_PACKAGE}.{_TIME}" if name in {TIMESTAMP, DURATION} else f".{name}"
    elif found.number in made.nested:
        raise _wrong(field, f"{found.full_name} is also read as a message of fields; read it in one way")
    if found.type != Kind.TYPE_ENUM:
        return None
    return {number: value.name.encode() for number, value in found.enum_type.values_by_number.items()}


def _field(made: _Made, found: Any, field: Field) -> Any:
    if found.number in made.fields:
        raise _wrong(field, f"{found.full_name} is also read as one value; read it in one way")
    label = Kind.LABEL_REPEATED if found.is_repeated else Kind.LABEL_OPTIONAL
    name = "value" if made.proto.options.map_entry else f"f{found.number}"
    made.fields[found.number] = made.proto.field.add(name=name, number=found.number, label=label)
    return made.fields[found.number]


def _check(found: Any, field: Field) -> None:
    """Raise ConfigError where a value can never be of the field's dtype."""
    kind, message = found.type, found.message_type
    if message is not None and message.file.name == _WRAPPERS.name:
        kind, message = message.fields_by_name["value"].type, None
    wanted = element_type(field)
    if message is not None:
        fits = message.full_name in {TIMESTAMP, DURATION} and not pa.types.is_binary(wanted) and field.dtype != "bool"
    elif pa.types.is_binary(wanted):
        fits = kind in _TEXTS
    elif pa.types.is_boolean(wanted):
        fits = kind == Kind.TYPE_BOOL
    else:
        fits = kind not in _NO_INTEGERS or (pa.types.is_floating(wanted) and kind in _FLOATS)
    if not fits:
        raise _wrong(field, f"{found.full_name} is {_called(found)}, which is no {field.dtype}; change the dtype")


def _close(made: _Made) -> Iterator[tuple[tuple[MessageStep, ...], ...]]:
    """Complete a type, the oneofs and which fields tell absent from zero; yield the ways to the members of oneofs."""
    for nested in made.nested.values():
        yield from _close(nested)
    if made.proto.options.map_entry:
        return
    asked = [made.message.fields_by_number[number] for number in made.fields]
    oneofs = {one.containing_oneof.name: one.containing_oneof for one in asked if _in_oneof(one)}
    for at, oneof in enumerate(oneofs.values()):
        made.proto.oneof_decl.add(name=f"one{at}")
        if len(oneof.fields) > 1:
            members = [MessageStep(f"f{one.number}") for one in oneof.fields]
            yield from (tuple((*way, one) for one in members) for way in made.at)
        for one in oneof.fields:
            (made.fields.get(one.number) or _unread(made, one)).oneof_index = at
    for one in asked:
        if one.has_presence and one.message_type is None and not _in_oneof(one):
            kept = made.fields[one.number]
            kept.proto3_optional, kept.oneof_index = True, len(made.proto.oneof_decl)
            made.proto.oneof_decl.add(name=f"_{kept.name}")


def _maps(made: _Made) -> Iterator[tuple[MessageStep, ...]]:
    """Yield the ways to the maps."""
    for number, nested in made.nested.items():
        yield from _maps(nested)
        if nested.proto.options.map_entry:
            yield from ((*way, MessageStep(f"f{number}")) for way in made.at)


def _unread(made: _Made, found: Any) -> Any:
    """Add a member of a oneof that nobody asked for: an empty message, or a value."""
    one = made.proto.field.add(name=f"f{found.number}", number=found.number, label=Kind.LABEL_OPTIONAL)
    one.type = Kind.TYPE_INT32 if found.type == Kind.TYPE_ENUM else found.type
    if found.message_type is not None:
        one.type_name = f"{made.path}.M{found.number}"
        made.proto.nested_type.add(name=f"M{found.number}")
    elif found.type == Kind.TYPE_STRING:
        one.type = Kind.TYPE_BYTES
    return one


def _in_oneof(found: Any) -> bool:
    """Return whether a field is in a oneof that was written, not one that stands for `optional`."""
    oneof = found.containing_oneof
    return oneof is not None and not (len(oneof.fields) == 1 and oneof.name == f"_{found.name}")


def _entry_of(found: Any) -> Any:
    """Return the type of the entries where a field is a map, else None."""
    message = found.message_type
    return message if message is not None and message.GetOptions().map_entry else None


def _called(found: Any) -> str:
    return f"an enum {type_of(found)}" if found.enum_type is not None else f"a {type_of(found)}"


def type_of(found: Any) -> str:
    """Return the type of a field, as Protobuf calls it."""
    named = found.message_type or found.enum_type
    return str(named.full_name) if named is not None else _KINDS[found.type]


def _wrong(field: Field, why: str) -> ConfigError:
    return ConfigError(f"records: field {field.source!r}: {why}")
