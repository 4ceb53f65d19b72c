"""A snapshot's problems, each with what it is and what to do. Pure; the observer knows since when."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from millrace.app.monitoring.snapshot import OVER, Snapshot
from millrace.app.service.phase_limits import SETTINGS
from millrace.consumers.dead_letters.letter import DeadLetterStatistics
from millrace.consumers.kafka.rights import grant
from millrace.consumers.metric import moment
from millrace.consumers.rounded import rounded_size
from millrace.consumers.suggested_command import suggested_command
from millrace.pipelines.gates.gate import HeldBy
from millrace.training.checkpoints.manifest import SaveReason
from millrace.training.checkpoints.mirror.figures import MirrorFigures
from millrace.training.recovery.crash_guard import CrashLoop
from millrace.training.telemetry.phases import Phase
from millrace.training.trainer.board import Posting

_OTHER_MEMBERS = "CommitFailedError"
"""Kafka's answer to our commits while other consumers are members of the group."""

_UNANSWERED = frozenset(
    {
        "TimeoutError",
        "KafkaTimeoutError",
        "KafkaConnectionError",
        "NodeNotReadyError",
        "RequestTimedOutError",
        "GroupCoordinatorNotAvailableError",
        "NotCoordinatorForGroupError",
        "GroupLoadInProgressError",
    }
)
"""Errors of commits that say nothing of permission: the broker or the group's coordinator is away, or moves."""


class CommitFailure(StrEnum):
    """Why a commit was not accepted."""

    REFUSED = "refused"
    UNANSWERED = "unanswered"


LONG_OPEN_S = 60.0
"""Kafka aborts a producer's transaction after this time by default; some producers ask for more."""

_ENOUGH_TO_TELL = 100
"""So many records set aside and none learnt: it is the settings or the producer, not some bad records."""

KINDS = (
    "failed",
    "trainer_dead",
    "hung",
    "crash_loop",
    "unbalanced",
    "lost",
    "history_missing",
    "kafka_away",
    "partitions_missing",
    "partitions_waiting",
    "open_transaction",
    "registry_away",
    "commits_refused",
    "save_failing",
    "mirror_failing",
    "schema_incompatible",
    "bad_records",
    "labels_silent",
    "dead_letters_waiting",
    "nothing_learnt",
)
"""Every kind of problem."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that needs attention."""

    kind: str
    """A word for programs."""
    what: str
    fix: str


def problems_of(snapshot: Snapshot, *, refused_lately: CommitFailure | None) -> Iterator[Problem]:
    """Yield all problems, the gravest first."""
    yield from _trainer(snapshot)
    yield from _balance(snapshot)
    yield from _kafka(snapshot)
    if refused_lately is not None:
        yield _refused(snapshot, refused_lately)
    letters = list(_letters(snapshot)) if snapshot.source.connected else []
    yield from _saving(
        snapshot, letters_wait=bool(snapshot.letters.waiting and (letters or not snapshot.source.connected))
    )
    yield from _mirror(snapshot)
    yield from _schema(snapshot)
    yield from _flood(snapshot)
    yield from _silence(snapshot)
    yield from letters
    yield from _nothing_learnt(snapshot)


def _trainer(snapshot: Snapshot) -> Iterator[Problem]:
    phase = snapshot.phase
    if phase.phase is Phase.FAILED:
        yield Problem(
            kind="failed",
            what=f"The training ended: {phase.reason or 'for a reason that only the log has'}",
            fix="Fix the cause and start again: the training resumes from the newest checkpoint.",
        )
    elif not snapshot.alive and phase.phase is not Phase.ENDED:
        yield Problem(
            kind="trainer_dead",
            what=f"The trainer's thread is gone, though it never ended its phase ({phase.phase}).",
            fix="Restart the process and report this with its log.",
        )
    elif phase.hung:
        slow = f" If it is only slow, raise {SETTINGS[phase.phase]}." if phase.phase in SETTINGS else ""
        yield Problem(
            kind="hung",
            what=f"No progress for {phase.for_s:.0f} s while {phase.phase}, which is past its limit of "
            f"{phase.limit_s:g} s.",
            fix="Restart the process: it resumes from the newest checkpoint. If it recurs, look for a step of the "
            f"model, or a disk, that hangs.{slow}",
        )
    elif snapshot.braked is not None:
        yield _crash_loop(snapshot.braked, snapshot.posting)


def _crash_loop(loop: CrashLoop, posting: Posting | None) -> Problem:
    """Describe the crash loop, and the way out, which differs once a rewind was made."""
    last = None if posting is None or posting.last_save is None else posting.last_save.manifest
    again = "POST /resume tries again; if the process dies once more, the next start is paused too."
    if last is not None and last.number > loop.number and last.reason in {SaveReason.REWIND, SaveReason.SKIP}:
        fix = f"Checkpoint {last.number} was ordered since: POST /resume continues from it."
    elif loop.suspects:
        skips = [word for one in loop.ranges for word in ("--skip", one)]
        rewind = suggested_command("rewind", "--to", str(loop.number), *skips)
        fix = f"Skip them: `{rewind}`, then POST /resume. Or: {again}"
    else:
        fix = f"Look for a cause other than the records: memory, the device, a step of the model. {again}"
    return Problem(kind="crash_loop", what=f"Paused: {loop}.", fix=fix)


def _balance(snapshot: Snapshot) -> Iterator[Problem]:
    if not snapshot.ledger.balanced:
        yield Problem(
            kind="unbalanced",
            what="The ledger does not add up: an offset is unaccounted for, or counted twice.",
            fix="This is a defect of millrace: rewind to a checkpoint from before, and report this with the log.",
        )
    lost = sum(partition.lost for partition in snapshot.source.partitions.values())
    if lost:
        yield Problem(
            kind="lost",
            what=f"Kafka's retention removed {lost:,} offsets before they were read; they are counted as lost.",
            fix="Raise retention.ms of the topic, or let the model learn faster: /throughput says what holds it back.",
        )

    if snapshot.lost_history is not None:
        yield Problem(
            kind="history_missing",
            what=f"{snapshot.lost_history}.",
            fix="If a volume was not mounted, stop this service, mount it, and start again: it then resumes from the "
            "newest checkpoint there. If the model is meant to begin again, there is nothing to do; the next start "
            "finds the checkpoints that this one writes. checkpoints.on_missing: fail refuses such a start.",
        )


def _kafka(snapshot: Snapshot) -> Iterator[Problem]:
    source = snapshot.source
    if snapshot.phase.phase in {Phase.STARTING, Phase.WAITING} or snapshot.phase.phase in OVER:
        return  # not connected yet, or not any more
    if not source.connected:
        why = f" ({source.last_error})" if source.last_error else ""
        servers = ", ".join(snapshot.settings.kafka.bootstrap_servers)
        letters = snapshot.letters
        waiting = f" {_letters_wait(letters)}; no checkpoint is made until then." if letters.waiting else ""
        yield Problem(
            kind="kafka_away",
            what=f"Kafka does not answer at {servers}{why}.{waiting}",
            fix="Nothing is lost: it continues by itself when Kafka is back. Check the brokers and the network.",
        )
    if source.missing:
        yield _missing(snapshot)
    if source.waiting_partitions:
        names = ", ".join(map(str, source.waiting_partitions))
        yield Problem(
            kind="partitions_waiting",
            what=f"New partitions are not read: {names}. In this mode partitions do not join by themselves.",
            fix="Restart it to take them in; with training.deterministic they stay out of this history.",
        )
    yield from _open_transactions(snapshot)
    if (lacks := snapshot.stream.feed.lacks) is not None:
        yield Problem(
            kind="registry_away",
            what=f"Records wait for their schema: {lacks}.",
            fix="Nothing is set aside, and it goes on by itself once the registry gives the schema. Check the "
            "registry, the network, and the settings of the registry in the config.",
        )


def _missing(snapshot: Snapshot) -> Problem:
    """Describe the partitions without a leader, and those that a topic with fewer partitions has no more."""
    source, whats, fixes = snapshot.source, list[str](), list[str]()
    if leaderless := [partition for partition in source.missing if partition not in source.gone]:
        whats.append(f"Kafka has no {', '.join(map(str, leaderless))}: deleted, or without a leader.")
        fixes.append(
            "The others are learnt meanwhile, and these go on when they are back as they were. A partition that "
            "was created again is a different one: kafka.on_recreated decides what happens then."
        )
    if gone := sorted(source.gone):
        whats.append(
            f"{', '.join(map(str, gone))} are no more: their topic was created again with fewer partitions. What was "
            "learnt of them stays learnt; what was not is gone with them, and counts as no lag."
        )
        tool = f"kafka-topics.sh --bootstrap-server {snapshot.settings.kafka.bootstrap_servers[0]} --alter"
        partitions = {partition.topic: partition.number + 1 for partition in gone}
        again = " ".join(f"`{tool} --topic {topic} --partitions {count}`" for topic, count in partitions.items())
        fixes.append(
            "If that was meant, there is nothing to do: the others are learnt. If not, add them again, and they are "
            f"learnt from their first record: {again}."
        )
    return Problem(kind="partitions_missing", what=" ".join(whats), fix=" ".join(fixes))


def _open_transactions(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where transactions have stayed open for longer than a healthy producer's do."""
    long_open = {
        partition: transaction
        for partition, transaction in snapshot.source.open_transactions.items()
        if snapshot.at - transaction.since >= LONG_OPEN_S
    }
    if not long_open:
        return
    partition, oldest = min(long_open.items(), key=lambda item: item[1].since)
    more = f", and so it is in {len(long_open) - 1} more" if len(long_open) > 1 else ""
    tool = f"kafka-transactions.sh --bootstrap-server {snapshot.settings.kafka.bootstrap_servers[0]}"
    place = f"--topic {partition.topic} --partition {partition.number}"
    yield Problem(
        kind="open_transaction",
        what=f"An open transaction holds {partition} at offset {oldest.offset} since {moment(oldest.since)}{more}: "
        "nothing behind it can be read.",
        fix=f"Find its producer: `{tool} describe-producers {place}`. It has to commit or abort; if it is gone for "
        f"good: `{tool} abort {place} --start-offset {oldest.offset}`.",
    )


def refusals_of(snapshot: Snapshot, kind: CommitFailure) -> dict[str, int]:
    """Return the commits that were not accepted for this reason, by the name of the error."""
    unanswered = kind is CommitFailure.UNANSWERED
    return {
        error: count for error, count in snapshot.source.commits_refused.items() if (error in _UNANSWERED) == unanswered
    }


def _refused(snapshot: Snapshot, kind: CommitFailure) -> Problem:
    refused = refusals_of(snapshot, kind)
    kafka = snapshot.settings.kafka
    group = kafka.group
    counts = ", ".join(f"{count} × {error}" for error, count in sorted(refused.items()))
    if kind is CommitFailure.UNANSWERED:
        return Problem(
            kind="commits_refused",
            what=f"Kafka does not answer our commits ({counts}). The training is not affected; lag tools see old "
            "offsets.",
            fix="They are tried again every few seconds. If it lasts, look at the group's coordinator: "
            f"`kafka-consumer-groups.sh --bootstrap-server {kafka.bootstrap_servers[0]} --describe "
            f"--state --group {group}`.",
        )
    if _OTHER_MEMBERS in refused:
        return Problem(
            kind="commits_refused",
            what=f"Kafka refuses our commits: other consumers are in the group {group} ({counts}). The training is not "
            "affected; lag tools see old offsets.",
            fix=f"Stop the other consumers of group {group}, or give this model another kafka.group.",
        )
    return Problem(
        kind="commits_refused",
        what=f"Kafka refuses our commits ({counts}). The training is not affected; lag tools see old offsets.",
        fix=f"Permit this user to read and commit for group {group}: "
        f"`{grant(kafka.bootstrap_servers[0], kafka.sasl_username, 'Read', 'group', group)}`.",
    )


def _saving(snapshot: Snapshot, *, letters_wait: bool) -> Iterator[Problem]:
    """Yield a problem where the newest save failed, unless dead letters are its cause and are a problem themselves."""
    posting = snapshot.posting
    if posting is None or posting.save_error is None:
        return
    if posting.letters_missing and letters_wait:
        return
    checkpoints = snapshot.settings.checkpoints.path
    yield Problem(
        kind="save_failing",
        what=f"The newest save failed: {posting.save_error}",
        fix="The next save waits for the dead letters again."
        if posting.letters_missing
        else f"The next save tries again. Check that checkpoints.path ({checkpoints}) has room and may be written.",
    )


def _mirror(snapshot: Snapshot) -> Iterator[Problem]:
    figures = snapshot.figures.get(MirrorFigures.name)
    if not isinstance(figures, MirrorFigures) or figures.error is None:
        return
    mirrored = "no checkpoint" if figures.number is None else f"checkpoint {figures.number}"
    yield Problem(
        kind="mirror_failing",
        what=f"Checkpoints are not copied to {figures.place}, which has {mirrored}: {figures.error}",
        fix="Nothing else is affected, and it is tried again. Until it works a lost volume costs what is learnt "
        "meanwhile.",
    )


def _schema(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.held is not None and snapshot.held.by is HeldBy.SCHEMA:
        yield Problem(
            kind="schema_incompatible",
            what=f"The learning is paused, as a new schema cannot be read: {snapshot.held.why}.",
            fix=snapshot.held.fix or "",
        )


def _flood(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.held is None or snapshot.held.by is not HeldBy.FLOOD:
        return
    validate, resume = suggested_command("validate"), suggested_command("resume")
    yield Problem(
        kind="bad_records",
        what=f"The learning is paused, as there are too many bad records: {snapshot.held.why}.",
        fix=f"`{validate}` says what is wrong with a sample of them. Mend the producer, and it goes on by itself when "
        "good records come again; or mend `records` in the config and restart it, and nothing of what waits is set "
        f"aside. `{resume}` sets aside what waits now, and goes on.",
    )


def _silence(snapshot: Snapshot) -> Iterator[Problem]:
    if snapshot.held is not None and snapshot.held.by is HeldBy.LABELS:
        yield Problem(
            kind="labels_silent",
            what=f"The learning is paused, as {snapshot.held.why}.",
            fix=f"Look at what writes the labels; it goes on by itself when one comes. If there are truly none, "
            f"`{suggested_command('resume')} --assume-absent` learns what waits without them.",
        )


def _letters_wait(letters: DeadLetterStatistics) -> str:
    count, size = letters.waiting, rounded_size(letters.waiting_bytes)
    waiting = "1 dead letter waits for its topic" if count == 1 else f"{count:,} dead letters wait for their topic"
    return f"{waiting}, {size}"


def _letters(snapshot: Snapshot) -> Iterator[Problem]:
    letters = snapshot.letters
    half_full = letters.capacity_bytes is not None and letters.waiting_bytes > letters.capacity_bytes / 2
    stalled = snapshot.held is not None and snapshot.held.by is HeldBy.DEAD_LETTERS
    if stalled or half_full or (letters.waiting and letters.last_error is not None):
        why = f" ({letters.last_error})" if letters.last_error else ""
        paused = ", and the learning is paused until then" if stalled else ""
        yield Problem(
            kind="dead_letters_waiting",
            what=f"{_letters_wait(letters)}{why}. No checkpoint is made before all are acknowledged{paused}.",
            fix=f"Check that the topic {snapshot.settings.records.dead_letters.topic} exists and may be written to.",
        )


def _nothing_learnt(snapshot: Snapshot) -> Iterator[Problem]:
    """Yield a problem where this process has set aside each record that came."""
    letters = snapshot.letters
    if snapshot.meter.learnt or snapshot.ledger.tally.filtered or letters.put < _ENOUGH_TO_TELL:
        return
    most = max(letters.by_reason, key=letters.by_reason.__getitem__)
    yield Problem(
        kind="nothing_learnt",
        what=f"Nothing is learnt: all {letters.put:,} records that came were set aside, most as "
        f"{letters.in_words(most)}.",
        fix=f"`{suggested_command('validate')}` says what is wrong with a sample of them. Once settings or records are "
        f"mended, have them read again, from a checkpoint before them: `{suggested_command('rewind', '--to', '0')}`.",
    )
