"""The alerts of exports and serving ask for metrics that there are, and come when they should and not before."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millrace.app.monitoring.metrics.catalogue import CATALOGUE
from millrace.app.monitoring.metrics.serving_catalogue import SERVING
from tests.app.metrics_text import HOW, rule_complaints
from tests.deploy.manifests import K8S, ROOT, only, rendered, selects
from tests.programs import program

RULES = YAML(typ="safe", pure=True).load(K8S / "components" / "serving" / "monitoring" / "rules.yaml")["spec"]
ALERTS: Mapping[str, Mapping[str, Any]] = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
RUNBOOK = (ROOT / "docs" / "runbook.md").read_text()
TARGET = 'job="millrace-serving",instance="a",namespace="clicks",service="millrace-serving"'
ANSWERED, FAILED, BUSY = (f'millrace_serve_requests_total{{outcome="{one}"}}' for one in ("answered", "failed", "busy"))
FAST = 'millrace_serve_request_seconds_bucket{le="1.0"}'
HEALTHY: Mapping[str, str] = {
    "up": "1x{}",
    "millrace_serve_ready": "1x{}",
    "millrace_serve_following": "1x{}",
    "millrace_serve_pinned": "0x{}",
    "millrace_serve_version": "41x{}",
    "millrace_serve_newest_version": "41x{}",
    "millrace_serve_export_age_seconds": "300x{}",
    ANSWERED: "0+600x{}",
    FAILED: "0x{}",
    BUSY: "0x{}",
    FAST: "0+600x{}",
    'millrace_serve_request_seconds_bucket{le="10.0"}': "0+600x{}",
    'millrace_serve_request_seconds_bucket{le="+Inf"}': "0+600x{}",
    "millrace_exports_total": "0+1x{}",
    "millrace_exports_refused_total": "0x{}",
    "millrace_export_held_back_seconds": "0x{}",
    "millrace_exports_unannounced": "0x{}",
}
"""What is seen a minute apart until the end of a case, for servers and a trainer in good health."""
OLD = {"millrace_serve_export_age_seconds": "90000x{}"}
PINNED = {"millrace_serve_pinned": "1x{}", "millrace_serve_newest_version": "42x{}"}
SHORT_HOURS = 2
CASES: Mapping[str, tuple[Mapping[str, str], tuple[str, ...], int]] = {
    "all is well": ({}, (), 2),
    "no server answers": (dict.fromkeys(HEALTHY, "_x{}") | {"up": "0x{}"}, ("MillraceServingDown",), 2),
    "one of two does not answer": ({'up{instance="b"}': "0x{}"}, (), 2),
    "they were never there": (dict.fromkeys(HEALTHY, "_x{}"), ("MillraceServingDown",), 2),
    "none has a version": ({"millrace_serve_ready": "0x{}"}, ("MillraceServingNotReady",), 2),
    "one of two has none yet": ({'millrace_serve_ready{instance="b"}': "0x{}"}, (), 2),
    "calls fail": ({FAILED: "0+10x{}"}, ("MillraceServingFailing",), 2),
    "few calls fail": ({FAILED: "0+5x{}"}, (), 2),
    "queues are full": ({BUSY: "0+60x{}"}, ("MillraceServingBusy",), 2),
    "answers are slow": ({FAST: "0+500x{}"}, ("MillraceServingSlow",), 2),
    "a version cannot be loaded": ({"millrace_serve_following": "0x{}"}, ("MillraceServingStuck",), 2),
    "nothing new comes": (OLD, ("MillraceServingOld",), 2),
    "it is old, and held": (OLD | PINNED, (), 2),
    "a memory of keys is old": ({"millrace_serve_memory_age_seconds": "200x{}"}, ("MillraceServingMemoryOld",), 2),
    "a memory of keys is fresh": ({"millrace_serve_memory_age_seconds": "2x{}"}, (), 2),
    "predictions are not logged": (
        {'millrace_serve_log_dropped_total{reason="full"}': "0+6x{}"},
        ("MillraceServingLogDropping",),
        2,
    ),
    "a server has ended": ({'millrace_serve_log_dropped_total{reason="ending"}': "0+6x{}"}, (), 2),
    "a pin was forgotten": (PINNED, ("MillraceServingPinned",), 26),
    "the newest is pinned": ({"millrace_serve_pinned": "1x{}"}, (), 26),
    "exports are refused": (
        {"millrace_exports_refused_total": "0+0.2x{}", "millrace_exports_total": "3x{}"},
        ("MillraceExportsRefused",),
        2,
    ),
    "exports of every few hours are refused": (
        {"millrace_exports_refused_total": "0+0.003x{}", "millrace_exports_total": "3x{}"},
        ("MillraceExportsRefused",),
        26,
    ),
    "one in between succeeds": ({"millrace_exports_refused_total": "0+0.2x{}"}, (), 2),
    "the gate holds": ({"millrace_export_held_back_seconds": "0+60x{}"}, ("MillraceExportsHeldBack",), 7),
    "the gate has held for some hours": ({"millrace_export_held_back_seconds": "0+60x{}"}, (), 5),
    "nobody hears of versions": ({"millrace_exports_unannounced": "2x{}"}, ("MillraceExportsUnannounced",), 2),
}


def test_the_rules_ask_for_metrics_that_there_are(tmp_path: Path) -> None:
    known = [*CATALOGUE.values(), *SERVING]
    names = {f"{one.name}_bucket" if one.kind == "histogram" else one.name for one in known}
    used = {name for rule in ALERTS.values() for name in re.findall(r"\bmillrace_\w+", rule["expr"])}
    assert len(used) > 10
    assert used - names == set()
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    assert rule_complaints(tmp_path / "rules.json") == ""


@pytest.mark.parametrize("alert", ALERTS)
def test_an_alert_of_serving_says_what_it_is_and_where_to_read_on(alert: str) -> None:
    rule = ALERTS[alert]
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    assert rule["annotations"]["runbook"] == f"docs/runbook.md#{alert.lower()}"
    (section,) = re.findall(rf"^### {alert}\n(.*?)(?=^##)", RUNBOOK, re.MULTILINE | re.DOTALL)
    parts = (f"**Means** ({rule['labels']['severity']}) that", "**Look at**", "**Do**")
    assert [part in section for part in parts] == [True] * 3


def test_every_alert_of_serving_has_a_case_in_which_it_comes() -> None:
    assert {alert for _, alerts, _ in CASES.values() for alert in alerts} == set(ALERTS)


def test_prometheus_finds_the_servers_and_may_reach_them(tmp_path: Path) -> None:
    (tmp_path / "k8s").symlink_to(K8S)
    (tmp_path / "own").mkdir()
    components = "components: [../k8s/components/serving, ../k8s/components/serving/monitoring]\n"
    (tmp_path / "own" / "kustomization.yaml").write_text(f"resources: [../k8s/base]\n{components}")
    objects = rendered(tmp_path / "own")
    monitor, service = only(objects, "ServiceMonitor")["spec"], only(objects, "Service", "millrace-serving")
    assert selects(monitor["selector"], service["metadata"]["labels"])
    assert service["metadata"]["labels"][monitor["jobLabel"]] == "millrace-serving"
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}
    policy = only(objects, "NetworkPolicy", "millrace-serving-monitoring")["spec"]
    pod = only(objects, "Deployment", "millrace-serving")["spec"]["template"]
    assert selects(policy["podSelector"], pod["metadata"]["labels"])
    ports = {port["name"] for one in pod["spec"]["containers"] for port in one["ports"]}
    assert {port["port"] for port in policy["ingress"][0]["ports"]} <= ports


def _labelled(series: str) -> str:
    name, _, own = series.rstrip("}").partition("{")
    kept = own.split(",") if own else []
    usual = [one for one in TARGET.split(",") if not any(each.startswith(one.split("=")[0] + "=") for each in kept)]
    return f"{name}{{{','.join([*usual, *kept, *([] if name == 'up' else ['model=clicks'])])}}}".replace(
        "model=clicks", 'model="clicks"'
    )


def _case(name: str, seen: Mapping[str, str], alerts: tuple[str, ...], hours: int) -> dict[str, Any]:
    series = {**HEALTHY, **seen}
    return {
        "name": name,
        "interval": "1m",
        "input_series": [
            {"series": _labelled(one), "values": values.format(60 * hours)} for one, values in series.items()
        ],
        "promql_expr_test": [
            {
                "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                "eval_time": f"{hours}h",
                "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1} for alert in sorted(alerts)],
            }
        ],
    }


@pytest.mark.slow
def test_each_alert_of_serving_comes_when_it_should_and_no_other_does(tmp_path: Path) -> None:
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    files = []
    # Of what lasts for many hours, a look in ten minutes is enough.
    for every, longs in (("1m", False), ("10m", True)):
        tests = [_case(name, *case) for name, case in CASES.items() if (case[2] > SHORT_HOURS) is longs]
        files.append(f"cases-{every}.json")
        (tmp_path / files[-1]).write_text(
            json.dumps({"rule_files": ["rules.json"], "evaluation_interval": every, "tests": tests})
        )
    done = subprocess.run(
        [program("promtool", how=HOW), "test", "rules", *files],
        cwd=tmp_path,
        env={**os.environ, "GOGC": "1000"},  # it would spend a quarter of its work on collecting garbage
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
