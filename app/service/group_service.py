"""The service of one worker of a group: the same stages, with those of the other workers.

The chief alone takes the folder, restores, publishes and commits; every worker reads its own partitions from Kafka.
Start: (1) the folder's lock, for the chief, (2) Kafka, (3) wait for the others, and see that they are of one group,
(4) the model and its proof, (5) the chief's newest checkpoint, (6) learn. Imported only where `scale.workers` is more
than 1.
"""

import hashlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from millrace.app.service.beginning_again import Again, begin_again
from millrace.app.service.kept_sample import RecordSamples
from millrace.app.service.model_setup import build_learner, device_options, live_metrics_of, prove
from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.service.service import Running, RunOptions, Service
from millrace.app.service.step_numbers import settled_in_group
from millrace.app.service.watchers import group_watchers_of
from millrace.app.settings import Loaded
from millrace.app.settings.environment import suspects_told
from millrace.consumers.dead_letters.letter import DeadLetters
from millrace.consumers.errors import ConfigError
from millrace.consumers.failpoints import failpoint
from millrace.consumers.kafka.source import KafkaSource
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.labels.clock import Jumps
from millrace.pipelines.shaping.labels.group_join import GroupJoin
from millrace.pipelines.shaping.labels.label_reader import Role
from millrace.pipelines.stream.blocks import Span
from millrace.pipelines.stream.record_sample import from_document, to_document
from millrace.training.errors import GroupError, NotOneGroupError
from millrace.training.group.lobby import wait_for_all
from millrace.training.group.lockstep_trainer import GroupTrainer
from millrace.training.group.meeting import Group, meet
from millrace.training.group.membership import Membership, report_of
from millrace.training.group.one_state import GroupState
from millrace.training.group.roles import GroupParts
from millrace.training.model.learner import Learner
from millrace.training.recovery.crash_guard import CrashGuard
from millrace.training.recovery.step_errors import BlockRaised
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.telemetry.live_metrics import LiveMetrics
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.save_figures import SaveFigures
from millrace.training.trainer.saving import Saving
from millrace.training.trainer.state import TrainerState

log = logging.getLogger(__name__)
_MEETING_S = 30.0
"""How long the runtime may take to connect workers that are all there; it takes a second or two."""


def membership_of(loaded: Loaded) -> Membership:
    """Return which member of its group this process is; ConfigError where the settings do not tell."""
    scale = loaded.settings.scale
    try:
        index = scale.own_index()
    except ValueError as error:
        raise ConfigError(f"scale.index: {error}") from error
    return Membership(index=index, addresses=scale.everyone, timeout_s=scale.timeout)


class GroupService(Service):
    """One worker of the group that learns one model."""

    def __init__(self, loaded: Loaded, options: RunOptions, on_end: Callable[[], None] = lambda: None) -> None:
        super().__init__(loaded, options, on_end)
        self.membership = membership_of(loaded)
        self.board.group = report_of(self.membership)
        if options.max_records is not None:
            raise ConfigError("--max-records: this needs scale.workers: 1; a group ends by --until")

        self._suspects: list[BlockRaised] = []
        self._saving: Saving | None = None

    def again(self) -> Again | None:
        """Return with what this worker meets the others again, in a new process; None where it ends."""
        trainer = self.running.trainer if isinstance(self.running, Running) else None
        found = trainer.suspects if isinstance(trainer, GroupTrainer) else []
        if self._stop_asked.is_set():
            return None
        if isinstance(self.error, GroupError):
            goes_on = self.error.retriable or self.error.exit_code == 1
            if goes_on and trainer is None:
                log.error("%s", self.error)  # nobody else says why it begins again
        else:
            goes_on = self.error is None and isinstance(trainer, GroupTrainer) and bool(trainer.left_by)
        saved = self.board.latest is not None and self.board.latest.saves > 0
        # What did not come to learning has searched nothing of what it was told.
        told = json.dumps([_facts_of(raised) for raised in found]) if trainer is not None else suspects_told()
        paused = trainer.requests.paused is not None if isinstance(trainer, GroupTrainer) else self.options.paused
        resumes = self._saving is not None and self._saving.last is not None
        return Again(saved=saved, resumes=resumes, suspects=told, paused=paused) if goes_on else None

    def _start(self, opened: ExitStack) -> Running:
        lease = self._take_folder(opened) if self.membership.is_chief else None
        self._raise_if_stopped()
        source, dead_letters = self._connect(opened)
        self._raise_if_stopped()
        self.settings = settled_in_group(self.settings)
        group = self._meet(source)
        self._raise_if_stopped()
        # Build, trace and prove the model, as all do at the same time, on the chief's sample of records.
        self.phases.enter(Phase.TRACING)
        sample = None
        if lease is not None:
            found = (read() for read in RecordSamples(self.settings, lease.folder).sources(source))
            sample = next((one for one in found if one is not None), None)
        document = group.exchange.broadcast(b"" if sample is None else json.dumps(to_document(sample)).encode())
        shared = from_document(json.loads(document)) if document else None
        learner = build_learner(self.settings, (lambda: shared,), group.strategy)
        prove(learner, self.settings)
        live = live_metrics_of(learner, self.settings)
        role = Role.FOLLOWS if lease is None else Role.LEADS
        role = Role.OWN if self.settings.labels.co_partitioned else role
        # Only the chief has a disk: what the others find is on it before the next checkpoint.
        self._connect_labels(Jumps(None if lease is None else lease.folder.label_jumps), opened, source, role)
        # Behind all other gates, and before the restore, as the chief's watchers are parts of the state.
        self.watchers = group_watchers_of(learner, self.settings, self.events.report)
        self.holding.gates = (*self.holding.gates, *(gate for one in self.watchers for gate in one.gates))
        saving, guard = None, CrashGuard()
        if lease is not None:
            saving, guard = self._restore(lease, source, dead_letters, learner, live)
            self._saving = saving
            opened.callback(lambda: guard.close(well=self.error is None))
        else:
            self.phases.enter(Phase.RESTORING)
        return self._group_running(group, source, dead_letters, learner, live, saving, guard)

    def _meet(self, source: KafkaSource) -> Group:
        """Wait for the others; raise NotOneGroupError unless all have the same settings, model and versions."""
        self.phases.enter(Phase.WAITING)
        membership = self.membership
        log.info("waiting for the group: %s of %d", membership.name, membership.workers)
        began = time.monotonic()
        wait_for_all(membership, self._note_missing)
        self.board.group = report_of(membership)
        failpoint("group.before_meeting")
        within_s = min(_MEETING_S, membership.timeout_s)
        with deadline(within_s, lambda: self._leave_meeting(within_s)):
            group = meet(membership, device_options(self.settings))
        # What must be the same on all workers. A worker may have its place, its port and its folder for itself.
        found = dict(provenance_of(self._loaded, source.cluster_id()))
        own: dict[str, Any] = {
            "scale": {"index"},
            "model": {"build"},
            "checkpoints": {"path", "mirror"},
            "api": True,
            "logs": True,
            "memory": True,
            "stop": True,
        }
        config = self.settings.model_dump(mode="json", exclude=own)
        found["config_sha256"] = hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()
        found["model.build"] = self.settings.model.build.function
        found["--until"] = None if self.options.until is None else str(self.options.until)
        said = group.exchange.gather(json.dumps(found).encode())
        chief = json.loads(said[CHIEF])
        for number, raw in enumerate(said):
            other = json.loads(raw)
            differing = sorted(key for key in chief.keys() | other.keys() if chief.get(key) != other.get(key))
            if differing:
                raise NotOneGroupError(
                    f"worker {number} differs from the chief in {', '.join(differing)}: give all workers the same "
                    "config, model and image"
                )
        log.info("the group is complete", extra={"waited_s": round(time.monotonic() - began, 1)})
        told = group.exchange.gather(suspects_told().encode())
        self._suspects = [_raised_of(facts) for raw in told for facts in json.loads(raw)]
        return group

    def _leave_meeting(self, within_s: float) -> None:
        """Begin again from the thread of the deadline: the one that waits in the meeting cannot be interrupted."""
        log.error(
            "the group did not meet within %g s, though all had come: another worker has ended meanwhile", within_s
        )
        again = Again(saved=False, resumes=False, suspects=suspects_told(), paused=self.options.paused)
        begin_again(again, self._stop_asked)
        os._exit(0)  # a stop was asked for, and nothing was learnt yet

    def _note_missing(self, missing: Sequence[int]) -> None:
        """Post who is waited for; end the wait where a stop was asked for."""
        self._raise_if_stopped()
        self.board.group = report_of(self.membership, missing=missing)

    def _group_running(
        self,
        group: Group,
        source: KafkaSource,
        dead_letters: DeadLetters,
        learner: Learner,
        live: LiveMetrics,
        saving: Saving | None,
        guard: CrashGuard,
    ) -> Running:
        settings = self.settings
        figures = saving or SaveFigures(
            TrainerState(learner, self.ledger, live, hyperparameter_options(settings), self.shapers),
        )
        streams = self._streams(source, dead_letters, learner)
        trainer = GroupTrainer(
            GroupParts(
                state=GroupState(
                    group=group,
                    learner=learner,
                    ledger=self.ledger,
                    live=live,
                    progress=figures.progress,
                    shapers=self.shapers,
                    join=GroupJoin.of(self.shapers, is_chief=self.membership.is_chief),
                ),
                figures=figures,
                saving=saving,
                streams=streams,
                commands=self.commands,
                letters=dead_letters,
                in_flight=guard.in_flight,
                release_guard=guard.release,
                hold=self.holding,
                suspects=self._suspects,
            ),
            self._reports(dead_letters, live),
            self._trainer_options(guard),
            patience_s=None if settings.training.max_wait is None else settings.scale.patience,
        )
        return Running(
            dead_letters=dead_letters,
            guard=guard,
            provenance=provenance_of(self._loaded, source.cluster_id()),
            live=live,
            streams=streams,
            trainer=trainer,
        )


def _facts_of(raised: BlockRaised) -> Mapping[str, Any]:
    spans = [[str(span.partition), span.start, span.end] for span in raised.spans if span.learnt]
    return {"gist": raised.gist, "spans": spans}


def _raised_of(facts: Mapping[str, Any]) -> BlockRaised:
    spans = [
        Span(partition=Partition.parse(text), index=0, start=int(start), end=int(end), learnt=int(end) - int(start))
        for text, start, end in facts["spans"]
    ]
    return BlockRaised(spans, str(facts["gist"]))


@contextmanager
def deadline(seconds: float, passed: Callable[[], None]) -> Iterator[None]:
    """Call `passed` on the thread `deadline` if this lasts longer, as nothing else interrupts it."""
    timer = threading.Timer(seconds, passed)
    timer.name, timer.daemon = "deadline", True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
