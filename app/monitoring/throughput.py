"""Throughput: how fast it learns, what holds it back, who of a group is slow, and what would help.

Pure; runs anywhere.
"""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from statistics import fmean
from typing import Literal

from millrace.app.monitoring.models import GroupView, LoopLagView, MemberView, QueueView, ThroughputView, Trouble
from millrace.app.monitoring.observer import Observation
from millrace.app.monitoring.snapshot import Snapshot
from millrace.app.service.figures import GpuFigures
from millrace.pipelines.gates.gate import HeldBy
from millrace.training.telemetry.group_report import member_name
from millrace.training.telemetry.phases import Phase

Bound = Literal["records", "input", "compute", "workers"]
_BESIDE_LEARNING = frozenset(
    {
        "lost",
        "history_missing",
        "partitions_waiting",
        "commits_refused",
        "save_failing",
        "mirror_failing",
        "dead_letters_waiting",
    }
)
"""With these problems records are learnt as they come."""


def throughput_of(observation: Observation) -> ThroughputView:
    """Return how fast it learns, and what holds it back."""
    meter = observation.snapshot.meter
    waiting = _waiting(observation)
    bounds: tuple[Bound, ...] = ("records", "input", "compute", "workers")
    most = max(bounds, key=lambda name: waiting.get(name, 0.0))
    bound = most if waiting.get(most) and not _unknown(observation) else None
    return ThroughputView(
        records_per_s=meter.records_per_s,
        arriving_per_s=observation.arriving_per_s,
        bound_by=bound,
        waiting=waiting,
        advice=_advice(bound, observation),
    )


def _unknown(observation: Observation) -> str | None:
    """Return why nothing can be said of what holds the learning back; None if something can."""
    snapshot = observation.snapshot
    if snapshot.phase.phase is Phase.PAUSED and not snapshot.waits_for_letters:
        by_itself = {HeldBy.FLOOD: ", or good records come again", HeldBy.LABELS: ", or labels come again"}
        or_else = "" if snapshot.held is None else by_itself.get(snapshot.held.by, "")
        return f"Paused: nothing is learnt until it is resumed{or_else}."
    if kafka_is_away(observation):
        return "Kafka does not answer: nothing is learnt until it does."
    if snapshot.waits_for_letters:
        return "Paused: nothing is learnt until the dead letters are taken; then it goes on by itself."
    if has_problem(observation, "nothing_learnt"):
        return "All records are set aside, so nothing can be said."
    if at_the_first(observation):
        return nothing_readable(observation) or "No call has returned yet, so nothing can be said."
    return nothing_readable(observation)


def kafka_is_away(observation: Observation) -> bool:
    """Return whether Kafka does not answer a service that reads from it."""
    return has_problem(observation, "kafka_away")


def has_problem(observation: Observation, kind: str) -> bool:
    """Return whether there is a problem of this kind."""
    return any(trouble.problem == kind for trouble in observation.problems)


def unread_because(observation: Observation) -> Trouble | None:
    """Return the gravest problem that may keep records from being learnt; None without one."""
    return next((trouble for trouble in observation.problems if trouble.problem not in _BESIDE_LEARNING), None)


def nothing_readable(observation: Observation) -> str | None:
    """Return why Kafka gives no more of what is not learnt yet; None if it does, or all is learnt."""
    snapshot = observation.snapshot
    source, partitions = snapshot.source, snapshot.ledger.partitions.keys()
    if partitions and partitions <= set(source.missing):
        return "Waiting for the partitions: Kafka has none of them."
    if has_problem(observation, "open_transaction") and observation.lag.records and not source.lag_records:
        return "Waiting for the end of an open transaction: nothing behind it can be read."
    return None


def at_the_first(observation: Observation) -> bool:
    """Return whether records wait and no call has returned yet, so that nothing is known of what holds it back."""
    return bool(observation.lag.records) and not observation.snapshot.meter.calls


def catch_up_s(observation: Observation) -> float | None:
    """Return the seconds until the lag is 0 at the last minute's rates; None if unknown or never."""
    records, arriving = observation.lag.records, observation.arriving_per_s
    if not records:
        return None if records is None else 0.0
    meter = observation.snapshot.meter
    gaining = max(meter.records_per_s["1m"], meter.settled_per_s) - (arriving or 0.0)
    return None if arriving is None or gaining <= 0 else round(records / gaining, 1)


def queue_of(snapshot: Snapshot) -> QueueView | None:
    """Return the bytes between Kafka and the model, by part; None before fetching has begun."""
    if not snapshot.fetching_began:
        return None
    feed = snapshot.stream.feed
    parts = {
        "client": snapshot.source.buffered_bytes,
        "handoff": snapshot.stream.handoff.queued.nbytes,
        "decoding": feed.decoding_bytes,
        "assembling": feed.assembling_bytes,
        "blocks": feed.under_way_bytes,
    }
    return QueueView(**parts, total=sum(parts.values()), limit=snapshot.settings.memory.limit)


def loop_lag_of(observation: Observation) -> LoopLagView:
    """Return how late the two event loops are for their timers."""
    snapshot = observation.snapshot
    return LoopLagView(
        consumer=snapshot.source.loop_lag_p99_s * 1000 if snapshot.fetching_began else None,
        api=observation.loop_lag_p99_s * 1000,
    )


def _waiting(observation: Observation) -> dict[str, float]:
    """Return the shares of the trainer's last minute.

    While it waited for blocks, the pipeline waited for records at most as long as it did so altogether; the rest of
    the wait was for decoding, assembling and preprocessing. Where records are learnt as fast as they come, every wait
    is for records: the pipeline then is busy with the few that there are, or fills a block with them. Where all of a
    group do so, that goes for the wait for its other workers too.
    """
    shares = observation.snapshot.meter.waiting
    blocks = shares["blocks"]
    starved = observation.starved
    if starved is None:  # until there are two samples, the share of the pipeline's waits so far
        feed = observation.snapshot.stream.feed
        waits = feed.waiting_records_s + feed.waiting_decode_s
        starved = feed.waiting_records_s / waits if waits else 1.0
    records = blocks if observation.keeps_up else min(blocks, starved)
    others = shares["workers"]
    group = {} if observation.snapshot.group is None else {"workers": others}
    if group and observation.keeps_up and all_keep_up(observation):
        records, group = records + others, {"workers": 0.0}
    return {
        "records": records,
        "input": max(0.0, blocks - records),
        "compute": shares["compute"],
        **group,
        "saving": shares["saving"],
    }


def _advice(bound: Bound | None, observation: Observation) -> str:
    if (unknown := _unknown(observation)) is not None:
        return unknown
    if bound is None:
        return "Nothing was learnt in the last minute, so nothing can be said."
    if bound == "compute":
        return _advice_on_compute(observation)
    if bound == "input":
        return (
            "Decoding and preparing are the limit: more CPU cores, a leaner schema or a cheaper preprocess would help."
        )
    if bound == "workers":
        slow = slowest(observation)
        which = "" if slow is None else f", above all for {member_name(slow)}"
        return (
            f"Waiting for the other workers is the limit{which}: the same cores for each, evenly filled partitions, or "
            "longer steps by a larger training.batch_size would help."
        )
    return _advice_on_records(observation)


def _advice_on_compute(observation: Observation) -> str:
    posting, larger = observation.snapshot.posting, "a larger training.batch_size, more batches_per_call"
    gpus = 0 if posting is None else sum("GPU" in device for device in posting.model.devices)
    if not gpus:
        return f"Compute is the limit: {larger} or more CPU cores, or a GPU, would help."
    if (busy := _gpu_busy(observation, gpus)) is None:
        return f"Compute is the limit: {larger} or another GPU would help."
    if busy < _BUSY:
        return (
            f"The CPU's side of the calls is the limit: the GPU is busy for only {100 * busy:.0f} % of them. "
            f"{larger.capitalize()} or fewer small operations in the model would help, and another GPU would not."
        )
    return (
        f"The GPU is the limit, busy for {100 * busy:.0f} % of the calls: the policy mixed_bfloat16, another GPU or a "
        "smaller model would help."
    )


_BUSY = 0.8
"""The share of a call above which TensorFlow's guides call a GPU well used."""


def _gpu_busy(observation: Observation, gpus: int) -> float | None:
    """Return the share of the calls in which the model's GPUs computed, about; None where the driver does not say.

    The driver shows other GPUs too, so it is that of the busiest ones.
    """
    found = observation.snapshot.figures.get(GpuFigures.name, {})
    shown: Iterable[object] = found.values() if isinstance(found, Mapping) else ()
    shares = [one.utilization for one in shown if isinstance(one, GpuFigures) and one.utilization is not None]
    calls = observation.snapshot.meter.waiting["compute"]
    return min(1.0, fmean(sorted(shares)[-gpus:]) / calls) if shares and calls else None


def _advice_on_records(observation: Observation) -> str:
    behind = not observation.keeps_up
    if has_problem(observation, "partitions_missing") or (behind and unread_because(observation) is not None):
        return "What cannot be read is the limit: the problem says why, and what to do."
    if behind and observation.snapshot.source.open_transactions:
        return "An open transaction is the limit: nothing behind it can be read until its producer ends it."
    if behind:
        return "Fetching is the limit: a faster way to the brokers, or a larger kafka.fetch_bytes, would help."
    return "The topic is the limit: the model learns records as fast as they come."


_WAITED_FOR = 0.1
"""The share of the last minute that another worker has to have waited before one counts as slow."""

_MOMENTS_S = 5.0


def group_of(observation: Observation) -> GroupView | None:
    """Return the group of which this process is a worker; None if it learns alone."""
    report = observation.snapshot.group
    if report is None:
        return None
    awaited, paces = waited_for(observation), observation.paces
    members = {}
    for index, address in enumerate(report.addresses):
        name = member_name(index)
        said = {} if not report.members else asdict(report.members[index])
        members[str(index)] = MemberView(
            name=name,
            address=address,
            missing=name in awaited or None,
            records_per_s=paces[index].records_per_s if said and paces else None,
            waiting=paces[index].waiting if said and paces else None,
            **{**said, "states": list(said.get("states", ())) or None},
        )
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
    """Return the worker that waited least for the others; None if nobody waited for long, or it is not known."""
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
