"""Alerts and board use nothing but metrics that there are, and alerts come when they should and not before."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.problems import KINDS
from millrace.training.telemetry.phases import Phase
from tests.app.metrics_text import HOW, rule_complaints
from tests.deploy.manifests import K8S, ROOT, only, rendered
from tests.deploy.pages import blocks
from tests.programs import program

FOLDER = ROOT / "k8s" / "components" / "monitoring"
RULES = YAML(typ="safe", pure=True).load(FOLDER / "rules.yaml")["spec"]
BOARD = json.loads((FOLDER / "board.json").read_text())
ALERTS: Mapping[str, Mapping[str, Any]] = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
_NAME = re.compile(r"\bmillrace_\w+")


def names() -> set[str]:
    """Return the names of all series."""
    plain = {metric.name for metric in CATALOGUE.values() if metric.kind != "histogram"}
    histograms = [metric.name for metric in CATALOGUE.values() if metric.kind == "histogram"]
    return plain | {f"{name}_{suffix}" for name in histograms for suffix in ("bucket", "sum", "count")}


def expressions(of: Any) -> Iterator[str]:
    """Yield every query of the dashboard."""
    if isinstance(of, list):
        for each in of:
            yield from expressions(each)
    elif isinstance(of, dict):
        for key, value in of.items():
            if key in ("expr", "query") and isinstance(value, str):
                yield value
            else:
                yield from expressions(value)


ASKED = [*(rule["expr"] for rule in ALERTS.values()), *expressions(BOARD)]


def test_rules_and_board_ask_for_metrics_that_there_are() -> None:
    used = {name for expression in ASKED for name in _NAME.findall(expression)}
    assert len(used) > 20
    assert used - names() == set()


def test_they_ask_for_problems_and_phases_that_there_are() -> None:
    problems = {one for text in ASKED for found in re.findall(r'problem=~?"([^"]+)"', text) for one in found.split("|")}
    phases = {one for text in ASKED for one in re.findall(r'phase="([^"]+)"', text)}
    assert problems
    assert problems - set(KINDS) == set()
    assert phases - set(Phase) == set()


def test_every_problem_is_in_an_alert() -> None:
    told = {
        "kafka_away": "MillraceKafkaAway",
        "unbalanced": "MillraceUnbalanced",
        "commits_refused": "MillraceCommitsRefused",
    }
    rest = {kind for kind in KINDS if not any(kind in rule["expr"] for rule in ALERTS.values())}
    assert rest == set(told)
    assert set(told.values()) <= set(ALERTS)


def test_prometheus_own_tool_takes_rules_and_board(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    assert rule_complaints(tmp_path / "rules.json") == ""
    queries = [text for text in expressions(BOARD) if _NAME.search(text) and not text.startswith("label_values")]
    assert len(queries) > 20
    plain = [text.replace("$model", "clicks").replace("$metric", "loss") for text in queries]
    recorded = [{"record": f"board:{index}", "expr": text} for index, text in enumerate(plain)]
    (tmp_path / "board.json").write_text(json.dumps({"groups": [{"name": "board", "rules": recorded}]}))
    assert rule_complaints(tmp_path / "board.json") == ""
    (tmp_path / "broken.json").write_text(json.dumps(RULES).replace("== 0", "== "))
    assert rule_complaints(tmp_path / "broken.json") != ""


def test_the_board_shows_several_models_beside_each_other_and_names_each() -> None:
    (model,) = (variable for variable in BOARD["templating"]["list"] if variable["name"] == "model")
    assert model["multi"] is True
    asked = [text for text in expressions(BOARD) if "$model" in text]
    assert len(asked) > 30
    assert [text for text in asked if 'model=~"$model"' not in text] == [], "one value only"
    assert [text for text in asked if re.search(r"\b(min|max|sum|avg)\b(?! by \(model\b)", text)] == [], (
        "a sum over models"
    )
    legends = [target["legendFormat"] for panel in BOARD["panels"] for target in panel.get("targets", [])]
    assert [legend for legend in legends if "{{model}}" not in legend] == []


def test_no_two_panels_lie_on_each_other_and_each_says_what_it_shows() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["description"].endswith(".")
        taken |= cells


def test_the_retention_of_days_has_an_axis_of_its_own() -> None:
    (panel,) = [one for one in BOARD["panels"] if any("retention" in text for text in expressions(one))]
    assert len(panel["targets"]) == 1


@pytest.mark.parametrize("alert", ALERTS)
def test_every_alert_says_what_it_is_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{alert.lower()}"
    (section,) = re.findall(rf"^### {alert}\n(.*?)(?=^##)", RUNBOOK, re.MULTILINE | re.DOTALL)
    parts = (f"**Means** ({rule['labels']['severity']}) that", "**Look at**", "**Do**")
    assert [part in section for part in parts] == [True] * 3


def test_the_lines_of_the_docs_make_each_place_to_read_on_a_link(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    (lines,) = blocks("Monitoring", "yaml")
    mine = "resources: [../k8s/base]\ncomponents: [../k8s/components/monitoring]\n"
    (tmp_path / "own" / "kustomization.yaml").write_text(mine + lines)
    (group,) = only(rendered(tmp_path / "own"), "PrometheusRule")["spec"]["groups"]
    links = {rule["alert"]: rule["annotations"]["runbook"] for rule in group["rules"]}
    repository = "https://git.example/ml/millrace/blob/main"
    assert links == {alert: f"{repository}/docs/runbook.md#{alert.lower()}" for alert in ALERTS}


def test_every_alert_of_the_page_is_one() -> None:
    of_serving = re.findall(r"alert: (\w+)", (ROOT / "k8s/components/serving/monitoring/rules.yaml").read_text())
    assert set(re.findall(r"^### (Millrace\w+)$", RUNBOOK, re.MULTILINE)) == {*ALERTS, *of_serving}


@dataclass(frozen=True)
class Case:
    """What is seen for two hours or more, a minute apart, and which alerts stand at its end."""

    alerts: tuple[str, ...]
    seen: Mapping[str, str] = field(default_factory=dict)
    """In the tool's own notation; in place of what a model in good health shows."""
    hours: int = 2


AHEAD = 'millrace_live_watched_ahead{metric="accuracy"}'
WORSE = {AHEAD: "-0.05x120", 'millrace_live_value{metric="loss"}': "0.8x120"}
WAITING = 'millrace_phase{phase="waiting"}'
CERTIFICATE = "millrace_api_certificate_end_time_seconds"
"""The end of a case is two hours after 1970."""
HEALTHY: Mapping[str, str] = {
    "up": "1x120",
    "millrace_alive": "1x120",
    "millrace_balanced": "1x120",
    "millrace_kafka_connected": "1x120",
    'millrace_phase{phase="paused"}': "0x120",
    WAITING: "0x120",
    **{f'millrace_problem{{problem="{kind}"}}': "0x120" for kind in KINDS},
    "millrace_process_start_time_seconds": "1000x120",
    "millrace_lag_seconds": "3x120",
    "millrace_lag_records": "500x120",
    "millrace_retention_left_seconds": "600000x120",
    'millrace_staleness_seconds_bucket{le="10"}': "0+60x120",
    'millrace_staleness_seconds_bucket{le="1800"}': "0+60x120",
    'millrace_staleness_seconds_bucket{le="+Inf"}': "0+60x120",
    "millrace_checkpoint_age_seconds": "30x120",
    "millrace_checkpoint_unsaved_steps": "40x120",
    'millrace_records_set_aside_total{reason="malformed"}': "0+10x120",
    "millrace_records_learnt_total": "0+6000x120",
    'millrace_live_value{metric="loss"}': "0.3x120",
    'millrace_live_baseline{metric="loss"}': "0.69x120",
    'millrace_live_value{metric="accuracy"}': "0.9x120",
    'millrace_live_baseline{metric="accuracy"}': "0.55x120",
    AHEAD: "0.35x120",
    "millrace_live_records": "100000x120",
    'millrace_commits_total{outcome="refused"}': "0x120",
    'millrace_orders_total{order="pause",outcome="unauthorized"}': "0x120",
    'millrace_orders_total{order="save",outcome="accepted"}': "0+1x120",
    CERTIFICATE: f"{15 * 86400 + 7200}x120",
}


def problem(kind: str) -> dict[str, str]:
    return {f'millrace_problem{{problem="{kind}"}}': "0x60 1x60"}


GONE = dict.fromkeys(HEALTHY, "1x90")
OTHER = ('up{namespace="other"}', 'millrace_alive{namespace="other",model="other"}')
"""Another model's, in a namespace of its own."""
BESIDE = ('up{service="millrace-other"}', 'millrace_alive{service="millrace-other",model="other"}')
"""Another model's, in the same namespace."""

_OF_THE_CHIEF = ("millrace_checkpoint_", "millrace_commits_", "millrace_orders_")
"""What a worker beside the chief has nothing to say about."""


def of_worker(**seen: str) -> dict[str, str]:
    """Return the series of a worker beside the chief: those of good health, and these in place of them."""
    usual = {name: values for name, values in HEALTHY.items() if not name.startswith(_OF_THE_CHIEF)}
    labels = 'service="millrace-workers",instance="b"'
    return {_with(name, labels): values for name, values in {**usual, **seen}.items()}


def _with(series: str, labels: str) -> str:
    name, _, own = series.rstrip("}").partition("{")
    return f"{name}{{{own + ',' if own else ''}{labels}}}"


PAUSED = 'millrace_phase{phase="paused"}'

CASES: Mapping[str, Case] = {
    "all is well": Case(()),
    "all is well in a group": Case((), of_worker()),
    "a worker of a group does not answer": Case(("MillraceDown",), of_worker(up="1x90 0x30")),
    "a group was paused and forgotten": Case(("MillracePaused",), {PAUSED: "1x120"} | of_worker(**{PAUSED: "1x120"})),
    "a group is worse than guessing": Case(("MillraceWorseThanGuessing",), WORSE | of_worker(**WORSE)),
    "a group cannot save": Case(
        ("MillraceCheckpointOld",), {"millrace_checkpoint_age_seconds": "0+60x120"} | of_worker()
    ),
    "it is gone": Case(("MillraceDown",), dict.fromkeys(HEALTHY, "1x90 _x30")),
    "it does not answer": Case(("MillraceDown",), GONE | {"up": "1x90 0x30"}),
    "it has not answered for two days, and others do": Case(
        ("MillraceDown",), GONE | {"up": "1x90 0x2880"} | dict.fromkeys(OTHER, "1x2970"), hours=49
    ),
    "its pod has been gone for half a day, and others are there": Case(
        ("MillraceDown",), GONE | dict.fromkeys(OTHER, "1x810"), hours=13
    ),
    "it does not answer, and another of its namespace does": Case(
        ("MillraceDown",), GONE | {"up": "1x90 0x30"} | dict.fromkeys(BESIDE, "1x120")
    ),
    "its pod has been gone for half a day, and another of its namespace is there": Case(
        ("MillraceDown",), GONE | dict.fromkeys(BESIDE, "1x810"), hours=13
    ),
    "it is replaced within minutes": Case((), {"up": "1x110 0x4 1x6"}),
    "it never was there": Case(("MillraceDown",), dict.fromkeys(HEALTHY, "_x120")),
    "it failed": Case(("MillraceFailed",), problem("failed")),
    "it hangs": Case(("MillraceFailed",), problem("hung")),
    "its thread is gone": Case(("MillraceFailed",), problem("trainer_dead")),
    "a record kills it": Case(
        ("MillraceCrashLoop",), {**problem("crash_loop"), 'millrace_phase{phase="paused"}': "1x120"}
    ),
    "it restarts": Case(("MillraceRestarts",), {"millrace_process_start_time_seconds": "1000+1x120"}),
    "a defect": Case(("MillraceUnbalanced",), {"millrace_balanced": "1x60 0x60"}),
    "the checkpoints are gone": Case(("MillraceHistoryMissing",), problem("history_missing")),
    "a loss": Case(("MillraceRecordsLost",), problem("lost")),
    "retention is near": Case(
        ("MillraceRetentionNear",), {"millrace_retention_left_seconds": "200x120", "millrace_lag_seconds": "250x120"}
    ),
    "it falls behind": Case(
        ("MillraceLagGrows",), {"millrace_lag_seconds": "0+60x120", "millrace_lag_records": "0+9x120"}
    ),
    "it falls behind by nobody knows how long": Case(
        ("MillraceLagGrows",),
        {
            "millrace_lag_seconds": "_x120",
            "millrace_lag_records": "500000+9x120",
            'millrace_learnt_records_per_second{window="5m"}': "100x120",
        },
    ),
    "nobody knows how little it is behind": Case(
        (),
        {
            "millrace_lag_seconds": "_x120",
            "millrace_lag_records": "500+9x120",
            'millrace_learnt_records_per_second{window="5m"}': "100x120",
        },
    ),
    "it catches up": Case((), {"millrace_lag_seconds": "9000-60x120", "millrace_lag_records": "9000-9x120"}),
    "what it learns is old": Case(("MillraceStale",), {'millrace_staleness_seconds_bucket{le="10"}': "0x120"}),
    "Kafka is away": Case(("MillraceKafkaAway",), {"millrace_kafka_connected": "1x60 0x60"}),
    "a partition is gone": Case(("MillracePartitionsMissing",), problem("partitions_missing")),
    "a partition waits": Case(("MillracePartitionsMissing",), problem("partitions_waiting")),
    "a transaction stays open": Case(("MillracePartitionsMissing",), problem("open_transaction")),
    "a pause was forgotten": Case(("MillracePaused",), {'millrace_phase{phase="paused"}': "1x120"}),
    "a worker of the group never comes": Case(
        ("MillraceWaiting",), {WAITING: "0x60 1x60", f'{WAITING.rstrip("}")},instance="b"}}': "0x60 1x60"}
    ),
    "a group begins again": Case((), {WAITING: "0x60 1x8 0x51"}),
    "a rollout takes nine minutes": Case((), {WAITING: "0x111 1x9"}),
    "it cannot save": Case(("MillraceSaveFailing",), problem("save_failing")),
    "it cannot mirror": Case(("MillraceMirrorFailing",), problem("mirror_failing")),
    "the mirror hangs": Case(("MillraceMirrorFailing",), {"millrace_mirror_behind_seconds": "0+60x120"}),
    "the mirror is slow": Case((), {"millrace_mirror_behind_seconds": "0x60 600x60"}),
    "no receiver of metrics accepts them": Case(
        ("MillraceOtlpFailing",),
        {"millrace_otlp_requests_failed_total": "0x30 1+1x90", "millrace_otlp_requests_total": "0+1x30 30x90"},
    ),
    "some requests to a receiver fail": Case(
        (), {"millrace_otlp_requests_failed_total": "0+1x120", "millrace_otlp_requests_total": "0+9x120"}
    ),
    "the checkpoint is old": Case(("MillraceCheckpointOld",), {"millrace_checkpoint_age_seconds": "0+60x120"}),
    "nothing came, so nothing is to be saved": Case(
        (), {"millrace_checkpoint_age_seconds": "0+60x120", "millrace_checkpoint_unsaved_steps": "0x120"}
    ),
    "much is set aside": Case(
        ("MillraceSetAside",), {'millrace_records_set_aside_total{reason="malformed"}': "0+600x120"}
    ),
    "the schema registry is away": Case(("MillraceRegistryAway",), problem("registry_away")),
    "a schema that cannot be read": Case(
        ("MillraceSchemaIncompatible",), {**problem("schema_incompatible"), 'millrace_phase{phase="paused"}': "1x120"}
    ),
    "a flood of bad records": Case(
        ("MillraceBadRecords",), {**problem("bad_records"), 'millrace_phase{phase="paused"}': "1x120"}
    ),
    "no dead letter is taken": Case(
        ("MillraceDeadLettersWaiting",),
        {**problem("dead_letters_waiting"), 'millrace_phase{phase="paused"}': "1x120"},
    ),
    "no label comes": Case(
        ("MillraceLabelsSilent",), {**problem("labels_silent"), 'millrace_phase{phase="paused"}': "1x120"}
    ),
    "nothing of a topic fits": Case(("MillraceNothingLearnt",), problem("nothing_learnt")),
    "it is worse than guessing": Case(("MillraceWorseThanGuessing",), WORSE),
    "a loss without a guess says nothing": Case(
        ("MillraceWorseThanGuessing",), {AHEAD: "-0.05x120", 'millrace_live_baseline{metric="loss"}': "_x120"}
    ),
    "the loss alone is worse, by its penalties": Case((), {'millrace_live_value{metric="loss"}': "0.8x120"}),
    "class weights cost accuracy, and the weighted loss beats guessing": Case((), {AHEAD: "-0.08x120"}),
    "few records say little": Case((), WORSE | {"millrace_live_records": "10x120"}),
    "a detector has marked a change": Case(
        ("MillraceStreamChanged",), {'millrace_detector_marks_total{detector="drift"}': "3x110 4x10"}
    ),
    "a detector has marked a change an hour ago": Case(
        (), {'millrace_detector_marks_total{detector="drift"}': "3x60 4x60"}
    ),
    "a field of the records has changed": Case(("MillraceInputChanged",), {"millrace_input_marks_total": "0x110 1x10"}),
    "a served version is worse than the model in training": Case(
        ("MillraceServedWorse",),
        {
            'millrace_served_value_highest{version="4",metric="auc"}': "0.7x120",
            'millrace_served_live_value{version="4",metric="auc"}': "0.75x120",
            'millrace_served_records{version="4"}': "900x120",
        },
    ),
    "a served version answered little": Case(
        (),
        {
            'millrace_served_value_lowest{version="4",metric="log_loss"}': "0.7x120",
            'millrace_served_live_value{version="4",metric="log_loss"}': "0.6x120",
            'millrace_served_records{version="4"}': "40x120",
        },
    ),
    "commits are refused": Case(("MillraceCommitsRefused",), {'millrace_commits_total{outcome="refused"}': "0+1x120"}),
    "somebody tries to order": Case(
        ("MillraceOrdersRefused",), {'millrace_orders_total{order="pause",outcome="unauthorized"}': "0x100 0+1x20"}
    ),
    "somebody has mistyped a token": Case(
        (), {'millrace_orders_total{order="pause",outcome="unauthorized"}': "0x110 3x10"}
    ),
    "its certificate ends in 14 days": Case(
        ("MillraceCertificateEnds",), {CERTIFICATE: f"{14 * 86400 + 7200 - 600}x120"}
    ),
    "its certificate ends in 14 days and an hour": Case((), {CERTIFICATE: f"{14 * 86400 + 7200 + 3600}x120"}),
    "its certificate was renewed": Case((), {CERTIFICATE: "9000x100 9000000x20"}),
    "it has no certificate": Case((), {CERTIFICATE: "_x120"}),
    "letters wait": Case(("MillraceDeadLettersWaiting",), problem("dead_letters_waiting")),
}


def test_every_alert_has_a_case_in_which_it_comes() -> None:
    assert {alert for case in CASES.values() for alert in case.alerts} == set(ALERTS)


def _labelled(series: str) -> str:
    """As the operator's Prometheus keeps it: with the target's labels, and the metrics with the model's name."""
    name, _, own = series.partition("{")
    target = {"job": "millrace", "instance": "a", "namespace": "clicks", "service": "millrace"}
    usual = {**target, **({} if name == "up" else {"model": "clicks"})}
    labels = [f'{label}="{value}"' for label, value in usual.items() if f"{label}=" not in own]
    return f"{name}{{{','.join([*labels, own.rstrip('}')] if own else labels)}}}"


def _case(name: str, case: Case) -> dict[str, Any]:
    """What stands at its end: asked as Prometheus keeps it, in the series ALERTS."""
    seen = {**HEALTHY, **case.seen}
    stand = sorted(case.alerts)
    return {
        "name": name,
        "interval": "1m",
        "input_series": [{"series": _labelled(one), "values": values} for one, values in seen.items()],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{case.hours}h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in stand],
            }
        ],
    }


@pytest.mark.slow
def test_each_comes_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    promtool = program("promtool", how=HOW)
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    files = []
    # Of what lasts for many hours, a look in ten minutes is enough.
    for every, longs in (("1m", False), ("10m", True)):
        tests = [_case(name, case) for name, case in CASES.items() if (case.hours > Case.hours) is longs]
        files.append(f"cases-{every}.json")
        (tmp_path / files[-1]).write_text(
            json.dumps({"rule_files": ["rules.json"], "evaluation_interval": every, "tests": tests})
        )
    done = subprocess.run(
        [promtool, "test", "rules", *files],
        cwd=tmp_path,
        env={**os.environ, "GOGC": "1000"},  # it would spend a quarter of its work on collecting garbage
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
