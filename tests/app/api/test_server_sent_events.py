"""Streams of events and updates on a real socket: prompt, bounded, and closed by a stop."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import httpx
import pytest

from millrace.app.api.routes import events
from millrace.app.api.server import ApiServer
from millrace.training.telemetry.events import EventKind
from tests.app.api_rig import Rig, is_problem, serving
from tests.conftest import WaitFor

SSE = {"accept": "text/event-stream"}


@contextmanager
def asking(server: ApiServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=20) as client:
        yield client


@pytest.fixture
def client(rig: Rig) -> Iterator[httpx.Client]:
    """Return a client of a server that answers and observes once a second."""
    with serving(rig) as server, asking(server) as client:
        yield client


@contextmanager
def listening(client: httpx.Client, path: str = "/events", **headers: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a stream as they come."""
    with client.stream("GET", path, headers={**SSE, **headers}) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield answer.iter_lines()


def messages(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    return (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def test_events_come_as_json_and_only_those_since_an_id(rig: Rig, client: httpx.Client) -> None:
    rig.service.events.report(EventKind.PAUSED, "Paused: asked to.", reason="asked to")
    first = client.get("/events").json()
    assert [event["text"] for event in first["events"]] == ["Paused: asked to."]
    assert first["events"][0]["facts"] == {"reason": "asked to"}
    rig.service.events.report(EventKind.RESUMED, "Resumed.")
    later = client.get("/events", params={"since": first["newest"]}).json()
    assert [event["text"] for event in later["events"]] == ["Resumed."]
    assert client.get("/events", params={"since": later["newest"]}).json()["events"] == []


def test_a_listener_gets_past_and_future_events(rig: Rig, client: httpx.Client) -> None:
    rig.service.events.report(EventKind.PAUSED, "Paused.")
    with listening(client) as lines:
        told = messages(lines)
        assert next(told)["text"] == "Paused."
        rig.service.events.report(EventKind.RESUMED, "Resumed.")
        assert next(told)["text"] == "Resumed."


def test_a_listener_that_returns_gets_what_it_missed_and_nothing_twice(rig: Rig, client: httpx.Client) -> None:
    rig.service.events.report(EventKind.PAUSED, "Paused.")
    with listening(client) as lines:
        last = next(line for line in lines if line.startswith("id: ")).removeprefix("id: ")
    rig.service.events.report(EventKind.RESUMED, "Resumed.")
    with listening(client, **{"last-event-id": last}) as lines:
        assert next(messages(lines))["text"] == "Resumed."


@pytest.mark.parametrize("last", ["", "x", "-1", "٣", "9" * 30])
def test_an_invalid_last_event_id_is_ignored(rig: Rig, client: httpx.Client, last: str) -> None:
    rig.service.events.report(EventKind.PAUSED, "Paused.")
    answer = client.get("/events", headers=[(b"last-event-id", last.encode())])
    assert [event["text"] for event in answer.json()["events"]] == ["Paused."]


def test_comments_break_silence_so_that_no_proxy_closes_the_stream(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "_KEEPALIVE_S", 0.0)
    with listening(client) as lines:
        assert next(line for line in lines if line.startswith(":")) == ": still here"


def test_listeners_beyond_the_maximum_are_refused_until_one_leaves(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, wait_for: WaitFor
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 3)
    with ExitStack() as others:
        for _ in range(2):
            others.enter_context(listening(client))
        with listening(client):
            is_problem(client.get("/events", headers=SSE), 503)
            assert client.get("/events").status_code == 200, "whoever only asks is answered"

        def let_in() -> bool:
            with client.stream("GET", "/events", headers=SSE) as answer:
                return answer.status_code == 200

        wait_for(let_in)


def test_a_stop_ends_every_stream_at_once_and_in_order(rig: Rig) -> None:
    with (
        serving(rig) as server,
        asking(server) as client,
        listening(client) as events,
        listening(client, "/page/updates") as updates,
    ):
        next(messages(updates))
        server.stop()
        assert list(messages(events)) == []
        assert isinstance(list(messages(updates)), list), "it ends, and is not cut off"


def test_the_page_gets_the_status_once_an_observation_and_each_event_once(rig: Rig, client: httpx.Client) -> None:
    rig.service.events.report(EventKind.PAUSED, "Paused.")
    with listening(client, "/page/updates") as lines:
        told = messages(lines)
        first = next(told)
        assert first["status"]["name"] == "clicks"
        assert set(first["sample"]) >= {"metric", "lag_s", "learnt_per_s"}
        assert [event["text"] for event in first["events"]] == ["Paused."]
        second = next(told)
        assert second["events"] == []
        assert second["at"] > first["at"]


def test_the_history_has_a_row_for_each_observation(client: httpx.Client, wait_for: WaitFor) -> None:
    answer = wait_for(lambda: (shown := client.get("/history").json())["at"] and shown)
    assert (answer["span"], answer["step_s"]) == ("10m", 1)
    assert {len(column) for column in answer["mean"].values()} == {len(answer["at"])}
    assert "greatest" not in answer
    day = client.get("/history", params={"span": "24h"}).json()
    assert {len(column) for column in day["greatest"].values()} == {len(day["at"])}
    is_problem(client.get("/history", params={"span": "1y"}), 422)
    unknown = client.get("/history", params={"metric": "gini"})
    is_problem(unknown, 404)
    assert "none yet" in unknown.json()["fix"] or "accuracy" in unknown.json()["fix"]
