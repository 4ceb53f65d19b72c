"""docs/api.md agrees with the application, and repeats nothing of its OpenAPI document."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel, TypeAdapter

from millrace.app.api.operations import CHECK_TIMEOUT_S
from millrace.app.api.routes.commands import KAFKA_TIMEOUT_S
from millrace.app.monitoring import (
    checkpoint_models,
    command_models,
    data_view,
    models,
)
from millrace.app.monitoring.all_figures import kinds
from millrace.training.telemetry.events import EventKind
from tests.app.api_rig import Client

_DOCS = (Path(__file__).parents[3] / "docs" / "api.md").read_text("utf-8")
_HEADING = re.compile(r"^### `(GET|POST) (\S+)`$", re.MULTILINE)
_TEXTS = {
    "GET /readyz",
    "GET /metrics",
    "GET /checkpoints/latest",
    "GET /checkpoints/best",
    "GET /exports/{number}",
    "POST /checkpoints",
    "POST /checkpoints/{number}/restore",
    "POST /checkpoints/{number}/unpin",
    "POST /resume",
}
"""The routes without a sample: their answer is not JSON, or that of another route."""
_LONG = 30
"""The characters of a description above which a match is no accident."""
_SAMPLES: Mapping[str, Any] = {
    "GET /livez": models.Health,
    "GET /health": models.Health,
    "GET /status": models.Status,
    "GET /lag": models.LagAnswer,
    "GET /throughput": models.ThroughputAnswer,
    "GET /events": models.EventsAnswer,
    "GET /history": models.HistoryAnswer,
    "GET /data": data_view.DataAnswer,
    "GET /data/{field}": data_view.FieldAnswer,
    "GET /checkpoints": checkpoint_models.CheckpointList,
    "GET /checkpoints/{number}": checkpoint_models.LineageAnswer,
    "GET /exports": models.ExportList,
    "GET /operations/{operation_id}": models.OperationAnswer,
    "POST /checkpoints/{number}/pin": checkpoint_models.PinsAnswer,
    "POST /rewind": command_models.RewindPlanAnswer,
    "POST /pause": command_models.StateAnswer,
    "POST /profile": command_models.ProfileAnswer,
}


def sections() -> dict[str, str]:
    """Return the text below the heading of each route."""
    parts = _HEADING.split(_DOCS)[1:]
    texts = [re.split(r"^## ", text, maxsplit=1, flags=re.MULTILINE)[0] for text in parts[2::3]]
    return {f"{method} {path}": text for method, path, text in zip(parts[::3], parts[1::3], texts, strict=True)}


def sample(section: str) -> Any:
    """Return the only JSON sample of a section."""
    (text,) = re.findall(r"^```json\n(.*?)^```$", sections()[section], re.MULTILINE | re.DOTALL)
    return json.loads(text)


def test_the_docs_have_a_section_for_every_route_and_no_other(api: Client) -> None:
    paths = api.seen("/openapi.json")["paths"]
    routes = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    assert routes == set(sections()) == set(_SAMPLES) | _TEXTS


def test_the_docs_name_the_routes_of_the_page_that_the_schema_leaves_out() -> None:
    described = _DOCS.split("## The page")[1].split("\n## ")[0]
    for path in ("/", "/page/", "/page/updates"):
        assert f"`{path}`" in described


def test_the_docs_repeat_no_description_of_the_schema(api: Client) -> None:
    words, descriptions = " ".join(_DOCS.split()), set(descriptions_of(api.seen("/openapi.json")))
    assert len(descriptions) > 50
    assert [one for one in sorted(descriptions) if len(one) > _LONG and one.rstrip(".") in words] == []


def descriptions_of(described: Any) -> Iterator[str]:
    """Yield every description in the OpenAPI document."""
    for key, value in described.items() if isinstance(described, dict) else enumerate(described):
        if key == "description" and isinstance(value, str):
            yield " ".join(value.split())
        elif isinstance(value, dict | list):
            yield from descriptions_of(value)


@pytest.mark.parametrize("section", _SAMPLES)
def test_every_sample_is_a_valid_answer(section: str) -> None:
    shown = sample(section)
    read = TypeAdapter(_SAMPLES[section]).validate_python(shown)
    assert read.model_dump(mode="json", exclude_none=True) == shown


@pytest.mark.parametrize("section", ["GET /status", "GET /lag", "GET /throughput"])
def test_every_field_of_a_large_answer_is_in_its_sample_or_text(section: str) -> None:
    named = {word.rpartition(".")[2] for word in re.findall(r"`([\w.]+)`", sections()[section])}
    fields = set(fields_of(_SAMPLES[section]))
    assert len(fields) > 10
    assert fields - named - set(keys_of(sample(section))) == set()


def fields_of(shape: Any) -> Iterator[str]:
    """Yield every name that an answer of this shape may contain; docs/metrics.md names those of figures."""
    if isinstance(shape, type) and issubclass(shape, BaseModel):
        of_rooms = {kind.name for kind in kinds()}
        for name, field in shape.model_fields.items():
            yield from () if name in of_rooms else [name]
            yield from fields_of(field.annotation)
    for inner in get_args(shape):
        yield from fields_of(inner)


def keys_of(shown: Any) -> Iterator[str]:
    """Yield every name that an answer contains."""
    for inner in shown.values() if isinstance(shown, dict) else shown if isinstance(shown, list) else ():
        yield from keys_of(inner)
    yield from shown if isinstance(shown, dict) else ()


def test_the_numbers_of_the_samples_add_up() -> None:
    records, stream = sample("GET /status")["records"], sample("GET /status")["stream"]
    whole = records["learnt"] + sum(records["set_aside"].values()) + sum(records["skipped"].values())
    assert records["offsets"] == whole + records["gaps"] + records["lost"]
    assert records["fetched"] == records["handed"] + records["held"] + records["discarded"]
    throughput, lag = sample("GET /throughput"), sample("GET /lag")
    assert sum(throughput["waiting"].values()) == pytest.approx(1.0)
    gaining = throughput["records_per_s"]["1m"] - throughput["arriving_per_s"]
    assert stream["catch_up_s"] == lag["catch_up_s"] == round(lag["lag_records"] / gaining, 1)
    assert lag["lag_records"] == sum(one["lag_records"] for one in lag["partitions"].values())
    assert all(one["lag_records"] == one["end"] - one["position"] for one in lag["partitions"].values())
    queued = throughput["queued_bytes"]
    assert queued["total"] == sum(queued[part] for part in ("client", "handoff", "decoding", "assembling", "blocks"))
    plan = sample("POST /rewind")
    for what in ("replayed", "skipped"):
        assert plan[what] == sum(one[what] for one in plan["partitions"].values())
    assert all(
        one["position"] - one["back_to"] == one["replayed"] + one["skipped"] for one in plan["partitions"].values()
    )
    for history in sample("GET /checkpoints/{number}")["history"].values():
        settled = sum(history["set_aside"].values()) + sum(history["skipped"].values())
        assert history["position"] - history["start"] == history["learnt"] + settled + history["gaps"] + history["lost"]
    files = sample("GET /checkpoints/{number}")["checkpoint"]["files"].values()
    assert sample("GET /checkpoints/{number}")["checkpoint"]["bytes"] == sum(file["bytes"] for file in files)


def test_the_docs_say_how_long_a_rewind_waits_for_its_check() -> None:
    text = " ".join(sections()["POST /rewind"].split())
    assert f"does not answer within {KAFKA_TIMEOUT_S:g} s)" in text
    assert f"A command waits {CHECK_TIMEOUT_S:g} s," in text


def test_the_docs_name_every_kind_of_problem() -> None:
    source = (Path(__file__).parents[3] / "app" / "monitoring" / "problems.py").read_text("utf-8")
    kinds = set(re.findall(r'kind="(\w+)"', source))
    assert len(kinds) > 5
    assert [kind for kind in sorted(kinds) if f"`{kind}`" not in sections()["GET /status"]] == []


def test_the_docs_name_every_kind_of_event() -> None:
    assert [kind for kind in EventKind if f"`{kind}`" not in sections()["GET /events"]] == []


def test_the_sample_of_a_problem_document_is_valid() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", _DOCS.split("## Problem documents")[1], re.MULTILINE | re.DOTALL)
    models.ProblemDocument.model_validate(json.loads(text))
