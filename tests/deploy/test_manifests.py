"""The manifests render, are valid, agree with one another, and grant no more than a trainer needs."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from millrace.app.settings import Settings, load
from tests.deploy.manifests import (
    K8S,
    ROOT,
    Object,
    config,
    container,
    containers,
    of_kind,
    only,
    pod_of,
    rendered,
    selects,
    size,
)
from tests.deploy.pages import blocks

FOLDERS = {"base": K8S / "base", "gpu": K8S / "overlays" / "gpu", "monitoring": K8S / "overlays" / "monitoring"}
OF_OPERATORS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds whose schemas come with the Prometheus operator and not with Kubernetes."""
CANARY = "canary-4711"
TENSORFLOW_AND_MODEL = 1280 * 2**20
"""What the process weighs beside what is in flight: with the example's model 740 MB at most, and room."""
CLOSING_S = 10
"""After stop.grace, at most: the HTTP side has 3 s to answer what it was asked, then the process leaves."""


@pytest.fixture(params=FOLDERS, scope="module")
def objects(request: pytest.FixtureRequest) -> tuple[Object, ...]:
    return rendered(FOLDERS[request.param])


@pytest.fixture(scope="module")
def base() -> tuple[Object, ...]:
    return rendered(FOLDERS["base"])


@pytest.fixture(scope="module")
def settings(base: tuple[Object, ...], tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Return the settings that the pod would find."""
    folder = tmp_path_factory.mktemp("config")
    for name, text in config(base).items():
        (folder / name).write_text(text)
    return load(folder / "millrace.yaml", {}).settings


def test_every_object_is_valid_to_the_last_field(objects: tuple[Object, ...]) -> None:
    checked = [one for one in objects if one["kind"] not in OF_OPERATORS]
    assert len(checked) >= 9
    for one in checked:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_a_field_that_no_schema_knows_is_refused(base: tuple[Object, ...]) -> None:
    wrong = {**only(base, "PodDisruptionBudget"), "spec": {"maxUnavailble": 1}}
    with pytest.raises(kubernetes_validate.ValidationError, match="maxUnavailble"):
        kubernetes_validate.validate(wrong, kubernetes_validate.latest_version(), strict=True)


def test_no_two_objects_bear_the_same_name(objects: tuple[Object, ...]) -> None:
    names = [(one["kind"], one["metadata"]["name"]) for one in objects]
    assert len(set(names)) == len(names)


def test_all_of_it_is_in_one_namespace_which_enforces_the_restricted_profile(objects: tuple[Object, ...]) -> None:
    namespace = only(objects, "Namespace")["metadata"]
    assert {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} == {namespace["name"]}
    for mode in ("enforce", "audit", "warn"):
        assert namespace["labels"][f"pod-security.kubernetes.io/{mode}"] == "restricted"


# The restricted profile, field by field, as https://kubernetes.io/docs/concepts/security/pod-security-standards says.


def test_nothing_of_the_host_is_shared(objects: tuple[Object, ...]) -> None:
    spec = pod_of(objects)["spec"]
    assert {"hostNetwork", "hostPID", "hostIPC"} & spec.keys() == set()
    assert not [port for one in containers(objects) for port in one.get("ports", ()) if "hostPort" in port]
    assert not [probe for one in containers(objects) for probe in _probes(one) if "host" in probe["httpGet"]]


def _probes(one: Object) -> list[dict[str, Any]]:
    return [one[name] for name in ("startupProbe", "livenessProbe", "readinessProbe") if name in one]


def test_volumes_are_of_the_kinds_that_are_allowed(objects: tuple[Object, ...]) -> None:
    allowed = {
        "configMap",
        "csi",
        "downwardAPI",
        "emptyDir",
        "ephemeral",
        "persistentVolumeClaim",
        "projected",
        "secret",
    }
    for volume in pod_of(objects)["spec"]["volumes"]:
        assert volume.keys() - {"name"} <= allowed, volume


def test_the_pod_runs_as_a_numbered_user_who_is_not_root(objects: tuple[Object, ...]) -> None:
    context = pod_of(objects)["spec"]["securityContext"]
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] == 10001
    assert "supplementalGroups" not in context


def test_the_pod_has_the_runtimes_seccomp_profile_and_no_options_of_its_own(objects: tuple[Object, ...]) -> None:
    context = pod_of(objects)["spec"]["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {"sysctls", "seLinuxOptions", "windowsOptions", "appArmorProfile"} & context.keys() == set()


def test_each_container_is_confined_in_every_way(objects: tuple[Object, ...]) -> None:
    for one in containers(objects):
        assert one["securityContext"] == {
            "runAsNonRoot": True,
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }, one["name"]


# Beyond it.


def test_the_pod_has_no_token_of_the_cluster(objects: tuple[Object, ...]) -> None:
    account, spec = only(objects, "ServiceAccount"), pod_of(objects)["spec"]
    assert account["automountServiceAccountToken"] is False
    assert spec["automountServiceAccountToken"] is False
    assert spec["serviceAccountName"] == account["metadata"]["name"]
    assert not [one for one in objects if one["kind"].startswith(("Role", "ClusterRole"))]


def test_only_checkpoints_and_tmp_can_be_written_to(objects: tuple[Object, ...]) -> None:
    for one in containers(objects):
        writable = {mount["mountPath"] for mount in one["volumeMounts"] if not mount.get("readOnly")}
        assert writable == {"/var/lib/millrace", "/tmp"}


def test_each_container_says_what_it_needs_and_is_held_to_it(objects: tuple[Object, ...]) -> None:
    for one in containers(objects):
        asked, limits = one["resources"]["requests"], one["resources"]["limits"]
        assert {"cpu", "memory", "ephemeral-storage"} <= asked.keys() & limits.keys()
        assert asked["memory"] == limits["memory"], "what it may take is there"


def test_the_memory_limit_leaves_room_for_what_may_be_in_flight(
    objects: tuple[Object, ...], settings: Settings
) -> None:
    limit = size(container(objects)["resources"]["limits"]["memory"])
    assert limit >= TENSORFLOW_AND_MODEL + 2 * settings.memory.limit


def test_the_pod_is_waited_for_longer_than_it_takes_itself(objects: tuple[Object, ...], settings: Settings) -> None:
    assert pod_of(objects)["spec"]["terminationGracePeriodSeconds"] >= settings.stop.grace + CLOSING_S


def test_traffic_is_for_the_pod_alone_and_of_the_ports_that_it_has(objects: tuple[Object, ...]) -> None:
    labels = pod_of(objects)["metadata"]["labels"]
    ports = {port["name"] for port in container(objects)["ports"]}
    policies = of_kind(objects, "NetworkPolicy")
    assert {kind for policy in policies for kind in policy["spec"]["policyTypes"]} == {"Ingress", "Egress"}
    for policy in policies:
        assert selects(policy["spec"]["podSelector"], labels)
        for rule in policy["spec"]["ingress"]:
            assert all(peer for peer in rule["from"]), "nobody is let in without a name"
            assert {port["port"] for port in rule["ports"]} <= ports
        for rule in policy["spec"].get("egress", ()):
            assert rule["ports"]


def test_who_may_ask_need_not_be_one_of_ours(base: tuple[Object, ...]) -> None:
    (rule,) = only(base, "NetworkPolicy")["spec"]["ingress"]
    assert rule["from"] == [{"podSelector": {"matchExpressions": [{"key": "millrace-client", "operator": "Exists"}]}}]


def test_a_node_can_always_be_drained(objects: tuple[Object, ...]) -> None:
    budget = only(objects, "PodDisruptionBudget")["spec"]
    assert budget["selector"]["matchLabels"] == pod_of(objects)["metadata"]["labels"]
    assert (budget["maxUnavailable"], budget["unhealthyPodEvictionPolicy"]) == (1, "AlwaysAllow")


# One with another.


def test_one_trainer_keeps_its_volume_and_a_bad_rollout_can_be_replaced(
    objects: tuple[Object, ...],
) -> None:
    spec = only(objects, "StatefulSet")["spec"]
    assert (spec["replicas"], spec["podManagementPolicy"]) == (1, "Parallel")
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Retain", "whenScaled": "Retain"}


def test_selectors_find_the_pod_and_services_its_port(objects: tuple[Object, ...]) -> None:
    template, stateful_set = pod_of(objects), only(objects, "StatefulSet")["spec"]
    labels = template["metadata"]["labels"]
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert selects(stateful_set["selector"], labels)
    services = of_kind(objects, "Service")
    headless = only(objects, "Service", stateful_set["serviceName"])["spec"]
    assert headless["clusterIP"] == "None"
    assert len(services) == 2
    for service in services:
        assert service["spec"]["selector"] == labels
        assert service["spec"]["publishNotReadyAddresses"] is True
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()


def test_what_no_cluster_lets_change_of_a_stateful_set_is_as_ever(base: tuple[Object, ...]) -> None:
    """`kubectl apply` over an older version would be refused."""
    spec = only(base, "StatefulSet")["spec"]
    assert spec["selector"] == {"matchLabels": {"app.kubernetes.io/name": "millrace"}}
    assert spec["serviceName"] == "millrace-headless"
    assert [claim["metadata"] for claim in spec["volumeClaimTemplates"]] == [
        {"name": "checkpoints", "labels": {"app.kubernetes.io/name": "millrace"}}
    ]


def test_what_is_mounted_is_there_and_nothing_is_there_unmounted(objects: tuple[Object, ...]) -> None:
    spec, stateful_set = pod_of(objects)["spec"], only(objects, "StatefulSet")["spec"]
    claims = {claim["metadata"]["name"] for claim in stateful_set["volumeClaimTemplates"]}
    volumes = {volume["name"] for volume in spec["volumes"]} | claims
    for one in containers(objects):
        assert {mount["name"] for mount in one["volumeMounts"]} == volumes
    secrets = {one["metadata"]["name"] for one in of_kind(objects, "Secret")}
    named = {volume["secret"]["secretName"] for volume in spec["volumes"] if "secret" in volume}
    assert named == secrets
    assert config(objects).keys() == {"millrace.yaml", "model.py"}


def test_the_ports_and_folders_are_those_of_the_settings(base: tuple[Object, ...], settings: Settings) -> None:
    ports = {port["name"]: port["containerPort"] for port in container(base)["ports"]}
    mounts = {mount["name"]: mount["mountPath"] for mount in container(base)["volumeMounts"]}
    assert settings.api.listen == f"0.0.0.0:{ports['http']}"
    assert settings.api.probes == f"0.0.0.0:{ports['probes']}"
    assert settings.api.tokens_dir is None, "the Secret is empty, and an empty one is refused"
    assert mounts["tokens"] in config(base)["millrace.yaml"]
    assert str(settings.checkpoints.path) == mounts["checkpoints"]
    for one in containers(base):
        assert f"{mounts['config']}/millrace.yaml" in one["args"]


def test_the_probes_ask_what_the_service_answers(objects: tuple[Object, ...]) -> None:
    probes = container(objects)
    paths = {name: probes[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert paths == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}
    assert {probe["httpGet"]["port"] for probe in _probes(probes)} == {"probes"}


def test_a_model_that_cannot_go_on_is_refused_before_it_runs(objects: tuple[Object, ...]) -> None:
    validate, run = container(objects, "validate"), container(objects)
    assert validate["args"] == ["validate", *run["args"][1:], "--against-checkpoint", "latest"]
    assert validate["image"] == run["image"]


def test_the_model_of_the_base_is_the_examples() -> None:
    assert (K8S / "base" / "model.py").read_bytes() == (ROOT / "examples" / "clicks" / "model.py").read_bytes()


def test_the_image_bears_the_projects_version(objects: tuple[Object, ...]) -> None:
    version = re.search(r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    image = container(objects)["image"]
    wanted = f"millrace:{version[1]}"
    assert image in (wanted, f"{wanted}-gpu")


# Overlays.


def test_the_gpu_overlay_asks_for_a_gpu_and_the_image_that_knows_it() -> None:
    objects = rendered(FOLDERS["gpu"])
    for one in containers(objects):
        assert one["image"].endswith("-gpu")
        assert one["resources"]["limits"]["nvidia.com/gpu"] == 1


def test_the_monitor_finds_the_service_that_has_the_metrics_and_no_other() -> None:
    objects = rendered(FOLDERS["monitoring"])
    monitor = only(objects, "ServiceMonitor")["spec"]
    wanted = monitor["selector"]["matchLabels"].items()
    (service,) = [one for one in of_kind(objects, "Service") if wanted <= one["metadata"]["labels"].items()]
    assert monitor["endpoints"][0]["port"] in {port["name"] for port in service["spec"]["ports"]}


def test_the_board_is_handed_to_grafana_whole() -> None:
    board = only(rendered(FOLDERS["monitoring"]), "ConfigMap", "millrace-board")
    assert board["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert json.loads(board["data"]["board.json"])["panels"]


# One's own.


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """Write an overlay of a user's own, as docs/kubernetes.md describes it, and its secrets."""
    shutil.copytree(K8S, tmp_path / "k8s")
    folder = tmp_path / "own"
    (folder / "tokens").mkdir(parents=True)
    (folder / "tokens" / "ops").write_text(CANARY)
    (folder / "password").write_text(CANARY)
    (folder / "model.py").write_text("# mine\n")
    (folder / "millrace.yaml").write_text("name: mine\n")
    (folder / "ca.crt").write_text(CANARY)
    (folder / "kustomization.yaml").write_text(_overlay_of_the_docs())
    return folder


COMPONENTS = {"gpu": "../k8s/components/gpu", "monitoring": "../k8s/components/monitoring"}
CHOICES: tuple[tuple[str, ...], ...] = ((), ("gpu",), ("monitoring",), ("gpu", "monitoring"), ("monitoring", "gpu"))


def _overlay_of_the_docs(*components: str) -> str:
    """With those of the components that its comment names."""
    found = blocks("Deploy", "yaml")[0]
    (line,) = re.findall(r"^components: \[\] .*$", found, re.MULTILINE)
    assert [path in line for path in COMPONENTS.values()] == [True] * len(COMPONENTS)
    chosen = ", ".join(COMPONENTS[one] for one in components)
    return found.replace(line, f"components: [{chosen}]")


def test_a_login_by_token_has_its_file_and_its_way_out(own: Path) -> None:
    (patches,) = blocks("Logins by token", "yaml")
    with (own / "kustomization.yaml").open("a") as overlay:
        overlay.write(patches)
    objects = rendered(own)
    for one in containers(objects):
        assert {"name": "login", "mountPath": "/run/secrets/login", "readOnly": True} in one["volumeMounts"]
    volumes = pod_of(objects)["spec"]["volumes"]
    (login,) = [volume["projected"]["sources"] for volume in volumes if volume["name"] == "login"]
    assert login == [{"serviceAccountToken": {"path": "token", "audience": "kafka", "expirationSeconds": 3600}}]
    ports = [port["port"] for rule in only(objects, "NetworkPolicy")["spec"]["egress"] for port in rule["ports"]]
    assert {443, 9098} <= set(ports)
    for one in objects:
        kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)


def test_what_the_docs_keep_of_the_settings_is_what_the_base_has(settings: Settings) -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    (kept,) = re.findall(r"```yaml\n(checkpoints: .*?)```", page, re.DOTALL)
    said = YAML(typ="safe").load(kept)
    assert said["checkpoints"]["path"] == str(settings.checkpoints.path)
    assert (said["api"]["listen"], said["api"]["probes"]) == (settings.api.listen, settings.api.probes)
    assert f"api.tokens_dir: {said['api']['tokens_dir']}" in (K8S / "base" / "millrace.yaml").read_text()
    assert said["stop"]["grace"] == f"{settings.stop.grace:g}s"


def test_ones_own_model_image_namespace_and_secrets_take_the_place_of_ours(own: Path) -> None:
    objects = rendered(own)
    assert config(objects) == {"millrace.yaml": "name: mine\n", "model.py": "# mine\n"}
    assert {one["image"] for one in containers(objects)} == {"registry.example/millrace:0.1.0"}
    assert {one["metadata"].get("namespace", "fraud") for one in objects} == {"fraud"}
    assert only(objects, "Namespace")["metadata"]["name"] == "fraud"
    assert only(objects, "Secret", "millrace-tokens")["data"].keys() == {"ops"}


@pytest.mark.parametrize("components", CHOICES, ids=lambda chosen: "+".join(chosen) or "none")
def test_ones_own_takes_the_components_it_names_and_the_image_that_goes_with_them(
    own: Path, components: tuple[str, ...]
) -> None:
    (own / "kustomization.yaml").write_text(_overlay_of_the_docs(*components))
    objects = rendered(own)
    gpu = "gpu" in components
    tag = "0.1.0-gpu" if gpu else "0.1.0"
    assert {one["image"] for one in containers(objects)} == {f"registry.example/millrace:{tag}"}
    assert [one["resources"]["limits"].get("nvidia.com/gpu", 0) for one in containers(objects)] == [int(gpu)] * 2
    assert len(of_kind(objects, "ServiceMonitor")) == int("monitoring" in components)
    assert {one["metadata"].get("namespace", "fraud") for one in objects} == {"fraud"}
    assert config(objects)["model.py"] == "# mine\n"


def test_on_a_gpu_the_plain_image_never_takes_the_place_of_the_one_that_knows_it(own: Path) -> None:
    """Where somebody writes the registry into the base: what cannot be pulled is seen, a CPU that learns is not."""
    base = own.parent / "k8s" / "base" / "kustomization.yaml"
    renamed = base.read_text().replace("    newTag:", "    newName: registry.example/millrace\n    newTag:")
    assert renamed != base.read_text()
    base.write_text(renamed)
    for one in containers(rendered(own.parent / "k8s" / "overlays" / "gpu")):
        assert one["image"].endswith("-gpu")


def test_a_secret_is_in_its_secret_and_nowhere_else(own: Path) -> None:
    objects = rendered(own)
    assert len([one for one in of_kind(objects, "Secret") if one["data"]]) == 2
    assert CANARY not in json.dumps([one for one in objects if one["kind"] != "Secret"])


def test_another_model_or_password_starts_the_pod_anew_and_another_token_does_not(own: Path) -> None:
    before = pod_of(rendered(own))
    (own / "tokens" / "ops").write_text("another")
    rendered.cache_clear()
    assert pod_of(rendered(own)) == before
    for name in ("model.py", "millrace.yaml", "password"):
        (own / name).write_text("other: content\n")
        rendered.cache_clear()
        assert pod_of(rendered(own)) != before, name
        before = pod_of(rendered(own))


def test_no_manifest_of_ours_holds_a_secret(objects: tuple[Object, ...]) -> None:
    assert [one["data"] for one in of_kind(objects, "Secret")] == [{}, {}]
