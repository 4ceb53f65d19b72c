"""Why a broker does not let us in, asked of servers that answer nothing, or that speak TLS only. No broker."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from millrace.consumers.errors import SourceError, UnreachableError
from millrace.consumers.kafka import logins
from millrace.consumers.kafka.logins import LoginDiagnosis, wrong_login
from millrace.consumers.kafka.options import KafkaOptions
from tests.app.certificates import Authority

HOUR_MS = 3_600_000
"""A request's timeout that outlasts every test."""
AWAY = UnreachableError("nobody answers")
SPEAKS_TLS = "speaks TLS, and kafka.security_protocol is PLAINTEXT: set it to SSL"


def options(*servers: str) -> KafkaOptions:
    return KafkaOptions(bootstrap_servers=servers, topics=("clicks",), group_id="g", request_timeout_ms=HOUR_MS)


@pytest.fixture
def silent(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server that accepts connections and answers nothing."""
    monkeypatch.setattr(logins, "_WITHIN_S", 2.0)
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@contextlib.asynccontextmanager
async def speaking_tls(folder: Path) -> AsyncIterator[tuple[str, list[object]]]:
    """Yield the address of a server that speaks TLS, and a list that grows with each handshake."""
    issued, visits = Authority().issue(folder), list[object]()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(issued.certificate, issued.key)

    async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        visits.append(writer)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}", visits


@pytest.mark.timeout(30)
def test_silent_brokers_are_left_in_seconds_and_refuse_nothing(silent: str) -> None:
    assert asyncio.run(wrong_login(options(silent, silent, silent))) is None


@pytest.mark.timeout(30)
def test_a_silent_broker_hides_none_that_refuses(silent: str, tmp_path: Path) -> None:
    async def ask() -> None:
        async with speaking_tls(tmp_path) as (address, _):
            brokers = [(host, int(port)) for host, _, port in (one.rpartition(":") for one in (silent, address))]
            refused = await wrong_login(options(silent), brokers)
        assert str(refused) == f"{address} {SPEAKS_TLS}"

    asyncio.run(ask())


def test_a_name_that_no_host_can_have_refuses_nothing() -> None:
    assert asyncio.run(wrong_login(options("a..b:9092"))) is None


def test_a_login_is_doubted_only_while_kafka_does_not_answer_and_rarely(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask() -> None:
        async with speaking_tls(tmp_path) as (address, visits):
            diagnosis, says = LoginDiagnosis(options(address)), f"{address} {SPEAKS_TLS}"
            assert await diagnosis.text_of(SourceError("a record is too large")) == "a record is too large"
            assert not visits, "the error has nothing to do with logins"
            assert await diagnosis.text_of(AWAY) == says
            asked = len(visits)
            assert await diagnosis.text_of(AWAY) == says
            assert len(visits) == asked, "the answer is kept"
            diagnosis.answered()
            assert await diagnosis.text_of(AWAY) == "nobody answers"
            monkeypatch.setattr(logins, "_AGAIN_AFTER_S", 0.0)
            diagnosis = LoginDiagnosis(options(address))
            for _ in range(2):
                assert await diagnosis.text_of(AWAY) == says
            assert len(visits) == 3 * asked, "it is asked again after a while"

    asyncio.run(ask())
