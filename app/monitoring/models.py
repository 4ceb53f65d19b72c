"""What the answers look like. A field that is not known yet, or does not exist yet, is left out of the answer.

Owns shapes only; the numbers come from snapshots. Fields are only ever added within a major version.
"""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import ConfigDict, Field

from millrace.app.monitoring.all_figures import with_figures
from millrace.app.monitoring.shapes import Answer, Moment, Shape, Tenths, Thousandths


class ExportView(Shape):
    """One published version."""

    number: int
    """The checkpoint's number."""
    made_at: str
    records: int
    """The records that it had learnt."""
    metrics: Mapping[str, float]
    """The live metrics when the checkpoint was made."""
    bytes: int
    proven_on: int
    """Records on which a fresh process answered as the model does."""
    max_difference: float


class ExportList(Answer):
    """The published versions, the newest first."""

    exports: list[ExportView]


class MemberView(Shape):
    """One worker of the group; what it has not said yet is left out."""

    name: str
    """`the chief`, or `worker 1` and so on."""
    address: str
    """The address at which it meets the others."""
    missing: bool | None = None
    """True while it is waited for: it has not come to the chief."""
    partitions: int | None = None
    """How many it reads."""
    lag_records: int | None = None
    """Offsets of these that it has not learnt."""
    learnt: int | None = None
    """Records since the group met."""
    records_per_s: Tenths | None = None
    """Records learnt per second over the last minute."""
    waited_s: Thousandths | None = None
    """Seconds since the group met in which it waited for the other workers."""
    waiting: Thousandths | None = None
    """The share of the last minute in which it waited for the other workers."""
    states: list[str] | None = None
    """paused, held, ended, stopping or reopening; left out if it is none of these."""


class GroupView(Shape):
    """The workers that learn one model together."""

    workers: int
    worker: int
    """The number of the one that gives this answer."""
    chief: str
    """The address at which the chief meets the others; its HTTP side, on the same host, takes the commands."""
    lag_records: int | None = None
    """Of all workers together."""
    records_per_s: Tenths | None = None
    """Of all workers together, over the last minute."""
    slowest: int | None = None
    """The number of the worker that the others wait for: the one that itself waited least in the last minute."""
    members: Mapping[str, MemberView]
    """By their numbers."""


class Check(Shape):
    """One thing that a probe looks at."""

    check: str
    ok: bool
    detail: str


class Health(Answer):
    """A probe's answer; 200 when `status` is ok, 503 when it is failing."""

    status: Literal["ok", "failing"]
    state: str
    """The trainer's phase."""
    reasons: list[str] | None = None
    """Why it is failing."""
    checks: list[Check] | None = None
    """All checks, if the request asks for them."""


class Trouble(Shape):
    """Something that needs attention."""

    problem: str
    """The kind of problem, for programs."""
    what: str
    since: Moment
    """When it was first seen, to a second."""
    fix: str


class AssignedPartitions(Shape):
    """How many partitions are read, and how many there are."""

    assigned: int
    of: int


class StreamView(Shape):
    """How far behind the learning is."""

    lag_records: int | None = None
    """Offsets that are not learnt yet."""
    lag_s: Thousandths | None = None
    """Seconds that the learning is behind the topic."""
    staleness_s: Mapping[str, Thousandths] | None = None
    """From a record's timestamp to the end of the call that learnt it, over the last minute."""
    catch_up_s: float | None = None
    """Seconds until the lag is 0, if rates stay as they are."""
    retention_s_left: Thousandths | None = None
    """Seconds until Kafka may remove, for its age, the oldest record that is not learnt."""
    partitions: AssignedPartitions


class ThroughputView(Shape):
    """How fast it learns, and what holds it back."""

    records_per_s: Mapping[str, Tenths]
    """Records learnt per second, over each window."""
    arriving_per_s: Tenths | None = None
    """Records written to the topics per second, over the last minute."""
    bound_by: Literal["records", "input", "compute", "workers"] | None = None
    """What the trainer's thread spends most of its time on; left out before the first call."""
    waiting: Mapping[str, Thousandths] = Field(
        description="Shares of the trainer's last minute: waiting for records to come, waiting for them to be "
        "decoded and prepared, computing, copying for a save; in a group also for the other workers."
    )
    advice: str


class RecordsView(Shape):
    """The outcome of the records.

    Of this history: offsets = learnt + set aside + skipped + filtered + gaps + lost. Of the present incarnation:
    fetched = handed + held + discarded.
    """

    offsets: int
    """From the beginning of this history to its present position, over all partitions."""
    learnt: int
    set_aside: Mapping[str, int]
    """By reason."""
    skipped: Mapping[str, int]
    """By the command that skips them."""
    filtered: int | None = None
    """Records that do not match `records.where`; left out for none."""
    gaps: int
    """Offsets at which Kafka holds no record: compacted, aborted, control records."""
    lost: int
    """Offsets that retention removed before they were read."""
    truncated: Mapping[str, int] | None = None
    """Decoded records with a list that was cut to its bound, by feature."""
    begun_anew: int | None = None
    """How often a partition restarted because its topic was created again; left out for never."""
    fetched: int | None = None
    """Since the present incarnation began."""
    handed: int | None = None
    """Of those, given to the trainer."""
    held: int | None = None
    """Of those, on their way to the trainer."""
    discarded: int | None = None
    """Of those, dropped by a stop; they are read again."""
    balanced: bool
    """Whether both sums hold."""


class WatchView(Shape):
    """The metric by which the model is judged, beside guessing."""

    metric: str
    better: Literal["higher", "lower"]
    value: float | None = None
    baseline: float | None = None
    guess: str | None = None
    ahead: float | None = None
    """By how much the value is better than the better guess, `baseline` or no change; less than 0 is worse."""


class LiveView(Shape):
    """The live metrics: each compiled metric stands here under its own name, beside the loss."""

    model_config = ConfigDict(extra="allow")

    headline: str
    """The name of the metric to show first: the watched one, or the loss if the window has no value of it."""
    watch: WatchView
    scored: str
    """before_update: by the training pass; inference_pass: by one before it."""
    window: str
    """How far back the values reach from the newest record that was scored."""
    records: int
    age_s: Tenths | None = None
    """How long ago the newest record was scored: while none is, the values stand still."""
    baseline: Mapping[str, float]
    """What guessing would have scored, by metric; `guesses` says what each guess is, as in `median`."""
    guesses: Mapping[str, str]
    no_change: Mapping[str, float]
    """What guessing that nothing changes would have scored, by metric: the label of the record before."""
    cumulative: Mapping[str, int | float]
    """The same values since checkpoint number 0."""


class HyperparameterView(Shape):
    """A hyperparameter that differs in the checkpoint."""

    name: str
    then: Any = None
    """In the checkpoint."""
    now: Any = None
    """In model.py and the settings."""
    used: Literal["build", "checkpoint"]
    """build: `now` is in force; checkpoint: `then` is."""


@with_figures("training")
class TrainingView(Shape):
    """The trainer."""

    step: int
    learning_rate: float | None = None
    replicas: int
    device: str
    incarnation: int
    hyperparameters_changed: list[HyperparameterView] | None = None
    """What differed between the checkpoint and what is deployed, at the last start or rewind."""


class CheckpointView(Shape):
    """The newest durable checkpoint."""

    number: int
    parent: int | None = None
    step: int
    reason: str
    ordered_by: str | None = None
    note: str | None = None
    age_s: Tenths
    took_s: Thousandths | None = None
    """From the copy to durability; of a save of this process."""
    stall_ms: Tenths | None = None
    """How long the training stood still for the copy."""


class SkipView(Shape):
    """A command to skip some offsets; it holds on every later replay."""

    order: str
    number: int | None = None
    """The checkpoint that it was published as."""
    by: str | None = None
    reason: str
    ranges: list[str]
    """As in the command, both ends included."""
    offsets: int
    """How many there are in them."""
    passed: int
    """How many of them this history has skipped so far."""
    lifted_by: int | None = None
    """The checkpoint whose command lifted it; it no longer holds."""


class RewoundView(Shape):
    """The last rewind of this history."""

    number: int
    """The checkpoint that it was published as."""
    to: int
    by: str | None = None
    reason: str | None = None


class ModelView(Shape):
    """The user's model."""

    build: str
    sha256: str | None = None
    parameters: int | None = None


class KafkaView(Shape):
    """The source of the records."""

    connected: bool
    cluster_id: str | None = None
    group: str
    topics: list[str]


@with_figures("")
class Status(Answer):
    """Everything at a glance."""

    state: str
    reason: str | None = None
    """Why, if it is paused or failed."""
    resumes_by_itself: bool | None = None
    """True if it is paused and waits for something that a command to resume does not bring; else left out."""
    verdict: str
    mood: Literal["well", "warn", "bad", "rest", "busy"] = Field(
        description="The verdict in a word. bad: failed, hung or unbalanced, or nothing is learnt; warn: there are "
        "problems; well: at work; rest: paused or stopped; busy: coming up."
    )
    problems: list[Trouble]
    stream: StreamView
    throughput: ThroughputView
    records: RecordsView
    live: LiveView | None = None
    training: TrainingView | None = None
    checkpoint: CheckpointView | None = None
    skips: list[SkipView] | None = None
    """All commands to skip, the earliest first."""
    rewound: RewoundView | None = None
    model: ModelView
    kafka: KafkaView
    group: GroupView | None = None
    """The workers that learn this model together; left out without a group."""


class PartitionLagView(Shape):
    """How far behind one partition is."""

    position: int
    """The next offset to be learnt."""
    fetched: int | None = None
    """The next offset to be fetched."""
    end: int | None = None
    """One past the last offset in the topic."""
    readable_end: int | None = None
    """Where an open transaction begins, which keeps what follows from being read; left out if there is none."""
    lag_records: int | None = None
    lag_s: Thousandths | None = None
    """How long ago its newest learnt record was written."""
    same_topic: Literal["same", "unknown"] | None = None
    """Whether it is known to belong to the same topic as before; left out if nothing was learnt."""


class CommitsView(Shape):
    """Kafka's answers to our commits."""

    accepted: int
    refused: Mapping[str, int]
    """By the name of the error."""


class LagAnswer(Answer):
    """How far behind the learning is."""

    lag_records: int | None = None
    lag_s: Thousandths | None = None
    catch_up_s: float | None = None
    retention_s_left: Thousandths | None = None
    """Seconds until Kafka may remove, for its age, the oldest record that is not learnt."""
    partitions: Mapping[str, PartitionLagView]
    commits: CommitsView | None = None


class QueueView(Shape):
    """Bytes between Kafka and the model, by part, against their one bound."""

    client: int
    """Fetched, and held by the Kafka client."""
    handoff: int
    decoding: int
    assembling: int
    blocks: int
    total: int
    limit: int


class LoopLagView(Shape):
    """How late the two event loops were for their timers over the last half minute: the 99th percentile."""

    consumer: Tenths | None = None
    """Of the loop that fetches; above 100 it is overloaded."""
    api: Tenths
    """Of the loop that answers; a probe may wait for that long."""


class ThroughputAnswer(ThroughputView, Answer):
    """How fast it learns, what holds it back, and what is under way."""

    staleness_s: Mapping[str, Thousandths] | None = None
    queued_bytes: QueueView | None = None
    loop_lag_ms: LoopLagView | None = None


class OperationView(Shape):
    """Something that was asked of the trainer."""

    id: str
    kind: str
    """save, rewind, pause, resume or profile."""
    state: Literal["running", "succeeded", "failed"]
    began_at: Moment
    ended_at: Moment | None = None
    checkpoint: int | None = None
    """The checkpoint that it made."""
    profile: str | None = None
    """The folder of the profile that it wrote."""
    complaint: str | None = None
    """Why it failed."""


class OperationAnswer(Answer):
    """How an operation stands."""

    operation: OperationView


class ProblemDocument(Answer):
    """Why a request was not carried out (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    fix: str
    """What to do about it."""


Column = list[float | None]


class EventView(Shape):
    """Something that has happened."""

    id: int
    """Greater than that of each event before it, also over a restart."""
    at: Moment
    kind: str
    """The kind of event, for programs."""
    severity: str
    """info, warning or error."""
    text: str
    facts: Mapping[str, Any]


class EventsAnswer(Answer):
    """What has happened, the oldest first."""

    events: list[EventView]
    newest: int
    """The value of `since` for the next request."""


class Means(Shape):
    """Columns of equal length; null if nothing was known."""

    metric: Column
    """The live metric that is named."""
    baseline: Column
    """What guessing would have scored in it."""
    lag_s: Column
    learnt_per_s: Column
    arriving_per_s: Column
    waiting_records: Column
    waiting_input: Column
    waiting_compute: Column
    waiting_saving: Column


class Extremes(Shape):
    """The least or the greatest in each step."""

    metric: Column
    lag_s: Column
    learnt_per_s: Column
    arriving_per_s: Column


class LastValue(Shape):
    """The last value of a live metric, also while nothing is scored, and over a restart."""

    value: float
    baseline: float | None = None
    """What guessing scored on the same records."""
    at: float
    """When the newest of its records was scored, seconds since 1970."""


class Stretch(Shape):
    """What a tier of the history holds, the oldest first."""

    span: str
    step_s: int
    metric: str | None = None
    """The name of the live metric."""
    metrics: list[str]
    """The names of all metrics that have a history."""
    last: LastValue | None = None
    """The last value of the metric; `mean` ends before it if nothing is scored any more."""
    at: list[float]
    """When each step began, seconds since 1970; steps without a sample are left out."""
    mean: Means
    least: Extremes | None = None
    """Left out if a step is a single sample."""
    greatest: Extremes | None = None


class HistoryAnswer(Stretch, Answer):
    """The history of the main numbers."""


class PageUpdate(Shape):
    """The page's own message, once a second. It is not part of the public API."""

    at: float
    """Seconds since 1970."""
    status: Status
    metric: str | None = None
    """The name of the live metric."""
    sample: Mapping[str, float | None]
    """The newest value of each column of the charts."""
    last: Mapping[str, LastValue]
    """The last value of each live metric."""
    events: list[EventView]
    """What has happened since the message before, the oldest first."""
