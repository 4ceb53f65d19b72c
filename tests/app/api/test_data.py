"""Whether the records are as they were, as `/data` says it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from urllib.parse import quote

import numpy as np
import pytest

from millrace.app.api import http_app
from tests.app.api_rig import Client, Rig, is_problem
from tests.training.trainer.inputs.world import Watch, World, planted

FIELDS = 16


@pytest.fixture(scope="module")
def watch() -> Watch:
    """A price that is a hundred times what it was, since some seconds."""
    found = Watch(World(FIELDS, seed=1))
    found.go(60.0)
    for at in range(200):
        types = {"old": "text"} if at < 100 else {"geo.lat": "number" if at % 4 else "null", "old": "text"}
        found.inputs.unread.note(("clicks:0", 512 * at, 1000 * at), types)
    found.go(10.0, lambda columns: columns.update(price_0=columns["price_0"] * 100))
    return found


@pytest.fixture
def watching(rig: Rig, watch: Watch) -> Iterator[Callable[..., Client]]:
    clients = list[Client]()

    def client(*, values: bool = False) -> Client:
        service = rig.service
        service.watchers = (watch.inputs,)
        service.settings = service.settings.model_copy(
            update={"api": service.settings.api.model_copy(update={"read_values": values})}
        )
        clients.append(Client(rig, service=service))
        return clients[-1]

    yield client
    for each in clients:
        each.close()


def test_the_field_that_has_changed_comes_first_with_what_and_since_when(
    watching: Callable[..., Client],
) -> None:
    answer = watching().seen("/data")
    assert answer["sampled"] > 400
    assert answer["until"].startswith("1970-01-01T00:")
    first, *others = answer["fields"]
    assert len(others) == FIELDS
    assert first["field"] == first["changed"]["first"] == "price_0"
    assert (first["kind"], first["changed"]["cause"]) == ("number", "values")
    assert "median" in first["changed"]["text"]
    assert first["changed"]["partition"] == "clicks:0"
    assert first["quantiles"]["p05"] < first["quantiles"]["p50"] < first["quantiles"]["p95"]
    assert all("changed" not in other for other in others)
    missing = {field["field"]: field["missing"] for field in answer["fields"] if field["missing"]}
    assert [*missing] == ["maybe_0"]


def test_fields_that_nobody_reads_are_listed_with_their_types(watching: Callable[..., Client]) -> None:
    answer = watching().seen("/data")
    assert answer["looked_at"] == 200
    new, old = answer["unread"]
    assert new == {
        "field": "geo.lat",
        "types": {"number": 0.75, "null": 0.25},
        "share": 1.0,
        "appeared": "1970-01-01T00:01:40.000Z",
        "partition": "clicks:0",
        "offset": 51200,
    }
    assert (old["field"], old["types"], "appeared" in old, "vanished" in old) == ("old", {"text": 1.0}, False, False)


def test_a_number_is_shown_now_and_before_in_the_same_bins(watching: Callable[..., Client]) -> None:
    answer = watching().seen("/data/price_0")
    now, before = answer["field"]["quantiles"]["p50"], answer["before"]["quantiles"]["p50"]
    assert 80 < now / before < 125
    histogram = answer["histogram"]
    assert len(histogram["edges"]) == len(histogram["now"]) + 1 == len(histogram["before"]) + 1
    assert sum(histogram["now"]) == pytest.approx(1, abs=1e-4)
    assert sum(histogram["before"]) == pytest.approx(1, abs=1e-4)
    half = len(histogram["now"]) // 2
    assert sum(histogram["before"][:half]) > 0.8 > sum(histogram["now"][:half]) + 0.5
    assert "top" not in answer


def test_a_field_is_compared_with_an_hour_that_is_kept(watching: Callable[..., Client], watch: Watch) -> None:
    client = watching()
    assert client.seen("/data/price_0")["against"] == "before"
    refused = client.get("/data/price_0?against=week")
    assert is_problem(refused, 404)
    assert refused.json()["fix"] == "The first one is kept when it is over."
    assert is_problem(client.get("/data/price_0?against=export"), 404)
    assert is_problem(client.get("/data/price_0?against=yesterday"), 422)
    watch.world.at_s += 24 * 3600
    watch.go(12.0)
    kept = client.seen("/data")["hours_since"]
    assert kept == "1970-01-01T00:00:00.000Z"
    for against in ("day", kept):
        answer = client.seen(f"/data/price_0?against={against}")
        assert (answer["against"], answer["hour"]) == (against, kept)
        assert answer["apart"] == pytest.approx(answer["field"]["distance"], abs=0.9)
        assert sum(answer["histogram"]["before"]) == pytest.approx(1, abs=1e-4)
    assert is_problem(client.get("/data/price_0?against=1970-01-01T07:00:00Z"), 404)


def test_values_of_texts_are_shown_only_if_readers_may_see_them(watching: Callable[..., Client]) -> None:
    hidden = watching().seen("/data/device_0")
    assert len(hidden["top"]) == 5
    assert all(set(one) == {"share", "before"} for one in hidden["top"])
    shown = watching(values=True).seen("/data/device_0")
    assert {one["value"] for one in shown["top"]} == {"android", "ios", "desktop", "tablet", "tv"}
    assert sum(one["share"] for one in shown["top"]) == pytest.approx(1, abs=0.01)
    everything = watching().get("/data").text
    assert "android" not in everything


def test_before_the_first_window_and_in_a_group_there_is_nothing(api: Client) -> None:
    assert api.seen("/data")["fields"] == []
    problem = is_problem(api.get("/data/price_0"), 404)
    assert problem["detail"] == "No window of records is over yet."


def test_an_unknown_field_is_a_problem_that_names_the_known_ones(watching: Callable[..., Client]) -> None:
    problem = is_problem(watching().get("/data/prize"), 404)
    assert problem["fix"].startswith("There are: price_0, age_0")


def test_a_field_whose_values_are_all_missing_is_shown(watching: Callable[..., Client], watch: Watch) -> None:
    other = Watch(World(FIELDS, seed=1))
    other.go(60.0)
    other.go(14.0, planted("missing", "maybe_0", other.world, np.random.default_rng(1)))
    before, watch.inputs = watch.inputs, other.inputs
    try:
        answer = watching().seen("/data/maybe_0")
    finally:
        watch.inputs = before
    assert answer["field"]["missing"] == 1.0
    assert "quantiles" not in answer["field"]
    assert sum(answer["histogram"]["now"]) == 0


def test_a_field_with_a_slash_in_its_name_is_shown_as_any_other(
    rig: Rig, watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    view = watch.inputs.view
    assert view is not None
    renamed = replace(view, fields=[replace(one, name=f"shop/{one.name}") for one in view.fields])
    monkeypatch.setattr(http_app, "_inputs", lambda _service: renamed)
    client = Client(rig)
    for name in ("shop/price_0", "shop/app"):
        for path in (name, quote(name, safe="")):
            assert client.seen(f"/data/{path}")["field"]["field"] == name
    is_problem(client.get("/data/shop"), 404)
    client.close()
