"""The exports over HTTP: the list, a version as a tar, what the status and the metrics say of them."""

import asyncio
import io
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.app.service.figures import ExportFigures
from millrace.app.settings import load
from millrace.training.checkpoints.exports.version_folder import ExportManifest, VersionFolder
from tests.app.api_rig import CONFIG, Client, Rig, is_problem
from tests.app.metrics_text import Scrape
from tests.training.checkpoints.exports.test_version_folder import publish


@pytest.fixture
def versions(tmp_path: Path) -> VersionFolder:
    folder = VersionFolder(tmp_path / "exports" / "clicks")
    with folder.writing():
        publish(folder, 3)
        publish(folder, 7)
    return folder


@pytest.fixture
def serving(rig: Rig, tmp_path: Path, versions: VersionFolder) -> Iterator[Client]:
    """Serve a service that exports."""
    config = tmp_path / "exporting.yaml"
    config.write_text(CONFIG + "export: {path: ./exports}\n")
    rig.service.settings = load(config, {}).settings
    client = Client(rig)
    yield client
    client.close()


def test_the_versions_are_listed_newest_first(serving: Client, versions: VersionFolder) -> None:
    listed = serving.seen("/exports")["exports"]
    assert [one["number"] for one in listed] == [7, 3]
    assert (listed[0]["records"], listed[0]["proven_on"], listed[0]["bytes"]) == (70, 256, versions.manifest(7).size)


def test_a_version_is_a_tar_of_the_very_files(serving: Client, versions: VersionFolder, tmp_path: Path) -> None:
    answer = serving.get("/exports/7")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "application/x-tar")
    assert int(answer.headers["content-length"]) == len(answer.content)
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as tar:
        assert tar.getnames()[0] == "millrace.json"
        tar.extractall(tmp_path / "taken" / "7", filter="data")
    assert VersionFolder(tmp_path / "taken").problems(7) == []
    assert VersionFolder(tmp_path / "taken").manifest(7) == versions.manifest(7)


def test_a_version_that_is_not_there_is_a_404_with_those_that_are(serving: Client) -> None:
    answer = serving.get("/exports/4")
    assert is_problem(answer, 404)
    assert "there are: 3, 7" in answer.json()["detail"]


def test_a_damaged_version_hides_no_other(
    serving: Client, versions: VersionFolder, caplog: pytest.LogCaptureFixture
) -> None:
    manifest = versions.version(3) / "millrace.json"
    manifest.chmod(0o600)
    manifest.write_text(manifest.read_text()[:-20])
    for _ in range(2):
        assert [one["number"] for one in serving.seen("/exports")["exports"]] == [7]
    assert is_problem(serving.get("/exports/3"), 409)
    assert [one for one in caplog.messages if one.startswith("export 3 is not listed: ")] == caplog.messages


def test_of_requests_that_come_at_once_four_are_sent(
    serving: Client, versions: VersionFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    all_there, read = threading.Event(), VersionFolder.manifest

    def waiting(self: VersionFolder, number: int) -> ExportManifest:
        assert all_there.wait(20)
        return read(self, number)

    async def ask(times: int) -> list[int]:
        asked = [asyncio.create_task(serving._client.get("/exports/7")) for _ in range(times)]
        await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED, timeout=2)
        all_there.set()
        return [(await one).status_code for one in asked]

    monkeypatch.setattr(VersionFolder, "manifest", waiting)
    assert Counter(serving._runner.run(ask(10))) == {200: 4, 503: 6}
    assert is_problem(serving.get("/exports/9"), 404)
    assert serving._runner.run(ask(4)) == [200] * 4


def test_without_a_folder_there_are_no_exports(api: Client) -> None:
    assert api.seen("/exports")["exports"] == []
    assert is_problem(api.get("/exports/1"), 404)


def test_status_and_metrics_say_what_is_missing_and_since_when(serving: Client, rig: Rig) -> None:
    since = time.time() - 100.0
    figures = ExportFigures(made=2, refused=1, newest=7, newest_at=since, missing=("auc is 0.2",), missing_since=since)
    rig.service.exporting.figures = lambda: figures  # type: ignore[method-assign]  # none are made beside this trainer
    shown = serving.seen("/status")["exports"]
    assert (shown["made"], shown["refused"], shown["newest"], shown["missing"]) == (2, 1, 7, ["auc is 0.2"])
    assert shown["missing_since"].endswith("Z")
    scrape = Scrape(serving.get("/metrics").text)
    assert [scrape.value(f"export{name}") for name in ("s_total", "s_refused_total", "_number")] == [2, 1, 7]
    assert 100 <= scrape.value("export_held_back_seconds") < 160
    assert 100 <= scrape.value("export_age_seconds") < 160


def test_a_service_that_exports_nothing_says_nothing_of_it(api: Client) -> None:
    assert "exports" not in api.seen("/status")
    assert "millrace_export" not in api.get("/metrics").text
