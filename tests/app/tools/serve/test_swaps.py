"""Which version answers: the newest that is whole, or the one that is set; and no request notices a swap."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import httpx
import numpy as np
import pytest

from millrace.app.settings import load
from millrace.app.settings.sections.api import ApiSettings
from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.exports.served_markers import served_versions
from tests.app.api_rig import CONFIG as TRAINERS
from tests.app.api_rig import Rig, running
from tests.app.api_rig import serving as answering
from tests.app.tools.serve.exports_rig import CLICKS, CONFIG, Clicks, HalfPlus, publish
from tests.app.tools.serve.server_rig import Server, serving
from tests.faults.harness.process import ROOT

pytestmark = pytest.mark.tensorflow
NAME = "half"
START_S = 120.0


def exported(root: Path, *numbers: int) -> Path:
    """Publish versions that add their number to half of x."""
    for number in numbers:
        publish(root, number, HalfPlus(float(number)))
    return root


def answer(server: Server) -> tuple[float, int]:
    """Ask for half of 0 plus the version's number; return what it says and which version says it."""
    found = server.predict({"instances": [0.0]})
    assert found.status_code == 200, found.text
    return found.json()["predictions"][0], int(found.headers["millrace-version"])


def test_requests_under_load_are_all_answered_by_the_version_that_they_name(tmp_path: Path) -> None:
    root, ended = exported(tmp_path / "exports" / NAME, 1), threading.Event()
    answered = set[int]()
    with serving(tmp_path, NAME) as server:
        server.answers_with(1)

        def ask() -> None:
            while not ended.is_set():
                said, version = answer(server)
                assert said == version
                answered.add(version)

        def has_answered(number: int) -> bool:
            for each in asking:
                if each.done():
                    each.result()  # raises what was wrong with an answer
            return number in answered

        with ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            try:
                server.wait_for(partial(has_answered, 1))
                for number in range(2, 7):
                    exported(root, number)
                    server.wait_for(partial(has_answered, number))
            finally:
                ended.set()
            for each in asking:
                each.result()
        server.wait_for(lambda: server.get("/versions/5")["model_version_status"][0]["state"] == "END")


def test_a_version_is_closed_after_its_last_request_and_not_before(tmp_path: Path) -> None:
    from millrace.app.tools.serve.loaded_version import load_version
    from millrace.app.tools.serve.record_inputs import RecordReaders

    root = exported(tmp_path / NAME, 1)
    version = load_version(1, root / "1", {}, RecordReaders(None))
    assert version.enter()
    assert not version.close()
    found = version.call(version.signatures["serving_default"], {"x": np.zeros(1, np.float32)})
    assert found["y"].tolist() == [1.0]
    version.leave()
    assert version.close()
    assert not version.enter()


def test_a_damaged_version_never_answers_and_the_one_before_goes_on(tmp_path: Path) -> None:
    root = exported(tmp_path / "exports" / NAME, 1, 2)
    variables = root / "2" / "variables" / "variables.data-00000-of-00001"
    variables.write_bytes(bytes(len(variables.read_bytes())))
    with serving(tmp_path, NAME) as server:
        server.answers_with(1)
        (state,) = server.get("/versions/2")["model_version_status"]
        assert (state["state"], state["status"]["error_code"]) == ("END", "DATA_LOSS")
        assert "its SHA-256 differs" in state["status"]["error_message"]
        assert "export 2 is damaged" in server.get("/served")["problem"]
        exported(root, 3)
        server.answers_with(3)
        assert server.get("/served")["problem"] is None


def test_a_version_beside_the_one_that_answers_can_be_asked_by_number(tmp_path: Path) -> None:
    exported(tmp_path / "exports" / NAME, 1, 2, 3)
    with serving(tmp_path, NAME, serve__loaded="2", serve__version="1") as server:
        server.answers_with(1)
        server.wait_for(lambda: server.get("/served")["loaded"] == [1, 3])
        asked = {at: server.predict({"instances": [0.0]}, at) for at in ("", "/versions/3")}
        assert [one.json()["predictions"] for one in asked.values()] == [[1.0], [3.0]]
        assert server.predict({"instances": [0.0]}, "/versions/2").status_code == 404


def test_what_is_served_is_marked_so_that_it_is_not_pruned(tmp_path: Path) -> None:
    root = exported(tmp_path / "exports" / NAME, 1, 2)
    with serving(tmp_path, NAME, serve__version="1") as server:
        server.answers_with(1)
        server.wait_for(lambda: served_versions(root) == {1})
    assert served_versions(root) == {1}


def test_a_version_that_is_set_is_held_while_newer_ones_come(tmp_path: Path) -> None:
    root = exported(tmp_path / "exports" / NAME, 1, 2)
    with serving(tmp_path, NAME, serve__version="1") as server:
        server.answers_with(1)
        exported(root, 3)
        server.wait_for(lambda: server.get("/served")["newest"] == 3)
        assert answer(server) == (1.0, 1)
        assert 'serve_pinned{model="half"} 1.0' in server.http.get("/metrics").text


def test_a_pin_that_was_ordered_over_http_is_refused_until_the_setting_says_it(tmp_path: Path) -> None:
    exported(tmp_path / "exports" / NAME, 1, 2)
    order = tmp_path / "serve" / NAME / "order.json"
    order.parent.mkdir(parents=True)
    order.write_text('{"format": 1, "version": 1, "by": "ops", "at": "2026-11-24T10:00:00Z", "setting": "latest"}')
    with pytest.raises(ConfigError, match=r"order\.json pins version 1.*serve\.version"):
        Server(tmp_path, NAME)
    with serving(tmp_path, NAME, serve__version="1") as server:
        server.answers_with(1)


def test_without_a_version_it_is_alive_and_not_ready_and_says_why(tmp_path: Path) -> None:
    with serving(tmp_path, NAME) as server:
        server.wait_for(lambda: "no export yet" in server.http.get("/readyz").text)
        assert (server.http.get("/readyz").status_code, server.http.get("/livez").status_code) == (503, 200)
        assert "there is no export yet" in server.refused({"instances": [0.0]}, status=503)
        exported(tmp_path / "exports" / NAME, 4)
        server.answers_with(4)
        assert server.http.get("/readyz").status_code == 200


def test_requests_beyond_the_queue_are_told_to_come_again(tmp_path: Path) -> None:
    exported(tmp_path / "exports" / NAME, 1)
    with serving(tmp_path, NAME, serve__batch__queue="2", serve__batch__wait="500ms") as server:
        server.answers_with(1)
        with ThreadPoolExecutor(4) as pool:
            found = [*pool.map(lambda _: server.predict({"instances": [0.0]}), range(4))]
        busy = [one for one in found if one.status_code == 503]
        assert [one.status_code for one in found].count(200) == 2
        assert {one.headers["retry-after"] for one in busy} == {"1"}


def test_requests_that_come_together_are_one_call_and_keep_their_rows(tmp_path: Path) -> None:
    publish(tmp_path / "exports" / "clicks", 1, Clicks(), CLICKS)
    with serving(tmp_path, "clicks", serve__batch__wait="300ms") as server:
        server.answers_with(1)
        before = sum(server.server.meter.batch_rows.counts)

        def ask(number: int) -> list[tuple[float, int]]:
            row = {"price": [number, 0], "ad": "a", "hour": 0, "tags": ["t"] * number, "place": "top"}
            found = server.predict({"instances": [row] * (number + 1)}).json()["predictions"]
            return [(one["sum"], one["tags"]) for one in found]

        with ThreadPoolExecutor(6) as pool:
            assert [*pool.map(ask, range(6))] == [[(float(n), n)] * (n + 1) for n in range(6)]
        assert sum(server.server.meter.batch_rows.counts) - before < 6


def test_reading_tokens_hold_for_predictions_too(tmp_path: Path) -> None:
    exported(tmp_path / "exports" / NAME, 1)
    (tmp_path / "readers").mkdir()
    (tmp_path / "readers" / "web").write_text("canary-0815-canary-0815")
    with serving(tmp_path, NAME, api__read_tokens_dir=str(tmp_path / "readers")) as server:
        assert "Send the header Authorization" in server.refused({"instances": [0.0]}, status=401)
        server.http.headers["authorization"] = "Bearer canary-0815-canary-0815"
        server.answers_with(1)
        assert answer(server) == (1.0, 1)


@contextmanager
def trainer(folder: Path, root: Path) -> Iterator[tuple[str, Rig]]:
    """Give the address of a trainer's HTTP side, whose exports are in this folder."""
    folder.mkdir()
    config = folder / "exporting.yaml"
    config.write_text(TRAINERS.replace("name: clicks", f"name: {NAME}") + f"export: {{path: {root.parent}}}\n")
    with running(folder) as rig:
        rig.service.settings = load(config, {}).settings
        with answering(rig, ApiSettings(listen="127.0.0.1:0", read_tokens_dir=_readers(folder))) as api:
            yield f"http://127.0.0.1:{api.port}", rig


def _readers(folder: Path) -> Path:
    (folder / "readers").mkdir()
    (folder / "readers" / "serve").write_text("canary-0815-canary-0815")
    return folder / "readers"


def test_versions_are_fetched_over_http_and_answer_while_the_trainer_is_away(tmp_path: Path) -> None:
    root, token = exported(tmp_path / "trainers" / NAME, 1), str(tmp_path / "trainer" / "readers" / "serve")
    with (
        trainer(tmp_path / "trainer", root) as (url, _),
        serving(tmp_path, NAME, serve__exports=url, serve__token_file=token) as server,
    ):
        server.answers_with(1)
        exported(root, 2)
        server.answers_with(2)
    with serving(tmp_path, NAME, serve__exports=url, serve__token_file=token) as server:
        server.answers_with(2)
        assert "nothing answers at" in server.get("/served")["problem"]


def test_what_came_damaged_over_http_is_not_kept(tmp_path: Path) -> None:
    root, token = exported(tmp_path / "trainers" / NAME, 1, 2), str(tmp_path / "trainer" / "readers" / "serve")
    (root / "2" / "saved_model.pb").write_bytes(b"other")
    with (
        trainer(tmp_path / "trainer", root) as (url, _),
        serving(tmp_path, NAME, serve__exports=url, serve__token_file=token) as server,
    ):
        server.answers_with(1)
        server.wait_for(lambda: "is not what the trainer wrote" in str(server.get("/served")["problem"]))
        assert [path.name for path in (tmp_path / "serve" / NAME / "versions").iterdir()] == ["1"]


def test_a_restart_keeps_what_was_fetched_until_another_version_answers(tmp_path: Path) -> None:
    root, token = exported(tmp_path / "trainers" / NAME, 1), str(tmp_path / "trainer" / "readers" / "serve")
    given = {"serve__token_file": token}
    with trainer(tmp_path / "trainer", root) as (url, _):
        with serving(tmp_path, NAME, serve__exports=url, **given) as server:
            server.answers_with(1)
        exported(root, 2)
        shutil.rmtree(root / "1")  # the exporter prunes
        (root / "2" / "saved_model.pb").write_bytes(b"other")
        with serving(tmp_path, NAME, serve__exports=url, **given) as server:
            server.answers_with(1)
            assert "is not what the trainer wrote" in server.get("/served")["problem"]
            exported(root, 3)
            server.answers_with(3)
            fetched = tmp_path / "serve" / NAME / "versions"
            server.wait_for(lambda: [path.name for path in fetched.iterdir()] == ["3"])


def test_a_trainer_that_asks_for_a_token_is_told_of_with_the_setting(tmp_path: Path) -> None:
    root = exported(tmp_path / "trainers" / NAME, 1)
    with trainer(tmp_path / "trainer", root) as (url, _), serving(tmp_path, NAME, serve__exports=url) as server:
        server.wait_for(lambda: "name a file with a token by serve.token_file" in server.http.get("/readyz").text)


@pytest.mark.slow
def test_a_process_ends_on_sigterm_after_it_has_answered_every_request(tmp_path: Path) -> None:
    exported(tmp_path / "exports" / NAME, 1)
    config, log = tmp_path / "millrace.yaml", tmp_path / "log"
    config.write_text(CONFIG.format(name=NAME).replace("drain: 0s", "drain: 3s"))
    command = [sys.executable, "-c", "from millrace.app.cli import main; main()", "serve", "-c", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "MILLRACE_LOGS__FORMAT": "text"}
    with log.open("wb") as file:
        process = subprocess.Popen(command, stderr=file, env=environ)
    try:
        ends_at = time.monotonic() + START_S
        while "answers now" not in log.read_text():
            assert time.monotonic() < ends_at, log.read_text()
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        url = next(word for word in log.read_text().split() if word.startswith("http://"))
        failed: list[str] = []

        def ask() -> int:
            """Ask until an answer ends the connection, and once more; then go to another server, as there is none."""
            told = 0
            with httpx.Client(timeout=30) as http:
                while told < 2:
                    try:
                        found = http.post(f"{url}:predict", content='{"instances": [2.0]}')
                    except httpx.HTTPError as error:
                        failed.append(repr(error))
                        break
                    if found.json() != {"predictions": [2.0]}:
                        failed.append(found.text)
                    told += found.headers.get("connection") == "close"
            return told

        with ThreadPoolExecutor(3) as pool:
            asking = [pool.submit(ask) for _ in range(3)]
            time.sleep(0.5)
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0, log.read_text()
            assert [each.result() for each in asking] == [2, 2, 2]
        assert failed == []
    finally:
        process.kill()
        process.wait()
