"""The probes: is it alive, is it ready. Pure; runs anywhere.

The service is alive while it makes progress, or waits for a good reason: a broker that is away, a pause and an idle
topic are no reason to kill it. It is ready when its state is restored, it obeys commands, Kafka answers, no record
waits for its schema, and nothing holds the learning: no flood of bad records, and no topic that takes no dead letters.
"""

from collections.abc import Sequence

from millrace.app.monitoring.models import Check, Health
from millrace.app.monitoring.shapes import stamp
from millrace.app.monitoring.snapshot import AT_WORK, Snapshot
from millrace.training.telemetry.phases import Phase


def alive(snapshot: Snapshot) -> list[Check]:
    """Return the checks of a liveness probe."""
    phase = snapshot.phase
    gone = not snapshot.alive and phase.phase is not Phase.ENDED
    past = f", which is past its limit of {phase.limit_s:g} s" if phase.hung else ""
    return [
        Check(check="trainer", ok=not gone, detail="its thread is gone" if gone else "its thread is there"),
        Check(
            check="failed",
            ok=phase.phase is not Phase.FAILED,
            detail=f"it failed: {phase.reason}" if phase.phase is Phase.FAILED else "it has not failed",
        ),
        Check(
            check="progress",
            ok=not phase.hung,
            detail=f"{phase.phase} for {phase.for_s:.1f} s{past}",
        ),
    ]


def ready(snapshot: Snapshot) -> list[Check]:
    """Return the checks of a readiness probe."""
    # A rollout replaces one pod after another and waits for each to be ready: a worker that waits for those that are
    # not replaced yet has to count as ready, or neither would ever come.
    waits = snapshot.phase.phase is Phase.WAITING
    at_work = waits or (snapshot.phase.phase in AT_WORK and snapshot.posting is not None)
    connected, lacks = snapshot.source.connected, snapshot.stream.feed.lacks
    return [
        *alive(snapshot),
        Check(
            check="restored",
            ok=at_work,
            detail="it waits for its group"
            if waits
            else "its state is restored"
            if at_work
            else f"it is {snapshot.phase.phase}, not at work",
        ),
        Check(check="kafka", ok=connected, detail="Kafka answers" if connected else "Kafka does not answer"),
        Check(
            check="crash_loop",
            ok=snapshot.braked is None,
            detail="it is in no crash loop" if snapshot.braked is None else f"paused: {snapshot.braked}",
        ),
        Check(
            check="registry",
            ok=lacks is None,
            detail="no record waits for its schema" if lacks is None else f"records wait for their schema: {lacks}",
        ),
        Check(
            check="held",
            ok=snapshot.held is None,
            detail="nothing holds the learning" if snapshot.held is None else f"paused: {snapshot.held.why}",
        ),
    ]


def health_of(snapshot: Snapshot, checks: Sequence[Check], *, verbose: bool) -> Health:
    """Return the answer of a probe."""
    failing = [check.detail for check in checks if not check.ok]
    return Health(
        **stamp(snapshot),
        status="failing" if failing else "ok",
        state=snapshot.phase.phase,
        reasons=failing or None,
        checks=list(checks) if verbose else None,
    )
