"""The configs of the page about logins are accepted, and say to aiokafka what they should."""

import re
from pathlib import Path
from typing import Any

import pytest

from millrace.app.settings import load
from millrace.app.settings.connection import kafka_options
from tests.faults.harness.process import ROOT

_SECRETS = "/run/secrets/"
BLOCKS = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "logins.md").read_text(), re.MULTILINE | re.DOTALL)
REST = {
    "name: ": "name: clicks\n",
    "kafka:": "kafka: {bootstrap_servers: [b:9092], topics: [clicks]}\n",
    "records:": "records: {features: {price: float32}, label: {clicked: float32}}\n",
    "model:": "model: {build: ./model.py:build_model}\n",
    "checkpoints:": "checkpoints: {path: ./checkpoints}\n",
}
"""What a block leaves out."""


def security(block: str, folder: Path) -> dict[str, Any]:
    """Load a config that has a block of the page, with its secrets' files, and return what aiokafka gets."""
    for name in re.findall(rf"{_SECRETS}([\w./-]+)", block):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("a.b.c")
    text = block.replace(_SECRETS, f"{folder}/")
    if "bootstrap_servers" not in text:
        text = text.replace("kafka:\n", "kafka:\n  bootstrap_servers: [b:9092]\n  topics: [clicks]\n", 1)
    text += "".join(rest for name, rest in REST.items() if not re.search(f"^{name}", text, re.MULTILINE))
    (folder / "clicks.yaml").write_text(text)
    settings = load(folder / "clicks.yaml", {}).settings
    return dict(kafka_options(settings.kafka).security)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_each_config_of_the_page_about_logins_is_accepted(block: str, tmp_path: Path) -> None:
    given = security(block, tmp_path)
    assert given["security_protocol"] == "SASL_SSL"
    assert given["sasl_mechanism"] == "OAUTHBEARER"
    assert given["sasl_oauth_token_provider"].fault is None
