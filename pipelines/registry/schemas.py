"""The schemas of a registry by their numbers, each asked for once: a number never means another schema.

Owns the thread `registry`, which asks, and the schemas in memory and in a folder. `get` never asks by itself: what is
neither in memory nor in the folder is noted for the thread, and NotYetError says so. While the registry is away the
thread tries again, with longer and longer pauses of at most `_LONGEST_S`. A number that the registry does not have is
asked for twice before that is believed, since a registry of several nodes may lag, and again after `_FORGET_S`, since
it may be registered later. Any thread may call `get`.

The folder that keeps schemas over restarts: those of the registry, each in a file, and which were reported.

A file has its own checksum: one that was damaged is not read, and is written again. No failure of the disk stops
anything: what cannot be kept is asked for again after a restart, or reported again. Used on any thread.

The registry is asked by Confluent's API, which Apicurio, Karapace and Redpanda have too. A request blocks for some
seconds at most, and gives a schema with all that it refers to.
"""

import hashlib
import http.client
import json
import logging
import random
import socket
import ssl
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from millrace.consumers.durable_files import replace_durably
from millrace.consumers.errors import MillraceError, NotYetError
from millrace.pipelines.formats.shared.protocol import FieldFit, SchemaFit
from millrace.pipelines.schema import RegisteredSchema

TIMEOUT_S = 5.0
_LARGEST = 16 * 2**20
"""Bytes of an answer; a schema has some thousand."""
_MOST_REFERENCES = 1000
_NO_SUCH = range(40400, 40500)
"""The codes with which a registry says that it does not have something."""
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryOptions:
    """Where the registry is, and how to get in."""

    urls: tuple[str, ...]
    """Of one registry; the first that answers counts."""
    authorization: Callable[[], str] | None = field(default=None, repr=False)
    """Gives the header of that name, a secret; asked before each request. Raises MillraceError."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """What else is sent with each request."""
    context: ssl.SSLContext | None = None
    """For https."""
    cache: Path | None = None
    """The folder that keeps schemas over restarts; None for memory alone."""
    setting: str = "records.registry"
    """Where all of this stands in the config."""


class RegistryAwayError(Exception):
    """No address gave an answer that counts; the text says why."""


class _Missing(Exception):  # noqa: N818 - an answer, no error
    """The registry says that it does not have it."""


class RegistryClient:
    """Asks a registry."""

    def __init__(self, options: RegistryOptions) -> None:
        self._options = options
        self._first = 0

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where the registry says that there is none. Raise RegistryAwayError."""
        try:
            answer = self._get(f"/schemas/ids/{number}")
            references: dict[tuple[str, int, str], tuple[str, str]] = {}
            self._resolve(answer.get("references") or (), references)
            return RegisteredSchema(
                kind=str(answer.get("schemaType") or "AVRO"),
                text=_text_of(answer),
                references=tuple(references.values()),
            )
        except _Missing:
            return None
        except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
            raise RegistryAwayError("it answers what no schema registry answers") from None

    def _resolve(
        self, wanted: Sequence[Mapping[str, Any]], found: dict[tuple[str, int, str], tuple[str, str]], depth: int = 0
    ) -> None:
        """Get what a schema refers to, what that refers to first."""
        for reference in wanted:
            # With its name: the same schema may be known by several.
            place = (str(reference["subject"]), int(reference["version"]), str(reference["name"]))
            if place in found:
                continue
            if len(found) >= _MOST_REFERENCES or depth >= _MOST_REFERENCES // 10:
                raise RegistryAwayError(f"the schema refers to more than {_MOST_REFERENCES} others, or in a circle")
            try:
                answer = self._get(f"/subjects/{quote(place[0], safe='')}/versions/{place[1]}")
            except _Missing:
                raise RegistryAwayError(
                    f"it has no version {place[1]} of {place[0]}, to which a schema refers"
                ) from None
            self._resolve(answer.get("references") or (), found, depth + 1)
            found[place] = (place[2], _text_of(answer))

    def _get(self, path: str) -> dict[str, Any]:
        urls = self._options.urls
        complaints = []
        for turn in range(len(urls)):
            at = (self._first + turn) % len(urls)
            try:
                answer = self._ask(urls[at], path)
            except (OSError, http.client.HTTPException, RegistryAwayError) as error:
                complaints.append(f"{urls[at]}: {_why(error, self._options.setting)}")
            else:
                self._first = at
                return answer
        raise RegistryAwayError("; ".join(complaints))

    def _ask(self, url: str, path: str) -> dict[str, Any]:
        """Return the answer of one address; raise _Missing where it is a clear no."""
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
        connection = (
            http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=self._options.context)
            if parts.scheme == "https"
            else http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
        )
        headers = {"Accept": _ACCEPT, **self._options.headers}
        if self._options.authorization is not None:
            try:
                headers["Authorization"] = self._options.authorization()
            except MillraceError as error:
                raise RegistryAwayError(str(error)) from None
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            body = response.read(_LARGEST)
        finally:
            connection.close()
        try:
            answer = json.loads(body)
        except (ValueError, RecursionError):
            answer = None
        answer = answer if isinstance(answer, dict) else None
        if response.status == http.HTTPStatus.OK and answer is not None:
            return answer
        if response.status == http.HTTPStatus.NOT_FOUND and answer and answer.get("error_code") in _NO_SUCH:
            raise _Missing
        raise RegistryAwayError(_refusal(response.status, self._options.setting))


def _text_of(answer: Mapping[str, Any]) -> str:
    text = answer["schema"]
    if not isinstance(text, str):
        raise TypeError
    return text


def _refusal(status: int, setting: str) -> str:
    if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        return f"it refuses us (HTTP {status}); check the user, password or token of {setting}"
    if status == http.HTTPStatus.NOT_FOUND:
        return "nothing there answers as a schema registry (HTTP 404); check the path of the URL"
    if status == http.HTTPStatus.OK:
        return "it answers what no schema registry answers"
    return f"it answers HTTP {status}"


def _why(error: Exception, setting: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); set {setting}.ca_file"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({(error.reason or 'no reason given').lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(error, socket.gaierror):
        return "the host is not known"
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return str(error) or type(error).__name__


log = logging.getLogger(__name__)
_MOST_REPORTED = 200
"""Reported schemas that are remembered, the newest."""


class KeptSchemas:
    """What a folder keeps."""

    def __init__(self, folder: Path | None) -> None:
        """None keeps nothing."""
        self._folder = folder

    def schema(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where it is not there, or cannot be read."""
        kept = self._read(_schema_file(number))
        if kept is None:
            return None
        try:
            references = tuple((str(name), str(text)) for name, text in kept["references"])
            return RegisteredSchema(str(kept["kind"]), str(kept["text"]), references)
        except (LookupError, TypeError, ValueError):  # of a later version
            return None

    def keep_schema(self, number: int, schema: RegisteredSchema) -> None:
        """Keep a schema."""
        document = {"kind": schema.kind, "text": schema.text, "references": schema.references}
        self._write(_schema_file(number), document, "the registry is asked again")

    def reported(self) -> list[SchemaFit]:
        """Return the schemas that were reported, the oldest first."""
        kept = self._read(_REPORTED)
        try:
            return [] if kept is None else [_fit(each) for each in kept["schemas"]]
        except (LookupError, TypeError, ValueError, AttributeError):  # of a later version
            return []

    def keep_reported(self, fits: Sequence[SchemaFit]) -> None:
        """Keep which schemas were reported."""
        newest = [asdict(fit) for fit in fits[-_MOST_REPORTED:]]
        self._write(_REPORTED, {"schemas": newest}, "a restart reports the same schemas again")

    def _read(self, name: str) -> Mapping[str, Any] | None:
        if self._folder is None:
            return None
        path = self._folder / name
        try:
            kept = json.loads(path.read_bytes())
            whole = kept["sha256"] == _checksum(kept["kept"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            log.warning("%s is damaged, and is written again: %s", path, type(error).__name__)
            return None
        if not whole:
            log.warning("%s is damaged, and is written again: its checksum is another", path)
            return None
        found: Mapping[str, Any] = kept["kept"]
        return found

    def _write(self, name: str, document: Mapping[str, Any], otherwise: str) -> None:
        if self._folder is None:
            return
        path, kept = self._folder / name, json.loads(json.dumps(document))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            replace_durably(path, json.dumps({"kept": kept, "sha256": _checksum(kept)}).encode())
        except OSError as error:
            log.warning("%s cannot be written, so %s: %s", path, otherwise, error.strerror)


_REPORTED = "reported.json"


def _schema_file(number: int) -> str:
    return f"schema-{number}.json"


def _checksum(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def _fit(kept: Mapping[str, Any]) -> SchemaFit:
    fields = {source: FieldFit(**fit) for source, fit in kept["fields"].items()}
    return SchemaFit(number=kept["number"], name=kept["name"], fields=fields)


log = logging.getLogger(__name__)
_SPREAD = random.Random()  # noqa: S311 - spreads what many clients ask
"""A generator of its own: Keras draws the seeds of the first weights from Python's shared one."""
_SHORTEST_S, _LONGEST_S = 0.2, 10.0
_CONFIRM_S = 1.0
_FORGET_S = 30.0


class RegistrySchemas:
    """Gives schemas by their numbers."""

    def __init__(
        self, options: RegistryOptions, *, wait_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Take how long `get` waits for a schema that is not known yet. A live stream does not wait here."""
        self._options, self._wait_s, self._clock = options, wait_s, clock
        self._client, self._kept = RegistryClient(options), KeptSchemas(options.cache)
        self._changed = threading.Condition()
        self._known: dict[int, RegisteredSchema] = {}
        self._missing: dict[int, float] = {}
        """When the registry last said that it does not have a schema."""
        self._wanted: dict[int, float] = {}
        """When to ask for a schema, by the clock."""
        self._doubted: set[int] = set()
        """What the registry has said once that it does not have."""
        self._away: str | None = None
        """Why the registry was away when it was last asked."""
        self._thread: threading.Thread | None = None

    def get(self, number: int) -> RegisteredSchema | None:
        """Return a schema; None where the registry says that there is none. Raise NotYetError while it is not known."""
        with self._changed:
            gives_up_at = self._clock() + self._wait_s
            while True:
                if number in self._known:
                    return self._known[number]
                since = self._missing.get(number)
                if since is not None and self._clock() - since < _FORGET_S:
                    return None
                if number not in self._wanted and (kept := self._kept.schema(number)) is not None:
                    # Read here, so that a registry that is away keeps nobody from what the folder has.
                    self._known[number] = kept
                    return kept
                if number not in self._wanted:
                    self._wanted[number] = self._clock()
                    self._changed.notify_all()
                if self._thread is None:
                    # A daemon: a request that hangs holds no shutdown up.
                    self._thread = threading.Thread(target=self._run, name="registry", daemon=True)
                    self._thread.start()
                if (left := gives_up_at - self._clock()) <= 0:
                    asked = f"schema {number} is asked for at {', '.join(self._options.urls)}"
                    away = f"the schema registry does not give schema {number}: {self._away}"
                    raise NotYetError(asked if self._away is None else away)
                self._changed.wait(left)

    def _run(self) -> None:
        pause = _SHORTEST_S
        while True:
            number = self._next()
            try:
                found = self._client.schema(number)
            except Exception as error:  # noqa: BLE001 - nothing may end the thread: all records would wait for ever
                self._note_away(number, str(error) if isinstance(error, RegistryAwayError) else type(error).__name__)
                time.sleep(pause * _SPREAD.uniform(0.5, 1.0))
                pause = min(2 * pause, _LONGEST_S)
                continue
            pause = _SHORTEST_S
            if found is not None:
                self._kept.keep_schema(number, found)
            self._settle(number, found)

    def _next(self) -> int:
        """Wait until a schema is due, and return its number."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._wanted)
                number = min(self._wanted, key=self._wanted.__getitem__)
                if (left := self._wanted[number] - self._clock()) <= 0:
                    return number
                self._changed.wait(left)

    def _settle(self, number: int, found: RegisteredSchema | None) -> None:
        with self._changed:
            if self._away is not None:
                log.warning("the schema registry answers again")
            self._away = None
            if found is None and number not in self._doubted:
                self._doubted.add(number)
                self._wanted[number] = self._clock() + _CONFIRM_S
                return
            del self._wanted[number]
            self._doubted.discard(number)
            if found is None:
                # What was missing long ago is dropped, so that records with random numbers take no memory.
                now = self._clock()
                self._missing = {one: at for one, at in self._missing.items() if now - at < _FORGET_S}
                self._missing[number] = now
            else:
                self._known[number] = found
            self._changed.notify_all()
        if found is None:
            log.warning("the schema registry has no schema %d: records of that number are set aside", number)
        else:
            log.info("schema %d is known", number, extra={"schema": number, "kind": found.kind})

    def _note_away(self, number: int, why: str) -> None:
        with self._changed:
            if self._away is None:
                log.warning("the schema registry is away, records wait for it: %s", why)
            self._away = why
            # Behind the others: it may be this one alone that the registry fails at.
            self._wanted[number] = self._clock()
