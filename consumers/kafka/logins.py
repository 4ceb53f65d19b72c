"""Finds out why a broker does not let us in: the login, a certificate, or the protocol.

aiokafka only logs why it could not connect, and reports most of these faults as a connection that was closed. So each
check connects once more, with the same settings, and where a broker just closes, asks it in the other protocol. Such a
question says nothing secret. Runs on the caller's loop, and takes a few seconds at most, whatever the brokers do.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import Any

from aiokafka.conn import AIOKafkaConnection, collect_hosts
from aiokafka.errors import (
    AuthenticationFailedError,
    AuthenticationMethodNotSupported,
    IllegalSaslStateError,
    KafkaError,
    SaslAuthenticationFailed,
    UnsupportedSaslMechanismError,
)
from aiokafka.protocol.admin import SaslHandShakeRequest
from aiokafka.protocol.metadata import MetadataRequest

from millrace.consumers.errors import ConfigError, MillraceError, UnreachableError, text_of
from millrace.consumers.kafka.aiokafka_internals import wait_until_closed
from millrace.consumers.kafka.options import KafkaOptions

_REFUSED = (AuthenticationFailedError, AuthenticationMethodNotSupported, SaslAuthenticationFailed)
_AWAY = (OSError, EOFError, KafkaError, TimeoutError, UnicodeError)
"""A host such as `a..b` is a UnicodeError."""
_ONLY_FOR_CLUSTERS = ("bootstrap_servers", "metadata_max_age_ms", "retry_backoff_ms")
_CLOSED = (ConnectionError, EOFError)
_ATTEMPTS = 3
"""A broker that refuses says why and closes; its words are lost where the connection is reset before they are read."""
_HANDSHAKE_S, _CLOSE_S = 5.0, 1.0
_WITHIN_S = 5.0
"""For all brokers together, as every caller waits meanwhile."""
_AGAIN_AFTER_S = 30.0
_NO_ERROR, _UNSUPPORTED_MECHANISM = 0, 33
"""Kafka's error codes for a handshake of a broker that asks for a login."""
_EXPIRED, _OTHER_NAME = 10, frozenset({62, 64})
"""OpenSSL's codes of certificates that it does not accept."""


async def refuse_wrong_login(options: KafkaOptions, brokers: Iterable[tuple[str, int]] = ()) -> None:
    """Raise ConfigError where a broker does not let us in; see `wrong_login`."""
    if error := await wrong_login(options, brokers):
        raise error


async def wrong_login(options: KafkaOptions, brokers: Iterable[tuple[str, int]] = ()) -> ConfigError | None:
    """Connect to each broker, by default the bootstrap servers, and return why one does not let us in.

    Returns None where none refuses us; a broker that is away, or silent for some seconds, refuses nothing. A login by a
    token begins with the token: what gives it may refuse us too.
    """
    if (login := options.security.get("sasl_oauth_token_provider")) is not None:
        try:
            async with asyncio.timeout(_WITHIN_S):
                await login.token()
        except (KafkaError, TimeoutError):
            return login.fault if isinstance(login.fault, ConfigError) else None
    hosts = tuple(brokers) or [(host, port) for host, port, _ in collect_hosts(list(options.bootstrap_servers))]
    checks = [asyncio.ensure_future(_BrokerCheck(options, host, port).fault()) for host, port in hosts]
    try:
        done, _ = await asyncio.wait(checks, timeout=_WITHIN_S)
    finally:
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)
    for (host, port), check in zip(hosts, checks, strict=True):
        if check in done and (fault := check.result()):
            return ConfigError(f"{host}:{port} {fault}")
    return None


class LoginDiagnosis:
    """Says of a Kafka that does not answer whether a login is refused; asks rarely, and keeps the answer meanwhile."""

    def __init__(self, options: KafkaOptions) -> None:
        self._options = options
        self._refused: MillraceError | None = None
        self._again_at = 0.0

    async def text_of(self, error: MillraceError) -> str:
        """Return why we are not let in, or else what the error says."""
        if not isinstance(error, UnreachableError):
            return str(error)
        if time.monotonic() >= self._again_at:
            self._refused = await wrong_login(self._options) or self._options.token_fault
            self._again_at = time.monotonic() + _AGAIN_AFTER_S
        return str(self._refused or error)

    def answered(self) -> None:
        """Forget the answer: Kafka has let us in."""
        self._refused = None


class _BrokerCheck:
    """Finds out why one broker does not let us in."""

    def __init__(self, options: KafkaOptions, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._settings: Mapping[str, Any] = {
            name: value for name, value in options.client_settings().items() if name not in _ONLY_FOR_CLUSTERS
        }
        self._protocol: str = self._settings.get("security_protocol", "PLAINTEXT")

    async def fault(self) -> str | None:
        """Return what is wrong and what to do; None where we get in, or the broker is away."""
        fault = None
        for _ in range(_ATTEMPTS):
            try:
                fault = await self._attempt()
            except ConnectionRefusedError:
                return None
            except _CLOSED:
                continue
            break
        return fault

    async def _attempt(self) -> str | None:
        """Connect, and return what is wrong. Raises where the connection was closed and nothing says why."""
        try:
            async with self._connection(self._protocol) as connection:
                # A broker that asks for a login answers what it supports, and closes at the first other request.
                await connection.send(MetadataRequest([], allow_auto_topic_creation=False))
        except _REFUSED as error:
            return self._refusal(error)
        except UnsupportedSaslMechanismError:
            known, wanted = await self._offered(), self._settings.get("sasl_mechanism")
            return f"does not know kafka.sasl_mechanism {wanted}: set it to {known or 'another'}"
        except IllegalSaslStateError:
            return self._other_protocol("asks for no login", _without_login(self._protocol))
        except _AWAY as error:
            why = error.__cause__ or error
            if (fault := await self._fault_of(why)) is None and isinstance(why, _CLOSED):
                raise why from None
            return fault
        return None

    def _refusal(self, error: KafkaError) -> str:
        """Return what to say of a login that is refused."""
        if (login := self._settings.get("sasl_oauth_token_provider")) is not None:
            return str(login.refused())
        if self._settings["sasl_mechanism"] == "GSSAPI":
            return f"refuses the login by Kerberos ({text_of(error)}): check the ticket (klist) or the keytab"
        return (
            f"refuses the login of {self._settings.get('sasl_plain_username')} ({type(error).__name__}): check "
            "kafka.sasl_username, kafka.sasl_mechanism and the password in kafka.sasl_password_file"
        )

    async def _fault_of(self, error: BaseException) -> str | None:
        """Return what an error says of a certificate or the protocol; None where the broker may just be away."""
        if isinstance(error, ssl.SSLCertVerificationError):
            why = error.verify_message.rstrip(".")
            if error.verify_code in _OTHER_NAME:
                cure = "connect by a name that the certificate bears, or set kafka.ssl_check_hostname to false"
            elif error.verify_code == _EXPIRED:
                cure = "renew the broker's certificate"
            else:
                cure = "set kafka.ssl_ca_file to the certificate of the authority that has signed the broker's"
            return f"shows a certificate that is not trusted ({why}): {cure}"
        if isinstance(error, ConnectionRefusedError) or not isinstance(error, (*_CLOSED, ssl.SSLError)):
            return None
        reason = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
        ended = f"ends the TLS handshake ({reason})" if reason else None
        return _refused_certificate(reason) or await self._protocol_fault() or ended

    async def _protocol_fault(self) -> str | None:
        """Return what the broker speaks instead of our protocol; None where it says nothing else either."""
        if self._protocol.endswith("SSL"):
            if await self._speaks("PLAINTEXT"):
                return self._other_protocol("speaks without TLS", self._protocol.replace("SSL", "PLAINTEXT"))
        elif await self._speaks("SSL"):
            return self._other_protocol("speaks TLS", self._protocol.replace("PLAINTEXT", "SSL"))
        if not self._protocol.startswith("SASL") and (offered := await self._offered()):
            return self._other_protocol(f"asks for a login ({offered})", f"SASL_{self._protocol}")
        return None

    async def _speaks(self, protocol: str) -> bool:
        """Return whether the broker speaks Kafka's protocol in clear (PLAINTEXT), or TLS (SSL)."""
        try:
            if protocol == "SSL":
                # Nothing is sent in it, so no certificate matters.
                context = ssl.create_default_context()
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                async with asyncio.timeout(_HANDSHAKE_S):
                    _, writer = await asyncio.open_connection(self._host, self._port, ssl=context)
                writer.transport.abort()
                with contextlib.suppress(*_AWAY):
                    await writer.wait_closed()
            else:
                async with self._connection(protocol):
                    pass
        except _AWAY:
            return False
        return True

    async def _offered(self) -> str:
        """Return the mechanisms of the logins that the broker asks for; nothing where it asks for none, or is away."""
        try:
            async with self._connection(_without_login(self._protocol)) as connection:
                answer = await connection.send(SaslHandShakeRequest("PLAIN"))
        except _AWAY:
            return ""
        asks = answer.error_code in {_NO_ERROR, _UNSUPPORTED_MECHANISM}
        return ", ".join(sorted(answer.enabled_mechanisms)) if asks else ""

    @contextlib.asynccontextmanager
    async def _connection(self, protocol: str) -> AsyncIterator[AIOKafkaConnection]:
        """Yield a connection that is open, and wait until it is closed: the loop may end right after."""
        connection = AIOKafkaConnection(self._host, self._port, **{**self._settings, "security_protocol": protocol})
        try:
            await connection.connect()
            yield connection
        finally:
            await wait_until_closed(connection, _CLOSE_S)

    def _other_protocol(self, what: str, better: str) -> str:
        return f"{what}, and kafka.security_protocol is {self._protocol}: set it to {better}"


def _without_login(protocol: str) -> str:
    return protocol.removeprefix("SASL_")


def _refused_certificate(reason: str) -> str | None:
    """Return what a broker's alert says of our certificate; None where it is about something else."""
    if "ALERT" not in reason:
        return None
    name = reason.partition("ALERT_")[2].lower().replace("_", " ")
    files = "kafka.ssl_certificate_file and kafka.ssl_key_file"
    if name in {"certificate required", "bad certificate", "handshake failure"}:
        return f"asks for a certificate of ours ({name}): set {files}"
    if "certificate" in name or name == "unknown ca":
        return f"does not accept our certificate ({name}): check {files}"
    return None
