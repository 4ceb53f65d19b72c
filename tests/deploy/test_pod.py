"""The process runs as the manifest says: its user, its rights, its folders, its command, its probes, its grace."""

import json
import os
import re
import runpy
import signal
import subprocess
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from app.local_broker.produce import Pace, produce_lines
from app.local_broker.server import free_port
from app.local_broker.topics import create_topic
from tests.conftest import WaitFor
from tests.deploy.dockerfile import stages_of
from tests.deploy.manifests import K8S, ROOT, Object, config, container, pod_of, rendered, size
from tests.deploy.sandbox import Mount, Sandbox, inner_process, may_shut_in

pytestmark = [
    pytest.mark.broker,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not may_shut_in(), reason="only root may shut a process in, and only where it may mount"),
]
VISITS = 3000
START_S = 240.0
TOKEN = "canary-4711-canary-4711"


class Pod:
    """The pod of the base, its containers run one after another as an engine would."""

    def __init__(self, folder: Path, further: Mapping[str, str]) -> None:
        self.objects = rendered(K8S / "base")
        self.spec = pod_of(self.objects)["spec"]
        self._folder, self._further = folder, further
        self._image = stages_of(ROOT / "Dockerfile")["cpu"]
        self.checkpoints = self._volume("checkpoints", writable=True)
        _fill(self._volume("config", writable=False), config(self.objects))
        _fill(self._volume("tokens", writable=False), {"ops": TOKEN})

    def start(self, name: str) -> subprocess.Popen[bytes]:
        """Start a container."""
        one, image = container(self.objects, name), self._image
        root = self._folder / f"root-{name}"
        root.mkdir()
        path = {"PATH": image.pairs("ENV")["PATH"].replace("$PATH", "/usr/local/bin:/usr/bin:/bin")}
        given = {entry["name"]: entry["value"] for entry in one.get("env", ())}
        sandbox = Sandbox(
            user=self.spec["securityContext"]["runAsUser"],
            group=self.spec["securityContext"]["runAsGroup"],
            environment={**image.pairs("ENV"), **path, **given, **self._further},
            workdir=image.texts("WORKDIR")[-1],
            mounts=[*self._mounts(one)],
        )
        return sandbox.start([*image.words("ENTRYPOINT"), *one["args"]], root, self._log(name))

    def said(self, name: str) -> str:
        """What a container has printed."""
        return self._log(name).read_text()

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _mounts(self, one: Object) -> Iterator[Mount]:
        for mount in one["volumeMounts"]:
            read_only = mount.get("readOnly", False)
            source = self._volume(mount["name"], writable=not read_only)
            yield Mount(source=source, target=mount["mountPath"], read_only=read_only)

    def _volume(self, name: str, *, writable: bool) -> Path:
        """A folder as a kubelet hands it in: root's, and the pod's group may write to it where anybody may."""
        volume = self._folder / "volumes" / name
        if not volume.exists():
            volume.mkdir(parents=True)
            os.chown(volume, 0, self.spec["securityContext"]["fsGroup"])
            volume.chmod(0o2770 if writable else 0o2750)
        return volume


def _fill(volume: Path, files: Mapping[str, str]) -> None:
    """Lay files out as a kubelet does: links into a folder that it can exchange as a whole."""
    (volume / "..1").mkdir()
    (volume / "..data").symlink_to("..1")
    for name, text in files.items():
        (volume / "..1" / name).write_text(text)
        (volume / name).symlink_to(f"..data/{name}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """What was seen of one pod, from its start to its end and to the check before the next start."""

    pod: Pod
    status: Mapping[str, Any]
    """Of /status, when all was learnt."""
    ordered: tuple[int, int]
    """What an order to save was answered with, without a token and with one."""
    process: Mapping[str, str]
    """Of /proc/…/status, meanwhile."""
    mounts: Mapping[str, frozenset[str]]
    """Its mounts, and the options of each."""
    exit_code: int
    check: int
    """The exit code of the init container."""


@pytest.fixture(scope="module")
def life(broker: str, wait_for: WaitFor, tmp_path_factory: pytest.TempPathFactory) -> Life:
    topic = f"clicks-{uuid.uuid4().hex[:12]}"
    create_topic(broker, topic, 2)
    visits = runpy.run_path(str(ROOT / "examples" / "clicks" / "produce.py"))["visits"](0)
    records = [record for chunk in islice(visits, VISITS // 1000) for record in chunk]
    produce_lines(broker, topic, BytesIO(b"\n".join(records) + b"\n"), Pace())
    address, probes = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    elsewhere = {
        "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker,
        "MILLRACE_KAFKA__TOPICS": topic,
        "MILLRACE_API__LISTEN": address,
        "MILLRACE_API__PROBES": probes,
        "MILLRACE_API__TOKENS_DIR": "/run/secrets/millrace",
    }
    pod = Pod(tmp_path_factory.mktemp("pod"), elsewhere)
    with pod.start("millrace") as started:
        try:
            wait_for(lambda: _probe(pod, started, probes, "readinessProbe"), START_S)
            assert _probe(pod, started, probes, "livenessProbe")
            status = wait_for(lambda: _all_learnt(address), START_S)
            assert status is not None
            ordered = _save(address, None), _save(address, TOKEN)
            inner = inner_process(started)
            assert inner is not None
            process, mounts = _process(inner), _mounts(inner)
            os.kill(inner, signal.SIGTERM)
            exit_code = started.wait(pod.spec["terminationGracePeriodSeconds"])
        finally:
            started.kill()
    with pod.start("validate") as checking:
        check = checking.wait(START_S)
    return Life(
        pod=pod,
        status=status,
        ordered=ordered,
        process=process,
        mounts=mounts,
        exit_code=exit_code,
        check=check,
    )


def _probe(pod: Pod, started: subprocess.Popen[bytes], address: str, name: str) -> bool:
    """Ask as the kubelet would."""
    assert started.poll() is None, pod.said("millrace")
    path = container(pod.objects)[name]["httpGet"]["path"]
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:  # nobody listens yet, or it is not ready
        return False


def _all_learnt(address: str) -> dict[str, Any] | None:
    with urllib.request.urlopen(f"http://{address}/status", timeout=5) as answer:
        status: dict[str, Any] = json.load(answer)
    return status if status["records"]["learnt"] == VISITS else None


def _save(address: str, token: str | None) -> int:
    order = urllib.request.Request(f"http://{address}/checkpoints?wait=60s", method="POST", data=b"")
    if token is not None:
        order.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(order, timeout=90) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code


def _process(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {name: value.strip() for name, value in (line.split(":", 1) for line in lines)}


def _mounts(pid: int) -> dict[str, frozenset[str]]:
    rows = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return {row[4]: frozenset(row[5].split(",")) for row in rows}


def test_it_becomes_ready_and_learns_what_there_is(life: Life) -> None:
    assert life.status["records"]["balanced"] is True
    assert life.status["state"] in ("training", "idle", "saving")


def test_it_takes_orders_from_who_has_a_token_of_the_secret_alone(life: Life) -> None:
    assert life.ordered == (401, 201)
    assert "ordered by ops" in life.pod.said("millrace")


def test_no_token_is_told(life: Life) -> None:
    assert TOKEN not in life.pod.said("millrace") + life.pod.said("validate") + json.dumps(life.status)


def test_asked_to_end_it_saves_and_ends_well_within_the_grace(life: Life) -> None:
    assert life.exit_code == 0, life.pod.said("millrace")
    assert len([*(life.pod.checkpoints / "clicks" / "checkpoints").glob("[0-9]*")]) >= 2


def test_it_is_the_numbered_user_and_has_no_rights_and_gets_none(life: Life) -> None:
    context = life.pod.spec["securityContext"]
    assert life.process["Uid"].split() == [str(context["runAsUser"])] * 4
    assert life.process["Gid"].split() == [str(context["runAsGroup"])] * 4
    assert life.process["Groups"] == ""
    assert life.process["NoNewPrivs"] == "1"
    rights = {life.process[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert {int(right, 16) for right in rights} == {0}


def test_it_can_write_to_its_checkpoints_and_to_tmp_and_nowhere_else(life: Life) -> None:
    writable = {place for place, options in life.mounts.items() if "rw" in options}
    of_the_kernel = {place for place in writable if re.match(r"/(proc|dev)(/|$)", place)}
    assert writable - of_the_kernel == {"/var/lib/millrace", "/tmp"}
    assert "ro" in life.mounts["/"]


def test_it_fits_into_its_memory_with_room(life: Life) -> None:
    limit = size(container(life.pod.objects)["resources"]["limits"]["memory"])
    peak = int(life.process["VmHWM"].split()[0]) * 1024
    assert peak < limit * 0.75


def test_what_it_saved_is_its_own(life: Life) -> None:
    context = life.pod.spec["securityContext"]
    written = [path for path in life.pod.checkpoints.rglob("*") if path.is_file()]
    assert written
    assert {path.stat().st_uid for path in written} == {context["runAsUser"]}


def test_the_check_before_the_next_start_finds_that_it_may_go_on(life: Life) -> None:
    said = life.pod.said("validate")
    assert life.check == 0, said
    assert "which is of this model" in said


def test_nothing_complains_of_what_it_may_not_write(life: Life) -> None:
    said = life.pod.said("millrace") + life.pod.said("validate")
    assert not re.search("read-only|permission denied|not writable", said, re.IGNORECASE)
