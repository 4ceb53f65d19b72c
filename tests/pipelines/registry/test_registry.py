"""The registry's client against a real HTTP server that says what a registry says, and what it should not."""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings.sections.registry import RegistrySettings, to_registry
from millrace.consumers import bearer_tokens
from millrace.consumers.errors import NotYetError
from millrace.pipelines.registry.schemas import RegistryAwayError, RegistryClient, RegistryOptions, RegistrySchemas
from millrace.pipelines.schema import RegisteredSchema
from tests.app.certificates import Authority
from tests.oidc import CLIENT, SECRET, OidcProvider
from tests.training.checkpoints.small_volume import small_volume

pytestmark = pytest.mark.row(39)

SCHEMA = '{"type": "record", "name": "C", "fields": [{"name": "a", "type": "int"}]}'
_NONE = {"error_code": 40403, "message": "Schema not found"}


class Server:
    """Answers by path; notes what it was asked, and with which credentials."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, tuple[int, Any]] = {"/schemas/ids/1": (200, {"schema": SCHEMA})}
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[Any] = []
        self.wanted: Callable[[], str] | None = None
        """Gives the only token that is accepted; None: any is."""
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, self.headers["Authorization"]))
                outer.headers.append(self.headers)
                if (wanted := outer.wanted) is not None and self.headers["Authorization"] != f"Bearer {wanted()}":
                    self.send_error(401)
                    return
                status, body = outer.answers.get(self.path, (404, _NONE))
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(raw)))
                self.end_headers()
                self.wfile.write(raw)

            def log_message(self, *args: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if context is not None:
            self._http.socket = context.wrap_socket(self._http.socket, server_side=True)
        self.port = self._http.server_address[1]
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


@contextmanager
def serving(context: ssl.SSLContext | None = None) -> Iterator[Server]:
    server = Server(context)
    try:
        yield server
    finally:
        server.end()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


def client(*urls: str, **more: Any) -> RegistryClient:
    return RegistryClient(RegistryOptions(urls=urls, **more))


def test_a_schema_comes_with_its_kind() -> None:
    with serving() as server:
        server.answers["/schemas/ids/2"] = (200, {"schema": "message M {}", "schemaType": "PROTOBUF"})
        assert client(server.url).schema(1) == RegisteredSchema("AVRO", SCHEMA)
        assert client(server.url).schema(2) == RegisteredSchema("PROTOBUF", "message M {}")


def test_a_path_before_the_api_stays(server: Server) -> None:
    server.answers["/apis/ccompat/v7/schemas/ids/1"] = (200, {"schema": "at the path"})
    found = client(f"{server.url}/apis/ccompat/v7").schema(1)
    assert found is not None
    assert found.text == "at the path"


def test_what_a_schema_refers_to_comes_before_it_and_once(server: Server) -> None:
    inner = {"name": "Inner", "subject": "in/ner", "version": 3}
    server.answers |= {
        "/schemas/ids/1": (
            200,
            {"schema": "outer", "references": [{"name": "M", "subject": "middle", "version": 1}, inner]},
        ),
        "/subjects/middle/versions/1": (200, {"schema": "the middle", "references": [inner]}),
        "/subjects/in%2Fner/versions/3": (200, {"schema": "the inner"}),
    }
    found = client(server.url).schema(1)
    assert found is not None
    assert found.references == (("Inner", "the inner"), ("M", "the middle"))
    assert len(server.asked) == 3


def test_a_schema_that_is_known_by_two_names_comes_by_both(server: Server) -> None:
    names = [{"name": name, "subject": "place", "version": 1} for name in ("place.proto", "common/place.proto")]
    server.answers |= {
        "/schemas/ids/1": (200, {"schema": "outer", "schemaType": "PROTOBUF", "references": names}),
        "/subjects/place/versions/1": (200, {"schema": "the place"}),
    }
    found = client(server.url).schema(1)
    assert found is not None
    assert found.references == (("place.proto", "the place"), ("common/place.proto", "the place"))


def test_what_the_folder_has_waits_for_no_registry_that_is_away(tmp_path: Path, server: Server) -> None:
    cached = RegistryOptions(urls=(server.url,), cache=tmp_path)
    RegistrySchemas(cached, wait_s=10.0).get(1)
    wait_until((tmp_path / "schema-1.json").exists)
    schemas = RegistrySchemas(RegistryOptions(urls=("http://127.0.0.1:1",), cache=tmp_path))
    wait_until(lambda: "refused" in complaint(schemas, 7))
    assert schemas.get(1) == RegisteredSchema("AVRO", SCHEMA)


def test_references_in_a_circle_end(server: Server) -> None:
    me = {"name": "A", "subject": "a", "version": 1}
    server.answers |= {
        "/schemas/ids/1": (200, {"schema": "x", "references": [me]}),
        "/subjects/a/versions/1": (200, {"schema": "x", "references": [me]}),
    }
    with pytest.raises(RegistryAwayError, match="in a circle"):
        client(server.url).schema(1)


def test_a_clear_no_is_none(server: Server) -> None:
    assert client(server.url).schema(7) is None


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (404, b"<html>not here</html>", "nothing there answers as a schema registry"),
        (404, {"error": "no such path"}, "nothing there answers as a schema registry"),
        (401, {"error_code": 401}, "refuses us"),
        (403, {"error_code": 40301}, "refuses us"),
        (500, {"error_code": 50001}, "HTTP 500"),
        (429, b"", "HTTP 429"),
        (302, b"", "HTTP 302"),
        (200, b"<html>log in</html>", "what no schema registry answers"),
        (200, {"schema": 3}, "what no schema registry answers"),
        (200, {"no": "schema"}, "what no schema registry answers"),
        (200, {"schema": "x", "references": [3]}, "what no schema registry answers"),
        (200, b"[" * 100_000, "what no schema registry answers"),
    ],
)
def test_any_other_answer_means_that_it_is_away(server: Server, status: int, body: Any, why: str) -> None:
    server.answers["/schemas/ids/1"] = (status, body)
    with pytest.raises(RegistryAwayError, match=why):
        client(server.url).schema(1)


def test_of_several_the_first_that_answers_counts_and_is_asked_first_next_time(server: Server) -> None:
    with serving() as gone:
        pass
    asked = client(gone.url, server.url)
    assert asked.schema(1) is not None
    assert asked.schema(1) is not None
    assert len(server.asked) == 2
    with pytest.raises(RegistryAwayError, match="connection refused"):
        client(gone.url).schema(1)


def settings(folder: Path, url: str, **more: Any) -> RegistrySettings:
    files = {}
    for name in ("password_file", "token_file"):
        if name in more:
            (folder / name).write_text(more.pop(name) + "\n")
            files[name] = folder / name
    return RegistrySettings(url=(url,), **files, **more)


@pytest.mark.parametrize(
    ("login", "header"),
    [
        ({"username": "mill", "password_file": "pä:ss"}, "Basic " + base64.b64encode("mill:pä:ss".encode()).decode()),
        ({"token_file": "secret"}, "Bearer secret"),
        ({"oauth": {"token_command": ["echo", "secret"]}}, "Bearer secret"),
        ({}, None),
    ],
)
def test_it_logs_in_as_the_settings_say(server: Server, tmp_path: Path, login: Any, header: str | None) -> None:
    schemas = to_registry(settings(tmp_path, server.url, **login), 10.0)
    assert schemas.get(1) is not None
    assert server.asked == [("/schemas/ids/1", header)]
    assert "secret" not in repr(vars(schemas)["_options"])


def test_a_token_that_ends_keeps_no_later_schema_back(server: Server, tmp_path: Path) -> None:
    server.answers["/schemas/ids/2"] = server.answers["/schemas/ids/1"]
    server.wanted = lambda: "first"
    schemas = to_registry(settings(tmp_path, server.url, token_file="first"), 10.0)
    assert schemas.get(1) is not None
    server.wanted = lambda: "second"
    (tmp_path / "token_file").write_text("second")
    assert schemas.get(2) is not None


def test_tokens_of_an_endpoint_are_renewed_and_what_fails_there_is_told(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bearer_tokens, "_RENEW_AT", 0.0)
    (tmp_path / "secret").write_text(SECRET)
    with OidcProvider() as provider:
        oauth = {"token_endpoint": provider.url, "client_id": CLIENT, "client_secret_file": tmp_path / "secret"}
        server.answers["/schemas/ids/2"] = server.answers["/schemas/ids/1"]
        schemas = to_registry(
            settings(tmp_path, server.url, oauth=oauth, headers={"target-sr-cluster": "lsrc-1"}), 10.0
        )
        assert schemas.get(1) is not None
        assert schemas.get(2) is not None
        assert len({login for _, login in server.asked}) == 2, "each with a token of its own"
        assert {headers["target-sr-cluster"] for headers in server.headers} == {"lsrc-1"}
    refused = {**oauth, "client_secret_file": tmp_path / "wrong"}
    (tmp_path / "wrong").write_text("canary")
    with OidcProvider() as provider:
        refused["token_endpoint"] = provider.url
        schemas = to_registry(settings(tmp_path, server.url, oauth=refused), 0.2)
        wait_until(lambda: "records.registry.oauth.token_endpoint" in complaint(schemas))
        assert "invalid_client" in complaint(schemas)
        assert "canary" not in complaint(schemas)


def test_mutual_tls_gets_in_and_nothing_less_does(tmp_path: Path) -> None:
    authority = Authority()
    own, ours = authority.issue(tmp_path, "registry"), authority.issue(tmp_path, "us")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "us-ca.crt"))
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(own.certificate, own.key)
    with serving(context) as server:
        trusts: dict[str, Any] = {"ca_file": tmp_path / "registry-ca.crt"}
        whole = settings(tmp_path, server.url, certificate_file=ours.certificate, key_file=ours.key, **trusts)
        assert to_registry(whole, 10.0).get(1) is not None
        for less in (settings(tmp_path, server.url, **trusts), settings(tmp_path, server.url)):
            schemas = to_registry(less, 1.0)
            with pytest.raises(NotYetError, match=r"TLS fails|certificate is not trusted|tls|reset|closed"):
                schemas.get(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ()},
        {"url": ("registry:8081",)},
        {"url": ("http://me:pass@registry:8081",)},
        {"url": ("http://r",), "username": "me"},
        {"url": ("http://r",), "password_file": "p"},
        {"url": ("https://r",), "token_file": "t", "username": "me", "password_file": "p"},
        {"url": ("http://r",), "ca_file": "ca"},
        {"url": ("http://r",), "token_file": "t", "oauth": {"token_file": "t"}},
        {"url": ("http://r",), "headers": {"Authorization": "canary"}},
        {"url": ("http://r",), "headers": {"X-Api-Token": "canary"}},
        {"url": ("http://r",), "headers": {"a": "b\r\nc: d"}},
        {"url": ("https://r",), "certificate_file": "c"},
    ],
)
def test_settings_that_do_not_go_together_are_refused(wrong: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"records\.registry|URL|url|this has no effect|is there already|is not set here|cannot be sent",
    ) as refused:
        RegistrySettings(**wrong)
    told = str(refused.value.errors()[0]["msg"])  # type: ignore[attr-defined]
    assert "me:pass" not in told
    assert "canary" not in told


def test_a_schema_is_asked_for_once_and_never_by_the_caller(server: Server) -> None:
    schemas = RegistrySchemas(RegistryOptions(urls=(server.url,)))
    with pytest.raises(NotYetError, match="schema 1 is asked for"):
        schemas.get(1)
    wait_until(lambda: known(schemas, 1) is not None)
    assert [schemas.get(1) for _ in range(3)] == [RegisteredSchema("AVRO", SCHEMA)] * 3
    assert len(server.asked) == 1


def test_what_it_does_not_have_is_asked_for_twice_before_that_is_believed(server: Server) -> None:
    schemas = RegistrySchemas(RegistryOptions(urls=(server.url,)), wait_s=10.0)
    assert schemas.get(7) is None
    assert schemas.get(7) is None
    assert len(server.asked) == 2


def test_a_node_that_lags_loses_no_record(server: Server) -> None:
    schemas = RegistrySchemas(RegistryOptions(urls=(server.url,)), wait_s=10.0)
    threading.Timer(0.3, lambda: server.answers.update({"/schemas/ids/7": (200, {"schema": "late"})})).start()
    assert schemas.get(7) == RegisteredSchema("AVRO", "late")


def test_many_numbers_that_it_does_not_have_hold_nothing_up_for_long(server: Server) -> None:
    schemas = RegistrySchemas(RegistryOptions(urls=(server.url,)))
    began = time.monotonic()
    for number in range(100, 300):
        with pytest.raises(NotYetError):
            schemas.get(number)
    wait_until(lambda: all(known(schemas, number, missing=True) for number in range(100, 300)))
    assert time.monotonic() - began < 20


def test_while_it_is_away_nothing_is_decided_and_it_goes_on_when_it_is_back() -> None:
    with serving() as server:
        port = server.port
    schemas = RegistrySchemas(RegistryOptions(urls=(f"http://127.0.0.1:{port}",)))
    wait_until(lambda: "connection refused" in complaint(schemas))
    back = ThreadingHTTPServer(("127.0.0.1", port), _Answering)
    thread = threading.Thread(target=back.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: known(schemas, 1) is not None)
    finally:
        back.shutdown()
        back.server_close()


class _Answering(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        raw = json.dumps({"schema": SCHEMA}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *args: object) -> None:
        pass


def test_a_restart_needs_no_registry_for_what_it_knew(tmp_path: Path, server: Server) -> None:
    inner = {"name": "Inner", "subject": "inner", "version": 3}
    server.answers |= {
        "/schemas/ids/1": (200, {"schema": "outer", "references": [inner]}),
        "/subjects/inner/versions/3": (200, {"schema": "the inner"}),
    }
    cache = tmp_path / "a" / "schemas"
    first = RegistrySchemas(RegistryOptions(urls=(server.url,), cache=cache), wait_s=10.0).get(1)
    asked = len(server.asked)
    gone = RegistryOptions(urls=("http://127.0.0.1:1",), cache=cache)
    assert RegistrySchemas(gone, wait_s=10.0).get(1) == first
    assert first == RegisteredSchema("AVRO", "outer", (("Inner", "the inner"),))
    assert len(server.asked) == asked


@pytest.mark.parametrize("damage", [lambda raw: raw[:9], lambda raw: raw.replace(b"int", b"inn"), lambda _: b"[]"])
def test_a_damaged_file_of_the_cache_is_asked_for_and_written_again(
    tmp_path: Path, server: Server, damage: Callable[[bytes], bytes]
) -> None:
    options, file = RegistryOptions(urls=(server.url,), cache=tmp_path), tmp_path / "schema-1.json"
    first = RegistrySchemas(options, wait_s=10.0).get(1)
    wait_until(file.exists)
    whole = file.read_bytes()
    assert damage(whole) != whole
    file.write_bytes(damage(whole))
    assert RegistrySchemas(options, wait_s=10.0).get(1) == first
    wait_until(lambda: file.read_bytes() == whole)


def test_a_cache_on_a_full_disk_holds_no_schema_up(tmp_path: Path, server: Server) -> None:
    with small_volume(tmp_path / "small", 16 * 1024) as volume:
        (volume / "stuffing").write_bytes(b"x" * 12 * 1024)
        server.answers["/schemas/ids/1"] = (200, {"schema": "x" * 20_000})
        for _ in range(2):
            found = RegistrySchemas(RegistryOptions(urls=(server.url,), cache=volume / "schemas"), wait_s=10.0).get(1)
            assert found is not None
        assert not [path for path in volume.rglob("*") if path.name.endswith(".json")]
        assert len(server.asked) == 2


def known(schemas: RegistrySchemas, number: int, *, missing: bool = False) -> Any:
    try:
        found = schemas.get(number)
    except NotYetError:
        return None
    return missing and found is None if missing else found


def complaint(schemas: RegistrySchemas, number: int = 1) -> str:
    try:
        schemas.get(number)
    except NotYetError as error:
        return str(error)
    return ""


def wait_until(condition: Any, timeout: float = 20.0) -> None:
    end = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)
