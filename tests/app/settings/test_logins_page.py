"""The configs of the page about logins are accepted, and say to aiokafka what they should."""

import re
from pathlib import Path

import pytest

from millrace.app.settings import Settings, load
from millrace.app.settings.connection import kafka_options
from millrace.app.settings.sections.registry import to_registry
from tests.app.certificates import Authority
from tests.faults.harness.process import ROOT

_SECRETS = "/run/secrets/"
PAGE = (ROOT / "docs" / "logins.md").read_text()
BLOCKS = [
    block for block in re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL) if "# KafkaUser" not in block
]
REST = {
    "name: ": "name: clicks\n",
    "kafka:": "kafka: {bootstrap_servers: [b:9092], topics: [clicks]}\n",
    "records:": "records: {features: {price: float32}, label: {clicked: float32}}\n",
    "model:": "model: {build: ./model.py:build_model}\n",
    "checkpoints:": "checkpoints: {path: ./checkpoints}\n",
}
"""What a block leaves out."""


def configured(block: str, folder: Path) -> Settings:
    """Load a config that has a block of the page, with its secrets' files."""
    for name in re.findall(rf"{_SECRETS}([\w./-]+)", block):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a.b.c")
    if "ssl_ca_file" in block:
        issued = Authority().issue(folder / "kafka", "user")
        (folder / "kafka" / "user-ca.crt").rename(folder / "kafka" / "ca.crt")
        assert issued.certificate.name == "user.crt"
    text = block.replace(_SECRETS, f"{folder}/")
    if "bootstrap_servers" not in text:
        text = text.replace("kafka:\n", "kafka:\n  bootstrap_servers: [b:9092]\n  topics: [clicks]\n", 1)
    text += "".join(rest for name, rest in REST.items() if not re.search(f"^{name}", text, re.MULTILINE))
    (folder / "clicks.yaml").write_text(text)
    return load(folder / "clicks.yaml", {}).settings


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_each_config_of_the_page_about_logins_is_accepted(
    block: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = configured(block, tmp_path)
    if settings.kafka.sasl_mechanism == "AWS_MSK_IAM":
        pytest.importorskip("aws_msk_iam_sasl_signer")
    monkeypatch.setattr("millrace.app.settings.connection.find_spec", {"gssapi": "there"}.get)
    security = kafka_options(settings.kafka).security
    mechanism = settings.kafka.sasl_mechanism
    by_tokens = mechanism in {"OAUTHBEARER", "AWS_MSK_IAM"}
    assert security.get("sasl_mechanism") == ("OAUTHBEARER" if by_tokens else mechanism)
    assert ("sasl_oauth_token_provider" in security) == by_tokens
    if (registry := settings.records.registry) is not None:
        to_registry(registry, 0.0)


def test_the_page_has_a_config_for_each_kafka_that_it_names() -> None:
    for name in ("Confluent Cloud", "Amazon MSK", "Azure Event Hubs", "Redpanda", "Strimzi"):
        section = PAGE.partition(f"\n### {name}\n")[2].partition("\n### ")[0]
        assert "```yaml" in section, name
        for part in ("**Registry", "**Quotas", "**Tried here", "**Not tried"):
            assert part in section, (name, part)
