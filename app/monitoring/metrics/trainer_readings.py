"""Readings of the trainer: what it does, what its model scores, what it saves. Pure; runs anywhere."""

from collections.abc import Iterator

from millrace.app.monitoring.all_figures import readings
from millrace.app.monitoring.health import alive, ready
from millrace.app.monitoring.metrics.reading import Reading, by_label, known, one_of
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.problems import KINDS
from millrace.app.monitoring.snapshot import Snapshot
from millrace.app.monitoring.throughput import throughput_of
from millrace.app.monitoring.verdict import ahead_of_guessing
from millrace.training.telemetry.group_report import GroupReport
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.board import Posting


def of_the_trainer(observation: Observation) -> Iterator[Reading]:
    """Yield the readings of the trainer."""
    snapshot = observation.snapshot
    yield Reading("alive", all(check.ok for check in alive(snapshot)))
    yield Reading("ready", all(check.ok for check in ready(snapshot)))
    present = {trouble.problem for trouble in observation.problems}
    yield from by_label("problem", {kind: kind in present for kind in KINDS})
    yield from _phase(snapshot)
    yield from by_label("trainer_time_ratio", throughput_of(observation).waiting)
    yield Reading("incarnation", snapshot.ledger.incarnation)
    yield Reading("brake_starts", 0 if snapshot.crash_loop is None else snapshot.crash_loop.starts)
    yield from _group(snapshot.group)
    yield from readings(snapshot.figures, snapshot.at)
    if snapshot.posting is not None:
        yield from _posted(snapshot.posting)
        yield from _saves(snapshot.posting, snapshot.at)


def _group(group: GroupReport | None) -> Iterator[Reading]:
    """Yield the group's readings; those of each worker from the chief alone, so that sums over targets are right."""
    if group is None:
        return
    yield Reading("group_workers", len(group.addresses))
    for index, member in enumerate(group.members if group.is_chief else ()):
        yield Reading("group_worker_lag_records", member.lag_records, (str(index),))
        yield Reading("group_worker_learnt_total", member.learnt, (str(index),))
        yield Reading("group_worker_waited_seconds_total", member.waited_s, (str(index),))


def _phase(snapshot: Snapshot) -> Iterator[Reading]:
    phase = snapshot.phase
    yield from one_of("phase", phase.phase, (each.value for each in Phase))
    yield Reading("phase_seconds", phase.for_s)
    yield from known("phase_limit_seconds", phase.limit_s)


def _posted(posting: Posting) -> Iterator[Reading]:
    yield Reading("step", posting.step)
    yield Reading("learning_rate", posting.learning_rate)
    yield Reading("model_parameters", posting.model.parameters)
    yield Reading("replicas", posting.model.replicas)
    yield from _live(posting.live)


def _live(live: LiveSnapshot) -> Iterator[Reading]:
    yield from by_label("live_value", live.values)
    yield from by_label("live_baseline", live.baseline)
    yield from _watched("live_watched_value", live, live.values.get(live.watch.name))
    yield from _watched("live_watched_baseline", live, live.baseline.get(live.watch.name))
    yield from _watched("live_watched_ahead", live, ahead_of_guessing(live))
    yield Reading("live_records", live.records)
    yield Reading("live_window_seconds", live.window_s)
    if live.age_s is not None:
        yield Reading("live_age_seconds", live.age_s)
    yield from by_label("live_cumulative_value", live.cumulative)
    yield Reading("live_cumulative_records", live.cumulative_records)


def _watched(name: str, live: LiveSnapshot, value: float | None) -> Iterator[Reading]:
    if value is not None:
        yield from by_label(name, {live.watch.name: value})


def _saves(posting: Posting, now: float) -> Iterator[Reading]:
    yield Reading("checkpoints_saved_total", posting.saves)
    yield Reading("checkpoints_failed_total", posting.failed_saves)
    if (save := posting.last_save) is None:
        return
    manifest = save.manifest
    yield Reading("checkpoint_number", manifest.number)
    yield Reading("checkpoint_age_seconds", max(0.0, now - manifest.created.timestamp()))
    yield Reading("checkpoint_unsaved_steps", max(0, posting.step - manifest.step))
    yield Reading("checkpoint_bytes", manifest.size)
    if save.took_s:
        yield Reading("checkpoint_took_seconds", save.took_s)
        yield Reading("checkpoint_stall_seconds", save.stall_s)
