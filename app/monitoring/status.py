"""The status: everything at a glance, out of one observation. Pure; runs anywhere."""

import math
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from millrace.app.monitoring.all_figures import shown_within
from millrace.app.monitoring.lag import partition_lags, retention_s_left
from millrace.app.monitoring.lineage_view import rewound_of, skips_of
from millrace.app.monitoring.models import (
    AssignedPartitions,
    CheckpointView,
    CommitsView,
    KafkaView,
    LagAnswer,
    LiveView,
    ModelView,
    RecordsView,
    Status,
    StreamView,
    ThroughputAnswer,
    TrainingView,
    WatchView,
)
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.shapes import stamp
from millrace.app.monitoring.snapshot import Snapshot, balanced, flow_of
from millrace.app.monitoring.throughput import catch_up_s, group_of, loop_lag_of, queue_of, throughput_of
from millrace.app.monitoring.verdict import headline, mood_of, verdict_of
from millrace.consumers.metric import to_float32
from millrace.consumers.units import format_duration
from millrace.pipelines.stream.offset_counts import OffsetCounts
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.trainer.board import Posting


def status_of(observation: Observation) -> Status:
    """Return everything at a glance."""
    snapshot, lag = observation.snapshot, observation.lag
    throughput = throughput_of(observation)
    assigned, waiting = len(snapshot.ledger.partitions), len(snapshot.source.waiting_partitions)
    return Status(
        **stamp(snapshot),
        state=snapshot.phase.phase,
        reason=snapshot.phase.reason,
        resumes_by_itself=snapshot.waits_for_letters or None,
        verdict=verdict_of(observation, throughput),
        mood=mood_of(observation),
        problems=observation.problems,
        stream=StreamView(
            lag_records=lag.records,
            lag_s=lag.seconds,
            staleness_s=snapshot.meter.freshness_s or None,
            catch_up_s=catch_up_s(observation),
            retention_s_left=retention_s_left(snapshot, lag),
            partitions=AssignedPartitions(assigned=assigned, of=assigned + waiting),
        ),
        throughput=throughput,
        records=records_of(snapshot),
        skips=skips_of(snapshot.ledger.orders, snapshot.ledger.partitions),
        rewound=rewound_of(snapshot.ledger.orders),
        model=ModelView(
            build=str(snapshot.settings.model.build),
            sha256=snapshot.provenance.get("model_sha256"),
            parameters=None if snapshot.posting is None else snapshot.posting.model.parameters,
        ),
        kafka=KafkaView(
            connected=snapshot.source.connected,
            cluster_id=snapshot.provenance.get("cluster_id"),
            group=snapshot.settings.kafka.group,
            topics=snapshot.settings.kafka.topics,
        ),
        group=group_of(observation),
        **shown_within("", snapshot.figures),
        **({} if snapshot.posting is None else _posted(snapshot, snapshot.posting)),
    )


def _posted(snapshot: Snapshot, posting: Posting) -> dict[str, Any]:
    """Return the parts of the status that the trainer posts."""
    training = TrainingView(
        step=posting.step,
        learning_rate=to_float32(posting.learning_rate) if math.isfinite(posting.learning_rate) else None,
        replicas=posting.model.replicas,
        device=", ".join(posting.model.devices),
        incarnation=snapshot.ledger.incarnation,
        hyperparameters_changed=posting.changes or None,
        **shown_within("training", snapshot.figures),
    )
    if (save := posting.last_save) is None:
        return {"live": _live(posting.live), "training": training}
    names = ("number", "parent", "step", "reason", "ordered_by", "note")
    checkpoint = CheckpointView(
        **{name: getattr(save.manifest, name) for name in names},
        age_s=max(0.0, snapshot.at - save.made_at),
        took_s=save.took_s,
        stall_ms=None if save.stall_s is None else save.stall_s * 1000,
    )
    return {"live": _live(posting.live), "training": training, "checkpoint": checkpoint}


def lag_answer(observation: Observation) -> LagAnswer:
    """Return how far behind the learning is, by partition."""
    snapshot, lag = observation.snapshot, observation.lag
    source = snapshot.source
    return LagAnswer(
        **stamp(snapshot),
        lag_records=lag.records,
        lag_s=lag.seconds,
        catch_up_s=catch_up_s(observation),
        retention_s_left=retention_s_left(snapshot, lag),
        partitions=partition_lags(snapshot, lag),
        commits=CommitsView(accepted=source.commits_accepted, refused=source.commits_refused)
        if snapshot.fetching_began
        else None,
    )


def throughput_answer(observation: Observation) -> ThroughputAnswer:
    """Return the throughput, the freshness, and what is under way."""
    snapshot = observation.snapshot
    return ThroughputAnswer(
        **stamp(snapshot),
        **dict(throughput_of(observation)),
        staleness_s=snapshot.meter.freshness_s or None,
        queued_bytes=queue_of(snapshot),
        loop_lag_ms=loop_lag_of(observation),
    )


def records_of(snapshot: Snapshot) -> RecordsView:
    """Return the outcome of the records: of this history by the ledger, of this incarnation by what is on its way."""
    partitions = snapshot.ledger.partitions.values()
    histories = [history for partition in partitions for history in partition.histories]
    counts = sum(histories, OffsetCounts())
    flow = flow_of(snapshot)
    return RecordsView(
        offsets=sum(history.settled for history in histories),
        **counts.to_json(),
        begun_anew=len(histories) - len(partitions) or None,
        **(asdict(flow) if flow else {}),
        balanced=balanced(snapshot),
    )


def _live(live: LiveSnapshot) -> LiveView:
    own, name, ahead = LiveView.model_fields.keys(), live.watch.name, live.ahead_of_guessing
    values, baseline = _finite(live.values), _finite(live.baseline)
    return LiveView(
        headline=headline(live),
        watch=WatchView(
            metric=name,
            better="higher" if live.watch.higher_is_better else "lower",
            value=values.get(name),
            baseline=baseline.get(name),
            guess=live.guesses.get(name) if name in live.baseline else None,
            ahead=None if ahead is None else to_float32(ahead),
        ),
        scored=live.scored,
        window=format_duration(live.window_s),
        records=live.records,
        age_s=live.age_s,
        baseline=baseline,
        guesses={name: words for name, words in live.guesses.items() if name in live.baseline},
        no_change=_finite(live.no_change),
        cumulative={"records": live.cumulative_records, **_finite(live.cumulative)},
        **{f"{name}_" if name in own else name: value for name, value in values.items()},
    )


def _finite(values: Mapping[str, float]) -> dict[str, float]:
    """Round values to the digits that float32 holds, and leave out those that are not finite, as JSON has none."""
    return {name: to_float32(value) for name, value in values.items() if math.isfinite(value)}
