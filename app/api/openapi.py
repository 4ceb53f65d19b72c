"""The OpenAPI document, completed beyond what FastAPI derives by itself.

The first line of a route's docstring is its summary; every possible status has a meaning; problem documents have their
own media type; operations that need a token say so. Their ids are short, because generated clients have methods of
these names.
"""

import threading
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute

from millrace.app.api.authorization import is_open
from millrace.app.api.problem_documents import MEDIA_TYPE

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
    "403": "There are no tokens, and the request does not come from this machine; or the token may only read.",
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


_TOKEN = "token"  # noqa: S105 - the name of the scheme
_SCHEMES = {
    _TOKEN: {
        "type": "http",
        "scheme": "bearer",
        "description": "A token of api.tokens_dir, or for reads of api.read_tokens_dir.",
    }
}


def operation_id(route: APIRoute) -> str:
    """Return the id of a route's operation: `get_status`, `pause`."""
    return f"get_{route.name}" if "GET" in (route.methods or ()) else route.name


class Application(FastAPI):
    """FastAPI with a complete OpenAPI document."""

    commands_need_token = reads_need_token = False
    _one_at_a_time = threading.Lock()

    def openapi(self) -> dict[str, Any]:
        """Return the document. The first call takes half a second, so it must not run on an event loop."""
        with self._one_at_a_time:
            if not self.openapi_schema:
                described = super().openapi()
                described["components"]["securitySchemes"] = _SCHEMES
                for path, operations in described["paths"].items():
                    for method, operation in operations.items():
                        self._secure(path, method, operation)
                        _complete(operation)
            return self.openapi_schema or {}

    def _secure(self, path: str, method: str, operation: dict[str, Any]) -> None:
        """Say whether the operation needs a token; a command that needs none takes one all the same."""
        if method != "get":
            operation["security"] = [{_TOKEN: []}] if self.commands_need_token else [{}, {_TOKEN: []}]
        elif self.reads_need_token and not is_open(path):
            operation["security"] = [{_TOKEN: []}]
            operation["responses"].setdefault("401", {"content": {"application/json": {"schema": _PROBLEM}}})


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
