"""What a manifest says of the pretraining of a model, for people. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any


def in_sentences(facts: Mapping[str, Any]) -> Iterator[str]:
    """Give what a manifest says of the pretraining, in sentences."""
    validated = f", validated on {facts['validation_rows']:,}" if facts.get("validation_rows") else ""
    yield f"on {facts['rows']:,} rows of {facts['source']}, {facts['shards']} shards{validated}"
    yield f"epoch {facts['epoch']} of {facts['epochs']} learnt, {facts['steps']:,} steps"
    if facts.get("figures"):
        yield ", ".join(f"{name} {value:.4g}" for name, value in facts["figures"].items())
    if facts.get("set_aside"):
        yield "set aside " + ", ".join(f"{count:,} {reason}" for reason, count in facts["set_aside"].items())
