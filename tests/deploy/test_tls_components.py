"""The components for TLS, for an Ingress and for tokens of readers, with what the docs say to write beside them."""

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
from ruamel.yaml import YAML

from millrace.app.settings import Settings, load
from millrace.app.settings.sections.registry import RegistrySettings
from tests.deploy import manifests
from tests.deploy.manifests import K8S, Object, config, container, containers, of_kind, only, pod_of, selects
from tests.deploy.pages import PAGE, blocks

IN_THE_POD, FOR_PROMETHEUS, HOST, FOR_PROMETHEUS_TOO = blocks("TLS", "yaml")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    shutil.copytree(K8S, tmp_path / "k8s")
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def with_components(own: Path, *components: str, more: str = "") -> tuple[Object, ...]:
    objects = manifests.with_components(own, *components, more=more)
    for one in objects:
        if one["kind"] not in ("ServiceMonitor", "PrometheusRule"):
            kubernetes_validate.validate(dict(one), kubernetes_validate.latest_version(), strict=True)
    return objects


def mounted(objects: tuple[Object, ...], path: str) -> str:
    """Return the Secret that both containers mount at a path, for reading."""
    (name,) = {
        mount["name"]
        for one in containers(objects)
        for mount in one["volumeMounts"]
        if mount["mountPath"] == path and mount["readOnly"]
    }
    assert all(path in [mount["mountPath"] for mount in one["volumeMounts"]] for one in containers(objects))
    (volume,) = [one for one in pod_of(objects)["spec"]["volumes"] if one["name"] == name]
    return str(volume["secret"]["secretName"])


def settings_with(own: Path, objects: tuple[Object, ...], api: dict[str, Any]) -> Settings:
    """Return the settings of the base with another section `api`."""
    yaml = YAML(typ="safe")
    settings = {**yaml.load(config(objects)["millrace.yaml"]), "api": api}
    with (own / "millrace.yaml").open("w") as file:
        yaml.dump(settings, file)
    return load(own / "millrace.yaml", {}).settings


def test_with_tls_the_pod_has_the_certificate_that_the_docs_settings_name(own: Path) -> None:
    objects = with_components(own, "tls")
    api = settings_with(own, objects, YAML(typ="safe").load(IN_THE_POD)["api"]).api
    assert mounted(objects, "/run/secrets/tls") == "millrace-tls"
    assert api.tls is not None
    assert {api.tls.certificate.parent, api.tls.key.parent} == {Path("/run/secrets/tls")}
    ports = {port["name"]: port["containerPort"] for port in container(objects)["ports"]}
    assert (api.listen, api.probes) == (f"0.0.0.0:{ports['http']}", f"0.0.0.0:{ports['probes']}")
    assert only(objects, "Service", "millrace")["spec"]["ports"] == [
        {"name": "http", "port": 443, "targetPort": "http"}
    ]
    assert only(objects, "Service", "millrace-headless")["spec"]["ports"][0]["port"] == 8080


def test_with_tls_prometheus_asks_by_https_and_knows_whom(own: Path) -> None:
    objects = with_components(own, "tls", "monitoring", more=FOR_PROMETHEUS)
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert (endpoint["scheme"], endpoint["port"]) == ("https", "http")
    service = only(objects, "Service", "millrace")["metadata"]
    assert endpoint["tlsConfig"]["serverName"] == f"{service['name']}.{service['namespace']}.svc"
    assert endpoint["tlsConfig"]["ca"]["secret"]["name"] == mounted(objects, "/run/secrets/tls")


def test_an_ingress_ends_tls_for_the_host_that_it_is_given(own: Path) -> None:
    objects = with_components(own, "ingress", more=HOST)
    ingress = only(objects, "Ingress")
    (rule,), (tls,) = ingress["spec"]["rules"], ingress["spec"]["tls"]
    assert [rule["host"]] == tls["hosts"] == ["fraud.example"]
    assert tls["secretName"] in PAGE
    backend = rule["http"]["paths"][0]["backend"]["service"]
    ports = {port["name"] for port in only(objects, "Service", backend["name"])["spec"]["ports"]}
    assert backend["port"]["name"] in ports
    policy = only(objects, "NetworkPolicy", "millrace-ingress")["spec"]
    assert selects(policy["podSelector"], pod_of(objects)["metadata"]["labels"])
    (allowed,) = policy["ingress"]
    assert (allowed["ports"], len(allowed["from"])) == ([{"port": "http"}], 1)
    (namespace,) = re.findall(r"lets the namespace `(\w+)`\s+reach the pod", PAGE)
    assert allowed["from"][0]["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": namespace}


def test_tokens_of_readers_are_mounted_where_the_docs_settings_look(own: Path) -> None:
    (own / "readers").mkdir()
    (own / "readers" / "prometheus").write_text("a-token-of-prometheus")
    objects = with_components(own, "read-tokens", "monitoring", more=FOR_PROMETHEUS_TOO)
    (folder,) = re.findall(r"`api\.read_tokens_dir: (\S+)`", PAGE)
    secret = mounted(objects, folder)
    assert secret == "millrace-readers"
    assert only(objects, "Secret", secret)["data"].keys() == {"prometheus"}
    (endpoint,) = only(objects, "ServiceMonitor")["spec"]["endpoints"]
    assert endpoint["authorization"]["credentials"] == {"name": secret, "key": "prometheus"}
    settings = settings_with(own, objects, {"listen": "0.0.0.0:8080", "read_tokens_dir": folder})
    assert settings.api.read_tokens_dir == Path(folder)


def test_a_schema_registry_is_reached_and_its_login_is_where_the_docs_look(own: Path) -> None:
    in_the_config, in_the_overlay = blocks("Schema registry", "yaml")
    (own / "registry").mkdir()
    for name in ("password", "ca.crt"):
        (own / "registry" / name).write_text("a-secret")
    objects = with_components(own, "schema-registry", more=in_the_overlay)
    registry = YAML(typ="safe").load(in_the_config)["records"]["registry"]
    settings = RegistrySettings.model_validate(registry)
    files = {settings.password_file, settings.ca_file}
    secret = only(objects, "Secret", mounted(objects, "/run/secrets/registry"))
    assert secret["metadata"]["name"].startswith("millrace-registry-"), "another password is a rollout"
    assert files == {Path("/run/secrets/registry") / name for name in secret["data"]}
    policy = only(objects, "NetworkPolicy", "millrace-schema-registry")["spec"]
    assert selects(policy["podSelector"], pod_of(objects)["metadata"]["labels"])
    assert policy["policyTypes"] == ["Egress"]
    (rule,) = policy["egress"]
    ((namespace,), (port,)) = rule["to"], rule["ports"]
    assert port == {"port": urlsplit(registry["url"]).port}
    assert namespace["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "schema-registry"}


def test_a_schema_registry_without_a_login_needs_no_secret_and_is_reached(own: Path) -> None:
    objects = with_components(own, "schema-registry")
    policy = only(objects, "NetworkPolicy", "millrace-schema-registry")["spec"]
    assert [port["port"] for rule in policy["egress"] for port in rule["ports"]] == [8081, 443]
    (volume,) = [one for one in pod_of(objects)["spec"]["volumes"] if one["name"] == "registry"]
    assert volume["secret"]["optional"] is True


def test_all_components_go_together(own: Path) -> None:
    objects = with_components(own, "tls", "read-tokens", "ingress", "gpu", "monitoring", "schema-registry")
    mounts = [{mount["mountPath"] for mount in one["volumeMounts"]} for one in containers(objects)]
    assert mounts[0] == mounts[1] >= {"/run/secrets/tls", "/run/secrets/millrace-readers", "/run/secrets/kafka"}
    assert len(of_kind(objects, "NetworkPolicy")) == 4
