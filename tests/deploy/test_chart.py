"""The Helm chart: written out of the base, its values judged by their schema, rendered to what kustomize renders."""

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from tests.deploy import chart
from tests.deploy.manifests import K8S, Object, config, containers, of_kind, only, pod_of, rendered, selects
from tests.deploy.pages import blocks
from tests.house.release import version_of
from tests.programs import program

VALUES = YAML(typ="safe").load(chart.CHART / "values.yaml")
SCHEMA = json.loads((chart.CHART / "values.schema.json").read_text())
(OF_THE_DOCS,) = blocks("By Helm", "yaml")


def test_the_templates_are_those_of_the_base() -> None:
    """If not, run `python -m tests.deploy.chart`."""
    assert {path.name: path.read_text() for path in chart.TEMPLATES.iterdir()} == chart.files()


def test_the_values_hold_what_the_base_holds() -> None:
    files = config(rendered(K8S / "base"))
    assert (VALUES["config"], VALUES["model"]) == (files["millrace.yaml"], files["model.py"])
    assert (
        f"{VALUES['image']['repository']}:{VALUES['image']['tag']}" == next(containers(rendered(K8S / "base")))["image"]
    )
    facts = YAML(typ="safe").load(chart.CHART / "Chart.yaml")
    assert {facts["version"], facts["appVersion"], VALUES["image"]["tag"]} == {version_of()}


def test_every_value_has_its_place_in_the_schema_and_in_a_template() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)
    jsonschema.validate(VALUES, SCHEMA)
    jsonschema.validate(VALUES | YAML(typ="safe").load(OF_THE_DOCS), SCHEMA)
    assert SCHEMA["properties"].keys() - VALUES.keys() == {"global"}
    text = "".join(chart.files().values())
    assert [name for name in VALUES if f".Values.{name}" not in text] == []


@pytest.mark.parametrize(
    "wrong",
    [
        {"nmae": "clicks"},
        {"name": "Clicks"},
        {"tokens": {"ops/x": "secret"}},
        {"tokens": ["secret"]},
        {"resources": {"limits": {"memory": "2Gi"}}},
        {"storage": {"size": "ten"}},
        {"env": [{"value": "1"}]},
        {"config": ""},
    ],
    ids=str,
)
def test_a_value_that_no_pod_could_have_is_refused(wrong: Mapping[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**VALUES, **wrong}, SCHEMA)


def by_helm(tmp_path: Path, values: Mapping[str, Any], namespace: str = "millrace") -> list[Object]:
    """Return what `helm install` would send."""
    (tmp_path / "values.json").write_text(json.dumps(values))
    tool = program("helm", how="make helm builds it")
    command: list[str | Path] = [
        tool,
        "template",
        "any",
        chart.CHART,
        "--namespace",
        namespace,
        "--values",
        tmp_path / "values.json",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [one for one in YAML(typ="safe").load_all(done.stdout) if one]


def by_kustomize(folder: Path) -> list[Any]:
    """Return what kustomize renders, without what differs by design: the namespace, and hashes in names."""
    found = json.dumps(deepcopy([one for one in rendered(folder) if one["kind"] != "Namespace"]))
    for one in rendered(folder):
        name = one["metadata"]["name"]
        found = found.replace(f'"{name}"', f'"{chart.unhashed(name)}"')
    return list(json.loads(found))


def without_checksum(objects: Sequence[Object]) -> Iterator[Any]:
    """Yield the objects without what helm has in place of the hashes."""
    for one in deepcopy(objects):
        if one["kind"] == "StatefulSet":
            assert len(one["spec"]["template"]["metadata"]["annotations"].pop("checksum/config")) == 64
        yield one


def sorted_by_name(objects: Sequence[Any]) -> list[Any]:
    return sorted(objects, key=lambda one: (one["kind"], one["metadata"]["name"]))


@pytest.mark.nightly  # helm is built for some minutes
@pytest.mark.parametrize("overlay", ["base", "overlays/monitoring"])
def test_helm_renders_what_kustomize_renders_field_by_field(tmp_path: Path, overlay: str) -> None:
    ours = list(without_checksum(by_helm(tmp_path, {"monitoring": "monitoring" in overlay})))
    assert sorted_by_name(ours) == sorted_by_name(by_kustomize(K8S / overlay))


@pytest.mark.nightly  # as above
def test_two_releases_in_one_namespace_share_nothing(tmp_path: Path) -> None:
    first = by_helm(tmp_path, {})
    second = by_helm(tmp_path, {"name": "millrace-prices"})
    names = [{(one["kind"], one["metadata"]["name"]) for one in objects} for objects in (first, second)]
    assert not names[0] & names[1]
    labels = pod_of(first)["metadata"]["labels"]
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet", "NetworkPolicy"):
        for one in of_kind(second, kind):
            selector = one["spec"].get("podSelector") or one["spec"]["selector"]
            assert not selects(selector if "matchLabels" in selector else {"matchLabels": selector}, labels)
    assert [one["name"] for one in containers(second)] == ["millrace", "validate"]


@pytest.mark.nightly  # as above
def test_the_values_of_the_docs_reach_the_pod_and_another_config_starts_it_anew(tmp_path: Path) -> None:
    values = YAML(typ="safe").load(OF_THE_DOCS)
    objects = by_helm(tmp_path, values | {"tokens": {"ops": "secret"}}, "fraud")
    for one in objects:
        if "coreos.com" not in one["apiVersion"]:
            kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
        assert one["metadata"]["namespace"] == "fraud"
    for one in containers(objects):
        assert one["env"] == values["env"]
        assert one["image"] == f"{values['image']['repository']}:{values['image']['tag']}"
    assert only(objects, "Secret", "millrace-tokens")["data"] == {"ops": "c2VjcmV0"}
    assert values["egress"][0] in only(objects, "NetworkPolicy", "millrace")["spec"]["egress"]
    (claim,) = only(objects, "StatefulSet")["spec"]["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == values["storage"]["className"]
    other = by_helm(tmp_path, values | {"config": "name: other\n"}, "fraud")
    sums = [pod_of(one)["metadata"]["annotations"]["checksum/config"] for one in (objects, other)]
    assert sums[0] != sums[1]
