"""/docs: it says everything that the description says, and lets nothing foreign in."""

import html
import re
from html.parser import HTMLParser

import pytest

from app.api.docs_page import docs_page
from tests.app.api_rig import Client

_VOID = {"meta"}


class Reader(HTMLParser):
    """Reads a page, and fails where its elements do not nest."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.elements: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.add(tag)
        self.attributes |= {name for name, _ in attrs}
        given = dict(attrs)
        self.ids += [given["id"] or ""] if "id" in given else []
        self.links += [given["href"] or ""] if "href" in given else []
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(page: str) -> Reader:
    reader = Reader()
    reader.feed(page)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture
def page(api: Client) -> str:
    """The page's text."""
    return api.get("/docs").text


def test_every_route_parameter_status_and_field_stands_on_the_page(api: Client, page: str) -> None:
    description = api.seen("/openapi.json")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for path, methods in description["paths"].items():
        for method, operation in methods.items():
            assert f"{method.upper()} {path}" in text
            assert all(name["name"] in text for name in operation.get("parameters", []))
            assert all(status in text for status in operation["responses"])
    for schema in description["components"]["schemas"].values():
        assert all(f"<code>{field}</code>" in page for field in schema.get("properties", {}))


def test_every_route_has_a_summary_of_its_own_and_a_place(api: Client) -> None:
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


def test_links_on_the_page_lead_somewhere(api: Client, page: str) -> None:
    reader = read(page)
    assert len(set(reader.ids)) == len(reader.ids)
    inside = {link[1:] for link in reader.links if link.startswith("#")}
    assert inside - set(reader.ids) == set()
    outside = {link for link in reader.links if not link.startswith("#")}
    assert {api.get(link).status_code for link in outside} == {200}


def test_the_page_needs_no_script_and_nothing_from_elsewhere(api: Client) -> None:
    answer = api.get("/docs")
    reader = read(answer.text)
    assert not {"script", "img", "iframe", "link", "form", "object"} & reader.elements
    assert not {name for name in reader.attributes if name.startswith("on") or name in {"src", "style"}}
    assert all(link.startswith(("#", "/")) for link in reader.links)
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "unsafe" not in policy


def test_what_is_described_cannot_become_markup(api: Client) -> None:
    evil = "<script>alert(1)</script>"
    operation = {"summary": evil, "description": evil, "tags": [evil], "responses": {"200": {"description": evil}}}
    description = {
        "info": {"version": evil},
        "paths": {f"/{evil}": {"get": operation}},
        "components": {"schemas": {evil: {"description": evil, "properties": {evil: {"description": evil}}}}},
    }
    assert "<script" not in docs_page(description, evil)
