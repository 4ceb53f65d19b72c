"""The demo itself: started in order, watched, ended in order. Runs on the main thread, whose end ends its children.

Start: (1) the folder, which one demo at a time has, (2) the broker, (3) the trainer, (4) what the checkpoint testifies
that it went on from, (5) the judge and the stream, which goes on where it was. End: (1) the stream, (2) the trainer,
with its last checkpoint, (3) what that one testifies, (4) the judge, (5) the broker. A kill needs no end: the system
ends the children.
"""

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from app.tools.demo import drifting_stream
from app.tools.demo import workspace as homes
from app.tools.demo.accuracy_history import AccuracyHistory
from app.tools.demo.child_processes import Child, end_left_behind, start_judge, start_trainer
from app.tools.demo.errors import DemoError
from app.tools.demo.freezer import Freezer
from app.tools.demo.report import report_of
from app.tools.demo.screen import Screen
from app.tools.demo.screen_view import View
from app.tools.demo.witness_check import Witnesses, WitnessResult
from app.tools.demo.workspace import Workspace
from app.tools.local_broker import FolderInUseError, LocalBroker, PortTakenError
from app.tools.local_broker.jars import KAFKA_VERSION, in_cache
from app.tools.local_broker.properties import HOST
from app.tools.local_broker.topics import partitions_of
from app.tools.service_client import Remote
from app.tools.traffic.load_generator import LoadGenerator
from consumers.errors import MillraceError, UnreachableError

_LOOK_EVERY_S = 0.5
_ANSWER_S = 2.0
_TRAINER_UP_S = 300.0
_TRAINER_DOWN_S, _JUDGE_DOWN_S, _FLOW_DOWN_S, _BROKER_DOWN_S = 12.0, 1.0, 3.0, 5.0
_RETAINED = {"retention.bytes": str(256 * 2**20), "segment.bytes": str(32 * 2**20), "retention.ms": "-1"}
_AT_WORK = ("training", "idle", "saving", "paused")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What was asked for."""

    home: Workspace
    for_s: float | None = None
    """Seconds of the stream to learn; None until Ctrl-C."""
    api_port: int | None = None


class Demo:
    """One run. Call `start`, `watch`, and `end` whatever happens."""

    def __init__(self, options: DemoOptions, screen: Screen) -> None:
        self._options, self._screen = options, screen
        self._home = options.home
        self._broker = LocalBroker(self._home.broker, port=homes.broker_port(besides=options.api_port))
        self._witnesses = Witnesses(self._home.checkpoints)
        self._history = AccuracyHistory()
        self._port = 0
        self._trainer: Child | None = None
        self._judge: Child | None = None
        self._freezer: Freezer | None = None
        self._flow: LoadGenerator | None = None
        self._resumed: WitnessResult | None = None
        self._testimony: WitnessResult | None = None

    def start(self) -> None:
        """Bring everything up; the stream flows when it returns."""
        self._home.create()
        self._take_folder()  # before anything in it is ended: what runs there may be another demo's, and well
        end_left_behind([self._home.log("trainer"), self._home.log("judge")])
        self._port = homes.api_port(self._options.api_port)
        self._start_broker()
        self._screen.say("Starting the trainer; TensorFlow takes some seconds to load.")
        self._trainer = start_trainer(self._home.config, self._home.log("trainer"))
        self._tell_beginning(self._wait_for_trainer())
        self._judge = start_judge(self._home.config, self._home.log("judge"))
        self._freezer = Freezer(self._home, self._judge)
        self._flow = LoadGenerator(
            self._broker.bootstrap_servers,
            drifting_stream.TOPIC,
            drifting_stream.PARTITIONS,
            drifting_stream.values,
            drifting_stream.RECORDS_PER_S,
        )
        self._flow.start()

    def watch(self) -> None:
        """Show how it goes, until so much of the stream is learnt as was asked for."""
        while not self._is_over():
            self._look()
            time.sleep(_LOOK_EVERY_S)

    def end(self) -> Mapping[str, Any]:
        """End everything in order, and say what came of it."""
        self._screen.close()
        if self._flow is not None:
            self._flow.stop(_FLOW_DOWN_S)
        if self._trainer is not None and self._trainer.exit_code is None:
            self._screen.say("Ending: the trainer makes its last checkpoint.")
            self._trainer.end(_TRAINER_DOWN_S)
        report = report_of(self._history, self._resumed, self._last_testimony())
        if self._judge is not None:
            self._judge.end(_JUDGE_DOWN_S)
        self._broker.stop(_BROKER_DOWN_S)
        return report

    @property
    def _page(self) -> str:
        return f"http://{HOST}:{self._port}/"

    def _take_folder(self) -> None:
        try:
            self._broker.claim()
        except FolderInUseError as error:
            raise FolderInUseError(
                f"a demo runs in {self._home.path} already, or another program has its broker; end it, or choose "
                "another --folder"
            ) from error

    def _start_broker(self) -> None:
        if not in_cache():
            self._screen.say(f"Getting Kafka {KAFKA_VERSION}, once: about 44 MB.")
        self._screen.say("Starting Kafka.")
        try:
            self._broker.start()
        except PortTakenError as error:
            where = self._broker.bootstrap_servers
            raise PortTakenError(f"another program took {where} a moment ago; start the demo again") from error
        for topic, partitions in (
            (drifting_stream.TOPIC, drifting_stream.PARTITIONS),
            (drifting_stream.DEAD_LETTERS, 1),
        ):
            if partitions_of(self._broker.bootstrap_servers, topic) == 0:
                self._broker.create_topic(topic, partitions, _RETAINED)
        self._home.write_config(broker=self._broker.bootstrap_servers, api_port=self._port)

    def _wait_for_trainer(self) -> Mapping[str, Any]:
        """Its first answer once it is at work."""
        ends_at = time.monotonic() + _TRAINER_UP_S
        while time.monotonic() < ends_at:
            status = self._status()
            if status is not None and status["state"] in _AT_WORK and "checkpoint" in status:
                return status
            time.sleep(_LOOK_EVERY_S / 2)
        raise DemoError(f"the trainer is not at work after {_TRAINER_UP_S:g} s: {self._last_words()}")

    def _tell_beginning(self, status: Mapping[str, Any]) -> None:
        """Ask the very checkpoint that the trainer says it has gone on from."""
        newest = status["checkpoint"]
        if newest["step"] == 0 and "parent" not in newest:
            self._screen.say("A new beginning: no record is learnt yet.")
        else:
            self._resumed = self._testimony = self._witnesses.of(newest["number"])
            self._screen.say(f"Resumed from checkpoint {newest['number']}: {self._resumed}.")
        self._screen.say(f"The page: {self._page}")

    def _status(self) -> Mapping[str, Any] | None:
        """What the trainer says of itself; None where it does not answer. Its end is an error."""
        assert self._trainer is not None
        if self._trainer.exit_code is not None:
            raise DemoError(f"the trainer ended by itself: {self._last_words()}")
        with suppress(UnreachableError):
            return Remote(self._page, name=homes.NAME).ask("/status", within_s=_ANSWER_S)
        return None

    def _last_words(self) -> str:
        assert self._trainer is not None
        return self._trainer.last_words()

    def _is_over(self) -> bool:
        samples, began = self._history.samples, self._history.began_s
        if self._options.for_s is None or not samples or began is None:
            return False
        return samples[-1].at_s - began >= self._options.for_s

    def _look(self) -> None:
        assert self._flow is not None
        assert self._freezer is not None
        assert self._judge is not None
        if (error := self._flow.error) is not None:
            raise error
        if not self._broker.running():
            raise DemoError(f"the broker ended by itself: {self._broker.last_words()}")
        if self._judge.exit_code is not None:
            raise DemoError(f"the judge ended by itself: {self._judge.last_words()}")
        status = self._status()
        if status is None:
            return
        sample = self._history.see(status)
        self._freezer.look(self._history, sample.at_s)
        self._hear(status)
        every_second = list(self._history.samples)[:: -int(1 / _LOOK_EVERY_S)][::-1]
        view = View(pid=os.getpid(), page=self._page, status=status, samples=every_second, testimony=self._testimony)
        self._screen.show(view)

    def _hear(self, status: Mapping[str, Any]) -> None:
        """Ask the newest checkpoint, where there is a new one."""
        newest = status.get("checkpoint", {}).get("number")
        if newest is not None and (self._testimony is None or self._testimony.checkpoint != newest):
            self._testimony = self._witnesses.of(newest) or self._testimony

    def _last_testimony(self) -> WitnessResult | None:
        if self._trainer is None:
            return None
        with suppress(MillraceError):
            return self._witnesses.newest()
        return self._testimony
