"""`compose.yaml` says what its own parts and the settings say. No engine runs here; its form is the compose spec's."""

from collections.abc import Mapping
from typing import Any

import pytest
from ruamel.yaml import YAML

from app.settings import Settings, load
from app.settings.units import parse_duration
from tests import conftest
from tests.deploy.dockerfile import stages_of
from tests.deploy.manifests import K8S, ROOT, container, rendered

Service = Mapping[str, Any]
LASTING = ("kafka", "millrace")


@pytest.fixture(scope="module")
def compose() -> Mapping[str, Any]:
    found: Mapping[str, Any] = YAML(typ="safe").load((ROOT / "compose.yaml").read_text())
    return found


@pytest.fixture(scope="module")
def services(compose: Mapping[str, Any]) -> Mapping[str, Service]:
    found: Mapping[str, Service] = compose["services"]
    return found


@pytest.fixture(scope="module")
def settings(services: Mapping[str, Service]) -> Settings:
    """What the trainer reads in there, its file taken from where the mount does."""
    return load(ROOT / "examples" / "clicks" / "clicks.yaml", services["millrace"]["environment"]).settings


def _targets(service: Service) -> dict[str, str]:
    """Where its volumes are mounted, by what is mounted."""
    return dict(volume.split(":")[:2] for volume in service.get("volumes", ()))


def test_every_image_is_of_an_exact_version(services: Mapping[str, Service]) -> None:
    assert {name: one["image"] for name, one in services.items()} == {
        "kafka": conftest.KAFKA_IMAGE,
        "topic": conftest.KAFKA_IMAGE,
        "millrace": container(rendered(K8S / "base"))["image"],
    }


def test_nothing_is_reached_from_other_machines(services: Mapping[str, Service]) -> None:
    ports = [port for one in services.values() for port in one.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_lasts_is_watched_and_waited_for(services: Mapping[str, Service]) -> None:
    for name in LASTING:
        assert services[name]["healthcheck"]["test"][0] == "CMD", "in exec form"
    assert services["topic"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    assert services["millrace"]["depends_on"] == {"topic": {"condition": "service_completed_successfully"}}


def test_volumes_are_all_declared_and_folders_are_there(compose: Mapping[str, Any]) -> None:
    mounted = {source for one in compose["services"].values() for source in _targets(one)}
    folders = {source for source in mounted if source.startswith(".")}
    assert mounted - folders == compose["volumes"].keys()
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_trainer_is_confined_as_in_the_cluster(services: Mapping[str, Service]) -> None:
    trainer = services["millrace"]
    assert trainer["read_only"] is True
    assert trainer["cap_drop"] == ["ALL"]
    assert trainer["security_opt"] == ["no-new-privileges:true"]
    assert trainer["tmpfs"] == ["/tmp"]
    assert trainer["build"]["target"] in stages_of(ROOT / "Dockerfile")


def test_the_trainer_finds_its_config_its_kafka_and_its_folder(
    services: Mapping[str, Service], settings: Settings
) -> None:
    trainer, kafka = services["millrace"], services["kafka"]["environment"]
    folders = _targets(trainer)
    assert trainer["command"] == ["run", "--config", f"{folders['./examples/clicks']}/clicks.yaml"]
    assert str(settings.checkpoints.path) == folders["checkpoints"]
    advertised = dict(one.split("://") for one in kafka["KAFKA_ADVERTISED_LISTENERS"].split(","))
    assert settings.kafka.bootstrap_servers == (advertised["INSIDE"],)
    assert f"127.0.0.1:{advertised['OUTSIDE'].partition(':')[2]}:9092" in services["kafka"]["ports"]
    assert f"--topic={settings.kafka.topics[0]}" in services["topic"]["command"]


def test_its_health_is_asked_where_it_listens(services: Mapping[str, Service], settings: Settings) -> None:
    trainer = services["millrace"]
    code = trainer["healthcheck"]["test"][-1]
    compile(code, "healthcheck", "exec")
    assert f"http://127.0.0.1:{settings.api.port}/livez" in code
    assert [port.rpartition(":")[2] for port in trainer["ports"]] == [str(settings.api.port)]


def test_it_is_waited_for_longer_than_it_takes_itself(services: Mapping[str, Service], settings: Settings) -> None:
    assert parse_duration(services["millrace"]["stop_grace_period"]) >= settings.stop.grace + 5
