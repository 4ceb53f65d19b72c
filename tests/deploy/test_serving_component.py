"""The component that adds servers of predictions: confined as the trainer is, and reached by who says so alone."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from millrace.app.settings import load
from tests.deploy.manifests import K8S, Object, config, containers, of_kind, only, pod_of, rendered, selects

SERVING = "millrace-serving"


@pytest.fixture(scope="module")
def objects() -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / "serving")


def pod(objects: tuple[Object, ...]) -> Any:
    return only(objects, "Deployment", SERVING)["spec"]["template"]


def server(objects: tuple[Object, ...]) -> Any:
    (found,) = pod(objects)["spec"]["containers"]
    return found


def test_every_object_is_valid_and_the_trainer_only_learns_where_to_export(
    objects: tuple[Object, ...], tmp_path: Path
) -> None:
    before = {(one["kind"], one["metadata"]["name"]): one for one in rendered(K8S / "base")}
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    added = {(kind, SERVING) for kind in ("Deployment", "Service", "NetworkPolicy", "PodDisruptionBudget")}
    assert found.keys() - before.keys() == added
    assert {key for key, one in before.items() if found[key] != one} == {("StatefulSet", "millrace")}
    for one in containers(objects, "millrace"):
        assert {"name": "MILLRACE_EXPORT__PATH", "value": "/var/lib/millrace/exports"} in one["env"]
        environ = {each["name"]: each["value"] for each in one["env"]}
        (tmp_path / "millrace.yaml").write_text(config(objects)["millrace.yaml"])
        assert str(load(tmp_path / "millrace.yaml", environ).settings.export.path) == "/var/lib/millrace/exports"
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_the_servers_are_as_confined_as_the_trainer_and_have_no_secret_of_kafkas(objects: tuple[Object, ...]) -> None:
    trainer, template = pod_of(objects, "millrace")["spec"], pod(objects)["spec"]
    for name in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"):
        assert template[name] == trainer[name]
    assert server(objects)["securityContext"] == trainer["containers"][0]["securityContext"]
    assert server(objects)["image"] == trainer["containers"][0]["image"]
    assert [volume["secret"]["secretName"] for volume in template["volumes"] if "secret" in volume] == [
        "millrace-tokens"
    ]


def test_its_settings_load_and_agree_with_ports_places_and_the_time_to_end(
    objects: tuple[Object, ...], tmp_path: Path
) -> None:
    for name, text in config(objects).items():
        (tmp_path / name).write_text(text)
    environ = {one["name"]: one["value"] for one in server(objects)["env"]}
    serve = load(tmp_path / "millrace.yaml", environ).settings.serve
    ports = {one["name"]: one["containerPort"] for one in server(objects)["ports"]}
    assert ports == {"predict": int(serve.listen.split(":")[1]), "probes": int(str(serve.probes).split(":")[1])}
    written = [mount["mountPath"] for mount in server(objects)["volumeMounts"] if not mount.get("readOnly")]
    assert any(str(serve.path).startswith(place) for place in written)
    assert pod(objects)["spec"]["terminationGracePeriodSeconds"] > serve.drain + 10
    trainer = only(objects, "Service", "millrace")
    assert serve.exports == f"http://{trainer['metadata']['name']}"
    assert trainer["spec"]["ports"][0]["port"] == 80


def test_the_export_settings_of_the_page_load_in_every_pod_that_reads_the_config(tmp_path: Path) -> None:
    page = (K8S.parent / "docs" / "serving.md").read_text()
    (export,) = re.findall(r"```yaml\n(export: .*)\n```", page.partition("\n### In Kubernetes\n")[2])
    (tmp_path / "k8s").symlink_to(K8S)
    (tmp_path / "own").mkdir()
    components = "components: [../k8s/components/serving, ../k8s/components/archive]\n"
    (tmp_path / "own" / "kustomization.yaml").write_text(f"namespace: millrace\nresources: [../k8s/base]\n{components}")
    found = rendered(tmp_path / "own")
    (tmp_path / "millrace.yaml").write_text(f"{config(found)['millrace.yaml']}\n{export}\n")
    pods = [one["spec"]["template"]["spec"] for kind in ("StatefulSet", "Deployment") for one in of_kind(found, kind)]
    readers = [one for pod in pods for one in (*pod.get("initContainers", ()), *pod["containers"])]
    assert {one["name"] for one in readers} >= {"validate", "millrace", "serving", "archive"}
    for one in readers:
        environ = {each["name"]: each["value"] for each in one.get("env", ()) if "value" in each}
        export_settings = load(tmp_path / "millrace.yaml", environ).settings.export
        assert (str(export_settings.path), export_settings.every) == ("/var/lib/millrace/exports", 300)


def test_clients_reach_the_servers_and_the_servers_the_trainer_and_nobody_else(objects: tuple[Object, ...]) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    labels, trainer = pod(objects)["metadata"]["labels"], pod_of(objects, "millrace")["metadata"]["labels"]
    assert [name for name, one in policies.items() if selects(one["podSelector"], labels)] == [SERVING]
    (way_in,) = policies[SERVING]["ingress"]
    (client,) = way_in["from"]
    assert client["podSelector"] == {"matchExpressions": [{"key": "millrace-serving-client", "operator": "Exists"}]}
    (to,) = policies[SERVING]["egress"][1]["to"]
    assert selects(to["podSelector"], trainer)
    (in_front,) = policies["millrace"]["ingress"][0]["from"]
    assert in_front["podSelector"]["matchExpressions"] == [{"key": "millrace-client", "operator": "Exists"}]
    assert "millrace-client" in labels, "the trainer lets them in"
    service = only(objects, "Service", SERVING)["spec"]
    assert selects({"matchLabels": service["selector"]}, labels)
    assert not selects({"matchLabels": service["selector"]}, trainer)
    (budget,) = [one for one in of_kind(objects, "PodDisruptionBudget") if selects(one["spec"]["selector"], labels)]
    assert budget["metadata"]["name"] == SERVING


def test_with_a_memory_the_servers_reach_kafka_as_the_trainer_does_and_know_its_secret(tmp_path: Path) -> None:
    (tmp_path / "k8s").symlink_to(K8S)
    (tmp_path / "own").mkdir()
    components = "components: [../k8s/components/serving, ../k8s/components/serving/memory]\n"
    (tmp_path / "own" / "kustomization.yaml").write_text(f"namespace: millrace\nresources: [../k8s/base]\n{components}")
    found = rendered(tmp_path / "own")
    assert {"name": "MILLRACE_SERVE__MEMORY", "value": "follow"} in server(found)["env"]
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(found, "NetworkPolicy")}
    added = policies["millrace-serving-memory"]
    assert selects(added["podSelector"], pod(found)["metadata"]["labels"])
    assert added["egress"][0] in policies["millrace"]["egress"]
    trainer = pod_of(found, "millrace")["spec"]
    (ours,), (theirs,) = (
        [one["secret"] for one in spec["volumes"] if one["name"] == "kafka"] for spec in (pod(found)["spec"], trainer)
    )
    assert ours == theirs
    assert len(server(found)["env"]) > 1, "the others stay"
    for one in found:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
