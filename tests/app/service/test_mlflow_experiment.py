"""A run and its versions in MLflow's own store in a folder, whichever call fails once."""

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from millrace.app.service.mlflow.experiment import Experiment
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from tests.training.checkpoints.exports.test_version_folder import published

SETTINGS = {"name": "clicks", "records.features.'prix €'.dtype": "float32", "model.params": "x" * 9000, "a" * 300: "1"}


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    return f"file://{tmp_path / 'mlflow'}"


@pytest.fixture
def client(uri: str) -> MlflowClient:
    return MlflowClient(tracking_uri=uri, registry_uri=uri)


@pytest.fixture
def folder(tmp_path: Path) -> VersionFolder:
    folder = VersionFolder(tmp_path / "exports" / "clicks")
    published(folder, 1)
    return folder


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """Have one call fail, before it has done its work, or after it, as when the answer is lost."""
    real, failed = getattr(MlflowClient, name), list[bool]()

    def failing(*given: Any, **named: Any) -> Any:
        if failed:
            return real(*given, **named)
        failed.append(True)
        if after:
            real(*given, **named)
        raise ConnectionError("reset by peer")

    monkeypatch.setattr(MlflowClient, name, failing)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["create_experiment", "create_run", "log_batch"])
def test_a_run_has_its_parameters_whichever_call_failed_once(
    uri: str, client: MlflowClient, monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool
) -> None:
    fail_once(monkeypatch, name, after=after)
    experiment = Experiment(uri, "ads", "clicks", SETTINGS)
    with pytest.raises(ConnectionError):
        experiment.begin()
    run = client.get_run(experiment.begin())
    assert run.data.params["name"] == "clicks"
    assert run.data.params["records.features._prix __.dtype"] == "float32"
    assert len(run.data.params) == len(SETTINGS)
    found = client.search_runs([run.info.experiment_id])
    assert [one.info.run_id for one in found] == [run.info.run_id]
    assert Experiment(uri, "ads", "clicks", SETTINGS).begin() == run.info.run_id
    assert Experiment(uri, "ads", "clicks", {**SETTINGS, "seed": "8"}).begin() != run.info.run_id


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["create_registered_model", "log_artifacts", "create_model_version"])
def test_a_version_is_registered_once_whichever_call_failed_once(
    uri: str, client: MlflowClient, folder: VersionFolder, monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool
) -> None:
    fail_once(monkeypatch, name, after=after)
    experiment = Experiment(uri, "ads", "clicks", SETTINGS)
    manifest = folder.manifest(1)
    with pytest.raises(ConnectionError):
        experiment.register(folder, manifest)
    experiment.register(folder, manifest)
    assert not experiment.register(folder, manifest)
    assert not Experiment(uri, "ads", "clicks", SETTINGS).register(folder, manifest)
    (version,) = client.search_model_versions("name = 'clicks'")
    assert version.run_id is not None
    assert version.tags["millrace.version"].startswith("1:")
    files = {file.path.split("/")[-1] for file in client.list_artifacts(version.run_id, "exports/1")}
    assert "millrace.json" in files


def test_who_removes_a_run_gets_a_new_one(uri: str, client: MlflowClient) -> None:
    first = Experiment(uri, "ads", "clicks", SETTINGS).begin()
    client.delete_run(first)
    assert Experiment(uri, "ads", "clicks", SETTINGS).begin() != first
