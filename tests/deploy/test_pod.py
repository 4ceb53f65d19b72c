"""The process runs as the manifest says: its user, its rights, its folders, its command, its probes, its grace.

And beside it run the commands that docs/kubernetes.md has for `kubectl exec`.
"""

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
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.produce import ProduceRate, produce_lines
from millrace.app.tools.local_broker.topics import create_topic
from tests.conftest import WaitFor
from tests.deploy.manifests import K8S, ROOT, config, container, rendered, size
from tests.deploy.pages import commands_in_the_pod
from tests.deploy.pod import Pod
from tests.deploy.sandbox import inner_process, may_shut_in

pytestmark = [
    pytest.mark.broker,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not may_shut_in(), reason="only root may shut a process in, and only where it may mount"),
]
VISITS = 3000
START_S = 240.0
TOKEN = "canary-4711-canary-4711"
BESIDE = (*commands_in_the_pod("Change the model"), *commands_in_the_pod("Rewind"))
RESCUING = tuple(commands_in_the_pod("When no trainer comes up any more"))
ORDERING = tuple(one.replace(" --dry-run", "") for one in BESIDE if "--token-file" in one)
SAME_WAY = tuple(
    f"millrace {verb} -c /etc/millrace/millrace.yaml --token-file /run/secrets/millrace/ops"
    for verb in ("pause", "resume", "checkpoints save")
)
LOOKING = ("millrace status -c /etc/millrace/millrace.yaml --once",)
Done = subprocess.CompletedProcess[str]


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
    executed: Mapping[str, Done]
    """What became of each command of the docs that was run beside it."""
    exit_code: int
    rescued: Mapping[str, Done]
    """The same, in the pod without a trainer."""
    rescue_ended: tuple[int, int]
    """With what that pod's containers ended, the init container first."""
    check: int
    """The exit code of the init container."""


@pytest.fixture(scope="module")
def life(broker: str, wait_for: WaitFor, tmp_path_factory: pytest.TempPathFactory) -> Life:
    topic = f"clicks-{uuid.uuid4().hex[:12]}"
    create_topic(broker, topic, 2)
    visits = runpy.run_path(str(ROOT / "examples" / "clicks" / "produce.py"))["visits"](0)
    records = [record for chunk in islice(visits, VISITS // 1000) for record in chunk]
    produce_lines(broker, topic, BytesIO(b"\n".join(records) + b"\n"), ProduceRate())
    address, probes = f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}"
    elsewhere = {
        "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker,
        "MILLRACE_KAFKA__TOPICS": topic,
        "MILLRACE_API__LISTEN": address,
        "MILLRACE_API__PROBES": probes,
        "MILLRACE_API__TOKENS_DIR": "/run/secrets/millrace",
    }
    folder = tmp_path_factory.mktemp("pod")
    pod = Pod(folder, rendered(K8S / "base"), tokens={"ops": TOKEN}, further=elsewhere)
    with _running(pod) as started:
        wait_for(lambda: _probe(pod, started, probes, "readinessProbe"), START_S)
        assert _probe(pod, started, probes, "livenessProbe")
        status = wait_for(lambda: _all_learnt(address), START_S)
        assert status is not None
        ordered = _save(address, None), _save(address, TOKEN)
        inner = inner_process(started)
        assert inner is not None
        _copy_in(pod, inner)
        executed = {one: pod.execute(started, _of_here(one)) for one in (*BESIDE, *LOOKING, *SAME_WAY, *ORDERING)}
        process, mounts = _process(inner), _mounts(inner)
        exit_code = _end(pod, started)
    without = Pod(folder, rendered(K8S / "overlays" / "rescue"), tokens={}, further=elsewhere)
    first = _run(without, "validate")
    with _running(without) as waiting:
        wait_for(lambda: _is_up(without, waiting), START_S)
        rescued = {one: without.execute(waiting, _of_here(one)) for one in RESCUING}
        rescue_ended = first, _end(without, waiting)
    return Life(
        pod=pod,
        status=status,
        ordered=ordered,
        process=process,
        mounts=mounts,
        executed=executed,
        exit_code=exit_code,
        rescued=rescued,
        rescue_ended=rescue_ended,
        check=_run(pod, "validate"),
    )


@contextmanager
def _running(pod: Pod) -> Iterator[subprocess.Popen[bytes]]:
    with pod.start("millrace") as started:
        try:
            yield started
        finally:
            started.kill()


def _is_up(pod: Pod, started: subprocess.Popen[bytes]) -> bool:
    """Return whether its root and its folders exist, so that something may be executed in it."""
    assert started.poll() is None, pod.said("millrace")
    return inner_process(started) is not None and pod.execute(started, "true").returncode == 0


def _run(pod: Pod, name: str) -> int:
    with pod.start(name) as started:
        return started.wait(START_S)


def _end(pod: Pod, started: subprocess.Popen[bytes]) -> int:
    """Ask it to end, as a kubelet does, and wait as long."""
    inner = inner_process(started)
    assert inner is not None
    os.kill(inner, signal.SIGTERM)
    return started.wait(pod.spec["terminationGracePeriodSeconds"])


def _copy_in(pod: Pod, inner: int) -> None:
    """Copy in what `kubectl cp` brings into the pod."""
    for name, text in (
        ("new.yaml", config(pod.objects)["millrace.yaml"]),
        ("model.py", config(pod.objects)["model.py"]),
    ):
        Path("/proc", str(inner), "root", "tmp", name).write_text(text)


def _of_here(command: str) -> str:
    """With a checkpoint that there is."""
    return command.replace("--to 37", "--to 0")


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


@pytest.mark.parametrize("command", [*BESIDE, *LOOKING, *SAME_WAY, *ORDERING])
def test_what_the_docs_have_executed_in_the_pod_does_it(life: Life, command: str) -> None:
    done = life.executed[command]
    assert done.returncode == 0, done.stderr


def test_a_rewind_in_the_pod_is_planned_first_and_then_ordered_with_the_token_file(life: Life) -> None:
    (looked,), (order,) = [one for one in BESIDE if "--dry-run" in one], ORDERING
    assert "nothing was done" in life.executed[looked].stdout
    assert "is checkpoint 0 again" in life.executed[order].stdout
    assert re.search(r"POST /rewind: 201, ordered by ops over HTTP", life.pod.said("millrace"))


def test_the_pod_without_a_trainer_takes_a_rewind_and_ends_when_it_is_told_to(life: Life) -> None:
    assert [(one, done.returncode, done.stderr) for one, done in life.rescued.items() if done.returncode != 0] == []
    assert life.rescue_ended == (0, 0)
    (rewound,) = [done for one, done in life.rescued.items() if "rewind" in one]
    number = re.match(r"checkpoint (\d+) is checkpoint 0 again", rewound.stdout)
    assert number is not None, rewound.stdout
    assert f"resumes from {number[1]} (step 0), which is from this model" in life.pod.said("validate")


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
    assert "which is from this model" in said


def test_nothing_complains_of_what_it_may_not_write(life: Life) -> None:
    said = life.pod.said("millrace") + life.pod.said("validate")
    assert not re.search("read-only|permission denied|not writable", said, re.IGNORECASE)
