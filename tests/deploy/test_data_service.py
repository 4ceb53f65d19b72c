"""The component that adds a tf.data service: confined as the trainer is, and open to the trainer alone."""

from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.manifests import K8S, Object, of_kind, only, pod_of, rendered, selects

TRAINER, DISPATCHER, WORKERS = "millrace", "millrace-data-dispatcher", "millrace-data-workers"


@pytest.fixture(scope="module")
def objects() -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / "data-service")


def pods(objects: tuple[Object, ...]) -> tuple[Any, Any]:
    """Return the templates of the dispatcher's pod and of a worker's."""
    return (
        only(objects, "Deployment", DISPATCHER)["spec"]["template"],
        only(objects, "StatefulSet", WORKERS)["spec"]["template"],
    )


def test_every_object_is_valid_and_nothing_that_was_there_changes(objects: tuple[Object, ...]) -> None:
    before = {(one["kind"], one["metadata"]["name"]): one for one in rendered(K8S / "overlays" / "archive")}
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    assert {key: found[key] for key in before} == before
    assert len(found) - len(before) == 7
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_the_services_pods_are_as_confined_as_the_trainers(objects: tuple[Object, ...]) -> None:
    trainer = pod_of(objects, TRAINER)["spec"]
    for template in pods(objects):
        (only_one,) = template["spec"]["containers"]
        for name in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"):
            assert template["spec"][name] == trainer[name]
        assert only_one["securityContext"] == trainer["containers"][0]["securityContext"]
        assert only_one["image"] == trainer["containers"][0]["image"]
        assert only_one["resources"]["requests"]["memory"] == only_one["resources"]["limits"]["memory"]
        assert not any("secret" in volume for volume in template["spec"]["volumes"])
    archive = next(
        mount for mount in pods(objects)[1]["spec"]["containers"][0]["volumeMounts"] if "archive" in str(mount)
    )
    assert archive == {"name": "archive", "mountPath": "/srv/archive", "readOnly": True}
    assert archive in trainer["containers"][0]["volumeMounts"], "the trainer names files by its own paths"


def test_who_may_reach_the_service_are_its_own_pods_and_the_trainers(objects: tuple[Object, ...]) -> None:
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    trainer = pod_of(objects, TRAINER)["metadata"]["labels"]
    for template in pods(objects):
        labels = template["metadata"]["labels"]
        assert [name for name, one in policies.items() if selects(one["podSelector"], labels)] == [
            "millrace-data-service"
        ]
        (rule,) = policies["millrace-data-service"]["ingress"]
        assert [selects(one["podSelector"], trainer) for one in rule["from"]] == [True, False]
        assert [selects(one["podSelector"], labels) for one in rule["from"]] == [False, True]
        (port,) = template["spec"]["containers"][0]["ports"]
        assert {"port": port["containerPort"]} in rule["ports"]
        (way,) = policies["millrace-to-data-service"]["egress"]
        assert selects(way["to"][0]["podSelector"], labels)
        assert way["ports"] == rule["ports"]
        for one in of_kind(objects, "PodDisruptionBudget"):
            ours = one["metadata"]["name"] == "millrace-data-service"
            assert selects(one["spec"]["selector"], labels) is ours
    assert selects(policies["millrace-to-data-service"]["podSelector"], trainer)


def test_workers_are_told_names_that_their_services_give_them(objects: tuple[Object, ...]) -> None:
    dispatcher, worker = pods(objects)
    arguments = worker["spec"]["containers"][0]["args"]
    options = dict(zip(arguments[2::2], arguments[3::2], strict=True))
    assert options == {
        "--dispatcher": f"{DISPATCHER}:5050",
        "--port": "5051",
        "--address": f"$(POD).{only(objects, 'StatefulSet', WORKERS)['spec']['serviceName']}:5051",
    }
    for name, template in ((DISPATCHER, dispatcher), (WORKERS, worker)):
        service = only(objects, "Service", name)["spec"]
        assert selects({"matchLabels": service["selector"]}, template["metadata"]["labels"])
    assert only(objects, "Service", WORKERS)["spec"]["clusterIP"] == "None"
    assert "5050" in dispatcher["spec"]["containers"][0]["args"]
