"""The page's files: all from this service, and sent under a strict policy."""

import asyncio
import gzip
import os
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI

from millrace.app.api.routes.page import POLICY, PageRoutes
from tests.app.api_rig import Client, is_problem

ROOT = Path(__file__).parents[3]
STATIC = ROOT / "app" / "page" / "static"
NAMES = sorted(path.name for path in STATIC.iterdir())
PATHS = ["/", *(f"/page/{name}" for name in NAMES)]


@pytest.mark.parametrize("path", PATHS)
def test_every_file_comes_under_the_policy_and_as_what_it_is(api: Client, path: str) -> None:
    answer = api.get(path)
    assert answer.status_code == 200
    assert answer.headers["content-security-policy"] == POLICY
    assert answer.headers["x-content-type-options"] == "nosniff"
    kind = {".js": "text/javascript", ".css": "text/css"}.get(Path(path).suffix, "text/html")
    assert answer.headers["content-type"] == f"{kind}; charset=utf-8"


def test_the_policy_allows_no_other_origin_and_nothing_inline() -> None:
    allowed = dict(part.strip().split(" ", 1) for part in POLICY.split(";"))
    assert allowed.pop("default-src") == "'none'"
    assert {"frame-ancestors", "base-uri", "form-action"} <= allowed.keys()
    assert {source for sources in allowed.values() for source in sources.split()} == {"'none'", "'self'", "data:"}
    assert allowed["img-src"] == "'self' data:"


def test_the_page_refers_only_to_its_own_existing_files() -> None:
    markup = (STATIC / "index.html").read_text("utf-8")
    named = re.findall(r'(?:href|src)="([^"#]+)"', markup)
    assert [one for one in named if not one.startswith("data:") and one.removeprefix("/page/") not in NAMES] == []
    imported = {
        one for path in STATIC.glob("*.js") for one in re.findall(r'from "\./([^"]+)"', path.read_text("utf-8"))
    }
    assert imported <= set(NAMES)
    preloaded = {Path(one).name for one in named if one.endswith(".js")}
    assert preloaded == {name for name in NAMES if name.endswith(".js")}, "a chain of imports is a chain of waits"


def test_a_browser_that_has_the_file_gets_304_without_a_body(api: Client) -> None:
    first = api.get("/page/main.js")
    again = api.get("/page/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert first.headers["cache-control"] == "no-cache", "so that a new version shows at once"


Build = Callable[[str, dict[str, str]], Callable[..., httpx.Response]]


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Build:
    """Return what makes a build whose page has these scripts, all changed at one time, and asks it for a path."""

    def make(name: str, scripts: dict[str, str]) -> Callable[..., httpx.Response]:
        folder = tmp_path / name
        for below in ("static", "docs"):
            (folder / below).mkdir(parents=True)
        for script, text in scripts.items():
            (folder / "static" / script).write_text(text)
            os.utime(folder / "static" / script, (0, 0))
        monkeypatch.setattr("millrace.app.api.routes.page.files", lambda _: folder)
        app = FastAPI(openapi_url=None)
        app.include_router(PageRoutes(dict).router())

        async def get(path: str, headers: dict[str, str]) -> httpx.Response:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
                return await client.get(path, headers=headers)

        return lambda path, headers: asyncio.run(get(path, headers))

    return make


@pytest.mark.parametrize("coding", ["identity", "gzip"])
def test_files_of_one_size_and_time_are_answered_each_with_its_own_bytes(coding: str, build: Build) -> None:
    get = build("one", {"a.js": "let a\n", "b.js": "let b\n"})
    first, second = (get(f"/page/{name}", {"accept-encoding": coding}) for name in ("a.js", "b.js"))
    assert (first.text, second.text) == ("let a\n", "let b\n")
    assert first.headers["etag"] != second.headers["etag"]


def test_a_script_of_another_build_is_sent_though_size_and_time_are_alike(build: Build) -> None:
    old = build("old", {"a.js": "let a = 1\n"})("/page/a.js", {})
    new, same = build("new", {"a.js": "let a = 2\n"}), build("same", {"a.js": "let a = 1\n"})
    since = {"if-modified-since": "Thu, 01 Jan 1970 00:00:00 GMT"}
    for headers in (since, since | {"if-none-match": old.headers["etag"]}):
        answer = new("/page/a.js", headers)
        assert (answer.status_code, answer.text) == (200, "let a = 2\n")
    assert same("/page/a.js", since | {"if-none-match": f'"x", {old.headers["etag"]}'}).status_code == 304


def test_a_file_is_compressed_for_clients_that_accept_it(api: Client) -> None:
    plain = api.get("/page/page.css", headers={"accept-encoding": "identity"})
    packed = api.get("/page/page.css", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.content == plain.content == (STATIC / "page.css").read_bytes()
    assert int(packed.headers["content-length"]) == len(gzip.compress(plain.content, mtime=0)) < len(plain.content) / 2


@pytest.mark.parametrize("name", ["x.js", "%2e%2e%2ffiles.py", "..%2f..%2fservice.py", "static", "page.css%00"])
def test_a_name_never_becomes_a_path(api: Client, name: str) -> None:
    is_problem(api.get(f"/page/{name}"), 404)
