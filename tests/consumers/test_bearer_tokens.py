"""Tokens from a real endpoint, a file and a command: kept, renewed in time, and never in a text."""

import asyncio
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings.sections.oauth import OAuthSettings, to_tokens
from millrace.consumers import bearer_tokens
from millrace.consumers.bearer_tokens import TokenSource
from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError
from millrace.consumers.kafka.oauth import TokenLogin
from tests.oidc import CLIENT, SECRET, OidcProvider

pytestmark = pytest.mark.row(45)
PLACE = "kafka.oauth"


@pytest.fixture
def provider() -> Iterator[OidcProvider]:
    with OidcProvider() as provider:
        yield provider


def source(folder: Path, **settings: Any) -> TokenSource:
    """Return the source that such settings describe; values of `*_file` are what the files hold."""
    for name in [name for name in settings if name.endswith("_file")]:
        (folder / name).write_text(settings[name])
        settings[name] = folder / name
    return to_tokens(OAuthSettings(**settings), PLACE)


def at(folder: Path, provider: OidcProvider, **more: Any) -> TokenSource:
    """Return the source of the provider's tokens."""
    login = {} if "client_assertion_file" in more else {"client_secret_file": SECRET + "\n"}
    return source(folder, token_endpoint=provider.url, client_id=CLIENT, **login, **more)


def test_a_token_is_asked_for_once_by_all_and_kept(tmp_path: Path, provider: OidcProvider) -> None:
    found, kept = list[str](), at(tmp_path, provider, scope="read", parameters={"audience": "kafka"})
    provider.goes_on.clear()
    askers = [threading.Thread(target=lambda: found.append(kept.token().text)) for _ in range(8)]
    for asker in askers:
        asker.start()
    provider.goes_on.set()
    for asker in askers:
        asker.join()
    assert set(found) == {kept.token().text}
    (asked,) = provider.asked
    assert asked == {"grant_type": "client_credentials", "scope": "read", "audience": "kafka"}
    assert kept is at(tmp_path, provider, scope="read", parameters={"audience": "kafka"}), "all clients share it"


def test_what_stands_for_the_secret_is_sent_in_its_place(tmp_path: Path, provider: OidcProvider) -> None:
    at(tmp_path, provider, client_assertion_file="an.assertion\n").token()
    (asked,) = provider.asked
    assert (asked["client_id"], asked["client_assertion"]) == (CLIENT, "an.assertion")
    assert asked["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@pytest.fixture
def old(tmp_path: Path, provider: OidcProvider, monkeypatch: pytest.MonkeyPatch) -> TokenSource:
    """A source whose token is valid, and due to be renewed."""
    monkeypatch.setattr(bearer_tokens, "_RENEW_AT", 0.0)
    monkeypatch.setattr(bearer_tokens, "_RETRY_S", 0.0)
    made = at(tmp_path, provider)
    made.token()
    return made


def test_a_token_is_renewed_before_it_ends(provider: OidcProvider, old: TokenSource) -> None:
    first = old.held
    assert old.token() != first
    assert len(provider.asked) == 2


@pytest.mark.parametrize(
    "away", [lambda provider: provider.goes_on.clear(), lambda provider: setattr(provider, "status", 503)]
)
def test_while_a_token_is_valid_an_endpoint_that_is_away_holds_nobody_up(
    provider: OidcProvider, old: TokenSource, away: Callable[[OidcProvider], None]
) -> None:
    first = old.held
    assert first is not None
    away(provider)
    _, renewal = old.begin()
    assert old.token() == first
    assert asyncio.run(TokenLogin(old).token()) == first.text
    if not provider.goes_on.is_set():
        assert renewal is not None
        assert not renewal.done(), "nobody has waited for its end"


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (503, UnreachableError, "gives no token: HTTP 503"),
        (429, UnreachableError, "gives no token: HTTP 429"),
        (302, UnreachableError, "gives no token: HTTP 302"),
        (404, ConfigError, "is no token endpoint (HTTP 404); check the URL"),
        (400, ConfigError, f"refuses {CLIENT} (HTTP 400): check client_id"),
        (200, ConfigError, "answers, and gives no access_token; is this the token endpoint?"),
    ],
)
def test_other_answers_are_named_and_the_secret_goes_nowhere_else(
    tmp_path: Path, provider: OidcProvider, status: int, kind: type[MillraceError], says: str
) -> None:
    with OidcProvider() as elsewhere:
        provider.status, provider.elsewhere = status, elsewhere.url
        with pytest.raises(kind) as caught:
            at(tmp_path, provider).token()
        assert str(caught.value).startswith(f"{PLACE}.token_endpoint: {provider.url} {says}")
        assert elsewhere.asked == []


def test_a_wrong_secret_is_named_without_it(tmp_path: Path, provider: OidcProvider) -> None:
    with pytest.raises(ConfigError, match=rf"refuses {CLIENT} \(invalid_client\)") as caught:
        source(tmp_path, token_endpoint=provider.url, client_id=CLIENT, client_secret_file="canary").token()
    assert "canary" not in str(caught.value)


def test_an_endpoint_that_is_away_is_named(tmp_path: Path) -> None:
    with OidcProvider() as gone:
        pass
    with pytest.raises(
        UnreachableError, match=rf"^{PLACE}.token_endpoint: {gone.url} gives no token: connection refused"
    ):
        at(tmp_path, gone).token()


@pytest.mark.parametrize(
    ("damage", "says"),
    [(Path.unlink, "cannot be read: no such file or directory"), (lambda file: file.write_text(""), "is empty")],
)
def test_a_secret_that_cannot_be_read_at_a_renewal_is_no_fault_of_the_endpoint(
    tmp_path: Path, provider: OidcProvider, old: TokenSource, damage: Callable[[Path], Any], says: str
) -> None:
    secret = tmp_path / "client_secret_file"
    damage(secret)
    assert old.token() == old.held, "the token at hand serves"
    assert isinstance(old.fault, ConfigError)
    assert str(old.fault).startswith(f"{PLACE}.client_secret_file: {secret} {says}")
    assert len(provider.asked) == 1
    secret.write_text(SECRET)
    old.token()
    assert len(provider.asked) == 2


def test_a_file_that_is_replaced_gives_the_new_token(tmp_path: Path, provider: OidcProvider) -> None:
    first, second = provider.token(), provider.token(sub="another")
    kept = source(tmp_path, token_file=first + "\n")
    assert kept.token().text == first
    (tmp_path / "token_file").write_text(second)
    assert kept.token().text == second
    (tmp_path / "token_file").unlink()
    assert kept.token().text == second, "while it is replaced, the last one serves"


@pytest.mark.parametrize("content", ["two words", "a\nb", "ä"])
def test_a_file_without_a_token_is_named_without_its_content(tmp_path: Path, content: str) -> None:
    with pytest.raises(ConfigError, match=rf"^{PLACE}.token_file gives no token; it has to give the token alone$"):
        source(tmp_path, token_file=content).token()


def test_a_missing_file_is_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^{PLACE}.token_file: .* cannot be read: no such file or directory"):
        to_tokens(OAuthSettings(token_file=tmp_path / "none"), PLACE)


def test_a_command_prints_the_token(tmp_path: Path, provider: OidcProvider) -> None:
    text = provider.token()
    kept = source(tmp_path, token_command=[sys.executable, "-c", f"print({text!r})"])
    assert kept.token().text == text
    assert kept.token() is kept.held


def test_a_command_that_fails_is_named_without_what_it_says(tmp_path: Path) -> None:
    script = tmp_path / "print-token"
    script.write_text("#!/bin/sh\necho canary >&2\nexit 3\n")
    script.chmod(stat.S_IRWXU)
    with pytest.raises(ConfigError, match=r"print-token ends with 3; run the command by hand to see why$") as caught:
        source(tmp_path, token_command=[str(script)]).token()
    assert "canary" not in str(caught.value)
    with pytest.raises(ConfigError, match="there is no command no-such-command"):
        source(tmp_path, token_command=["no-such-command"]).token()


def test_no_secret_stands_in_a_repr(tmp_path: Path, provider: OidcProvider) -> None:
    kept = at(tmp_path, provider)
    shown = f"{kept.token()!r} {vars(kept)!r}"
    assert kept.token().text not in shown
    assert SECRET not in shown
