"""The alerts of a model do not look at one of the same name in another namespace, as a trial run may be."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.app.metrics_text import HOW
from tests.deploy.manifests import K8S
from tests.programs import program

RULES = YAML(typ="safe", pure=True).load(K8S / "components" / "monitoring" / "rules.yaml")["spec"]
CASES: Mapping[str, Mapping[str, str]] = {
    "MillracePaused": {
        'millrace_phase{phase="paused",namespace="live"}': "1x120",
        'millrace_problem{problem="bad_records",namespace="trial"}': "1x120",
    },
    "MillraceWorseThanGuessing": {
        'millrace_live_watched_ahead{metric="accuracy",namespace="live"}': "-0.5x120",
        'millrace_live_records{namespace="live"}': "5000x120",
        'millrace_live_value{metric="loss",namespace="trial"}': "0.1x120",
        'millrace_live_baseline{metric="loss",namespace="trial"}': "0.6x120",
    },
    "MillraceSetAside": {
        'millrace_records_set_aside_total{reason="malformed",namespace="live"}': "0+60x120",
        'millrace_records_learnt_total{namespace="live"}': "0x120",
        'millrace_records_set_aside_total{reason="malformed",namespace="trial"}': "0x120",
        'millrace_records_learnt_total{namespace="trial"}': "0+60000x120",
    },
    "MillraceStale": {
        f'millrace_staleness_seconds_bucket{{le="{bound}",namespace="{namespace}"}}': f"0+{count}x120"
        for namespace, counts in (("live", (0, 60, 60)), ("trial", (60000, 60000, 60000)))
        for bound, count in zip(("10", "1800", "+Inf"), counts, strict=True)
    },
}


def test_no_rule_matches_or_sums_over_namespaces() -> None:
    rules = [rule["expr"] for group in RULES["groups"] for rule in group["rules"]]
    asked = [names for text in rules for names in re.findall(r"\b(?:by|on) \(([^)]*)\)", text)]
    assert len(asked) > 10
    assert [names for names in asked if "namespace" not in names] == []


@pytest.mark.slow
def test_an_alert_comes_whatever_the_same_name_does_in_another_namespace(tmp_path: Path) -> None:
    promtool = program("promtool", how=HOW)
    (tmp_path / "rules.json").write_text(json.dumps(RULES))
    tests = [
        {
            "name": alert,
            "interval": "1m",
            "input_series": [
                {"series": name.replace("{", '{model="clicks",'), "values": values} for name, values in seen.items()
            ],
            "promql_expr_test": [
                {
                    "expr": f'count by (namespace) (ALERTS{{alertname="{alert}",alertstate="firing"}})',
                    "eval_time": "2h",
                    "exp_samples": [{"labels": '{namespace="live"}', "value": 1}],
                }
            ],
        }
        for alert, seen in CASES.items()
    ]
    given = {"rule_files": ["rules.json"], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "cases.json").write_text(json.dumps(given))
    done = subprocess.run(
        [promtool, "test", "rules", "cases.json"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
