"""What a rewind would do, in the API's words. Pure, but for the one question to Kafka.

For the HTTP side and for a rewind while no trainer runs, which loads no TensorFlow.
"""

from collections.abc import Mapping
from concurrent.futures import CancelledError
from typing import Any

from millrace.app.monitoring.lineage_view import skips_of
from millrace.app.monitoring.models import SkipView
from millrace.app.monitoring.shapes import event_moment
from millrace.app.service.source_view import SourceView
from millrace.consumers.errors import MillraceError
from millrace.consumers.kafka.options import OutOfRange
from millrace.consumers.kafka.positions import Earliest
from millrace.consumers.records import Partition
from millrace.training.history.rewind import RewindPlan
from millrace.training.ledger.skips import UNPUBLISHED


def beginnings_of(source: SourceView) -> Mapping[Partition, int] | None:
    """Return the first offset that Kafka still has of each partition; None where it does not answer."""
    try:
        return source.resolve_start(Earliest())
    except (MillraceError, TimeoutError, RuntimeError, CancelledError):  # away, or being stopped
        return None


def plan_fields(plan: RewindPlan, *, policy: OutOfRange, per_s: float | None) -> dict[str, Any]:
    """Return the fields of `RewindPlanAnswer` that describe the plan."""
    learnt_to = plan.event_span.newest_ms
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
        "skips": [skip for skip in skips_of(plan.orders, plan.history) or () if _is_earlier(skip)] or None,
        "partitions": {str(partition): replay for partition, replay in plan.partitions.items()},
    }


def _is_earlier(skip: SkipView) -> bool:
    """Return whether a skip holds and comes from an earlier command; the planned one has no number yet."""
    return skip.lifted_by is None and skip.number != UNPUBLISHED
