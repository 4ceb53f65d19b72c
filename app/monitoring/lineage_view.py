"""Lineage and rewinds as they are answered: orders, histories and plans, in the API's shapes.

Pure, but for the one question to Kafka. For the HTTP side and for a rewind while no trainer runs, which loads no
TensorFlow.
"""

from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

from millrace.app.monitoring.checkpoint_models import EventTimeView, HistoryView
from millrace.app.monitoring.models import RewoundView, SkipView
from millrace.app.monitoring.shapes import event_moment
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.options import OutOfRange
from millrace.consumers.kafka.positions import Earliest
from millrace.consumers.records import Partition
from millrace.training.history.lineage import CheckpointLineage
from millrace.training.history.rewind import RewindPlan
from millrace.training.ledger.account import PartitionAccount
from millrace.training.ledger.interventions import UNPUBLISHED, Interventions
from millrace.training.ledger.ledger import EventSpan

if TYPE_CHECKING:
    from millrace.app.service.holding import SourceView  # loads aiokafka


def lineage_fields(lineage: CheckpointLineage) -> dict[str, Any]:
    """Return the fields of `LineageAnswer` about what is behind a checkpoint."""
    return {
        "history": {str(at): history_of(facts) for at, facts in lineage.partitions.items()} or None,
        "event_time": event_time_of(lineage.event_span),
        "skips": skips_of(lineage.orders, lineage.partitions),
        "rewound": rewound_of(lineage.orders),
        "chain": lineage.chain or None,
    }


def history_of(facts: PartitionAccount) -> HistoryView:
    """Return the outcome of a partition's offsets, and of those of earlier topics of the same name."""
    return HistoryView(**facts.facts(), former=[history_of(closed) for closed in facts.former] or None)


def skips_of(orders: Interventions, partitions: Mapping[Partition, PartitionAccount]) -> list[SkipView] | None:
    """Return every command to skip, and how far it is carried out; None if there never was one."""
    views = {}
    for skip in orders.skips:
        ranges = [other for other in orders.skips if other.order == skip.order]
        views[skip.order] = SkipView(
            order=skip.order,
            number=skip.number,
            by=skip.by,
            reason=skip.reason,
            ranges=list(map(str, ranges)),
            offsets=sum(one.end - one.start for one in ranges),
            passed=sum(one.skipped.get(skip.order, 0) for at in partitions.values() for one in at.histories),
            lifted_by=skip.lifted_by,
        )
    return list(views.values()) or None


def rewound_of(orders: Interventions) -> RewoundView | None:
    """Return the last rewind; None if there was none."""
    last = orders.rewound
    return None if last is None else RewoundView(number=last.number, to=last.to, by=last.by, reason=last.why)


def event_time_of(span: EventSpan) -> EventTimeView | None:
    """Return the first and the last event time; None if they are not known."""
    if span.oldest_ms is None or span.newest_ms is None:
        return None
    return EventTimeView(oldest=event_moment(span.oldest_ms), newest=event_moment(span.newest_ms))


def beginnings_of(source: "SourceView") -> Mapping[Partition, int] | None:
    """Return the first offset that Kafka still has of each partition; None if it does not answer."""
    try:
        return source.resolve_start(Earliest())
    except (MillraceError, TimeoutError, RuntimeError, CancelledError):  # away, or being stopped
        return None


def plan_fields(plan: RewindPlan, *, policy: OutOfRange, per_s: float | None) -> dict[str, Any]:
    """Return the fields of `RewindPlanAnswer` that describe the plan."""
    learnt_to = plan.event_span.newest_ms
    skips = skips_of(plan.orders, plan.history) or ()
    # Those that hold and come from an earlier command; the planned one has no number yet.
    earlier = [skip for skip in skips if skip.lifted_by is None and skip.number != UNPUBLISHED]
    return {
        "to": plan.to.number,
        "step": plan.to.step,
        "created_at": plan.to.created_at,
        "why": plan.why,
        "metrics": plan.to.metrics or None,
        "measured": plan.to.measured,
        "learnt_to": None if learnt_to is None else event_moment(learnt_to),
        "replayed": plan.replayed,
        "skipped": plan.skipped,
        "gone": plan.gone,
        "takes_s": plan.replayed / per_s if per_s else None,
        "advice": plan.advice(policy),
        "skips": earlier or None,
        "partitions": {str(partition): replay for partition, replay in plan.partitions.items()},
    }
