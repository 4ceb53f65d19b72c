"""Logins and permissions at a real broker with TLS, SASL and an authorizer: what works, and what is refused by name."""

import asyncio
import itertools
import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.conn import CloseReason

from millrace.app.settings import load
from millrace.app.settings.connection import kafka_options
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.dead_letters.producer import DeadLetterOptions, KafkaDeadLetters
from millrace.consumers.dead_letters.reader import newest_letters
from millrace.consumers.dead_letters.redrive import Redrive, redrive
from millrace.consumers.errors import ConfigError, SourceError
from millrace.consumers.kafka.aiokafka_internals import EndingConnection
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.kafka.topic_writer import TopicWriter
from tests.app.certificates import Authority
from tests.conftest import WaitFor
from tests.faults.harness.fork_server import run_forked
from tests.faults.harness.locked import USER, SecuredBroker, secured
from tests.faults.harness.process import ROOT
from tests.integration.test_validate import MODEL, good
from tests.oidc import OidcProvider

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(300)]
LONG_S = 120.0
"""No start may take as long: it would wait for a broker that is away."""
STRANGER, LEAST = "other", "clicks"
PASSWORD = "right-1"
SCRAM = "SCRAM-SHA-512"
TOPIC, GROUP = "clicks", "millrace-clicks"

Kafka = Mapping[str, Any]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    with secured(tmp_path_factory.mktemp("secured"), dict.fromkeys((USER, STRANGER, LEAST), PASSWORD)) as broker:
        (broker.folder / "wrong").write_text("wrong")
        (broker.folder / "ended.token").write_text(broker.provider.token(lasts_s=-60.0))
        with OidcProvider() as foreign:
            (broker.folder / "foreign.token").write_text(foreign.token())
        Authority().issue(broker.folder, "foreign")
        for name in (TOPIC, f"{TOPIC}-dead", f"{TOPIC}-versions", "elsewhere"):
            create_topic(broker.owner, name, 1)
        for principal in (f"User:{USER}", "User:client"):
            for name in (TOPIC, f"{TOPIC}-dead"):
                broker.permit(principal, "Read", "topic", name)
                broker.permit(principal, "Write", "topic", name)
            broker.permit(principal, "Read", "group", GROUP)
        asyncio.run(fill(broker.owner))
        yield broker


async def fill(address: str) -> None:
    """Write some records that can be learnt, and one that cannot."""
    async with AIOKafkaProducer(bootstrap_servers=address) as producer:
        for value in [*good(300), b"["]:
            await producer.send(TOPIC, value)


def config(folder: Path, kafka: Kafka, *, letters: bool = True) -> Path:
    """Write a config that reads the topic with these `kafka` settings."""
    (folder / "model.py").write_text(MODEL)
    sections = {
        "name": "clicks",
        "kafka": {**kafka, "topics": [TOPIC]},
        "records": {
            "features": {"price": "float32"},
            "label": {"clicked": "float32"},
            "dead_letters": {"topic": f"{TOPIC}-dead" if letters else None},
        },
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": 64},
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": "127.0.0.1:0"},
    }
    path = folder / "clicks.yaml"
    path.write_text(json.dumps(sections))
    return path


def options(folder: Path, kafka: Kafka) -> KafkaOptions:
    return kafka_options(load(config(folder, kafka), {}).settings.kafka)


@dataclass(frozen=True)
class Fault:
    """Settings that fit the broker but for one, and what the error says of it."""

    listener: str
    says: str
    changes: Mapping[str, Any]
    mechanism: str = "PLAIN"

    def kafka(self, broker: SecuredBroker) -> Kafka:
        """Return the `kafka` settings; what is changed to None is left out, and FOLDER is the broker's."""
        settings = {**broker.kafka(self.listener, mechanism=self.mechanism), **self.changes}
        there = json.dumps({key: value for key, value in settings.items() if value is not None})
        found: Kafka = json.loads(there.replace("FOLDER", str(broker.folder)).replace("ENDPOINT", broker.provider.url))
        return found


NO_LOGIN = {"sasl_mechanism": None, "sasl_username": None, "sasl_password_file": None}
NO_TLS = {"ssl_ca_file": None, "ssl_certificate_file": None, "ssl_key_file": None}
WRONG = {"sasl_password_file": "FOLDER/wrong"}
FAULTS = {
    "a wrong password": Fault("LOGIN", f"refuses the login of {USER} (SaslAuthenticationFailed): check", WRONG),
    "a wrong password without TLS": Fault("LOCKED", f"refuses the login of {USER} (SaslAuthentication", WRONG),
    "a wrong password of SCRAM": Fault("LOGIN", f"refuses the login of {USER} (SaslAuthentication", WRONG, SCRAM),
    "another mechanism": Fault(
        "LOGIN",
        f"does not know kafka.sasl_mechanism SCRAM-SHA-256: set it to PLAIN, {SCRAM}",
        {"sasl_mechanism": "SCRAM-SHA-256"},
    ),
    "an authority that is not trusted": Fault(
        "LOGIN", "shows a certificate that is not trusted (unable to get local issuer", {"ssl_ca_file": None}
    ),
    "a certificate for another host": Fault("NAMED", "or set kafka.ssl_check_hostname to false", {}),
    "no certificate of ours": Fault(
        "MUTUAL",
        "asks for a certificate of ours (certificate required): set kafka.ssl_certificate_file",
        {"ssl_certificate_file": None, "ssl_key_file": None},
    ),
    "a foreign certificate": Fault(
        "MUTUAL",
        "does not accept our certificate (certificate unknown): check kafka.ssl_certificate_file",
        {"ssl_certificate_file": "FOLDER/foreign.crt", "ssl_key_file": "FOLDER/foreign.key"},
    ),
    "a login without TLS against TLS": Fault(
        "LOGIN",
        "speaks TLS, and kafka.security_protocol is SASL_PLAINTEXT: set it to SASL_SSL",
        {"security_protocol": "SASL_PLAINTEXT", **NO_TLS},
    ),
    "nothing against TLS": Fault(
        "TLS", "kafka.security_protocol is PLAINTEXT: set it to SSL", {"security_protocol": "PLAINTEXT", **NO_TLS}
    ),
    "TLS against none": Fault(
        "LOCKED",
        "speaks without TLS, and kafka.security_protocol is SASL_SSL: set it to SASL_PLAINTEXT",
        {"security_protocol": "SASL_SSL", "ssl_ca_file": "FOLDER/broker-ca.crt"},
    ),
    "TLS where a login is asked for": Fault(
        "LOGIN",
        f"asks for a login (PLAIN, {SCRAM}), and kafka.security_protocol is SSL: set it to SASL_SSL",
        {"security_protocol": "SSL", **NO_LOGIN},
    ),
    "a token of another issuer": Fault(
        "OAUTH",
        "refuses the token of kafka.oauth.token_file (iss https://oidc.test, aud kafka, sub trainer): check that",
        {"oauth": {"token_file": "FOLDER/foreign.token"}},
    ),
    "a token that has ended": Fault(
        "OAUTH",
        "refuses the token of kafka.oauth.token_file: it has ended at 20",
        {"oauth": {"token_file": "FOLDER/ended.token"}},
    ),
    "a wrong secret of a client": Fault(
        "OAUTH",
        "/token refuses trainer (invalid_client): check client_id, the secret's file",
        {"oauth": {"token_endpoint": "ENDPOINT", "client_id": "trainer", "client_secret_file": "FOLDER/wrong"}},
    ),
    "a password where tokens are asked for": Fault(
        "OAUTH",
        "does not know kafka.sasl_mechanism PLAIN: set it to OAUTHBEARER",
        {
            "oauth": None,
            "sasl_mechanism": "PLAIN",
            "sasl_username": USER,
            "sasl_password_file": f"FOLDER/{USER}.password",
        },
    ),
    "nothing where a login is asked for": Fault(
        "LOCKED",
        "kafka.security_protocol is PLAINTEXT: set it to SASL_PLAINTEXT",
        {"security_protocol": "PLAINTEXT", **NO_LOGIN},
    ),
    "a login where none is asked for": Fault(
        "TLS",
        "asks for no login, and kafka.security_protocol is SASL_SSL: set it to SSL",
        {
            "security_protocol": "SASL_SSL",
            "sasl_mechanism": "PLAIN",
            "sasl_username": USER,
            "sasl_password_file": f"FOLDER/{USER}.password",
        },
    ),
}
"""Wrong settings, by what is wrong."""


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest) -> Fault:
    return FAULTS[request.param]


@pytest.mark.parametrize(
    ("listener", "mechanism"),
    [
        ("LOCKED", "PLAIN"),
        ("LOGIN", "PLAIN"),
        ("LOGIN", SCRAM),
        ("OAUTH", "OAUTHBEARER"),
        ("TLS", "PLAIN"),
        ("MUTUAL", "PLAIN"),
    ],
)
def test_every_way_to_log_in_reads_and_writes(
    broker: SecuredBroker, tmp_path: Path, listener: str, mechanism: str
) -> None:
    given = options(tmp_path, broker.kafka(listener, mechanism=mechanism))
    source, letters = KafkaSource(given), KafkaDeadLetters(given, DeadLetterOptions(topic=f"{TOPIC}-dead"))
    source.start(LONG_S)
    source.stop(5)
    letters.start(LONG_S)
    letters.stop(5)


@pytest.mark.row(45)
# aiokafka does not wait until a connection that failed is closed, and the loop may end before it is.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_each_wrong_setting_is_named_at_once_by_all_that_connects(
    broker: SecuredBroker, tmp_path: Path, fault: Fault
) -> None:
    given = options(tmp_path, fault.kafka(broker))
    letters = KafkaDeadLetters(given, DeadLetterOptions(topic=f"{TOPIC}-dead"))
    writer = TopicWriter(given, TOPIC, setting="export.announce", thread="announcements")
    writer.start()
    try:
        for connect in (
            lambda: KafkaSource(given).start(LONG_S),
            lambda: letters.start(LONG_S),
            lambda: writer.check(LONG_S),
            lambda: newest_letters(given, 1),
        ):
            with pytest.raises(ConfigError) as refused:
                connect()
            assert fault.says in str(refused.value)
            assert str(refused.value).startswith((given.servers, "kafka.oauth")), "it names who refuses"
    finally:
        writer.stop()


def test_a_certificate_that_does_not_bear_the_advertised_name_is_named(broker: SecuredBroker, tmp_path: Path) -> None:
    kafka = {**broker.kafka("NAMED"), "bootstrap_servers": [f"localhost:{broker.ports['NAMED']}"]}
    with pytest.raises(
        ConfigError, match=rf"^{broker.address('NAMED')} shows .* set kafka.ssl_check_hostname to false"
    ):
        KafkaSource(options(tmp_path, kafka)).start(LONG_S)


VERBS = ("validate", "run --until now", "dead-letters list", "init --topic clicks")
MET = ("a wrong password", "an authority that is not trusted", "no certificate of ours", "a token that has ended")


@pytest.mark.parametrize(
    ("verb", "name"),
    [
        # In the gate each verb meets one of them, and each of them one verb.
        (verb, name) if VERBS.index(verb) == MET.index(name) else pytest.param(verb, name, marks=pytest.mark.nightly)
        for verb, name in itertools.product(VERBS, MET)
    ],
)
def test_verbs_end_with_the_exit_code_of_a_wrong_setting(
    broker: SecuredBroker, tmp_path: Path, verb: str, name: str
) -> None:
    kafka = FAULTS[name].kafka(broker)
    path = config(tmp_path, kafka)
    if verb.startswith("init"):
        words = [*verb.split(), "--out", "drafted", "--bootstrap-servers", kafka["bootstrap_servers"][0]]
        environment = {
            f"MILLRACE_KAFKA__{key.upper()}": value if isinstance(value, str) else json.dumps(value)
            for key, value in kafka.items()
            if key != "bootstrap_servers"
        }
    else:
        words, environment = [*verb.split(), "-c", str(path)], {}
    done = run_forked(words, cwd=tmp_path, env={**os.environ, **environment})
    assert FAULTS[name].says in " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2


def test_a_login_refused_while_it_runs_is_named_and_ends_nothing(
    broker: SecuredBroker, tmp_path: Path, wait_for: WaitFor
) -> None:
    given = options(tmp_path, broker.kafka("LOGIN", mechanism=SCRAM))
    source = KafkaSource(given)
    letters = KafkaDeadLetters(given, DeadLetterOptions(topic=f"{TOPIC}-dead"))
    source.start(LONG_S)
    letters.start(LONG_S)
    try:
        wait_for(lambda: source.statistics().connected)
        broker.add_scram_user(USER, "another")
        says = f"refuses the login of {USER}"
        wait_for(lambda: says in (source.statistics().last_error or ""), 60)
        assert not source.statistics().connected
        broker.add_scram_user(USER, PASSWORD)
        wait_for(lambda: source.statistics().connected, 60)
    finally:
        letters.stop(5)
        source.stop(5)
        broker.add_scram_user(USER, PASSWORD)


@pytest.mark.row(45)
@pytest.mark.parametrize("listener", ["LOGIN", "OAUTH"])
def test_logins_that_end_are_renewed_without_a_failed_request(
    broker: SecuredBroker,
    tmp_path: Path,
    wait_for: WaitFor,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    listener: str,
) -> None:
    closed, close = list[CloseReason | None](), EndingConnection.close

    def noting(connection: EndingConnection, reason: CloseReason | None = None, exc: Exception | None = None) -> object:
        closed.append(reason)
        return close(connection, reason, exc)

    monkeypatch.setattr(EndingConnection, "close", noting)
    kafka = broker.kafka(listener, mechanism=SCRAM)
    if listener == "OAUTH":
        # A scope of its own, so that its tokens are the test's and end soon.
        kafka["oauth"]["scope"], broker.provider.lifetime_s = "short", 4.0
    given = options(tmp_path, kafka)
    source = KafkaSource(given)
    letters = KafkaDeadLetters(given, DeadLetterOptions(topic=f"{TOPIC}-dead"))
    try:
        source.start(LONG_S)
        letters.start(LONG_S)
        closed.clear()
        wait_for(lambda: len(closed) >= 6, 90)
        assert set(closed) == {CloseReason.IDLE_DROP}, "none was closed by the broker"
        assert source.statistics().connected
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []
    finally:
        broker.provider.lifetime_s = 3600.0
        letters.stop(5)
        source.stop(5)
    if listener == "OAUTH":
        assert sum(asked.get("scope") == "short" for asked in broker.provider.asked) > 1


def said(verb: str, path: Path, code: int) -> str:
    """Run a verb with a config that is given, and return what it says in one line."""
    done = run_forked([*verb.split(), "-c", str(path)], cwd=path.parent, env=os.environ)
    text = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == code, text
    return text


def folder_of_one(tmp_path: Path) -> Path:
    (folder := tmp_path / "files").mkdir(exist_ok=True)
    (folder / "one").write_bytes(b"{}")
    return folder


def test_the_permissions_in_the_docs_are_enough_for_each_verb(broker: SecuredBroker, tmp_path: Path) -> None:
    grants = re.findall(
        r"^kafka-acls.sh .* --allow-principal (\S+) --operation (\S+) --(\S+) (\S+)$",
        (ROOT / "docs" / "operating.md").read_text(),
        re.MULTILINE,
    )
    assert len(grants) == 8
    for principal, operation, resource, name in grants:
        assert principal == f"User:{LEAST}"
        broker.permit(principal, operation, resource, name)
    path = config(tmp_path, broker.kafka("LOGIN", user=LEAST))
    assert f"ok commits group {GROUP} may be committed for" in said("validate", path, 0)
    run = said("run --until now", path, 0)
    assert "refused" not in run
    assert "malformed" in said("dead-letters list", path, 0)
    assert "1" in said(f"dead-letters redrive --to {TOPIC}", path, 0)
    assert f"1 files, 1 records to {TOPIC}" in said(f"produce {folder_of_one(tmp_path)} --quiet 0", path, 0)
    writer = TopicWriter(
        options(tmp_path, broker.kafka("LOGIN", user=LEAST)),
        f"{TOPIC}-versions",
        setting="export.announce",
        thread="announcements",
    )
    writer.start()
    try:
        writer.write(b"key", b"value", LONG_S)
    finally:
        writer.stop()


def test_each_missing_permission_is_named_with_the_command_that_grants_it(
    broker: SecuredBroker, tmp_path: Path
) -> None:
    kafka = broker.kafka("LOGIN", user=STRANGER)
    given = options(tmp_path, kafka)
    path = config(tmp_path, kafka, letters=False)
    letters = KafkaDeadLetters(given, DeadLetterOptions(topic=f"{TOPIC}-dead"))
    principal, asked = f"User:{STRANGER}", f"--add --allow-principal User:{STRANGER} --operation"

    def missing(operation: str, resource: str, name: str) -> str:
        command = f"kafka-acls.sh --bootstrap-server {given.servers} {asked} {operation} --{resource} {name}"
        return f"Permit {operation}: {command}"

    with pytest.raises(SourceError, match=re.escape(missing("Read", "topic", TOPIC))):
        KafkaSource(given).start(LONG_S)
    broker.permit(principal, "Read", "topic", TOPIC)
    for verb in ("validate", "run --until now"):
        assert missing("Read", "group", GROUP) in said(verb, path, 1), verb
    broker.permit(principal, "Describe", "group", GROUP)
    source = KafkaSource(given)
    source.start(LONG_S)
    assert not source.may_commit()
    broker.permit(principal, "Read", "group", GROUP)
    committed = source.committed()
    assert source.may_commit()
    assert source.committed() == committed, "asking commits nothing"
    source.stop(5)
    for elsewhere in (False, True):
        if elsewhere:  # now Kafka gives its producers an id, and only the topic itself refuses them
            broker.permit(principal, "Write", "topic", "elsewhere")
            broker.permit(principal, "Describe", "topic", f"{TOPIC}-dead")
        with pytest.raises(SourceError, match=re.escape(missing("Write", "topic", f"{TOPIC}-dead"))):
            letters.start(LONG_S)
        writer = TopicWriter(given, f"{TOPIC}-dead", setting="export.announce", thread="announcements")
        writer.start()
        for _ in range(2):  # the second one says the same
            with pytest.raises(SourceError, match=re.escape(missing("Write", "topic", f"{TOPIC}-dead"))):
                writer.write(b"key", b"value", LONG_S)
        writer.stop()
    broker.permit(principal, "Read", "topic", f"{TOPIC}-dead")
    broker.permit(principal, "Write", "topic", f"{TOPIC}-dead")
    wanted = Redrive(letters=f"{TOPIC}-dead", to=TOPIC, model="clicks")
    with pytest.raises(SourceError, match=re.escape(missing("Write", "topic", TOPIC))):
        redrive(given, wanted)
    produced = said(f"produce {folder_of_one(tmp_path)} --quiet 0", path, 1)
    assert missing("Write", "topic", TOPIC) in produced
    broker.permit(principal, "Write", "topic", TOPIC)
    with pytest.raises(SourceError, match="--operation Write --transactional-id millrace-redrive-clicks-dead"):
        redrive(given, wanted)
