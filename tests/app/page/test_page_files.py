"""The page's files: all from this service, and sent under a strict policy."""

import gzip
import re
from pathlib import Path

import pytest

from millrace.app.api.routes.page import POLICY
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
