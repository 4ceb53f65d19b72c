"""The verbs that ask a service over https, by the config file and by address, with certificates and tokens."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.settings.sections.api import ApiSettings, TlsSettings
from millrace.app.tools.validate.check import CheckOutcome
from millrace.app.tools.validate.settings_checks import certificate_check, read_tokens_check
from millrace.consumers.errors import MillraceError
from tests.app.api_rig import CONFIG, Rig, serving
from tests.app.certificates import Authority

TOKEN = "correct-horse-battery-staple"


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@pytest.fixture
def tls(authority: Authority, tmp_path: Path) -> TlsSettings:
    return authority.issue(tmp_path)


@pytest.fixture
def port(rig: Rig, tls: TlsSettings) -> Iterator[int]:
    with serving(rig, ApiSettings(listen="127.0.0.1:0", tls=tls)) as server:
        yield server.port


def run(*arguments: str, **environ: str) -> str:
    result = CliRunner().invoke(application, [*arguments], env=environ, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> MillraceError:
    result = CliRunner().invoke(application, [*arguments])
    assert isinstance(result.exception, MillraceError), result.output
    return result.exception


def config(rig: Rig, port: int, more: str) -> str:
    """Rewrite the service's config so that it names the port that was taken; return its path."""
    path = rig.folder.root.parents[1] / "clicks.yaml"
    path.write_text(CONFIG.replace('"127.0.0.1:0"', f'"127.0.0.1:{port}", {more}'))
    return str(path)


def state(*arguments: str, **environ: str) -> str:
    return str(json.loads(run("status", *arguments, "--json", **environ))["state"])


def test_by_address_the_authority_is_named_by_an_option_or_the_environment(port: int, tls: TlsSettings) -> None:
    url, authorities = f"https://localhost:{port}", str(tls.certificate.with_name("tls-ca.crt"))
    assert state("--url", url, "--ca-file", authorities) == "idle"
    assert state("--url", url, MILLRACE_CA_FILE=authorities) == "idle"
    run("pause", "--url", url, "--ca-file", authorities)
    assert state("--url", url, "--ca-file", authorities) == "paused"
    run("resume", "--url", url, "--ca-file", authorities)
    run("checkpoints", "save", "--url", url, "--ca-file", authorities)
    run("rewind", "--url", url, "--ca-file", authorities, "--to", "0")


def test_a_certificate_that_nobody_vouches_for_is_refused_with_the_way_out(port: int, tmp_path: Path) -> None:
    error = refused("status", "--url", f"https://localhost:{port}")
    assert error.exit_code == 3
    assert "its certificate is not accepted (unable to get local issuer certificate); name its" in str(error)
    Authority().issue(tmp_path, "foreign")
    foreign = str(tmp_path / "foreign-ca.crt")
    assert "is not accepted" in str(refused("pause", "--url", f"https://localhost:{port}", "--ca-file", foreign))


def test_by_the_config_file_exactly_its_certificate_is_accepted_whatever_its_names(
    rig: Rig, authority: Authority, tmp_path: Path
) -> None:
    tls = authority.issue(tmp_path, "far", "trainer.example")
    with serving(rig, ApiSettings(listen="127.0.0.1:0", tls=tls)) as server:
        path = config(rig, server.port, "tls: {certificate: far.crt, key: far.key}")
        assert state("-c", path) == "idle"
        run("pause", "-c", path)
        assert state("-c", path) == "paused"
        run("rewind", "-c", path, "--to", "0")
        authority.issue(tmp_path, "other", "trainer.example")
        other = config(rig, server.port, "tls: {certificate: other.crt, key: other.key}")
        assert "its certificate is not accepted" in str(refused("status", "-c", other))


def test_a_service_that_wants_to_see_a_certificate_gets_the_one_of_the_options(
    rig: Rig, tls: TlsSettings, authority: Authority, tmp_path: Path
) -> None:
    ours, authorities = authority.issue(tmp_path, "client"), tls.certificate.with_name("tls-ca.crt")
    mutual = tls.model_copy(update={"client_ca": authorities})
    mine = ["--client-certificate", str(ours.certificate), "--client-key", str(ours.key)]
    with serving(rig, ApiSettings(listen="127.0.0.1:0", tls=mutual)) as server:
        to = ["--url", f"https://localhost:{server.port}", "--ca-file", str(authorities)]
        assert state(*to, *mine) == "idle"
        assert state("-c", config(rig, server.port, "tls: {certificate: tls.crt, key: tls.key}"), *mine) == "idle"
        error = str(refused("status", *to))
        assert "it closed the connection; if it asks clients for a certificate, name one by --client-cert" in error
        half = refused("status", *to, *mine[:2])
        assert (str(half), half.exit_code) == ("--client-certificate and --client-key go together; name both", 2)


def test_a_proxy_that_wants_to_see_a_certificate_is_recognised_by_its_alert(tls: TlsSettings) -> None:
    """OpenSSL's own server sends an alert before it closes the connection; asyncio's does not."""
    authorities = str(tls.certificate.with_name("tls-ca.crt"))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=authorities)
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(tls.certificate, tls.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def refuse() -> None:
            with listener.accept()[0] as client, contextlib.suppress(ssl.SSLError):
                context.wrap_socket(client, server_side=True)

        thread = threading.Thread(target=refuse)
        thread.start()
        error = refused("status", "--url", f"https://localhost:{listener.getsockname()[1]}", "--ca-file", authorities)
        thread.join(20)
    assert "name one by --client-certificate and --client-key" in str(error)


def test_https_to_a_service_without_tls_is_said_so(rig: Rig) -> None:
    with serving(rig) as server:
        assert "is it http:// there?" in str(refused("status", "--url", f"https://localhost:{server.port}"))


def test_a_read_brings_the_token_where_the_service_asks_for_one(rig: Rig, tmp_path: Path) -> None:
    for folder in ("readers", "tokens"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "ops").write_text(TOKEN + folder)
        (tmp_path / f"{folder}.txt").write_text(TOKEN + folder)
    settings = ApiSettings(listen="127.0.0.1:0", tokens_dir=tmp_path / "tokens", read_tokens_dir=tmp_path / "readers")
    with serving(rig, settings) as server:
        to = ["--url", f"127.0.0.1:{server.port}"]
        assert "Reading needs a token here" in str(refused("status", *to))
        for folder in ("readers", "tokens"):
            assert state(*to, "--token-file", str(tmp_path / f"{folder}.txt")) == "idle"
        only_reads = refused("pause", *to, "--token-file", str(tmp_path / "readers.txt"))
        assert "a token that may only read" in str(only_reads)
        assert only_reads.exit_code == 2
        run("pause", *to, "--token-file", str(tmp_path / "tokens.txt"))


def test_validate_checks_the_certificate_and_the_tokens_for_reading(tls: TlsSettings, tmp_path: Path) -> None:
    mutual = tls.model_copy(update={"client_ca": tls.certificate.with_name("tls-ca.crt")})
    assert certificate_check(tls).outcome is CheckOutcome.OK
    assert certificate_check(mutual).detail.endswith("of clients one is required")
    tls.key.write_text("canary")
    broken = certificate_check(tls)
    assert broken.outcome is CheckOutcome.FAIL
    assert "do not go together" in broken.detail
    assert read_tokens_check(tmp_path / "nowhere").detail.startswith("api.read_tokens_dir: ")
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "prometheus").write_text(TOKEN)
    assert read_tokens_check(tmp_path / "readers").detail.endswith("may read: prometheus")
