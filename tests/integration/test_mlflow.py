"""A real service tells a real MLflow server how it learns; one that is away stops nothing."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

import httpx
import pytest
from mlflow.tracking import MlflowClient

from millrace.app.tools.local_broker.broker import free_port
from tests.conftest import WaitFor
from tests.faults.harness.process import Run
from tests.faults.harness.project import Project
from tests.faults.harness.records import Mixture
from tests.faults.harness.topics import Topic

pytestmark = [pytest.mark.broker, pytest.mark.nightly, pytest.mark.timeout(600)]


@contextmanager
def mlflow_server(folder: Path, port: int, wait_for: WaitFor) -> Iterator[str]:
    """MLflow's own server, in an environment of its own, with its data in a folder."""
    url = f"http://127.0.0.1:{port}"
    folder.mkdir(exist_ok=True)
    typed = [str(Path(sys.executable).with_name("uv")), "tool", "run", "--quiet", "--python", sys.executable]
    typed += ["--from", f"mlflow=={version('mlflow-skinny')}", "mlflow", "server", "--host", "127.0.0.1"]
    typed += ["--port", str(port), "--workers", "1", "--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"]
    typed += ["--serve-artifacts", "--artifacts-destination", str(folder / "artifacts")]
    settings = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true"}
    with (folder / "server.log").open("ab") as said:
        server = subprocess.Popen(typed, env=settings, stdout=said, stderr=said, start_new_session=True)
    try:
        wait_for(lambda: answers(url), timeout=300)
        yield url
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait(60)


def answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=2).status_code == 200
    except httpx.HTTPError:
        return False


def test_a_service_tells_its_scores_and_versions_once_over_a_restart_and_an_outage(
    broker: str, tmp_path: Path, wait_for: WaitFor
) -> None:
    port, name = free_port(), f"mlflow-{uuid.uuid4().hex[:10]}"
    section = {"tracking_uri": f"http://127.0.0.1:{port}", "interval": "1s", "experiment": "ads"}
    with Topic(broker, name, 2, Mixture(share=0.0), seed=5) as topic:
        project = Project(tmp_path / "project", topic, mlflow=section, export={"path": "./exports", "every": "1s"})
        topic.write(2000)
        with Run(project) as run:
            # While the server is away it learns and exports.
            run.wait_for_first_call()
            wait_for(lambda: run.settled() == sum(map(len, topic.verdicts)), timeout=60)
            wait_for(lambda: run.status()["mlflow"]["failed"] > 0, timeout=60)
            assert run.status()["mlflow"]["error"]
            wait_for(lambda: run.status()["exports"]["made"] > 0, timeout=60)
            with mlflow_server(tmp_path / "mlflow", port, wait_for) as url:
                wait_for(lambda: run.status()["mlflow"].get("versions", 0) > 0, timeout=60)
                first = run.status()["mlflow"]["run"]
                run.terminate()
                run.finish()
                topic.write(500)
                with Run(project) as again:
                    wait_for(lambda: again.settled() == sum(map(len, topic.verdicts)), timeout=60)
                    wait_for(lambda: again.status().get("mlflow", {}).get("sent", 0) > 1, timeout=60)
                    assert again.status()["mlflow"]["run"] == first
                    again.terminate()
                    again.finish()
                check_told(url, project, first, sum(map(len, topic.verdicts)))
                MlflowClient(tracking_uri=url).delete_run(first)
                with Run(project) as third:
                    wait_for(lambda: third.status().get("mlflow", {}).get("run") is not None, timeout=60)
                    second = third.status()["mlflow"]["run"]
                    MlflowClient(tracking_uri=url).delete_run(second)
                    topic.write(500)
                    wait_for(lambda: third.status()["mlflow"]["run"] not in (first, second), timeout=60)


def check_told(url: str, project: Project, run_id: str, records: int) -> None:
    client = MlflowClient(tracking_uri=url, registry_uri=url)
    found = client.get_run(run_id)
    assert found.info.status == "FINISHED"
    assert client.get_experiment(found.info.experiment_id).name == "ads"
    assert (found.data.params["training.batch_size"], found.data.params["name"]) == ("64", project.name)
    history = client.get_metric_history(run_id, "loss")
    assert history[-1].step == records
    assert [one.step for one in history] == sorted(one.step for one in history)
    assert "baseline/loss" in found.data.metrics
    # Each version of the folder once, with its files.
    versions = client.search_model_versions(f"name = '{project.name}'")
    numbers = [int(version.tags["millrace.version"].split(":")[0]) for version in versions]
    assert len(set(numbers)) == len(numbers) > 0
    kept = {int(folder.name) for folder in (project.path / "exports" / project.name).iterdir() if folder.name.isdigit()}
    assert kept & set(numbers)
    number = max(kept & set(numbers))
    (version,) = [one for one in versions if one.tags["millrace.version"].startswith(f"{number}:")]
    assert version.run_id == run_id
    names = {file.path.split("/")[-1] for file in client.list_artifacts(run_id, f"exports/{number}")}
    assert {"millrace.json", "saved_model.pb"} <= names
