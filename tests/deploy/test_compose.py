"""`compose.yaml` says what its own parts and the settings say, alone and with one of the files that go over it.

No engine runs here; the form is the compose spec's.
"""

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from millrace.app.api.tokens import Tokens
from millrace.app.settings import Settings, load
from millrace.consumers.units import parse_duration
from tests import conftest
from tests.deploy.dockerfile import stages_of
from tests.deploy.manifests import K8S, ROOT, container, rendered
from tests.deploy.pages import commands

Service = Mapping[str, Any]
ALONE, OVER, ARCHIVE = "compose.yaml", "compose.group.yaml", "compose.archive.yaml"
LASTING = {"kafka", "millrace", "worker"}
"""What answers those who ask whether it is well. The archiver listens on nothing."""


def parsed(name: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe").load((ROOT / name).read_text())
    return found


@pytest.fixture(
    params=[(ALONE,), (ALONE, OVER), (ALONE, ARCHIVE)], ids=["alone", "a group", "an archive"], scope="module"
)
def compose(request: pytest.FixtureRequest) -> Mapping[str, Any]:
    """Return the whole that the files come to, as the engine merges them."""
    whole = parsed(ALONE)
    for name in request.param[1:]:
        over = parsed(name)
        assert over.keys() == {"services"}
        for service, one in over["services"].items():
            under = whole["services"].get(service, {})
            assert not under or one.keys() == {"environment"}, "a mapping, which is merged by name"
            environment = {**under.get("environment", {}), **one["environment"]}
            whole["services"][service] = {**under, **one, "environment": environment}
    return whole


@pytest.fixture(scope="module")
def services(compose: Mapping[str, Any]) -> Mapping[str, Service]:
    found: Mapping[str, Service] = compose["services"]
    return found


@pytest.fixture(scope="module")
def settings(services: Mapping[str, Service]) -> Settings:
    """Return the settings that the trainer reads in the container, its file taken from where the mount takes it."""
    return load(ROOT / "examples" / "clicks" / "clicks.yaml", services["millrace"]["environment"]).settings


def _targets(service: Service) -> dict[str, str]:
    """Return where its volumes are mounted, by what is mounted."""
    return dict(volume.split(":")[:2] for volume in service.get("volumes", ()))


def test_every_image_is_of_an_exact_version(services: Mapping[str, Service]) -> None:
    ours = container(rendered(K8S / "base"))["image"]
    expected = {"kafka": conftest.KAFKA_IMAGE, "topic": conftest.KAFKA_IMAGE}
    assert {name: one["image"] for name, one in services.items()} == {
        name: expected.get(name, ours) for name in services
    }


def test_the_image_is_built_once_and_never_looked_for_in_a_registry(services: Mapping[str, Service]) -> None:
    assert "build" in services["millrace"]
    for name in {"token", "worker", "archive"} & services.keys():
        assert "build" not in services[name]
        assert services[name]["pull_policy"] == "never"


def test_nothing_is_reached_from_other_machines(services: Mapping[str, Service]) -> None:
    ports = [port for one in services.values() for port in one.get("ports", ())]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_what_lasts_is_watched_and_waited_for(services: Mapping[str, Service]) -> None:
    assert services.keys() - {"topic", "token", "archive"} <= LASTING
    for name in services.keys() & LASTING:
        assert services[name]["healthcheck"]["test"][0] == "CMD", "in exec form"
    assert services["topic"]["depends_on"] == {"kafka": {"condition": "service_healthy"}}
    for name in services.keys() & {"millrace", "worker", "archive"}:
        assert services[name]["depends_on"] == {
            name: {"condition": "service_completed_successfully"} for name in ("topic", "token")
        }


def test_volumes_are_all_declared_and_folders_are_there(compose: Mapping[str, Any]) -> None:
    mounted = {source for one in compose["services"].values() for source in _targets(one)}
    folders = {source for source in mounted if source.startswith(".")}
    assert mounted - folders == compose["volumes"].keys()
    assert all((ROOT / folder).is_dir() for folder in folders)


def test_the_trainer_is_confined_as_in_the_cluster(services: Mapping[str, Service]) -> None:
    trainer = services["millrace"]
    for one in (trainer, services["token"], services.get("worker", trainer), services.get("archive", trainer)):
        assert one["read_only"] is True
        assert one["cap_drop"] == ["ALL"]
        assert one["security_opt"] == ["no-new-privileges:true"]
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


def test_the_first_start_makes_a_token_and_the_next_one_keeps_it(
    services: Mapping[str, Service], tmp_path: Path
) -> None:
    _make_token(services["token"], tmp_path)
    (made,) = tmp_path.iterdir()
    token = made.read_text()
    assert made.name == "ops"
    assert made.stat().st_mode & 0o077 == 0
    assert Tokens.open(tmp_path).owner(token) == made.name
    _make_token(services["token"], tmp_path)
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {made.name: token}


def _make_token(service: Service, folder: Path) -> None:
    assert service["entrypoint"] == ["python", "-c"]
    (code,) = service["command"]
    subprocess.run([sys.executable, "-c", str(code)], cwd=folder, check=True, timeout=60)


def test_the_trainer_reads_the_token_that_is_made_and_cannot_change_it(
    services: Mapping[str, Service], settings: Settings
) -> None:
    token, trainer = services["token"], services["millrace"]
    assert f"tokens:{settings.api.tokens_dir}:ro" in trainer["volumes"]
    assert _targets(token) == {"tokens": token["working_dir"]}
    # A volume gets its owner from a folder that the image's user owns, and there is one.
    assert token["working_dir"] == str(settings.checkpoints.path)


def _at_its_top() -> list[str]:
    lines = (ROOT / "compose.yaml").read_text().partition("\nname:")[0].splitlines()
    return [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]


def test_the_commands_at_its_top_name_what_is_there(services: Mapping[str, Service], settings: Settings) -> None:
    above = _at_its_top()
    assert "docker compose up --build" in above
    assert f"curl http://localhost:{settings.api.port}/status" in above
    assert f"docker compose exec millrace cat {settings.api.tokens_dir}/ops" in above
    (fill,) = [command for command in above if "produce.py" in command]
    told = re.fullmatch(r"docker compose exec millrace python (\S+) --bootstrap (\S+) --count \d+", fill)
    assert told is not None
    # The image's working directory is where the example is mounted.
    workdir = stages_of(ROOT / "Dockerfile")["cpu"].texts("WORKDIR")[-1]
    (folder,) = [source for source, target in _targets(services["millrace"]).items() if target == workdir]
    assert (ROOT / folder / told[1]).is_file()
    assert (told[2],) == settings.kafka.bootstrap_servers


def test_the_docs_say_the_same_commands_and_an_order(settings: Settings) -> None:
    *told, order = [
        re.sub(r"--count \d+", "", one) for one in commands("On one machine") if not {OVER, ARCHIVE} & {*one.split()}
    ]
    assert set(told) <= {re.sub(r"--count \d+", "", command) for command in _at_its_top()}
    assert len(told) == 3
    config = "clicks.yaml"
    assert (
        order == f"docker compose exec millrace millrace pause -c {config} --token-file {settings.api.tokens_dir}/ops"
    )
    assert (ROOT / "examples" / "clicks" / config).is_file()


@pytest.fixture(scope="module")
def group() -> list[Service]:
    """Return the services of the workers, the chief first."""
    over, trainer = parsed(OVER)["services"], parsed(ALONE)["services"]["millrace"]
    chief = {**trainer, "environment": {**trainer["environment"], **over["millrace"]["environment"]}}
    return [chief, over["worker"]]


def test_the_two_workers_are_one_group_and_find_each_other_by_the_names_of_services(group: list[Service]) -> None:
    found = [load(ROOT / "examples" / "clicks" / "clicks.yaml", one["environment"]).settings for one in group]
    assert [one.scale.own_index("any") for one in found] == [0, 1]
    assert {one.scale.workers for one in found} == {2}
    (addresses,) = {one.scale.everyone for one in found}
    assert [address.partition(":")[0] for address in addresses] == ["millrace", "worker"]
    assert len({one.model_dump_json(exclude={"scale": {"index"}, "api": True}) for one in found}) == 1


def test_the_worker_is_the_trainer_without_ports_a_page_and_a_volume_that_lasts(group: list[Service]) -> None:
    chief, worker = group
    same = chief.keys() - {"build", "ports", "environment", "volumes", "tmpfs"}
    assert {name: worker[name] for name in same} == {name: chief[name] for name in same}
    assert worker.keys() - same == {"environment", "volumes", "tmpfs", "pull_policy"}
    assert worker["volumes"] == [volume for volume in chief["volumes"] if volume.startswith("./")]
    assert worker["tmpfs"] == [*chief["tmpfs"], _targets(chief)["checkpoints"]]


def test_the_port_on_which_the_workers_meet_is_opened_nowhere(group: list[Service]) -> None:
    ports = {address.rpartition(":")[2] for address in group[0]["environment"]["MILLRACE_SCALE__ADDRESSES"].split(",")}
    assert "ports" not in group[1]
    assert not [port for port in group[0]["ports"] if port.rpartition(":")[2] in ports]


def test_the_commands_at_the_top_of_the_groups_file_are_those_of_the_docs() -> None:
    above = [line[4:] for line in (ROOT / OVER).read_text().splitlines() if line.startswith("#   ")]
    both = f"docker compose -f {ALONE} -f {OVER} "
    assert [line.removeprefix(both) for line in above] == ["up --build", "kill worker", "start worker"]
    assert f"{both}up --build" in commands("On one machine")


def test_the_archiver_writes_where_the_trainer_reads_and_both_have_one_config() -> None:
    over, trainer = parsed(ARCHIVE)["services"], parsed(ALONE)["services"]["millrace"]
    archiver, reader = over["archive"], {**trainer["environment"], **over["millrace"]["environment"]}
    path = ROOT / "examples" / "clicks" / "clicks.yaml"
    found = [load(path, environment).settings for environment in (archiver["environment"], reader)]
    assert len({(str(one.archive.path), one.kafka.model_dump_json()) for one in found}) == 1
    assert found[0].archive.path is not None
    # The volume that both have, of which the image's user owns the root.
    assert (
        str(Path(found[0].archive.path).parent) == _targets(archiver)["checkpoints"] == _targets(trainer)["checkpoints"]
    )
    folders = _targets(archiver)
    assert archiver["command"] == ["archive", "--config", f"{folders['./examples/clicks']}/clicks.yaml"]
    assert "ports" not in archiver


def test_the_commands_at_the_top_of_the_archives_file_are_those_of_the_docs() -> None:
    above = [line[4:] for line in (ROOT / ARCHIVE).read_text().splitlines() if line.startswith("#   ")]
    both = f"docker compose -f {ALONE} -f {ARCHIVE} "
    assert [line.removeprefix(both) for line in above] == [
        "up --build",
        "exec archive millrace archive list -c clicks.yaml",
    ]
    assert set(above) <= set(commands("On one machine"))
