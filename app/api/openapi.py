"""The OpenAPI document, completed beyond what FastAPI derives by itself.

The first line of a route's docstring is its summary; every possible status has a meaning; problem documents have their
own media type.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from app.api.problem_documents import MEDIA_TYPE

TAGS: Mapping[str, str] = {
    "Probes": "For the platform that starts, restarts and routes.",
    "How it goes": "Reads, at any time; they never delay the training.",
    "Checkpoints": "What a restart resumes from, and how to go back.",
    "The trainer": "Commands, which it carries out between two training calls.",
}
"""In the order in which they are shown."""
_MEANINGS: Mapping[str, str] = {
    "200": "As described.",
    "201": "Done; the checkpoint is durable, and Location names it.",
    "202": "Under way; Location names the operation to ask for.",
    "400": "The body cannot be read.",
    "401": "There are tokens, and the request has none of them.",
    "403": "There are no tokens, and the request does not come from this machine.",
    "404": "No such checkpoint or operation.",
    "408": "The body did not come in time.",
    "409": "The trainer is ending, or the checkpoint or the range does not allow it.",
    "413": "The body is too large.",
    "422": "The body, the path or the query is not as described here.",
    "429": "Too many commands wait for the trainer already.",
    "503": "Not now; `detail` says why, and `fix` what to do.",
}
_OF_ANY = ("408", "413", "503")
"""What the middleware may answer on any route."""
_PROBLEM = {"$ref": "#/components/schemas/ProblemDocument"}


class Application(FastAPI):
    """FastAPI with a complete OpenAPI document."""

    _one_at_a_time = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """Return the document. The first call takes half a second, so it must not run on an event loop."""
        with self._one_at_a_time:
            if not self.openapi_schema:
                described = super().openapi()
                for operation in operations_of(described):
                    _complete(operation)
            return self.openapi_schema or {}


def operations_of(description: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield every operation of every path."""
    for path in description["paths"].values():
        yield from path.values()


def _complete(operation: dict[str, Any]) -> None:
    summary, _, more = str(operation.pop("description", "")).partition("\n")
    operation["summary"] = summary.strip().rstrip(".") or operation["summary"]
    if more.strip():
        operation["description"] = " ".join(more.split())
    responses = operation["responses"]
    for status in (*_OF_ANY, *(["400"] if "requestBody" in operation else [])):
        responses.setdefault(status, {"content": {"application/json": {"schema": _PROBLEM}}})
    for status, response in responses.items():
        said = response.get("description", "")
        response["description"] = said if said.endswith(".") else _MEANINGS.get(status, said)
        content = response.get("content", {})
        schema = content.get("application/json", {}).get("schema", {})
        if "$ref" in schema:  # FastAPI puts the union of all answers beside the one of this status
            for beside in ("anyOf", "title"):
                schema.pop(beside, None)
        if schema == _PROBLEM:
            content[MEDIA_TYPE] = content.pop("application/json")
    operation["responses"] = dict(sorted(responses.items()))
