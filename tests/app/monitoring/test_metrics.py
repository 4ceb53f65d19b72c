"""What Prometheus is told, by a service without Kafka and model."""

import re
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics

from millrace.app.monitoring.metrics.catalogue import CATALOGUE, SECTIONS
from millrace.app.monitoring.metrics.reference import reference
from millrace.app.monitoring.problems import KINDS
from millrace.consumers.reasons import Reason
from millrace.training.checkpoints import SaveReason
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, P1, Client, Rig
from tests.app.metrics_text import Scrape, complaints

ROOT = Path(__file__).parents[3]


def scrape(api: Client) -> Scrape:
    answer = api.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    return Scrape(answer.text)


def test_the_page_is_up_to_date() -> None:
    page = (ROOT / "docs" / "metrics.md").read_text()
    assert page == reference(), "run: python -m millrace.app.monitoring.metrics.reference > docs/metrics.md"
    assert all(f"| `{metric.name}` |" in page for metric in CATALOGUE.values())


def test_no_name_stands_in_two_sections() -> None:
    assert sum(map(len, SECTIONS.values())) == len(CATALOGUE)


PLAIN_FACTS = {
    "build_info",
    "dead_letters_limit_bytes",
    "deployment_info",
    "fetched_bytes_total",
    "gpu_memory_total_bytes",
    "live_baseline",
    "live_cumulative_records",
    "live_records",
    "live_watched_baseline",
    "live_watched_value",
    "live_window_seconds",
    "memory_limit_bytes",
    "model_parameters",
    "offsets_empty_total",
    "partitions",
    "phase_limit_seconds",
    "process_max_fds",
}
"""Limits, versions, sizes and other things of which no value is bad; others are measured by them."""


def test_every_metric_says_which_value_is_bad_unless_none_is() -> None:
    silent = {short for short, metric in CATALOGUE.items() if not re.search(r"\b[Bb]ad\b", metric.help)}
    assert silent == PLAIN_FACTS


@pytest.mark.parametrize("short", CATALOGUE)
def test_every_metric_follows_the_template_and_says_what_it_is(short: str) -> None:
    metric = CATALOGUE[short]
    assert re.fullmatch(r"millrace_[a-z][a-z0-9]*(_[a-z0-9]+)*", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert metric.help.endswith(".")
    assert "|" not in metric.help
    assert "model" not in metric.labels


def test_prometheus_own_tool_finds_nothing_to_complain_of(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8, bad=2)
    rig.learn_all()
    text = scrape(api).text
    assert complaints(text) == ""
    assert "counter metrics should have" in complaints(text.replace("records_learnt_total", "records_learnt"))


def test_who_asks_for_openmetrics_gets_it_whole(api: Client) -> None:
    answer = api.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    families = openmetrics(answer.text)  # type: ignore[no-untyped-call] # the one parser of theirs without annotations
    names = {family.name for family in families}
    assert {"millrace_lag_records", "millrace_records_learnt", "millrace_staleness_seconds"} <= names


def test_every_series_bears_the_models_name_and_stands_in_the_catalogue(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8, bad=2)
    rig.learn_all()
    families = scrape(api).families
    assert set(families) <= {metric.name for metric in CATALOGUE.values()}
    assert {sample.labels.get("model") for one in families.values() for sample in one.samples} == {"clicks"}


def test_a_service_that_starts_tells_what_it_knows_and_fakes_nothing(rig: Rig) -> None:
    from millrace.app.service.service import RunOptions, Service

    client = Client(rig, service=Service(rig.service._loaded, RunOptions()))
    found = scrape(client)
    client.close()
    assert found.value("phase", phase="starting") == 1
    assert (found.value("alive"), found.value("ready")) == (0, 0)
    absent = ("lag_records", "lag_seconds", "checkpoint_number", "live_records", "commits_total", "memory_bytes")
    assert [short for short in absent if found.values(short)] == []
    assert found.law == (0, 0)


def test_what_was_fetched_is_learnt_set_aside_held_or_discarded_at_any_time(api: Client, rig: Rig) -> None:
    laws = [scrape(api).law]
    rig.produce(P0, 20, bad=3)
    laws.append(scrape(api).law)
    block = rig.draw()
    laws.append(scrape(api).law)
    rig.feed.facts_of(block.facts.number)  # in the trainer's call
    laws.append(scrape(api).law)
    rig.service.ledger.settle(block.facts)
    laws.append(scrape(api).law)
    rig.handoff.close()
    rig.feed.close()
    laws.append(scrape(api).law)
    assert laws == [(0, 0)] + [(20, 20)] * 5
    last = scrape(api)
    assert last.value("records_learnt_total") == block.facts.rows
    assert last.value("records_held") == 0
    assert last.value("records_discarded_total") > 0


def test_each_reason_is_there_before_there_is_any_such_record(api: Client, rig: Rig) -> None:
    assert {
        reason.value: scrape(api).value("records_set_aside_total", reason=reason) for reason in Reason
    } == dict.fromkeys(Reason, 0)
    rig.produce(P0, 5, bad=2)
    rig.learn_all()
    assert scrape(api).value("records_set_aside_total", reason="malformed") == 2


def test_no_counter_goes_back_where_the_ledger_does(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8, bad=1)
    rig.learn_all()
    before = scrape(api)
    assert api.post("/rewind?wait=10s", {"to": 0}).status_code == 201
    after = scrape(api)
    assert after.value("history_settled_offsets") == 0
    assert before.value("history_settled_offsets") == sum(before.values("history_offsets")) == 8
    assert [name for name, value in after.counters.items() if value < before.counters.get(name, 0)] == []
    assert after.value("records_learnt_total") == 7


def test_lag_is_told_by_partition_and_as_lag_tells_it(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.produce(P1, 3)
    rig.learn(rig.draw())
    rig.post()
    lag, found = api.seen("/lag"), scrape(api)
    assert found.value("lag_records") == lag["lag_records"] > 0
    for name, shown in lag["partitions"].items():
        topic, number = name.split(":")
        labels = {"topic": topic, "partition": number}
        assert found.value("partition_lag_records", **labels) == shown["lag_records"]
        assert found.value("partition_position_offset", **labels) == shown["position"]
        assert found.value("partition_end_offset", **labels) == shown["end"]


def test_the_problems_are_those_of_the_status(api: Client, rig: Rig) -> None:
    source = (ROOT / "app" / "monitoring" / "problems.py").read_text("utf-8")
    assert set(KINDS) == set(re.findall(r'kind="(\w+)"', source))
    rig.source.meter.unanswered("no answer within 10 s")
    found = scrape(api)
    present = {kind for kind in KINDS if found.value("problem", problem=kind)}
    assert present == {problem["problem"] for problem in api.seen("/status")["problems"]} == {"kafka_away"}
    assert found.value("kafka_connected") == 0


def test_one_phase_is_told_among_all_that_there_are(api: Client, rig: Rig) -> None:
    rig.service.phases.enter(Phase.TRAINING)
    found = scrape(api)
    assert {phase.value: found.value("phase", phase=phase) for phase in Phase} == {
        phase.value: float(phase is Phase.TRAINING) for phase in Phase
    }
    rig.clock.ahead = 301
    late = scrape(api)
    assert late.value("alive") == 0
    assert late.value("phase_seconds") > late.value("phase_limit_seconds") == 300


def test_staleness_is_a_histogram_of_calls(api: Client, rig: Rig) -> None:
    for age in (0.05, 0.2, 99_999.0, -3.0):
        rig.service.meter.called(0.1, 1, 1, age)
    found = scrape(api)
    assert found.value("staleness_seconds_bucket", le="0.1") == 2
    assert found.value("staleness_seconds_bucket", le="0.25") == 3
    assert found.value("staleness_seconds_bucket", le="+Inf") == found.value("staleness_seconds_count") == 4
    assert found.value("staleness_seconds_sum") == pytest.approx(99_999.25)


def test_live_values_stand_beside_their_baselines_and_the_newest_save_beside_its_age(api: Client, rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    rig.publish(SaveReason.DEMAND, 0)
    rig.post()
    found = scrape(api)
    assert found.value("live_value", metric="accuracy") == 0.75
    assert found.value("live_baseline", metric="accuracy") == 0.75
    assert found.value("live_watched_value", metric="accuracy") == 0.75
    assert found.value("live_watched_baseline", metric="accuracy") == 0.75
    assert found.value("live_watched_ahead", metric="accuracy") == 0.0
    assert found.value("checkpoint_number") == 1
    assert found.value("checkpoint_age_seconds") < 60
    assert found.value("checkpoint_took_seconds") == 0.25
