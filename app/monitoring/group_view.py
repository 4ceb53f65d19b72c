"""The group of workers as people see it: who is behind, who is slow, who is waited for. Pure; runs anywhere."""

from millrace.app.monitoring.group_models import GroupView, MemberView
from millrace.app.monitoring.observer import Observation
from millrace.training.telemetry.group_report import member_name
from millrace.training.telemetry.phases import Phase

_WAITED_FOR = 0.1
"""The share of the last minute that another worker has to have waited before one counts as slow."""

_MOMENTS_S = 5.0


def group_of(observation: Observation) -> GroupView | None:
    """Return the group of which this process is a worker; None where it learns alone."""
    report = observation.snapshot.group
    if report is None:
        return None
    members = {str(index): _member(observation, index) for index in range(len(report.addresses))}
    paces = observation.paces
    return GroupView(
        workers=len(report.addresses),
        worker=report.index,
        chief=report.chief,
        lag_records=sum(member.lag_records for member in report.members) if report.members else None,
        records_per_s=sum(pace.records_per_s for pace in paces) if paces else None,
        slowest=slowest(observation),
        members=members,
    )


def slowest(observation: Observation) -> int | None:
    """Return the worker that waited least for the others; None where nobody waited for long, or it is not known."""
    waiting = [pace.waiting for pace in observation.paces]
    return waiting.index(min(waiting)) if waiting and max(waiting) >= min(waiting) + _WAITED_FOR else None


def all_keep_up(observation: Observation) -> bool:
    """Return whether every worker would learn what it is behind within moments; False where that is not known."""
    report, paces = observation.snapshot.group, observation.paces
    if report is None or not paces:
        return False
    pairs = zip(report.members, paces, strict=True)
    return all(member.lag_records <= _MOMENTS_S * pace.records_per_s for member, pace in pairs)


def waited_for(observation: Observation) -> list[str]:
    """Return the names of the workers that are not there, while this one waits for all."""
    report = observation.snapshot.group
    waits = observation.snapshot.phase.phase is Phase.WAITING
    return [member_name(index) for index in report.missing] if report is not None and waits else []


def _member(observation: Observation, index: int) -> MemberView:
    report = observation.snapshot.group
    assert report is not None
    missing = member_name(index) in waited_for(observation)
    known = MemberView(name=member_name(index), address=report.addresses[index], missing=missing or None)
    if not report.members:
        return known
    member, paces = report.members[index], observation.paces
    return known.model_copy(
        update={
            "partitions": member.partitions,
            "lag_records": member.lag_records,
            "learnt": member.learnt,
            "records_per_s": round(paces[index].records_per_s, 1) if paces else None,
            "waited_s": round(member.waited_s, 3),
            "waiting": round(paces[index].waiting, 3) if paces else None,
            "states": list(member.states) or None,
        }
    )
