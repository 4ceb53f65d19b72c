"""Records as they are in Kafka, in a predict request: decoded by the settings with which the version was exported.

    {"records": [{"price": 2.5, "user": {"age": 31}}, …]}              JSON records
    {"records": [{"b64": "AAAA…"}, …]}                                 bytes, of any format
    {"records": ["2.5,a7,13", …]}                                      CSV and text
    beside "records", where features are read from them: "keys", "headers", "timestamps", one for each record

A JSON record goes to the decoder in the very text that it has in the request, so that nothing is rounded on the way.
What the decoder refuses is refused here, with its reason and field. Runs on the threads `json`; holds the decoder.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from millrace.app.settings.exported_records import read_exported_records
from millrace.app.settings.sections.records import RecordsSettings, to_feature_decoder, to_format, to_schema
from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.app.tools.serve.json_tensors import BASE64, Array, ServingError, bad_request, bytes_of
from millrace.consumers.errors import ConfigError, MillraceError, NotYetError
from millrace.consumers.records import Chunk, Headers, Partition
from millrace.pipelines.formats.json.decoder import JsonDecoder
from millrace.pipelines.formats.json.parsed import ParsedRows
from millrace.pipelines.formats.plain.raw import RawDecoder
from millrace.pipelines.formats.shared.paths import Envelope, is_envelope, parse
from millrace.pipelines.formats.shared.protocol import DecodedValues
from millrace.pipelines.schema import Schema, Schemas
from millrace.pipelines.stream.decode import Decoded, decode_chunk
from millrace.training.model.export.answers import raw_columns

RECORDS = "records"
KEYS, HEADERS, TIMESTAMPS = "keys", "headers", "timestamps"
BESIDE: Mapping[str, Envelope] = {KEYS: Envelope.KEY, HEADERS: Envelope.HEADER, TIMESTAMPS: Envelope.TIMESTAMP}
"""What a request may hold beside the records, and what of Kafka's envelope it is."""
_SHOWN = 20
_REGISTRY_S = 2.0
"""How long a schema that is not known yet is waited for."""
_RETRY_AFTER_S = "5"
_FRAME = 5
"""Bytes in front of a JSON record in Confluent's wire format."""
_INT64 = np.iinfo(np.int64)
_SPACE = " \t\n\r"
_LONGEST = 500
MARKED_BYTES = 16 * 1024
"""Of a body whose records are known by `marked`, so that a few of them need not be parsed again."""
_scan = json.JSONDecoder().raw_decode
log = logging.getLogger(__name__)


class RepeatedKeys(dict[str, Any]):
    """A JSON object in which a key stands twice; the last one is here."""


def marked(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object, as `json.loads` asks for one, that shows whether it repeats a key."""
    found = dict(pairs)
    return found if len(found) == len(pairs) else RepeatedKeys(found)


class RecordInputs:
    """Makes the inputs of a version's signature of records."""

    def __init__(
        self,
        records: RecordsSettings,
        schemas: Schemas | None,
        *,
        framed: bool,
        timed: str | None = None,
        name: str = RECORDS,
    ) -> None:
        """Take whether JSON records may begin with the number of a schema, which says nothing about their fields.

        `timed` is the name of an input that is made of event times, which are then read too; `name` is under which
        records stand in a request. Raises ConfigError if the fields or the files of the settings do not fit each other.
        """
        self._format, self._framed, self._name = records.format, framed, name
        self._is_text = to_format(records).is_text
        own_time = timed is not None and records.event_time is not None
        if own_time and records.format == "raw":
            raise ConfigError(
                f"the input {timed!r} is made of the event times of records, which lie behind the label in a raw one"
            )
        self._decoder = to_feature_decoder(records, schemas, timed=own_time)
        self.waits = schemas is not None
        """Whether a request may wait for a schema."""
        whole, features = to_schema(records), self._decoder.schema
        self._parsed = ParsedRows(features) if type(self._decoder) is JsonDecoder else None
        self._raw = (
            (RawDecoder(whole).record_bytes, RawDecoder(features).record_bytes) if self._format == "raw" else None
        )
        self._envelope: dict[Envelope, str] = {}
        """By the parts of the envelope that are read, the name of a feature."""
        for field in features.features:
            if is_envelope(field.source) and (kind := parse(field.source).envelope) is not None:
                self._envelope.setdefault(kind, field.name)
        if timed is not None and not own_time:
            self._envelope.setdefault(Envelope.TIMESTAMP, timed)
        for kind, feature in self._envelope.items():
            if kind not in BESIDE.values():
                raise ConfigError(
                    f"the feature {feature!r} is read from {kind}, which a record has in Kafka alone; send features"
                )

    def read(self, body: bytes, document: Mapping[str, Any]) -> dict[str, Array]:
        """Return the tensors of the records of a request, which is also given as it was parsed. Raises ServingError."""
        return raw_columns(self._decoder.schema, self.decoded(body, document).features)

    def decoded(self, body: bytes, document: Mapping[str, Any]) -> Decoded:
        """Return the records of a request as columns. Raises ServingError."""
        name = self._name
        given = document[name]
        if not isinstance(given, list):
            raise bad_request(f"Expecting '{name}' to be a list")
        if not given:
            raise bad_request(f"No values in '{name}'")
        known = None
        if self._parsed is not None and len(body) <= MARKED_BYTES and all(map(_is_no_bytes, given)):
            known = self._parsed.decode(given, body)
        try:
            if known is not None:
                chunk = self._chunk([b""] * len(given), document)
                decoded = decode_chunk(chunk, _KnownValues(self._decoder.schema, known))
            else:
                text = body.decode(json.detect_encoding(body), "surrogatepass") if self._format == "json" else ""
                texts = _texts_of(text, name) if text else []
                values = [self._value(index, each, texts) for index, each in enumerate(given)]
                decoded = decode_chunk(self._chunk(values, document), self._decoder)
        except NotYetError as error:
            log.warning("a request with records is not answered: %s", error)  # it names the registry, for us alone
            text = "the schema of a record is not known yet; ask again later"
            raise ServingError(503, text, {"retry-after": _RETRY_AFTER_S}) from None
        if decoded.refused:  # what the trainer would set aside
            refused = decoded.refused
            shown = [{"index": one.offset, "reason": one.reason.value, "field": one.field} for one in refused[:_SHOWN]]
            first, more = refused[0], len(refused) - 1
            text = (
                f"{name}[{first.offset}] does not decode: {first.reason.value}"
                + ("" if first.field is None else f", in the field {first.field!r}")
                + ("" if first.detail is None else f" ({first.detail})")
                + (f"; and {more} more" if more else "")
                + ". docs/guarantees.md explains the reasons"
            )
            raise ServingError(400, text, refused=shown)
        return decoded

    def _value(self, index: int, given: Any, texts: Sequence[str]) -> bytes | None:
        """Return the value of a record as it is in Kafka; None for a tombstone."""
        if given is None:
            return None
        as_text = isinstance(given, str) and self._is_text
        if as_text or (isinstance(given, dict) and given.keys() == {BASE64}):
            value = bytes_of(given, 0, lambda _: f"{self._name}[{index}]")
            if self._framed and value[:1] == b"\0":
                return value[_FRAME:]
            if self._raw is not None and len(value) == self._raw[0]:
                return value[: self._raw[1]]  # labels, weight and event time lie behind the features
            return value
        if texts:
            return texts[index].encode("utf-8", "surrogatepass")
        kind = "a text, or bytes" if self._is_text else "bytes"
        raise bad_request(
            f'{self._name}[{index}]: a record of format {self._format} is {kind}; send {{"{BASE64}": "…"}}'
        )

    def _chunk(self, values: list[bytes | None], document: Mapping[str, Any]) -> Chunk:
        count = len(values)
        keys, headers, stamps = (
            _beside(name, document, count, self._envelope.get(kind)) for name, kind in BESIDE.items()
        )
        for index, each in enumerate(stamps or ()):
            if type(each) is not int or not _INT64.min <= each <= _INT64.max:
                raise bad_request(f"{TIMESTAMPS}[{index}] is no whole number of milliseconds since 1970")
        return Chunk(
            partition=Partition("", 0),
            incarnation=0,
            start=0,
            end=count,
            offsets=np.arange(count, dtype=np.int64),
            timestamps=np.zeros(count, np.int64) if stamps is None else np.array(stamps, np.int64),
            keys=[None] * count if keys is None else [_optional(f"{KEYS}[{at}]", one) for at, one in enumerate(keys)],
            values=values,
            headers=[()] * count if headers is None else [_headers(at, one) for at, one in enumerate(headers)],
            nbytes=sum(len(value or b"") for value in values),
            fetched_at=0.0,
        )


@dataclass(frozen=True, slots=True)
class _KnownValues:
    """A decoder of records that were decoded already."""

    schema: Schema
    known: DecodedValues

    def decode(self, values: Sequence[bytes | None]) -> DecodedValues:  # noqa: ARG002 - a Decoder
        """Return them."""
        return self.known


def _is_no_bytes(record: Any) -> bool:
    return isinstance(record, dict) and record.keys() != {BASE64}


class RecordReaders:
    """Makes what reads records, for each version; all share the schemas of the server's own registry."""

    def __init__(self, registry: RegistrySettings | None) -> None:
        self._registry = registry
        self._schemas: Schemas | None = None

    def of(self, version: Path) -> RecordInputs | str:
        """Return what reads records for the version in a folder; a text says why none can be read."""
        try:
            records, named = read_exported_records(version, self._registry)
            if records.registry is not None and self._schemas is None:
                self._schemas = to_registry(records.registry, _REGISTRY_S)
            return RecordInputs(records, self._schemas, framed=named and records.format == "json")
        except MillraceError as error:
            return str(error)
        except (OSError, ValueError, KeyError, TypeError) as error:
            return f"what its records are cannot be read by this millrace ({type(error).__name__}: {error})"[:_LONGEST]


def _beside(name: str, document: Mapping[str, Any], count: int, feature: str | None) -> list[Any] | None:
    """Return what a request holds beside its records under a name; None if nothing there is read."""
    given = document.get(name)
    if given is None:
        if feature is not None:
            raise bad_request(
                f"the feature {feature!r} is read from the {name} of records; send '{name}' beside '{RECORDS}'"
            )
        return None
    if not isinstance(given, list) or len(given) != count:
        raise bad_request(f"'{name}' is no list of {count}; send one for each record")
    return given


def _optional(place: str, given: Any) -> bytes | None:
    return None if given is None else bytes_of(given, 0, lambda _: place)


def _headers(index: int, given: Any) -> Headers:
    if given is None:
        return ()
    if not isinstance(given, dict):
        raise bad_request(f"{HEADERS}[{index}] is no object of texts by the names of headers")
    values = {name: _optional(f"{HEADERS}[{index}].{name}", value) for name, value in given.items()}
    return tuple((name, value) for name, value in values.items() if value is not None)


def _texts_of(text: str, name: str) -> list[str]:
    """Return the text of each element of a list in a JSON object, which was parsed before."""
    found, at = list[str](), _next(text, _next(text, 0) + 1)
    while text[at] != "}":
        key, at = _scan(text, at)
        at = _next(text, _next(text, at) + 1)
        if key == name and text[at] == "[":
            found, at = [], _next(text, at + 1)  # of two with one name the last counts, as for the parser
            while text[at] != "]":
                _, end = _scan(text, at)
                found.append(text[at:end])
                at = _behind_comma(text, end)
            at += 1
        else:
            _, at = _scan(text, at)
        at = _behind_comma(text, at)
    return found


def _behind_comma(text: str, at: int) -> int:
    at = _next(text, at)
    return _next(text, at + 1) if text[at] == "," else at


def _next(text: str, at: int) -> int:
    """Return where the next character stands that is no white space."""
    while text[at] in _SPACE:
        at += 1
    return at
