"""One request to a schema registry: a schema by its number, with all that it refers to.

Confluent's API, which Apicurio, Karapace and Redpanda have too. Holds no state but the address that answered last.
Blocks for some seconds at most, so it runs on a thread of its own.
"""

import http.client
import json
import socket
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

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
    authorization: str | None = field(default=None, repr=False)
    """The header of that name; a secret."""
    context: ssl.SSLContext | None = None
    """For https."""
    cache: Path | None = None
    """The folder that keeps schemas over restarts; None for memory alone."""


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
                complaints.append(f"{urls[at]}: {_why(error)}")
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
        headers = {"Accept": _ACCEPT}
        if self._options.authorization is not None:
            headers["Authorization"] = self._options.authorization
        try:
            connection.request("GET", parts.path.rstrip("/") + path, headers=headers)
            response = connection.getresponse()
            body = response.read(_LARGEST)
        finally:
            connection.close()
        answer = _parsed(body)
        if response.status == http.HTTPStatus.OK and answer is not None:
            return answer
        if response.status == http.HTTPStatus.NOT_FOUND and answer and answer.get("error_code") in _NO_SUCH:
            raise _Missing
        raise RegistryAwayError(_refusal(response.status))


def _parsed(body: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return answer if isinstance(answer, dict) else None


def _text_of(answer: Mapping[str, Any]) -> str:
    text = answer["schema"]
    if not isinstance(text, str):
        raise TypeError
    return text


def _refusal(status: int) -> str:
    if status in {http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN}:
        return f"it refuses us (HTTP {status}); check the user, password or token of records.registry"
    if status == http.HTTPStatus.NOT_FOUND:
        return "nothing there answers as a schema registry (HTTP 404); check the path of the URL"
    if status == http.HTTPStatus.OK:
        return "it answers what no schema registry answers"
    return f"it answers HTTP {status}"


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message}); set records.registry.ca_file"
    if isinstance(error, ssl.SSLError):
        return f"TLS fails ({(error.reason or 'no reason given').lower().replace('_', ' ')})"
    if isinstance(error, TimeoutError):
        return f"no answer within {TIMEOUT_S:g} s"
    if isinstance(error, socket.gaierror):
        return "the host is not known"
    if isinstance(error, OSError):
        return (error.strerror or type(error).__name__).lower()
    return str(error) or type(error).__name__
