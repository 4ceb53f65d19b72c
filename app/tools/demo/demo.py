"""The demo: everything is started in order, watched, and ended in the opposite order. Runs on the main thread.

Start: (1) the folder, which one demo at a time has, (2) the broker, (3) the trainer, (4) the witness of the checkpoint
that the trainer resumed from, (5) the judge, (6) the stream, which continues where the topic ends. The end goes
backwards: the stream, the judge, the trainer with its last checkpoint, the broker; then comes the report. After a kill
Linux ends the children with the thread that started them, which is why this is the main thread; elsewhere the next
start ends what the last one left behind. The first Ctrl-C or SIGTERM begins the end, a second one ends at once.
"""

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from millrace.app.tools.child_process import (
    SupervisedProcess,
    end_left_behind,
    millrace_command,
    module_command,
    python_environment,
)
from millrace.app.tools.demo import drifting_stream, workspace
from millrace.app.tools.demo.freezer import Freezer
from millrace.app.tools.demo.report import AccuracyHistory, report_of
from millrace.app.tools.demo.screen import Screen, View
from millrace.app.tools.demo.witness_check import Witnesses, WitnessResult
from millrace.app.tools.demo.workspace import Workspace
from millrace.app.tools.local_broker import FolderInUseError, LocalBroker, PortTakenError
from millrace.app.tools.local_broker.broker import HOST
from millrace.app.tools.local_broker.jars import KAFKA_VERSION, in_cache
from millrace.app.tools.local_broker.topics import partitions_of
from millrace.app.tools.service_client import Remote
from millrace.app.tools.traffic.load_generator import LoadGenerator
from millrace.consumers.errors import MillraceError, UnreachableError

FORCED = 1
"""The exit code after a second signal."""
_LOOK_EVERY_S = 1.0
_ANSWER_S = 2.0
_TRAINER_UP_S = 300.0
_TRAINER_DOWN_S, _JUDGE_DOWN_S, _LOAD_DOWN_S, _BROKER_DOWN_S = 12.0, 1.0, 3.0, 5.0
_RETAINED = {"retention.bytes": str(256 * 2**20), "segment.bytes": str(32 * 2**20), "retention.ms": "-1"}
_AT_WORK = ("training", "idle", "saving", "paused")


class DemoError(MillraceError):
    """One of the demo's children ended by itself, or does not come up: exit 1."""


class _Leaving(BaseException):
    """The user wants to leave. Not an error: nothing that handles errors may catch it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the command line asks for."""

    home: Workspace
    for_s: float | None = None
    """Seconds of the stream to learn; None until Ctrl-C."""
    api_port: int | None = None


class Findings:
    """What a run has shown so far: the report is made of it, however early the run ends."""

    def __init__(self, home: Workspace) -> None:
        self.history = AccuracyHistory()
        self.witnesses = Witnesses(home.checkpoints)
        self.resumed: WitnessResult | None = None
        self.newest: WitnessResult | None = None


class DemoTrainer:
    """The trainer's process and its HTTP interface."""

    def __init__(self, process: SupervisedProcess, page: str) -> None:
        self.process, self.page = process, page
        self._remote = Remote(page, name=workspace.NAME)

    def status(self) -> Mapping[str, Any] | None:
        """Return the trainer's status; None while it does not answer. DemoError where the process has ended."""
        if not self.process.alive:
            raise DemoError(f"the trainer ended by itself: {self.process.last_words()}")
        with suppress(UnreachableError):
            return self._remote.ask("/status", within_s=_ANSWER_S)
        return None

    def wait_until_at_work(self) -> Mapping[str, Any]:
        """Wait for the first call, and return the status then."""
        ends_at = time.monotonic() + _TRAINER_UP_S
        while time.monotonic() < ends_at:
            status = self.status()
            if status is not None and status["state"] in _AT_WORK and "checkpoint" in status:
                return status
            time.sleep(_LOOK_EVERY_S / 4)
        raise DemoError(f"the trainer is not at work after {_TRAINER_UP_S:g} s: {self.process.last_words()}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """A demo in which everything runs."""

    broker: LocalBroker
    trainer: DemoTrainer
    freezer: Freezer
    load: LoadGenerator
    findings: Findings
    screen: Screen

    def watch(self, for_s: float | None) -> None:
        """Show how it goes until `for_s` seconds of the stream are learnt; without an end where that is None."""
        history = self.findings.history
        while for_s is None or not history.covers(for_s):
            # Everything has to run.
            if (error := self.load.error) is not None:
                raise error
            if not self.broker.running():
                raise DemoError(f"the broker ended by itself: {self.broker.last_words()}")
            if not self.freezer.judge.alive:
                raise DemoError(f"the judge ended by itself: {self.freezer.judge.last_words()}")
            # Take in and show what the trainer says; one that does not answer now may do so later.
            status = self.trainer.status()
            if status is not None:
                findings = self.findings
                sample = findings.history.see(status)
                self.freezer.look(findings.history, sample.at_s)
                number = status.get("checkpoint", {}).get("number")
                if number is not None and (findings.newest is None or findings.newest.checkpoint != number):
                    findings.newest = findings.witnesses.of(number) or findings.newest
                page = self.trainer.page
                self.screen.show(View(pid=os.getpid(), page=page, status=status, now=sample, testimony=findings.newest))
            time.sleep(_LOOK_EVERY_S)


def run(options: DemoOptions, screen: Screen) -> Mapping[str, Any]:
    """Run the demo to its end, write the report into the folder, and return it."""
    findings = Findings(options.home)
    on_signals(_leave)
    try:
        with started(options, screen, findings) as demo:
            demo.watch(options.for_s)
    except _Leaving:
        pass
    report = report_of(findings.history, findings.resumed, findings.newest)
    options.home.report.write_text(json.dumps(report, indent=2) + "\n")
    return report


def on_signals(handler: Any) -> None:
    """Handle Ctrl-C and SIGTERM by this handler."""
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def _leave(_number: int, _frame: FrameType | None) -> None:
    on_signals(_force)
    raise _Leaving


def _force(_number: int, _frame: FrameType | None) -> None:
    os._exit(FORCED)


@contextmanager
def started(options: DemoOptions, screen: Screen, findings: Findings) -> Iterator[Demo]:
    """Start everything in order; end everything that was started, in the opposite order."""
    with ExitStack() as ends:
        try:
            yield _start_all(options, screen, findings, ends)
        finally:
            on_signals(_force)  # nothing may interrupt the end, except a second signal, which ends at once
            screen.close()


def _start_all(options: DemoOptions, screen: Screen, findings: Findings, ends: ExitStack) -> Demo:
    """Start everything in the order above, and note in `ends` how each part ends."""
    # 1. The folder. To claim it comes first: what runs in it may belong to another demo that is well.
    home = options.home
    home.create()
    broker = LocalBroker(home.broker, port=workspace.broker_port(besides=options.api_port))
    try:
        broker.claim()
    except FolderInUseError as error:
        raise FolderInUseError(
            f"a demo runs in {home.path} already, or another program has its broker; end it, or choose another --folder"
        ) from error
    ends.callback(broker.stop, _BROKER_DOWN_S)
    # Kill what an earlier demo left running; a missing or torn note means that there is nothing.
    for name in ("trainer", "judge"):
        with suppress(OSError, ValueError, KeyError):
            note = json.loads(home.pid_file(name).read_text())
            end_left_behind(int(note["pid"]), str(note["marker"]))

    # 2. The broker. 3. The trainer.
    api_port = workspace.api_port(options.api_port)
    start_broker(broker, screen)
    home.write_config(broker=broker.bootstrap_servers, api_port=api_port)
    screen.say("Starting the trainer; TensorFlow takes some seconds to load.")
    process = _start(home, "trainer", millrace_command(["run", "-c", str(home.config)]))
    ends.callback(_end_trainer, process, screen, findings)
    trainer = DemoTrainer(process, f"http://{HOST}:{api_port}/")

    # 4. The witness of the very checkpoint that the trainer says it has resumed from.
    newest = trainer.wait_until_at_work()["checkpoint"]
    if newest["step"] == 0 and "parent" not in newest:
        screen.say("A new beginning: no record is learnt yet.")
    else:
        findings.resumed = findings.newest = findings.witnesses.of(newest["number"])
        screen.say(f"Resumed from checkpoint {newest['number']}: {findings.resumed}.")
    screen.say(f"The page: {trainer.page} (process {os.getpid()})")

    # 5. The judge. 6. The stream.
    command = module_command("millrace.app.tools.demo.frozen_judge", [str(home.config)])
    judge = _start(home, "judge", command, pipes=True)
    ends.callback(judge.end, _JUDGE_DOWN_S)
    stream = drifting_stream
    load = LoadGenerator(broker.bootstrap_servers, stream.TOPIC, stream.PARTITIONS, stream.values, stream.RECORDS_PER_S)
    ends.callback(load.stop, _LOAD_DOWN_S)
    load.start()
    freezer = Freezer(home, judge)
    return Demo(broker=broker, trainer=trainer, freezer=freezer, load=load, findings=findings, screen=screen)


def start_broker(broker: LocalBroker, screen: Screen) -> None:
    """Start Kafka and create the topics that it does not have."""
    if not in_cache():
        screen.say(f"Getting Kafka {KAFKA_VERSION}, once: about 44 MB.")
    screen.say("Starting Kafka.")
    address = broker.bootstrap_servers
    try:
        broker.start()
    except PortTakenError as error:
        raise PortTakenError(f"another program took {address} a moment ago; start the demo again") from error
    for topic, partitions in ((drifting_stream.TOPIC, drifting_stream.PARTITIONS), (drifting_stream.DEAD_LETTERS, 1)):
        if partitions_of(address, topic) == 0:
            broker.create_topic(topic, partitions, _RETAINED)


def _start(home: Workspace, name: str, command: list[str], *, pipes: bool = False) -> SupervisedProcess:
    """Start a child, and note its id for a start after a kill."""
    process = SupervisedProcess(command, home.log(name), environment=python_environment(), pipes=pipes)
    home.pid_file(name).write_text(json.dumps({"pid": process.pid, "marker": command[-1]}))
    return process


def _end_trainer(process: SupervisedProcess, screen: Screen, findings: Findings) -> None:
    """End the trainer, and check its last checkpoint; where that cannot be read, the last that was checked counts."""
    if process.alive:
        screen.say("Ending: the trainer makes its last checkpoint.")
        process.end(_TRAINER_DOWN_S)
    with suppress(MillraceError):
        findings.newest = findings.witnesses.newest()
