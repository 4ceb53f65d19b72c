"""What the answers look like. A field that is not known yet, or does not exist yet, is left out of the answer.

Owns shapes only; the numbers come from snapshots. Fields are only ever added within a major version.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field


def moment(seconds: float) -> str:
    """Return seconds since 1970 as ISO 8601 in UTC."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def event_moment(time_ms: int) -> str:
    """Return an event time as ISO 8601, or as a number where a record claims one that no calendar has."""
    try:
        return moment(time_ms / 1000)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"


class Shape(BaseModel):
    """A part of an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Answer(Shape):
    """What every answer carries."""

    as_of: str = Field(description="When this was read: ISO 8601, UTC.")
    name: str = Field(description="The config's name.")
    version: str = Field(description="millrace's version.")


class Check(Shape):
    """One thing that a probe looks at."""

    check: str
    ok: bool
    detail: str


class Health(Answer):
    """A probe's answer; 200 when `status` is ok, 503 when it is failing."""

    status: Literal["ok", "failing"]
    state: str = Field(description="The trainer's phase.")
    reasons: list[str] | None = Field(None, description="Why it is failing.")
    checks: list[Check] | None = Field(None, description="All checks, where the request asks for them.")


class Trouble(Shape):
    """Something that needs attention."""

    problem: str = Field(description="The kind of problem, for programs.")
    what: str
    since: str = Field(description="When it was first seen, to a second.")
    fix: str


class AssignedPartitions(Shape):
    """How many partitions are read, and how many there are."""

    assigned: int
    of: int


class StreamView(Shape):
    """How far behind the learning is."""

    lag_records: int | None = Field(None, description="Offsets that are not learnt yet.")
    lag_s: float | None = Field(None, description="Seconds that the learning is behind the topic.")
    staleness_s: Mapping[str, float] | None = Field(
        None, description="From a record's timestamp to the end of the call that learnt it, over the last minute."
    )
    catch_up_s: float | None = Field(None, description="Seconds until the lag is 0, if rates stay as they are.")
    retention_s_left: float | None = Field(
        None, description="Seconds until Kafka may remove, for its age, the oldest record that is not learnt."
    )
    partitions: AssignedPartitions


class ThroughputView(Shape):
    """How fast it learns, and what holds it back."""

    records_per_s: Mapping[str, float] = Field(description="Records learnt per second, over each window.")
    arriving_per_s: float | None = Field(
        None, description="Records written to the topics per second, over the last minute."
    )
    bound_by: Literal["records", "input", "compute"] | None = Field(
        None, description="What the trainer's thread spends most of its time on; left out before the first call."
    )
    waiting: Mapping[str, float] = Field(
        description="Shares of the trainer's last minute: waiting for records to come, waiting for them to be "
        "decoded and prepared, computing, copying for a save."
    )
    advice: str


class RecordsView(Shape):
    """The outcome of the records.

    Of this history: offsets = learnt + set aside + skipped + gaps + lost. Of the present incarnation:
    fetched = handed + held + discarded.
    """

    offsets: int = Field(description="From where this history began to where it stands, over all partitions.")
    learnt: int
    set_aside: Mapping[str, int] = Field(description="By reason.")
    skipped: Mapping[str, int] = Field(description="By the command that skips them.")
    gaps: int = Field(description="Offsets at which Kafka holds no record: compacted, aborted, control records.")
    lost: int = Field(description="Offsets that retention removed before they were read.")
    truncated: Mapping[str, int] | None = Field(
        None, description="Of the records that were decoded, those of which a list was cut to its bound, by feature."
    )
    begun_anew: int | None = Field(
        None, description="How often a partition restarted because its topic was created again; left out for never."
    )
    fetched: int | None = Field(None, description="Since the present incarnation began.")
    handed: int | None = Field(None, description="Of those, given to the trainer.")
    held: int | None = Field(None, description="Of those, on their way to the trainer.")
    discarded: int | None = Field(None, description="Of those, dropped by a stop; they are read again.")
    balanced: bool = Field(description="Whether both sums hold.")


class LiveView(Shape):
    """The live metrics: each compiled metric stands here under its own name, beside the loss."""

    model_config = ConfigDict(frozen=True, extra="allow")

    headline: str = Field(description="The name of the metric to show first.")
    scored: str = Field(description="before_update: by the training pass; inference_pass: by one before it.")
    window: str
    records: int
    baseline: Mapping[str, float] = Field(description="What always guessing the base rate would score.")
    cumulative: Mapping[str, int | float] = Field(description="The same values since checkpoint number 0.")


class HyperparameterView(Shape):
    """A hyperparameter that differs in the checkpoint."""

    name: str
    then: Any = Field(None, description="In the checkpoint.")
    now: Any = Field(None, description="In model.py and the settings.")
    used: Literal["build", "checkpoint"] = Field(description="build: `now` is in force; checkpoint: `then` is.")


class TrainingView(Shape):
    """The trainer."""

    step: int
    learning_rate: float | None = None
    replicas: int
    device: str
    incarnation: int
    hyperparameters_changed: list[HyperparameterView] | None = Field(
        None, description="What differed between the checkpoint and what is deployed, at the last start or rewind."
    )


class CheckpointView(Shape):
    """The newest durable checkpoint."""

    number: int
    parent: int | None = None
    step: int
    reason: str
    ordered_by: str | None = None
    note: str | None = None
    age_s: float
    took_s: float | None = Field(None, description="From the copy to durability; of a save of this process.")
    stall_ms: float | None = Field(None, description="How long the training stood still for the copy.")


class SkipView(Shape):
    """A command to skip some offsets; it holds on every later replay."""

    order: str
    number: int | None = Field(None, description="The checkpoint that it was published as.")
    by: str | None = None
    reason: str
    ranges: list[str] = Field(description="As in the command, both ends included.")
    offsets: int = Field(description="How many there are in them.")
    passed: int = Field(description="How many of them this history has skipped so far.")
    lifted_by: int | None = Field(None, description="The checkpoint whose command lifted it; it no longer holds.")


class RewoundView(Shape):
    """The last rewind of this history."""

    number: int = Field(description="The checkpoint that it was published as.")
    to: int
    by: str | None = None
    reason: str | None = None


class ModelView(Shape):
    """The user's model."""

    build: str
    sha256: str | None = None
    parameters: int | None = None


class KafkaView(Shape):
    """Where the records come from."""

    connected: bool
    cluster_id: str | None = None
    group: str
    topics: list[str]


class Status(Answer):
    """Everything at a glance."""

    state: str
    reason: str | None = Field(None, description="Why, where it is paused or failed.")
    verdict: str
    mood: Literal["well", "warn", "bad", "rest", "busy"] = Field(
        description="The verdict in a word. bad: failed, hung or unbalanced; warn: there are problems; well: at work; "
        "rest: paused or stopped; busy: coming up."
    )
    problems: list[Trouble]
    stream: StreamView
    throughput: ThroughputView
    records: RecordsView
    live: LiveView | None = None
    training: TrainingView | None = None
    checkpoint: CheckpointView | None = None
    skips: list[SkipView] | None = Field(None, description="All commands to skip, the earliest first.")
    rewound: RewoundView | None = None
    model: ModelView
    kafka: KafkaView


class PartitionLagView(Shape):
    """How far behind one partition is."""

    position: int = Field(description="The next offset to be learnt.")
    fetched: int | None = Field(None, description="The next offset to be fetched.")
    end: int | None = Field(None, description="One past the last offset in the topic.")
    lag_records: int | None = None
    lag_s: float | None = Field(None, description="How long ago its newest learnt record was written.")
    same_topic: Literal["same", "unknown"] | None = Field(
        None,
        description="Whether it is known to belong to the same topic as before; left out where nothing was learnt.",
    )


class CommitsView(Shape):
    """Kafka's answers to our commits."""

    accepted: int
    refused: Mapping[str, int] = Field(description="By the name of the error.")


class LagAnswer(Answer):
    """How far behind the learning is."""

    lag_records: int | None = None
    lag_s: float | None = None
    catch_up_s: float | None = None
    retention_s_left: float | None = Field(
        None, description="Seconds until Kafka may remove, for its age, the oldest record that is not learnt."
    )
    partitions: Mapping[str, PartitionLagView]
    commits: CommitsView | None = None


class QueueView(Shape):
    """Bytes between Kafka and the model, by part, against their one bound."""

    client: int = Field(description="Fetched, and held by the Kafka client.")
    handoff: int
    decoding: int
    assembling: int
    blocks: int
    total: int
    limit: int


class LoopLagView(Shape):
    """How late the two event loops were for their timers over the last half minute: the 99th percentile."""

    consumer: float | None = Field(None, description="Of the loop that fetches; above 100 it is overloaded.")
    api: float = Field(description="Of the loop that answers; a probe may wait for that long.")


class ThroughputAnswer(ThroughputView, Answer):
    """How fast it learns, what holds it back, and what is under way."""

    staleness_s: Mapping[str, float] | None = None
    queued_bytes: QueueView | None = None
    loop_lag_ms: LoopLagView | None = None


class Checkpoint(Shape):
    """One checkpoint, as its manifest has it."""

    number: int
    condition: str = Field(description="good, corrupt, fenced or newer.")
    parent: int | None = None
    term: int | None = None
    incarnation: int | None = None
    step: int | None = None
    reason: str | None = None
    ordered_by: str | None = None
    note: str | None = None
    created_at: str | None = None
    bytes: int | None = None
    complaints: list[str] | None = Field(None, description="What is wrong with it.")


class CheckpointInFull(Checkpoint):
    """All that is known of one checkpoint."""

    verified: bool = Field(description="Whether every byte was read and hashed just now, and is what was written.")
    ancestors: list[int] | None = None
    files: Mapping[str, Any] | None = None
    positions: Mapping[str, int] | None = Field(None, description="The next offset of each partition.")
    metrics: Mapping[str, float] | None = None
    provenance: Mapping[str, Any] | None = None


class OtherFolder(Shape):
    """Something else in the checkpoints' folder."""

    name: str
    condition: str = Field(description="temporary or unknown.")


class CheckpointList(Answer):
    """The checkpoints, the newest first."""

    checkpoints: list[Checkpoint]
    others: list[OtherFolder] = Field(description="Half written, half removed, or not ours.")
    total: int
    next: str | None = Field(None, description="The path of the next page.")


class CheckpointAnswer(Answer):
    """One checkpoint."""

    checkpoint: CheckpointInFull


class OperationView(Shape):
    """Something that was asked of the trainer."""

    id: str
    kind: str = Field(description="save, rewind, pause, resume or profile.")
    state: Literal["running", "succeeded", "failed"]
    began_at: str
    ended_at: str | None = None
    checkpoint: int | None = Field(None, description="The checkpoint that it made.")
    profile: str | None = Field(None, description="The folder of the profile that it wrote.")
    complaint: str | None = Field(None, description="Why it failed.")


class OperationAnswer(Answer):
    """How an operation stands."""

    operation: OperationView


class StateAnswer(Answer):
    """The trainer's phase after a command."""

    state: str
    reason: str | None = None


class ProfileAnswer(Answer):
    """A profile that was written."""

    folder: str = Field(description="On the trainer's machine.")
    calls: int = Field(description="How many calls it shows; fewer than asked for where records were slow to come.")
    open: str = Field(description="The command that shows it.")


class ProblemDocument(Answer):
    """Why a request was not carried out (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    fix: str = Field(description="What to do about it.")
