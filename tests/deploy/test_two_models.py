"""Two models in one namespace: every object belongs to one of them, and selects no pod of the other."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from millrace.app.settings import load
from tests.deploy.manifests import K8S, Object, of_kind, only, rendered, selects
from tests.deploy.pages import blocks

TWO = K8S / "overlays" / "two-models"
MODELS = ("clicks", "prices")
INSTANCE = "app.kubernetes.io/instance"


@pytest.fixture(scope="module")
def objects() -> tuple[Object, ...]:
    return rendered(TWO)


@pytest.fixture(scope="module")
def with_all(tmp_path_factory: pytest.TempPathFactory) -> tuple[Object, ...]:
    """Return the two models with the components that serve both, and with those that each of them has."""
    folder = tmp_path_factory.mktemp("with-all")
    shutil.copytree(K8S, folder / "k8s")
    both = folder / "k8s" / "overlays" / "two-models"
    shared = both / "kustomization.yaml"
    shared.write_text(f"{shared.read_text()}components: [../../components/monitoring]\n")
    for model in MODELS:
        own = both / model / "kustomization.yaml"
        more = "".join(f", ../../../components/{one}" for one in ("ingress", "tls", "read-tokens", "gpu"))
        own.write_text(own.read_text().replace("shared-namespace]", f"shared-namespace{more}]"))
    return rendered(both)


def pods(objects: tuple[Object, ...]) -> Mapping[str, Mapping[str, str]]:
    """Return the labels of the pods by the name of their stateful set."""
    sets = of_kind(objects, "StatefulSet")
    return {one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"] for one in sets}


def selector_of(one: Object) -> Mapping[str, Any] | None:
    """Return the selector by which an object finds pods, if it has one."""
    spec = one.get("spec", {})
    if one["kind"] == "Service":
        return {"matchLabels": spec["selector"]}
    found: Mapping[str, Any] | None = spec.get("podSelector", spec.get("selector"))
    return found


def test_every_object_is_valid_and_no_two_bear_the_same_name(with_all: tuple[Object, ...]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in with_all]
    assert len(set(names)) == len(names)
    for one in with_all:
        if one["kind"] not in ("ServiceMonitor", "PrometheusRule"):
            kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_there_is_one_namespace_and_it_enforces_the_restricted_profile(objects: tuple[Object, ...]) -> None:
    namespace = only(objects, "Namespace")["metadata"]
    assert {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} == {namespace["name"]}
    assert namespace["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


def test_whatever_selects_pods_selects_those_of_its_own_model_alone(with_all: tuple[Object, ...]) -> None:
    found = {"StatefulSet": 0, "Service": 0, "PodDisruptionBudget": 0, "NetworkPolicy": 0}
    for one in with_all:
        if one["kind"] not in found or one["metadata"]["name"] == "millrace-monitoring":
            continue
        found[one["kind"]] += 1
        selector = selector_of(one)
        assert selector is not None
        chosen = [name for name, labels in pods(with_all).items() if selects(selector, labels)]
        assert chosen == [f"millrace-{one['metadata']['labels'][INSTANCE]}"], one["metadata"]["name"]
    assert found == {"StatefulSet": 2, "Service": 4, "PodDisruptionBudget": 2, "NetworkPolicy": 4}


def test_a_model_of_the_base_beside_another_is_told_apart_too(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "kustomization.yaml").write_text(
        "namespace: millrace\nresources: [../k8s/base, ../k8s/overlays/two-models/prices]\n"
    )
    objects = rendered(tmp_path / "own")
    for kind in ("Service", "PodDisruptionBudget", "NetworkPolicy"):
        for one in of_kind(objects, kind):
            selector = selector_of(one)
            assert selector is not None
            assert len([name for name, labels in pods(objects).items() if selects(selector, labels)]) == 1


@pytest.mark.parametrize("model", MODELS)
def test_a_pod_uses_nothing_of_the_other_model(with_all: tuple[Object, ...], model: str) -> None:
    one = only(with_all, "StatefulSet", f"millrace-{model}")
    own = {
        (other["kind"], other["metadata"]["name"])
        for other in with_all
        if other["metadata"].get("labels", {}).get(INSTANCE) == model
    }
    spec = one["spec"]["template"]["spec"]
    assert ("Service", one["spec"]["serviceName"]) in own
    assert ("ServiceAccount", spec["serviceAccountName"]) in own
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    assert ("ConfigMap", volumes["config"]["configMap"]["name"]) in own
    for name in ("tokens", "kafka"):
        assert ("Secret", volumes[name]["secret"]["secretName"]) in own
    (rule,) = only(with_all, "Ingress", f"millrace-{model}")["spec"]["rules"]
    assert ("Service", rule["http"]["paths"][0]["backend"]["service"]["name"]) in own


def test_the_volumes_are_two(objects: tuple[Object, ...]) -> None:
    claims = {
        f"{claim['metadata']['name']}-{one['metadata']['name']}-0"
        for one in of_kind(objects, "StatefulSet")
        for claim in one["spec"]["volumeClaimTemplates"]
    }
    assert claims == {"checkpoints-millrace-clicks-0", "checkpoints-millrace-prices-0"}


def test_the_settings_are_of_two_models(objects: tuple[Object, ...], tmp_path: Path) -> None:
    names, groups = set(), set()
    for one in of_kind(objects, "ConfigMap"):
        folder = tmp_path / one["metadata"]["name"]
        folder.mkdir()
        for name, text in one["data"].items():
            (folder / name).write_text(text)
        settings = load(folder / "millrace.yaml", {}).settings
        names.add(settings.name)
        groups.add(settings.kafka.group)
    assert names == set(MODELS)
    assert len(groups) == 2


@pytest.mark.tensorflow
def test_the_second_model_learns_what_its_config_says() -> None:
    import runpy

    import numpy as np
    import tensorflow as tf

    settings = load(TWO / "prices" / "millrace.yaml", {}).settings
    model = runpy.run_path(str(TWO / "prices" / "model.py"))["build_model"]()
    assert {one.name: one.dtype for one in model.inputs} == {"ad": "string", "hour": "int32"}
    assert set(settings.records.features) == {"ad", "hour"}
    inputs = {"ad": tf.constant(["a", "b"]), "hour": tf.constant([7, -30], tf.int32)}
    assert np.isfinite(model.train_on_batch(inputs, np.array([[1.0], [2.0]]))).all()


def test_monitoring_serves_both_models_once(with_all: tuple[Object, ...]) -> None:
    monitor = only(with_all, "ServiceMonitor")["spec"]
    services = of_kind(with_all, "Service")
    seen = [one["metadata"]["name"] for one in services if selects(monitor["selector"], one["metadata"]["labels"])]
    assert seen == ["millrace-clicks", "millrace-prices"]
    policy = only(with_all, "NetworkPolicy", "millrace-monitoring")["spec"]
    assert all(selects(policy["podSelector"], labels) for labels in pods(with_all).values())
    assert len(of_kind(with_all, "PrometheusRule")) == 1


def test_the_files_of_the_docs_make_two_models_in_a_namespace(tmp_path: Path) -> None:
    shutil.copytree(K8S, tmp_path / "k8s")
    shared, prices = blocks("Several models in one namespace", "yaml")
    for model in MODELS:
        folder = tmp_path / "own" / model
        folder.mkdir(parents=True)
        (folder / "kustomization.yaml").write_text(prices.replace("prices", model))
        for name in ("millrace.yaml", "model.py"):
            (folder / name).write_text(f"# {model}\n")
    (tmp_path / "own" / "kustomization.yaml").write_text(shared.replace("[]", "[../k8s/components/monitoring]"))
    objects = rendered(tmp_path / "own")
    assert {one["metadata"].get("namespace", "ads") for one in objects} == {"ads"}
    assert [one["data"]["model.py"] for one in of_kind(objects, "ConfigMap") if "model.py" in one["data"]] == [
        "# clicks\n",
        "# prices\n",
    ]
    for one in (*of_kind(objects, "Service"), *of_kind(objects, "PodDisruptionBudget")):
        selector = selector_of(one)
        assert selector is not None
        assert len([name for name, labels in pods(objects).items() if selects(selector, labels)]) == 1
