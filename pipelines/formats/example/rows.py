"""`tf.train.Example`s as Python objects, for a look at a few: without TensorFlow, by their wire format. Pure."""

from functools import cache, lru_cache
from typing import Any

from millrace.pipelines.formats.draft import ENOUGH, DraftSample, Look, Row, joined
from millrace.pipelines.formats.shared.descriptors import compiled_texts, message_of
from millrace.pipelines.formats.shared.field_types import LONGEST_SOURCE
from millrace.pipelines.formats.shared.paths import escaped
from millrace.pipelines.formats.shared.pieces import is_utf8

_PROTO = """
syntax = "proto3";
package tensorflow;
message BytesList { repeated bytes value = 1; }
message FloatList { repeated float value = 1; }
message Int64List { repeated int64 value = 1; }
message Feature { oneof kind { BytesList bytes_list = 1; FloatList float_list = 2; Int64List int64_list = 3; } }
message Features { map<string, Feature> feature = 1; }
message Example { Features features = 1; }
"""
_TAG, _MORE = 0x0A, 0x80
_TYPES = {"bytes_list": "bytes", "float_list": "number", "int64_list": "integer"}


def look_at_examples(sample: DraftSample) -> Look | None:
    """Return the look at Examples; None where the records are something else."""
    values, beside = sample.values, sample.beside
    if sum(map(_begins_so, values)) < ENOUGH * len(values):
        return None
    found = [(row, more) for row, more in zip(map(_lists, values), beside, strict=True) if row is not None]
    if len(found) < ENOUGH * len(values):
        return None
    single = {name: all(len(row.get(name, [0])) == 1 for row, _ in found) for row, _ in found for name in row}
    rows: list[Row] = [
        {escaped(name): inside[0] if single[name] else inside for name, inside in row.items()} for row, _ in found
    ]
    return Look(format="example", rows=joined(rows, [more for _, more in found]), looked_at=len(values))


def _begins_so(value: bytes) -> bool:
    """Return whether a record is one field, of the length that it states: cheap, and true of any Example."""
    if value[:1] != bytes([_TAG]):
        return False
    length = at = 0
    for at, code in enumerate(value[1:6]):
        length |= (code & 0x7F) << 7 * at
        if code < _MORE:
            break
    return length > 0 and len(value) == at + 2 + length


@cache
def _message() -> Any:
    from google.protobuf.message_factory import GetMessageClass  # noqa: PLC0415 - few need it

    return GetMessageClass(message_of(compiled_texts({"example.proto": _PROTO}, "example.proto", "init"), "Example"))


def feature_types(value: bytes) -> dict[str, str] | None:
    """Return the type of each feature of an Example by source; None for what is none, or has no features."""
    if (lists := _values(value)) is None:
        return None
    return {
        source: "null" if kind is None else _TYPES[kind] if len(inside) == 1 else f"list of {_TYPES[kind]}"
        for name, (kind, inside) in lists.items()
        if len((source := _source(name)).encode()) <= LONGEST_SOURCE
    }


_source = lru_cache(4096)(escaped)


def _values(value: bytes) -> dict[str, tuple[str | None, Any]] | None:
    """Return the kind and the values of each feature; None where there is none."""
    from google.protobuf.message import DecodeError  # noqa: PLC0415 - few need it

    try:
        features = _message().FromString(value).features.feature
    except DecodeError:
        return None
    kinds = {name: feature.WhichOneof("kind") for name, feature in features.items()}
    if not any(kinds.values()):
        return None
    return {name: (kind, () if kind is None else getattr(features[name], kind).value) for name, kind in kinds.items()}


def _lists(value: bytes) -> dict[str, list[Any]] | None:
    if (found := _values(value)) is None:
        return None
    lists = {name: [*inside] for name, (_, inside) in found.items()}
    return {name: [_text(one) for one in inside] for name, inside in lists.items() if inside}


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) and is_utf8(value) else value
