"""A broker that lets nobody in without a login, and one listener beside it for those who write."""

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.client import AIOKafkaClient
from aiokafka.protocol.admin import CreateAclsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    CompactArray,
    CompactBytes,
    CompactString,
    Int8,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from millrace.app.tools.local_broker import LocalBroker
from millrace.app.tools.local_broker.broker import HOST, free_port
from tests.app.certificates import Authority
from tests.oidc import AUDIENCE, CLIENT, SECRET, OidcProvider

USER = "trainer"
_MODULE = "org.apache.kafka.common.security.{name}LoginModule required"
_PLAIN, _SCRAM = _MODULE.format(name="plain.Plain"), _MODULE.format(name="scram.Scram")
_OAUTH = _MODULE.format(name="oauthbearer.OAuthBearer")
_SECURITY = "org.apache.kafka.common.security.oauthbearer"
_ALLOWED = "-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls"
_LISTENERS = {
    "LOCKED": "SASL_PLAINTEXT",
    "LOGIN": "SASL_SSL",
    "OAUTH": "SASL_SSL",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "NAMED": "SSL",
}
_ITERATIONS = 4096
_SHA_512 = 2
_RESOURCES = {"topic": 2, "group": 3, "transactional-id": 5}
_OPERATIONS = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8, "DescribeConfigs": 10, "IdempotentWrite": 12}
_LITERAL, _ALLOW = 3, 3


@contextmanager
def locked(folder: Path, password: str) -> Iterator[tuple[LocalBroker, str]]:
    """Yield the broker, and its address that needs the password."""
    ports, settings = listeners({"LOCKED": "SASL_PLAINTEXT"})
    settings |= {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.locked.plain.sasl.jaas.config": f'{_PLAIN} user_{USER}="{password}";',
    }
    with LocalBroker(folder, port=ports["PLAINTEXT"], settings=settings) as broker:
        yield broker, f"{HOST}:{ports['LOCKED']}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuredBroker:
    """A broker with a listener for each way to log in, and an authorizer for all who did."""

    broker: LocalBroker
    ports: Mapping[str, int]
    folder: Path
    authority: Authority
    provider: OidcProvider
    """Issues the tokens that are accepted at OAUTH."""
    permitted: set[tuple[str, ...]] = field(default_factory=set)

    @property
    def owner(self) -> str:
        """The address without a login, where everything is permitted."""
        return self.broker.bootstrap_servers

    def address(self, listener: str) -> str:
        """Return the address of a listener; the certificate of NAMED is for localhost."""
        return f"{HOST}:{self.ports[listener]}"

    def kafka(self, listener: str, *, mechanism: str = "PLAIN", user: str = USER) -> dict[str, Any]:
        """Return the `kafka` settings of a client that may log in at a listener."""
        protocol, settings = _LISTENERS[listener], dict[str, Any]()
        settings |= {"bootstrap_servers": [self.address(listener)], "security_protocol": protocol}
        if listener == "OAUTH":
            secret = self.folder / "client.secret"
            secret.write_text(SECRET)
            login = {"token_endpoint": self.provider.url, "client_id": CLIENT, "client_secret_file": str(secret)}
            oauth = {**login, "extensions": {"logicalCluster": "lkc-1", "identityPoolId": "pool-1"}}
            settings |= {"sasl_mechanism": "OAUTHBEARER", "oauth": oauth}
        elif protocol.startswith("SASL"):
            password = self.folder / f"{user}.password"
            settings |= {"sasl_mechanism": mechanism, "sasl_username": user, "sasl_password_file": str(password)}
        if protocol.endswith("SSL"):
            settings["ssl_ca_file"] = str(self.folder / "broker-ca.crt")
        if listener == "MUTUAL":
            settings |= {"ssl_certificate_file": str(self.folder / "client.crt")}
            settings |= {"ssl_key_file": str(self.folder / "client.key")}
        return settings

    def permit(self, principal: str, operation: str, resource: str, name: str) -> None:
        """Permit an operation, as `kafka-acls.sh --add` does."""
        acl = (principal, operation, resource, name)
        if acl in self.permitted:
            return

        async def create(client: AIOKafkaClient) -> None:
            request = CreateAclsRequest(
                _RESOURCES[resource], name, _LITERAL, principal, "*", _OPERATIONS[operation], _ALLOW
            )
            answer = await client.send(client.get_random_node(), request)
            assert [code for code, _ in answer.creation_responses] == [0], answer

        _with_client(self.owner, create)
        self.permitted.add(acl)

    def add_scram_user(self, name: str, password: str) -> None:
        """Create a user of SCRAM-SHA-512."""
        salt = os.urandom(16)
        salted = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, _ITERATIONS)

        async def create(client: AIOKafkaClient) -> None:
            answer = await client.send(client.get_random_node(), _AlterScram((name, salt, salted)))
            assert [code for _, code, *_ in answer.results] == [0], answer

        _with_client(self.owner, create)


@contextmanager
def secured(folder: Path, passwords: Mapping[str, str]) -> Iterator[SecuredBroker]:
    """Yield a broker at which these users log in with PLAIN or SCRAM-SHA-512, and `client` with its certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    authority = Authority()
    for name, *hosts in (("broker",), ("client",), ("named", "localhost")):
        issued = authority.issue(folder, name, *hosts)
        key = load_pem_private_key(issued.key.read_bytes(), None)
        whole = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()) + issued.certificate.read_bytes()
        (folder / f"{name}.pem").write_bytes(whole)
    ports, settings = listeners(_LISTENERS)
    users = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    settings |= {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-512",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.pem"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "broker-ca.crt"),
        "listener.name.mutual.ssl.client.auth": "required",
        "ssl.principal.mapping.rules": "RULE:^.*CN=([^,]+).*$/$1/",
        "listener.name.named.ssl.keystore.type": "PEM",
        "listener.name.named.ssl.keystore.location": str(folder / "named.pem"),
        # The broker then ends each connection of SCRAM after this time, as one whose password may have changed.
        "listener.name.login.scram-sha-512.connections.max.reauth.ms": "3000",
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
        **oauth_settings("oauth", folder / "keys.json"),
    }
    for listener in ("locked", "login"):
        settings[f"listener.name.{listener}.plain.sasl.jaas.config"] = f"{_PLAIN} {users};"
        settings[f"listener.name.{listener}.scram-sha-512.sasl.jaas.config"] = f"{_SCRAM};"
    with (
        OidcProvider() as provider,
        trusting(provider, folder / "keys.json"),
        LocalBroker(folder / "data", port=ports["PLAINTEXT"], settings=settings) as broker,
    ):
        made = SecuredBroker(broker=broker, ports=ports, folder=folder, authority=authority, provider=provider)
        for name, password in passwords.items():
            (folder / f"{name}.password").write_text(password)
            made.add_scram_user(name, password)
        yield made


@contextmanager
def trusting(provider: OidcProvider, keys: Path) -> Iterator[None]:
    """Write a provider's keys, and let brokers that start in this block read them."""
    provider.write_keys(keys)
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{_ALLOWED}={keys.as_uri()}"
    try:
        yield
    finally:
        if before is None:
            del os.environ["JAVA_TOOL_OPTIONS"]
        else:
            os.environ["JAVA_TOOL_OPTIONS"] = before


def oauth_settings(listener: str, keys: Path, *, reauth_ms: int = 3000) -> dict[str, str]:
    """Return the settings of a broker that asks for the provider's tokens at a listener, and again after a time."""
    mechanism = f"listener.name.{listener}.oauthbearer"
    return {
        f"listener.name.{listener}.sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{mechanism}.sasl.jaas.config": f"{_OAUTH};",
        f"{mechanism}.sasl.server.callback.handler.class": f"{_SECURITY}.OAuthBearerValidatorCallbackHandler",
        f"{mechanism}.connections.max.reauth.ms": str(reauth_ms),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        # Without it, Kafka 4.1.0 takes any token, whoever signed it.
        "sasl.oauthbearer.jwt.validator.class": f"{_SECURITY}.BrokerJwtValidator",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
    }


def listeners(protocols: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
    """Return the ports, and the settings that make the broker listen there."""
    protocols = {"PLAINTEXT": "PLAINTEXT", **protocols}
    ports, controller = {name: free_port() for name in protocols}, free_port()
    served = ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
    return ports, {
        "listeners": f"{served},CONTROLLER://{HOST}:{controller}",
        "advertised.listeners": served,
        "listener.security.protocol.map": ",".join(
            f"{name}:{protocol}" for name, protocol in {**protocols, "CONTROLLER": "PLAINTEXT"}.items()
        ),
        "controller.quorum.voters": f"1@{HOST}:{controller}",
    }


def _with_client(address: str, work: Callable[[AIOKafkaClient], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await work(admin._client)
        finally:
            await admin.close()

    with ThreadPoolExecutor(1) as pool:  # so that it works inside a running event loop too
        pool.submit(asyncio.run, run()).result(timeout=60)


class _AlteredScram(Response):
    API_KEY = 51
    API_VERSION = 0
    _result = (("user", CompactString("utf-8")), ("code", Int16), ("text", CompactString("utf-8")))
    SCHEMA = Schema(
        ("throttle_time_ms", Int32), ("results", CompactArray(*_result, ("tags", TaggedFields))), ("tags", TaggedFields)
    )


class _AlterScramStruct(RequestStruct):
    FLEXIBLE_VERSION = True
    API_KEY = 51
    API_VERSION = 0
    RESPONSE_TYPE = _AlteredScram
    _inserted = (("iterations", Int32), ("salt", CompactBytes), ("salted", CompactBytes), ("tags", TaggedFields))
    _name = (("name", CompactString("utf-8")), ("mechanism", Int8))
    SCHEMA = Schema(
        ("deletions", CompactArray(*_name, ("tags", TaggedFields))),
        ("upsertions", CompactArray(*_name, *_inserted)),
        ("tags", TaggedFields),
    )


class _AlterScram(Request[_AlterScramStruct]):
    """Creates a user of SCRAM-SHA-512; aiokafka has no such request."""

    API_KEY = 51

    def __init__(self, user: tuple[str, bytes, bytes]) -> None:
        self._user = user

    def build(self, request_struct_class: type[_AlterScramStruct]) -> _AlterScramStruct:
        name, salt, salted = self._user
        return request_struct_class([], [(name, _SHA_512, _ITERATIONS, salt, salted, {})], {})
