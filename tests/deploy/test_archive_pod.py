"""The archiver runs as its manifest says, and the trainer learns from the same volume, which it cannot change."""

import json
import os
import runpy
import signal
import subprocess
import uuid
from io import BytesIO
from itertools import islice
from pathlib import Path

import pytest

from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.produce import ProduceRate, produce_lines
from millrace.app.tools.local_broker.topics import create_topic
from millrace.consumers.archive.shards import listing
from tests.conftest import WaitFor
from tests.deploy.manifests import K8S, ROOT, container, rendered, size
from tests.deploy.pod import Pod
from tests.deploy.sandbox import inner_process, may_shut_in
from tests.faults.harness.retention import delete_before

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not may_shut_in(), reason="only root may shut a process in, and only where it may mount"),
]
VISITS = 3000
START_S = 240.0


def test_the_archivers_pod_writes_what_the_trainers_reads_when_kafka_has_lost_it(
    broker: str, wait_for: WaitFor, tmp_path: Path
) -> None:
    topic = f"clicks-{uuid.uuid4().hex[:12]}"
    create_topic(broker, topic, 1)
    visits = runpy.run_path(str(ROOT / "examples" / "clicks" / "produce.py"))["visits"](0)
    records = [record for chunk in islice(visits, VISITS // 1000) for record in chunk]
    produce_lines(broker, topic, BytesIO(b"\n".join(records) + b"\n"), ProduceRate())
    elsewhere = {
        "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker,
        "MILLRACE_KAFKA__TOPICS": topic,
        "MILLRACE_API__LISTEN": f"127.0.0.1:{free_port()}",
        "MILLRACE_API__PROBES": f"127.0.0.1:{free_port()}",
        "MILLRACE_ARCHIVE__SHARD_AGE": "1s",
        "MILLRACE_CHECKPOINTS__EVERY": "1s",
    }
    objects = rendered(K8S / "overlays" / "archive")
    archiver = Pod(tmp_path, objects, tokens={}, further=elsewhere, kind="Deployment")
    archive = archiver.volume("archive", writable=True)
    (archive / "lost+found").mkdir(mode=0o700)  # root's, as on a new volume
    with archiver.start("archive") as started:
        try:
            wait_for(lambda: _archived(archiver, started, archive) == VISITS, START_S)
            inner = inner_process(started)
            assert inner is not None, archiver.said("archive")
            peak = int(_status(inner, "VmHWM").split()[0]) * 1024
            os.kill(inner, signal.SIGTERM)
            assert started.wait(archiver.spec["terminationGracePeriodSeconds"]) == 0, archiver.said("archive")
        finally:
            started.kill()
    limit = size(container(objects, "archive", "Deployment")["resources"]["limits"]["memory"])
    assert peak < limit / 2
    written = [path for path in archive.rglob("*") if path.is_file()]
    assert {path.stat().st_uid for path in written} == {archiver.spec["securityContext"]["runAsUser"]}
    before = {path: path.read_bytes() for path in written}

    delete_before(broker, topic, {0: VISITS - 500})
    trainer = Pod(tmp_path, objects, tokens={}, further=elsewhere)
    with trainer.start("millrace") as started:
        try:
            wait_for(lambda: _learnt(trainer, started) == VISITS, START_S)
            inner = inner_process(started)
            assert inner is not None
            assert "ro" in _options(inner, "/srv/archive")
        finally:
            started.kill()
    assert {path: path.read_bytes() for path in archive.rglob("*") if path.is_file()} == before


def _status(pid: int, name: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":", 1) for line in lines)[name].strip()


def _options(pid: int, place: str) -> list[str]:
    rows = [line.split() for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines()]
    return next(row[5].split(",") for row in rows if row[4] == place)


def _archived(pod: Pod, started: subprocess.Popen[bytes], archive: Path) -> int:
    """Return how many records are in closed shards."""
    assert started.poll() is None, pod.said("archive")
    return sum(shard.records for shard in listing(archive))


def _learnt(pod: Pod, started: subprocess.Popen[bytes]) -> int:
    """Return how many records the newest checkpoint has learnt."""
    assert started.poll() is None, pod.said("millrace")
    manifests = sorted((pod.checkpoints / "clicks" / "checkpoints").glob("[0-9]*/manifest.json"))
    return sum(json.loads(manifests[-1].read_text())["positions"].values()) if manifests else 0
