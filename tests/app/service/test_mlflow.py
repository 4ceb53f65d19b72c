"""An MLflow server that fails stops nothing; without one, MLflow is not loaded."""

import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from millrace.app.service.mlflow import mlflow
from millrace.app.service.mlflow.figures import MlflowFigures
from millrace.app.service.senders import senders_of
from millrace.app.service.service import RunOptions, Service
from millrace.app.settings import load
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.validate.settings_checks import sender_checks
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.exports.version_folder import ExportManifest, VersionFolder
from millrace.training.telemetry.meter import Meter
from millrace.training.trainer.board import Board
from tests.app.api_rig import CONFIG, Rig, serving
from tests.conftest import WaitFor
from tests.training.checkpoints.exports.test_version_folder import publish


def config(folder: Path, url: str) -> Path:
    path = folder / "clicks.yaml"
    path.write_text(CONFIG + f'mlflow: {{tracking_uri: "{url}", interval: 1s}}\n')
    return path


@contextmanager
def telling(folder: Path, url: str) -> Iterator[Rig]:
    """A service that learns nothing more, and its HTTP side."""
    rig = Rig(folder)
    try:
        rig.start()
        settings = load(config(folder, url), {}).settings
        rig.service.senders = senders_of(lambda: settings, rig.service.meter, rig.service.board)
        with serving(rig):
            yield rig
    finally:
        rig.close()


@contextmanager
def failing(*, hangs: bool, page: bytes = b"") -> Iterator[str]:
    """A server that answers each request with 500, with a page as a proxy's, or not at all; give its address."""
    ended = threading.Event()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline().strip():
                pass
            if hangs:
                ended.wait(60)
            status = b"403 Log In" if page else b"500 Broken"
            head = b"HTTP/1.1 %b\r\nContent-Length: %d\r\nConnection: close\r\n\r\n" % (status, len(page))
            self.wfile.write(head + page)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        ended.set()
        server.shutdown()


def figures(rig: Rig) -> MlflowFigures:
    found = rig.service.senders[0].figures()
    assert isinstance(found, MlflowFigures)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("how", ["away", "answers 500", "answers a page", "hangs"])
def test_a_server_that_fails_stops_nothing_and_is_counted(
    how: str, tmp_path: Path, wait_for: WaitFor, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    page = b"<html>\n" * 100_000 if how == "answers a page" else b""
    with failing(hangs=how == "hangs", page=page) as broken:
        url = "http://127.0.0.1:9" if how == "away" else broken
        with telling(tmp_path, url) as rig:
            wait_for(lambda: figures(rig).failed >= 2, timeout=60)
            assert (figures(rig).sent, figures(rig).versions) == (0, 0)
            assert 0 < len(figures(rig).error or "") < 500
            stopping = time.monotonic()
        assert time.monotonic() - stopping < 20
    lines = [one.getMessage() for one in caplog.records if one.name == mlflow.__name__]
    assert len(lines) == 1
    assert lines[0].startswith(f"mlflow.tracking_uri: {url} takes nothing, which stops nothing else: ")


class Refusing:
    """An experiment whose server refuses one version."""

    def __init__(self) -> None:
        self.taken: list[int] = []

    def begin(self) -> str:
        return "a run"

    def register(self, _folder: VersionFolder, manifest: ExportManifest) -> bool:
        if manifest.number == 3:
            raise ValueError("too large")
        self.taken.append(manifest.number)
        return True


def test_a_version_that_the_server_refuses_keeps_no_later_one_back(tmp_path: Path) -> None:
    path = config(tmp_path, "http://mlflow:5000")
    path.write_text(path.read_text() + "export: {path: ./exports}\n")
    settings = load(path, {}).settings
    folder = VersionFolder(tmp_path / "exports" / settings.name)
    with folder.writing():
        for number in (1, 3, 7):
            publish(folder, number)
    sender, experiment = mlflow.Mlflow(lambda: settings, Meter(time.monotonic), Board()), Refusing()
    with pytest.raises(ValueError, match="too large"):
        sender._tell(cast("Any", experiment))
    assert experiment.taken == [1, 7]
    assert sender.figures().versions == 2


def test_without_the_extra_the_start_and_validate_say_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load(config(tmp_path, "http://mlflow:5000"), {}).settings
    assert [(one.name, one.outcome) for one in sender_checks(settings)] == [("mlflow", "ok")]
    monkeypatch.setattr(mlflow, "find_spec", lambda _name: None)
    with pytest.raises(ConfigError, match=r'pip install "\$\(echo dist/\S+ -m\)\.whl\)\[mlflow\]"$'):
        senders_of(lambda: settings, Meter(time.monotonic), Board())
    assert [(one.name, one.outcome) for one in sender_checks(settings)] == [("mlflow", "fail")]


def test_a_trial_tells_nobody(tmp_path: Path) -> None:
    loaded = load(config(tmp_path, "http://mlflow:5000"), {})
    assert [sender.name for sender in Service(loaded, RunOptions()).senders] == ["mlflow"]
    assert Service(loaded, RunOptions(commits=False)).senders == ()


@pytest.mark.parametrize("url", ["http://user:hidden@mlflow:5000", "mlflow:5000", "sqlite:///mlflow.db"])
def test_what_is_no_address_of_a_server_is_refused_without_a_password(tmp_path: Path, url: str) -> None:
    with pytest.raises(SettingsError, match=r"mlflow.tracking_uri") as refused:
        load(config(tmp_path, url), {})
    assert "hidden" not in str(refused.value)
