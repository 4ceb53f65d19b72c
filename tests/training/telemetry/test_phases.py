"""The trainer's phases: which phase may follow which, and when the trainer counts as hung."""

from itertools import product

import pytest

from millrace.training.telemetry.phases import Phase, PhaseLimits, Phases
from tests.training.trainer_rig import Clock

LIVING = (Phase.TRAINING, Phase.IDLE, Phase.SAVING, Phase.PAUSED, Phase.RESTORING)
WAYS = {
    Phase.STARTING: [Phase.STARTING],
    Phase.WAITING: [Phase.WAITING],
    Phase.TRACING: [Phase.TRACING],
    Phase.RESTORING: [Phase.TRACING, Phase.RESTORING],
    Phase.TRAINING: [Phase.TRACING, Phase.RESTORING, Phase.TRAINING],
    Phase.IDLE: [Phase.TRACING, Phase.RESTORING, Phase.IDLE],
    Phase.SAVING: [Phase.TRACING, Phase.RESTORING, Phase.IDLE, Phase.SAVING],
    Phase.PAUSED: [Phase.TRACING, Phase.RESTORING, Phase.PAUSED],
    Phase.STOPPING: [Phase.STOPPING],
    Phase.ENDED: [Phase.STOPPING, Phase.ENDED],
    Phase.FAILED: [Phase.FAILED],
}


def _in(phase: Phase, clock: Clock | None = None) -> Phases:
    phases = Phases(clock=clock or Clock())
    for step in WAYS[phase]:
        phases.enter(step)
    return phases


@pytest.mark.parametrize(("before", "after"), list(product(LIVING, LIVING)))
def test_a_trainer_at_work_goes_from_any_phase_to_any(before: Phase, after: Phase) -> None:
    phases = _in(before)
    phases.enter(after)
    assert phases.phase is after


@pytest.mark.parametrize("phase", [*LIVING, Phase.STARTING, Phase.TRACING])
def test_a_trainer_may_be_stopped_in_every_phase(phase: Phase) -> None:
    phases = _in(phase)
    phases.enter(Phase.STOPPING)
    phases.enter(Phase.ENDED)
    assert phases.phase is Phase.ENDED


@pytest.mark.parametrize("phase", list(Phase))
def test_a_trainer_may_fail_in_every_phase_with_a_reason(phase: Phase) -> None:
    phases = _in(phase)
    phases.enter(Phase.FAILED, "the disk is gone")
    snapshot = phases.snapshot()
    assert (snapshot.phase, snapshot.reason) == (Phase.FAILED, "the disk is gone")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        *((over, phase) for over, phase in product((Phase.ENDED, Phase.FAILED), LIVING)),
        *((Phase.STOPPING, phase) for phase in LIVING),
        (Phase.STARTING, Phase.TRAINING),
        (Phase.TRAINING, Phase.ENDED),
        (Phase.TRAINING, Phase.STARTING),
        (Phase.FAILED, Phase.ENDED),
    ],
)
def test_no_phase_follows_an_end_or_skips_the_start(before: Phase, after: Phase) -> None:
    phases = _in(before)
    with pytest.raises(AssertionError, match=f"from {before} to {after}"):
        phases.enter(after)
    assert phases.phase is before


def test_a_phase_counts_as_hung_beyond_its_limit_and_not_before() -> None:
    clock = Clock()
    phases = Phases(PhaseLimits(limits={Phase.STARTING: 5.0}), clock)
    clock.now += 5
    assert not phases.snapshot().hung
    clock.now += 0.1
    snapshot = phases.snapshot()
    assert snapshot.hung
    assert snapshot.for_s == pytest.approx(5.1)


def test_entering_the_phase_again_shows_progress() -> None:
    clock = Clock()
    phases = _in(Phase.IDLE, clock)
    clock.now += 1000
    assert phases.snapshot().hung
    phases.enter(Phase.IDLE)
    assert not phases.snapshot().hung
    assert phases.snapshot().for_s == 0


@pytest.mark.parametrize("phase", [Phase.PAUSED, Phase.ENDED, Phase.FAILED])
def test_a_paused_or_ended_trainer_never_counts_as_hung(phase: Phase) -> None:
    clock = Clock()
    phases = _in(phase, clock)
    clock.now += 1e9
    assert not phases.snapshot().hung


@pytest.mark.parametrize("phase", [phase for phase in Phase if phase not in {"waiting", "paused", "ended", "failed"}])
def test_every_other_phase_has_a_limit(phase: Phase) -> None:
    clock = Clock()
    phases = _in(phase, clock)
    clock.now += 1e9
    assert phases.snapshot().hung


def test_a_reason_ends_with_its_phase() -> None:
    phases = _in(Phase.PAUSED)
    phases.enter(Phase.PAUSED, "asked to")
    assert phases.snapshot().reason == "asked to"
    phases.enter(Phase.IDLE)
    assert phases.snapshot().reason is None
