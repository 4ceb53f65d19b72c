"""The description: what /openapi.json says of the application, beyond what FastAPI finds out by itself.

Every route's docstring is its summary; every status that can come says what it means; problems bear their own media
type. Made once, at the first look, on whichever thread that comes.
"""

import threading
from collections.abc import Iterator, Mapping
from typing import Any

from fastapi import FastAPI

from app.api.problem_documents import MEDIA_TYPE

TAGS: Mapping[str, str] = {
    "ProbeRoutes": "For whoever starts, restarts and routes.",
    "How it goes": "Read at any time; nothing is held up by it.",
    "Checkpoints": "What a restart goes on from, and the way back.",
    "The trainer": "Orders, which it obeys between two calls.",
}
"""In the order in which they are shown."""
_MEANINGS: Mapping[str, str] = {
    "200": "As described.",
    "201": "Done; the checkpoint is durable, and Location names it.",
    "202": "Under way; Location names the operation to look at.",
    "400": "The body cannot be read.",
    "401": "There are tokens, and the request brings none of them.",
    "403": "There are no tokens, and the request does not come from this machine.",
    "404": "No such checkpoint or operation.",
    "408": "The body did not come in time.",
    "409": "The trainer is ending, or the checkpoint or the range does not allow it.",
    "413": "The body is too large.",
    "422": "The body, the path or the query does not say what is described here.",
    "429": "Too many orders wait for the trainer already.",
    "503": "Not now; `detail` says why, and `fix` what to do.",
}
_OF_ANY = ("408", "413", "503")
"""What the guard may answer whatever the route."""
_PROBLEM = {"$ref": "#/components/schemas/ProblemDocument"}


class Application(FastAPI):
    """FastAPI with a description that is whole."""

    _one_at_a_time = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """The description. The first time it takes half a second, so it is no work for a loop."""
        with self._one_at_a_time:
            if not self.openapi_schema:
                described = super().openapi()
                for operation in operations_of(described):
                    _complete(operation)
            return self.openapi_schema or {}


def operations_of(description: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every method of every path."""
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
        if "$ref" in schema:  # what a route says of one status, beside the union of all that it may answer
            for beside in ("anyOf", "title"):
                schema.pop(beside, None)
        if schema == _PROBLEM:
            content[MEDIA_TYPE] = content.pop("application/json")
    operation["responses"] = dict(sorted(responses.items()))
