"""How to get in: the `kafka` settings as the source's options, secrets and certificates read from their files."""

from importlib.util import find_spec
from typing import Any

from millrace.app.settings.certificates import client_context
from millrace.app.settings.root import Settings
from millrace.app.settings.secret_files import read_secret
from millrace.app.settings.sections.kafka import KafkaSettings
from millrace.app.settings.sections.oauth import KafkaOAuthSettings, to_tokens
from millrace.consumers.errors import ConfigError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.kafka.replaying import NO_HISTORY, History
from millrace.consumers.suggested_command import install_of


def kafka_options(kafka: KafkaSettings) -> KafkaOptions:
    """Return the options of the source and of the dead letters; reads the secret files that the settings name."""
    security: dict[str, Any] = {"security_protocol": kafka.security_protocol}
    password = read_secret("kafka.sasl_password_file", kafka.sasl_password_file)
    if password is not None:
        security["sasl_mechanism"] = kafka.sasl_mechanism
        security["sasl_plain_username"] = kafka.sasl_username
        security["sasl_plain_password"] = password.get_secret_value()
    if kafka.oauth is not None or kafka.aws_region is not None:
        security["sasl_mechanism"] = "OAUTHBEARER"  # AWS_MSK_IAM is that with tokens of AWS's own
        security["sasl_oauth_token_provider"] = _token_login(kafka.oauth, kafka.aws_region or "")
    if kafka.sasl_mechanism == "GSSAPI":
        if find_spec("gssapi") is None:
            raise ConfigError(f"kafka.sasl_mechanism GSSAPI needs Kerberos' library: {install_of('kerberos')}")
        security |= {"sasl_mechanism": "GSSAPI", "sasl_kerberos_service_name": kafka.sasl_kerberos_service_name}
    if kafka.security_protocol.endswith("SSL"):
        context = client_context(
            "kafka.ssl_",
            kafka.ssl_ca_file,
            kafka.ssl_certificate_file,
            kafka.ssl_key_file,
            kafka.ssl_key_password_file,
        )
        context.check_hostname = kafka.ssl_check_hostname
        security["ssl_context"] = context
    return KafkaOptions(
        bootstrap_servers=kafka.bootstrap_servers,
        topics=kafka.topics,
        group_id=kafka.group,
        security=security,
        out_of_range=kafka.out_of_range,
        on_recreated=kafka.on_recreated,
        isolation_level=kafka.isolation_level,
        chunk_records=kafka.chunk_records,
        fetch_bytes=kafka.fetch_bytes,
        metadata_max_age_ms=round(kafka.metadata_max_age * 1000),
    )


def _token_login(oauth: KafkaOAuthSettings | None, region: str) -> Any:
    from millrace.consumers.kafka.oauth import TokenLogin, msk_tokens  # noqa: PLC0415 - loads aiokafka

    if oauth is None:
        return TokenLogin(msk_tokens(region))
    return TokenLogin(to_tokens(oauth, "kafka.oauth"), oauth.extensions)


def kafka_history(settings: Settings) -> History:
    """Return what the archive holds from before Kafka's retention; an empty history where no archive is set."""
    if settings.archive.path is None:
        return NO_HISTORY
    from millrace.consumers.archive.replay import ArchivedHistory  # noqa: PLC0415 - loads pyarrow's Parquet, which few need

    return ArchivedHistory(settings.archive.path, chunk_records=settings.kafka.chunk_records)
