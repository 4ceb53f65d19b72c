"""The components that add an archiver: confined as the trainer is, and the trainer can read its volume alone."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from millrace.app.settings import load
from tests.deploy.manifests import (
    K8S,
    Object,
    config,
    container,
    containers,
    of_kind,
    only,
    pod_of,
    rendered,
    selects,
    with_components,
)
from tests.deploy.pages import blocks

INSTANCE = "app.kubernetes.io/instance"
TRAINERS_FIRST = ("scale", "archive"), ("archive", "scale")
(VOLUME,) = blocks("Archive", "yaml")
(BUCKET,) = blocks("Archive in a bucket", "yaml")


@pytest.fixture(scope="module")
def objects() -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / "archive")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def archiver(objects: Sequence[Object]) -> Object:
    return container(objects, "archive", "Deployment")


def mounts(one: Object) -> dict[str, bool]:
    """Return the places of a container's mounts, and whether it can write there."""
    return {mount["mountPath"]: not mount.get("readOnly", False) for mount in one["volumeMounts"]}


def assert_reads(one: Object) -> None:
    """Assert that a container has the archive where its settings look for it, and cannot change it."""
    assert mounts(one)["/srv/archive"] is False
    assert {"name": "MILLRACE_ARCHIVE__PATH", "value": "/srv/archive"} in one["env"]


def test_every_object_is_valid_and_only_the_trainers_pod_is_changed(
    objects: tuple[Object, ...],
) -> None:
    base = {(one["kind"], one["metadata"]["name"]): one for one in rendered(K8S / "base")}
    found = {(one["kind"], one["metadata"]["name"]): one for one in objects}
    assert len(found) == len(objects)
    added = {(kind, "millrace-archive") for kind in ("Deployment", "NetworkPolicy", "PersistentVolumeClaim")}
    assert found.keys() - base.keys() == added
    assert {key for key, one in base.items() if found[key] != one} == {("StatefulSet", "millrace")}
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_one_archiver_writes_and_the_old_one_goes_before_the_new_one_comes(objects: tuple[Object, ...]) -> None:
    spec = only(objects, "Deployment")["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert mounts(archiver(objects)) == {
        "/etc/millrace": False,
        "/run/secrets/kafka": False,
        "/srv/archive": True,
        "/tmp": True,
    }


def test_the_archivers_pod_is_as_confined_as_the_trainers(objects: tuple[Object, ...]) -> None:
    ours, trainer = pod_of(objects, kind="Deployment")["spec"], pod_of(objects)["spec"]
    for name in ("securityContext", "serviceAccountName", "automountServiceAccountToken", "enableServiceLinks"):
        assert ours[name] == trainer[name]
    assert archiver(objects)["securityContext"] == container(objects)["securityContext"]
    assert archiver(objects)["image"] == container(objects)["image"]
    volumes = {volume["name"]: volume for volume in trainer["volumes"]}
    assert all(volumes[volume["name"]] == volume for volume in ours["volumes"]), "tokens are not among them"
    resources = archiver(objects)["resources"]
    assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_nothing_that_selects_the_trainer_selects_the_archiver_and_nobody_reaches_it(
    objects: tuple[Object, ...],
) -> None:
    labels = pod_of(objects, kind="Deployment")["metadata"]["labels"]
    assert selects(only(objects, "Deployment")["spec"]["selector"], labels)
    for kind in ("Service", "PodDisruptionBudget", "StatefulSet"):
        for one in of_kind(objects, kind):
            selector = one["spec"]["selector"]
            assert not selects(selector if "matchLabels" in selector else {"matchLabels": selector}, labels)
    policies = {one["metadata"]["name"]: one["spec"] for one in of_kind(objects, "NetworkPolicy")}
    assert [name for name, one in policies.items() if selects(one["podSelector"], labels)] == ["millrace-archive"]
    ours = policies["millrace-archive"]
    assert (ours["policyTypes"], ours["ingress"]) == (["Ingress", "Egress"], [])
    assert ours["egress"] == policies["millrace"]["egress"]


def test_the_trainer_and_its_check_read_the_archive_and_both_have_one_config(
    objects: tuple[Object, ...], tmp_path: Path
) -> None:
    for one in containers(objects):
        assert_reads(one)
    assert {volume["name"]: volume for volume in pod_of(objects)["spec"]["volumes"]}["archive"] == {
        "name": "archive",
        "persistentVolumeClaim": {"claimName": only(objects, "PersistentVolumeClaim")["metadata"]["name"]},
    }
    for name, text in config(objects).items():
        (tmp_path / name).write_text(text)
    environ = {entry["name"]: entry["value"] for entry in archiver(objects)["env"]}
    assert str(load(tmp_path / "millrace.yaml", environ).settings.archive.path) == "/srv/archive"


@pytest.mark.parametrize("order", TRAINERS_FIRST, ids="+".join)
def test_all_workers_of_a_group_read_the_archive_and_one_archiver_writes(own: Path, order: tuple[str, ...]) -> None:
    more = "configMapGenerator:\n  - {name: millrace-scale, literals: [MILLRACE_SCALE__WORKERS=2]}\n"
    objects = with_components(own, *order, more=more)
    for name in ("millrace", "millrace-workers"):
        for one in containers(objects, name):
            assert_reads(one)
    assert len(of_kind(objects, "Deployment")) == 1


def test_the_docs_give_the_volume_a_class_and_a_size(own: Path) -> None:
    claim = only(with_components(own, "archive", more=VOLUME), "PersistentVolumeClaim")["spec"]
    assert claim == {
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "shared",
        "resources": {"requests": {"storage": "500Gi"}},
    }


def test_the_docs_put_the_archive_into_a_bucket_with_no_volume_to_share(own: Path) -> None:
    objects = with_components(own, "archive", more=BUCKET)
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
    assert of_kind(objects, "PersistentVolumeClaim") == []
    place = {"name": "MILLRACE_ARCHIVE__PATH", "value": "s3://my-bucket/clicks"}
    assert all(place in one["env"] for one in (*containers(objects), archiver(objects)))
    pods = [pod_of(objects), pod_of(objects, kind="Deployment")]
    volumes = [{one["name"]: one for one in pod["spec"]["volumes"]}["archive"] for pod in pods]
    assert [set(volume) for volume in volumes] == [{"name", "emptyDir"}] * 2
    assert {"name": "TMPDIR", "value": "/srv/archive"} in archiver(objects)["env"]
    assert mounts(archiver(objects))["/srv/archive"]
    for policy in of_kind(objects, "NetworkPolicy"):
        assert {"ports": [{"port": 443}]} in policy["spec"]["egress"]


def test_on_gpus_the_archiver_takes_the_image_without(own: Path) -> None:
    objects = with_components(own, "gpu", "archive")
    assert archiver(objects)["image"] == "millrace:0.1.0"
    assert "nvidia.com/gpu" not in archiver(objects)["resources"]["limits"]


def test_two_models_in_one_namespace_have_an_archive_each(own: Path) -> None:
    both = own.parent / "k8s" / "overlays" / "two-models"
    for model in ("clicks", "prices"):
        path = both / model / "kustomization.yaml"
        path.write_text(path.read_text().replace("shared-namespace]", "shared-namespace, ../../../components/archive]"))
    objects = rendered(both)
    for model in ("clicks", "prices"):
        its: list[Any] = [one for one in objects if one["metadata"].get("labels", {}).get(INSTANCE) == model]
        name = f"millrace-archive-{model}"
        assert {one["metadata"]["name"] for one in its if "archive" in one["metadata"]["name"]} == {name}
        volumes = {volume["name"]: volume for volume in pod_of(its)["spec"]["volumes"]}
        assert volumes["archive"]["persistentVolumeClaim"]["claimName"] == name
        chosen = [
            one["metadata"]["name"]
            for one in of_kind(objects, "Deployment")
            if selects(
                only(its, "NetworkPolicy", name)["spec"]["podSelector"], one["spec"]["template"]["metadata"]["labels"]
            )
        ]
        assert chosen == [name]


def test_the_archiver_in_the_trainers_pod_is_the_same_one(own: Path, objects: tuple[Object, ...]) -> None:
    sidecar = with_components(own, "archive-sidecar")
    assert container(sidecar, "archive") == archiver(objects)
    for name in ("validate", "millrace"):
        assert container(sidecar, name) == container(objects, name)
    assert pod_of(sidecar)["spec"]["volumes"] == pod_of(objects)["spec"]["volumes"]
    assert only(sidecar, "PersistentVolumeClaim")["spec"]["accessModes"] == ["ReadWriteOnce"]
    for one in sidecar:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
