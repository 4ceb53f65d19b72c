"""The component that adds workers: their pods are the chief's, and their port is theirs alone."""

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

from millrace.app.settings import Settings, load
from tests.deploy import manifests
from tests.deploy.manifests import K8S, Object, config, containers, of_kind, only, pod_of, rendered, selects
from tests.deploy.pages import blocks

CHIEF, OTHERS = "millrace", "millrace-workers"
INSTANCE, ROLE = "app.kubernetes.io/instance", "app.kubernetes.io/component"
NUMBER, NAMES = blocks("Several workers", "yaml")


@pytest.fixture(scope="module")
def objects() -> tuple[Object, ...]:
    return rendered(K8S / "overlays" / "scale")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


TWO = "configMapGenerator:\n  - {name: millrace-scale, literals: [MILLRACE_SCALE__WORKERS=2]}\n"


def with_components(own: Path, *components: str, more: str = TWO) -> tuple[Object, ...]:
    return manifests.with_components(own, *components, more=more)


def labels(objects: Sequence[Object], stateful_set: str) -> Mapping[str, str]:
    found: Mapping[str, str] = pod_of(objects, stateful_set)["metadata"]["labels"]
    return found


def environment(objects: Sequence[Object], container: Object) -> Mapping[str, str]:
    """Return what the ConfigMaps that a container names put into its environment."""
    named = [one["configMapRef"]["name"] for one in container["envFrom"]]
    assert len(named) == 1
    found: Mapping[str, str] = only(objects, "ConfigMap", named[0])["data"]
    return found


def settings_of(objects: Sequence[Object], stateful_set: str, folder: Path) -> Settings:
    """Return the settings that a pod would find."""
    folder.mkdir(exist_ok=True)
    files = config(
        [one for one in objects if one["kind"] != "StatefulSet"] + [only(objects, "StatefulSet", stateful_set)]
    )
    for name, text in files.items():
        (folder / name).write_text(text)
    (environ,) = {tuple(sorted(environment(objects, one).items())) for one in containers(objects, stateful_set)}
    return load(folder / "millrace.yaml", dict(environ)).settings


def pods(objects: Sequence[Object]) -> dict[str, str]:
    """Return the name of each pod, and the name by which others find it: its own, and its service's."""
    found = {}
    for one in of_kind(objects, "StatefulSet"):
        service = only(objects, "Service", one["spec"]["serviceName"])["spec"]
        assert service["clusterIP"] == "None"
        assert service["publishNotReadyAddresses"] is True, "they meet before they are ready"
        assert selects({"matchLabels": service["selector"]}, one["spec"]["template"]["metadata"]["labels"])
        for number in range(one["spec"]["replicas"]):
            name = f"{one['metadata']['name']}-{number}"
            found[name] = f"{name}.{one['spec']['serviceName']}"
    return found


def assert_all_find_each_other(objects: Sequence[Object], folder: Path) -> None:
    """Compare the pods with the addresses that each of them derives from its name and its settings."""
    sets = [one["metadata"]["name"] for one in of_kind(objects, "StatefulSet")]
    found = pods(objects)
    for stateful_set in sets:
        scale = settings_of(objects, stateful_set, folder).scale
        assert scale.workers == len(found)
        assert sorted(scale.everyone) == sorted(f"{name}:{scale.port}" for name in found.values())
        for name in found:
            assert scale.everyone[scale.own_index(name)] == f"{found[name]}:{scale.port}"
    assert settings_of(objects, sets[0], folder).scale.own_index(f"{sets[0]}-0") == 0


def test_every_object_is_valid_and_no_two_bear_the_same_name(objects: tuple[Object, ...]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_beside_what_it_adds_the_base_changes_in_the_chiefs_role_and_port_alone(objects: tuple[Object, ...]) -> None:
    base = {(one["kind"], one["metadata"]["name"]): one for one in rendered(K8S / "base")}
    changed = {(one["kind"], one["metadata"]["name"]) for one in objects if base.get(_key(one)) not in (None, one)}
    assert changed == {("StatefulSet", CHIEF), ("Service", "millrace"), ("Service", "millrace-headless")}
    assert base.keys() <= {_key(one) for one in objects}


def _key(one: Object) -> tuple[str, str]:
    return one["kind"], one["metadata"]["name"]


# The restricted profile, and all else that the base promises: its tests (test_manifests.py) assert each field.


def test_a_workers_pod_is_the_chiefs_but_for_the_volume(objects: tuple[Object, ...]) -> None:
    chief, worker = dict(pod_of(objects, CHIEF)["spec"]), dict(pod_of(objects, OTHERS)["spec"])
    volumes = {volume["name"]: volume for volume in worker.pop("volumes")}
    assert volumes.pop("checkpoints") == {"name": "checkpoints", "emptyDir": {"sizeLimit": "64Mi"}}
    assert volumes == {volume["name"]: volume for volume in chief.pop("volumes")}
    assert worker == chief
    assert "volumeClaimTemplates" not in only(objects, "StatefulSet", OTHERS)["spec"]


def test_the_chiefs_pod_is_the_bases_with_a_port_a_role_and_the_number_of_workers(objects: tuple[Object, ...]) -> None:
    base, chief = pod_of(rendered(K8S / "base")), pod_of(objects, CHIEF)
    assert chief["metadata"]["labels"] == {**base["metadata"]["labels"], ROLE: "chief"}
    for kind in ("containers", "initContainers"):
        for ours, theirs in zip(base["spec"][kind], chief["spec"][kind], strict=True):
            assert theirs.keys() - ours.keys() == {"envFrom"}
            differing = {name for name in ours if ours[name] != theirs[name]}
            assert differing == ({"ports"} if kind == "containers" else set())
    ports = {port["name"]: port["containerPort"] for port in chief["spec"]["containers"][0]["ports"]}
    assert ports == {"http": 8080, "probes": 8081, "group": 9911}
    rest = ("containers", "initContainers")
    assert {name: value for name, value in chief["spec"].items() if name not in rest} == {
        name: value for name, value in base["spec"].items() if name not in rest
    }


def test_what_no_cluster_lets_change_of_the_chiefs_stateful_set_is_as_ever(objects: tuple[Object, ...]) -> None:
    ours, its = only(rendered(K8S / "base"), "StatefulSet")["spec"], only(objects, "StatefulSet", CHIEF)["spec"]
    fixed = ours.keys() - {"template"}
    assert {name: ours[name] for name in fixed} == {name: its[name] for name in fixed}


def test_none_of_the_workers_waits_for_another_to_start(objects: tuple[Object, ...]) -> None:
    assert {one["spec"]["podManagementPolicy"] for one in of_kind(objects, "StatefulSet")} == {"Parallel"}


def test_each_pod_finds_all_others_by_the_names_that_the_services_give_them(
    objects: tuple[Object, ...], tmp_path: Path
) -> None:
    assert len(pods(objects)) == 2
    assert_all_find_each_other(objects, tmp_path)


def test_another_number_is_two_lines_and_starts_all_of_them_anew(own: Path, tmp_path: Path) -> None:
    before = with_components(own, "scale")
    objects = with_components(own, "scale", more=NUMBER)
    assert len(pods(objects)) == 4
    assert_all_find_each_other(objects, tmp_path / "found")
    for name in (CHIEF, OTHERS):
        assert pod_of(before, name) != pod_of(objects, name)


def test_commands_and_the_page_reach_the_chief_alone(objects: tuple[Object, ...]) -> None:
    for name in ("millrace", "millrace-headless"):
        selector = {"matchLabels": only(objects, "Service", name)["spec"]["selector"]}
        assert selects(selector, labels(objects, CHIEF))
        assert not selects(selector, labels(objects, OTHERS))


def test_a_drain_takes_one_pod_of_the_whole_group_at_a_time(objects: tuple[Object, ...]) -> None:
    (budget,) = [one["spec"] for one in of_kind(objects, "PodDisruptionBudget")]
    assert all(selects(budget["selector"], labels(objects, name)) for name in (CHIEF, OTHERS))
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


def test_the_one_monitor_asks_each_pod_of_the_group_once(own: Path) -> None:
    objects = with_components(own, "scale", "monitoring")
    monitor = only(objects, "ServiceMonitor")["spec"]
    services = [one for one in of_kind(objects, "Service") if selects(monitor["selector"], one["metadata"]["labels"])]
    assert [one["metadata"]["name"] for one in services] == ["millrace", OTHERS]
    assert {one["metadata"]["labels"][monitor["jobLabel"]] for one in services} == {"millrace"}  # the rules ask for it
    for name in (CHIEF, OTHERS):
        (service,) = [
            one for one in services if selects({"matchLabels": one["spec"]["selector"]}, labels(objects, name))
        ]
        (port,) = [one for one in service["spec"]["ports"] if one["name"] == monitor["endpoints"][0]["port"]]
        assert port["targetPort"] in {one["name"] for one in pod_of(objects, name)["spec"]["containers"][0]["ports"]}
        policy = only(objects, "NetworkPolicy", "millrace-monitoring")["spec"]
        assert selects(policy["podSelector"], labels(objects, name))
        assert policy["ingress"][0]["ports"] == [{"port": port["targetPort"]}]


# Whoever reaches the group's port can run code in the pod.


def test_the_groups_policy_is_this_to_the_last_field(objects: tuple[Object, ...]) -> None:
    group = {"matchLabels": {"app.kubernetes.io/name": "millrace", INSTANCE: "millrace"}}
    assert only(objects, "NetworkPolicy", "millrace-group")["spec"] == {
        "podSelector": group,
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [{"from": [{"podSelector": group}], "ports": [{"port": "group"}]}],
        "egress": [{"to": [{"podSelector": group}], "ports": [{"port": "group"}]}],
    }


@pytest.mark.parametrize("more", [(), ("monitoring", "ingress", "tls", "read-tokens")], ids=["alone", "with all"])
def test_nobody_but_the_group_is_let_in_to_its_port_by_any_policy(own: Path, more: tuple[str, ...]) -> None:
    objects = with_components(own, "scale", *more)
    group = [labels(objects, name) for name in (CHIEF, OTHERS)]
    opened = []
    for policy in of_kind(objects, "NetworkPolicy"):
        assert "Ingress" in policy["spec"]["policyTypes"], "what is not named is not let in"
        assert all(selects(policy["spec"]["podSelector"], one) for one in group)
        for rule in policy["spec"]["ingress"]:
            assert rule["from"]
            ports = [port["port"] for port in rule["ports"]]
            assert ports, "a rule without ports would open all"
            assert not [port for port in rule["ports"] if port.keys() - {"port", "protocol"}], "no range of ports"
            if {"group", 9911} & set(ports):
                opened.append(policy["metadata"]["name"])
                (peer,) = rule["from"]
                assert peer.keys() == {"podSelector"}, "of this namespace alone"
                assert all(selects(peer["podSelector"], one) for one in group)
                assert peer["podSelector"]["matchLabels"].keys() == {"app.kubernetes.io/name", INSTANCE}
            else:
                assert ports == ["http"]
    assert opened == ["millrace-group"]


def test_no_service_opens_the_groups_port_beyond_the_names_of_pods(objects: tuple[Object, ...]) -> None:
    for one in of_kind(objects, "Service"):
        spec = one["spec"]
        assert spec.get("type", "ClusterIP") == "ClusterIP"
        if any(port["targetPort"] == "group" for port in spec["ports"]):
            assert spec["clusterIP"] == "None"


# With other components, in any order, and beside another model.


@pytest.mark.parametrize("order", [("gpu", "tls", "read-tokens", "scale"), ("scale", "gpu", "tls", "read-tokens")])
def test_what_other_components_give_the_chief_the_workers_have_too(own: Path, order: tuple[str, ...]) -> None:
    objects = with_components(own, *order)
    for name in (CHIEF, OTHERS):
        for one in containers(objects, name):
            assert one["image"].endswith("-gpu")
            assert one["resources"]["limits"]["nvidia.com/gpu"] == 1
            assert {"/run/secrets/tls", "/run/secrets/millrace-readers"} <= {
                mount["mountPath"] for mount in one["volumeMounts"]
            }
    test_a_workers_pod_is_the_chiefs_but_for_the_volume(objects)


def test_two_groups_in_one_namespace_meet_each_their_own(own: Path, tmp_path: Path) -> None:
    both = own.parent / "k8s" / "overlays" / "two-models"
    for model in ("clicks", "prices"):
        path = both / model / "kustomization.yaml"
        text = path.read_text().replace("shared-namespace]", "shared-namespace, ../../../components/scale]")
        literals = NAMES.replace("prices", model).removeprefix("configMapGenerator:\n")
        text = text if "configMapGenerator:" in text else f"{text}configMapGenerator:\n"
        path.write_text(text + literals)
    objects = rendered(both)
    groups = {model: _of(objects, model) for model in ("clicks", "prices")}
    for model, its in groups.items():
        assert_all_find_each_other(its, tmp_path / model)
        policy = only(its, "NetworkPolicy", f"millrace-group-{model}")["spec"]
        (other,) = groups.keys() - {model}
        for peer in (policy["podSelector"], policy["ingress"][0]["from"][0]["podSelector"]):
            assert all(selects(peer, labels(its, one["metadata"]["name"])) for one in of_kind(its, "StatefulSet"))
            strangers = of_kind(groups[other], "StatefulSet")
            assert not any(selects(peer, one["spec"]["template"]["metadata"]["labels"]) for one in strangers)


def _of(objects: Sequence[Object], model: str) -> list[Any]:
    return [one for one in objects if one["metadata"].get("labels", {}).get(INSTANCE) == model]
