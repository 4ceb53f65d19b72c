"""The way into Kafka: secrets and certificates out of their files."""

import asyncio
import base64
import ssl
import sys
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings import load_kafka
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.oauth import TokenFault

CANARY = "canary-9c1d"


def kafka(**settings: Any) -> KafkaSettings:
    needed = {"bootstrap_servers": ["b:1", "c:2"], "topics": ["t"], "group": "g"}
    return KafkaSettings.model_validate({**needed, **settings})


def sasl(password_file: Path) -> KafkaSettings:
    return kafka(
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="me",
        sasl_password_file=str(password_file),
    )


def test_what_is_set_reaches_the_options() -> None:
    options = kafka_options(kafka(chunk_records=7, fetch_bytes="2KiB", metadata_max_age="3s", out_of_range="earliest"))
    assert (options.servers, options.topics, options.group_id) == ("b:1,c:2", ("t",), "g")
    assert (options.chunk_records, options.fetch_bytes, options.metadata_max_age_ms) == (7, 2048, 3000)
    assert options.out_of_range == "earliest"
    assert options.security == {"security_protocol": "PLAINTEXT"}


WIDE = '{"topics": ["theirs"], "bootstrap_servers": ["away:1"], "security_protocol": "SSL"}'


@pytest.mark.parametrize(
    "environ",
    [
        {"MILLRACE_KAFKA__TOPICS": "theirs", "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": "away:1"},
        {"millrace_kafka__topics": "a b", "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": "nowhere"},
        {"MILLRACE_KAFKA": WIDE},
    ],
)
def test_what_was_typed_goes_over_the_environment(environ: dict[str, str], tmp_path: Path) -> None:
    reached = load_kafka(tmp_path, "mine", ["here:1", "there:2"], environ)
    assert (reached.topics, reached.bootstrap_servers) == (("mine",), ("here:1", "there:2"))
    assert reached.security_protocol == ("SSL" if "MILLRACE_KAFKA" in environ else "PLAINTEXT")


def test_servers_that_nobody_typed_are_the_environments_or_here(tmp_path: Path) -> None:
    environ = {"MILLRACE_KAFKA__BOOTSTRAP_SERVERS": "kafka:9093", "MILLRACE_TRAINING__BATCH_SIZE": "nonsense"}
    assert load_kafka(tmp_path, "mine", None, environ).bootstrap_servers == ("kafka:9093",)
    assert load_kafka(tmp_path, "mine", None, {}).bootstrap_servers == ("127.0.0.1:9092",)


def test_errors_name_the_option_that_was_typed_or_the_variable_that_was_set(
    tmp_path: Path,
) -> None:
    environ = {"MILLRACE_KAFKA__SECURITI_PROTOCOL": "SSL"}
    with pytest.raises(ConfigError) as caught:
        load_kafka(tmp_path, "a b", ["nowhere"], environ)
    told = str(caught.value)
    assert "--topic: kafka.topics[0]: 'a b' is not a topic's name" in told
    assert "--bootstrap-servers: kafka.bootstrap_servers[0]: 'nowhere' is not a server" in told
    assert "environment MILLRACE_KAFKA__SECURITI_PROTOCOL: kafka.securiti_protocol is not a setting" in told


def test_the_password_is_the_file_without_its_last_line_break(tmp_path: Path) -> None:
    (tmp_path / "password").write_text(f"{CANARY}\n")
    options = kafka_options(sasl(tmp_path / "password"))
    assert options.security["sasl_plain_password"] == CANARY
    assert options.security["sasl_plain_username"] == "me"
    assert options.security["sasl_mechanism"] == "SCRAM-SHA-512"
    assert CANARY not in repr(options)


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (None, "cannot be read: no such file or directory; put the secret there"),
        (b"\n", "is empty; write the secret into it"),
        (b"canary-9c1d\xff", "is not UTF-8 text; write the secret alone into it"),
    ],
)
def test_a_password_file_that_does_not_do_is_named(tmp_path: Path, content: bytes | None, text: str) -> None:
    path = tmp_path / "password"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        kafka_options(sasl(path))
    assert str(caught.value) == f"kafka.sasl_password_file: {path} {text}"


MSK = {"security_protocol": "SASL_SSL", "sasl_mechanism": "AWS_MSK_IAM", "aws_region": "eu-central-1"}


def test_amazons_signer_makes_the_tokens_of_amazons_mechanism(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", CANARY)
    security = kafka_options(kafka(**MSK)).security
    assert security["sasl_mechanism"] == "OAUTHBEARER"
    token = asyncio.run(security["sasl_oauth_token_provider"].token())
    signed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)).decode()
    assert signed.startswith("https://kafka.eu-central-1.amazonaws.com/?Action=kafka-cluster%3AConnect")
    assert "X-Amz-Expires=900" in signed
    assert CANARY not in signed
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(TokenFault, match="AWS_MSK_IAM: there are no AWS credentials; give this process a role"):
        asyncio.run(kafka_options(kafka(**MSK)).security["sasl_oauth_token_provider"].token())


def test_a_mechanism_whose_package_is_missing_is_named_with_the_way_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "aws_msk_iam_sasl_signer", None)
    with pytest.raises(ConfigError, match=r"AWS_MSK_IAM needs AWS's signer: pip install .*\[msk\]\"$"):
        kafka_options(kafka(**MSK))
    monkeypatch.setattr("millrace.app.settings.connection.find_spec", {}.get)
    with pytest.raises(ConfigError, match=r"GSSAPI needs Kerberos' library: pip install .*\[kerberos\]\"$"):
        kafka_options(kafka(security_protocol="SASL_SSL", sasl_mechanism="GSSAPI"))


def test_kerberos_is_passed_on_with_the_name_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millrace.app.settings.connection.find_spec", {"gssapi": "there"}.get)
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": "broker"}
    assert kafka_options(kafka(**given)).security == given


@pytest.mark.parametrize("check", [True, False])
def test_ssl_verifies_certificates_and_by_default_their_host(check: bool) -> None:
    context = kafka_options(kafka(security_protocol="SSL", ssl_check_hostname=check)).security["ssl_context"]
    assert context.verify_mode == ssl.CERT_REQUIRED
    assert context.check_hostname is check


def test_a_ca_file_that_is_none_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^kafka.ssl_ca_file: .*ca.crt cannot be read: no such file or directory"):
        kafka_options(kafka(security_protocol="SSL", ssl_ca_file=str(tmp_path / "ca.crt")))
    (tmp_path / "ca.crt").write_text("nothing")
    with pytest.raises(ConfigError, match=r"^kafka.ssl_ca_file: .*ca.crt holds no certificate in PEM form$"):
        kafka_options(kafka(security_protocol="SSL", ssl_ca_file=str(tmp_path / "ca.crt")))


def test_a_key_that_does_not_fit_is_named(tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.crt", tmp_path / "client.key"
    settings = kafka(security_protocol="SSL", ssl_certificate_file=str(certificate), ssl_key_file=str(key))
    with pytest.raises(ConfigError, match=r"^kafka.ssl_certificate_file: .*client.crt cannot be read"):
        kafka_options(settings)
    certificate.write_text("nothing")
    key.write_text(CANARY)
    with pytest.raises(ConfigError, match=r"client.crt and kafka.ssl_key_file .*client.key do not go together") as told:
        kafka_options(settings)
    assert CANARY not in str(told.value)
