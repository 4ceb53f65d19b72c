"""The OpenAPI document: every operation and status has a description, and says whether it needs a token."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.app.api.authorization import ReadAuthorizer, TokenAuthorizer
from millrace.app.api.tokens import Tokens
from tests.app.api_rig import Client, Rig


def test_every_route_has_its_own_summary_and_a_tag(api: Client) -> None:
    operations = [one for methods in api.seen("/openapi.json")["paths"].values() for one in methods.values()]
    summaries = [one["summary"] for one in operations]
    assert len(set(summaries)) == len(summaries)
    assert all(" " in summary and not summary.endswith(".") for summary in summaries)
    assert all(one["tags"] for one in operations)


def test_every_status_says_what_it_means_and_problems_say_what_they_are(api: Client) -> None:
    for path, methods in api.seen("/openapi.json")["paths"].items():
        for operation in methods.values():
            for status, response in operation["responses"].items():
                assert response["description"].endswith("."), (path, status)
                if status >= "400" and status != "503":
                    assert list(response["content"]) == ["application/problem+json"], (path, status)


def test_every_operation_has_a_short_id_of_its_own(api: Client) -> None:
    paths = api.seen("/openapi.json")["paths"]
    ids = [operation["operationId"] for methods in paths.values() for operation in methods.values()]
    assert len(set(ids)) == len(ids)
    assert {"get_status", "get_checkpoint", "save", "pause"} <= set(ids)
    assert [one for one in ids if not re.fullmatch("[a-z]+(_[a-z]+)?", one)] == []


@pytest.fixture
def described(rig: Rig, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Return how to ask services with and without tokens for their description."""
    (tmp_path / "tokens").mkdir()
    (tmp_path / "tokens" / "ops").write_text("correct-horse-battery-staple")
    tokens, made = Tokens.open(tmp_path / "tokens"), list[Client]()

    def describe(*, commands: bool, reads: bool) -> Any:
        authorizer, readers = TokenAuthorizer(tokens) if commands else None, ReadAuthorizer(tokens) if reads else None
        made.append(Client(rig, authorizer=authorizer, readers=readers))
        return made[-1].seen("/openapi.json")

    yield describe
    for client in made:
        client.close()


@pytest.mark.parametrize("commands", [True, False])
@pytest.mark.parametrize("reads", [True, False])
def test_every_operation_says_whether_it_needs_a_token(
    described: Callable[..., Any], commands: bool, reads: bool
) -> None:
    document = described(commands=commands, reads=reads)
    scheme = document["components"]["securitySchemes"]["token"]
    assert (scheme["type"], scheme["scheme"]) == ("http", "bearer")
    token: dict[str, list[str]] = {"token": []}
    none: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if method == "post":
                assert operation["security"] == ([token] if commands else [none, token]), path
            else:
                needs = reads and path not in ("/livez", "/readyz", "/health")
                assert operation.get("security") == ([token] if needs else None), path
                assert ("401" in operation["responses"]) == needs
