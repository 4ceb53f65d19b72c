"""The catalogue: every metric, with its kind, its labels, and which value of it is bad.

Those of a part stand in the `figures.py` of its room, and are found there; here are the others.

Owns names and words, by one template: `millrace_`, what is measured, its base unit, `_total` if it only ever grows.
Every series bears the label `model`, the config's name, beside those that stand here. `docs/metrics.md` is made
from it, alerts and boards may use nothing else.
"""

from collections.abc import Mapping

from millrace.app.monitoring.all_figures import kinds
from millrace.consumers.dead_letters.letter import DeadLetterStatistics
from millrace.consumers.kafka.statistics import SourceStatistics
from millrace.consumers.metric import Metric, PartFigures, counter, gauge, histogram, metrics_of
from millrace.training.telemetry.group_report import GroupReport, MemberReport
from millrace.training.telemetry.live_metrics import LiveSnapshot
from millrace.training.trainer.board import ModelFacts, Posting
from millrace.training.trainer.save_figures import LastSave

_TRAINER = (
    gauge("alive", "1 if /livez answers 200. 0 is bad: it failed, hangs, or its thread is gone; restart it."),
    gauge(
        "ready",
        "1 if /readyz answers 200. 0 for longer than a start takes is bad: not restored, Kafka or the schema registry "
        "away, a crash loop, or the learning is held; /readyz says which.",
    ),
    gauge(
        "problem",
        "1 while /status shows this problem, 0 while it does not. 1 is bad: /status says since when and what to do.",
        "problem",
    ),
    gauge("phase", "1 for the phase that the trainer is in, 0 for the others. failed is bad.", "phase"),
    gauge(
        "phase_seconds",
        "The time since the trainer entered its phase or last showed progress in it. Bad: near "
        "millrace_phase_limit_seconds.",
    ),
    gauge(
        "phase_limit_seconds",
        "How long the trainer may be in its phase without progress before /livez fails. Absent for phases that may "
        "last without limit, such as a pause.",
    ),
    gauge(
        "trainer_time_ratio",
        "Shares of the trainer's last minute: records (none came), input (decoding, preparing), compute, saving, and "
        "in a group workers (waiting for the others). Bad: saving is more than a little; if the lag grows, the largest "
        "share is the one to reduce.",
        "spent",
    ),
    gauge(
        "incarnation",
        "How often this history was started or resumed: every start and every rewind adds one, and so do a step that "
        "raised and a topic that was created again. Bad: it grows without restarts and rewinds.",
    ),
    gauge(
        "brake_starts",
        "Starts in a row that died in a call, so that this start came up paused. Not 0 is bad: a record kills the "
        "process; /status names it.",
    ),
)

_RECORDS = (
    counter("records_fetched", "Records that came from Kafka. Bad: it stands still while there is lag."),
    counter("fetched_bytes", "Memory of the records that came from Kafka, in bytes."),
    counter(
        "records_learnt",
        "Records that a training step has used; what a rewind reads again counts again. Bad: it stands still while "
        "there is lag.",
    ),
    counter(
        "records_set_aside",
        "Records that could not be learnt. Bad: more than a few; the reason shows whether the producer or the "
        "schema is the cause.",
        "reason",
    ),
    counter(
        "records_skipped",
        "Records that were skipped by a command, or that `golden`, `thinning`, `windows`, `labels` or `balance` left "
        "out, or that had no label (`unlabelled`). Bad: it grows without these.",
    ),
    counter(
        "records_filtered",
        "Records that do not match `records.where`. Bad: it grows while millrace_records_learnt_total stands still, "
        "though records that match come.",
    ),
    counter(
        "records_truncated",
        "Records with a list that was cut to its bound, by feature; they also count as learnt or set aside. Bad: more "
        "than a few, since the model never sees what is cut off; give the feature a larger shape.",
        "feature",
    ),
    gauge(
        "records_held",
        "Records on their way: queued, decoded, in blocks, in the trainer's call. Bad: it does not change for minutes, "
        "since nothing is learnt then.",
    ),
    counter(
        "records_discarded",
        "Records dropped by a stop, a rewind or a step that raised; they are read again. Bad: it grows all the time, "
        "since the same records are then read over and over.",
    ),
    gauge(
        "balanced",
        "1 if every offset and record is accounted for exactly once. 0 is bad: a defect of millrace; stop and report "
        "it.",
    ),
    counter("offsets_empty", "Offsets at which Kafka holds no record: compacted, aborted, control records."),
    counter(
        "offsets_lost", "Offsets that retention removed before they were read. Not 0 is bad: these records are lost."
    ),
    gauge(
        "history_offsets",
        "The outcome of all offsets since checkpoint number 0 (learnt, set_aside, skipped, filtered, empty, lost); a "
        "rewind goes back. Bad: lost is not 0.",
        "outcome",
    ),
    gauge(
        "history_settled_offsets",
        "Offsets between where this history began and where it stands. Bad: it is not the sum of "
        "millrace_history_offsets.",
    ),
    gauge(
        "learnt_records_per_second",
        "Records learnt over the last 10s, 1m or 5m. Bad: below millrace_arriving_records_per_second for long.",
        "window",
    ),
    gauge(
        "partitions_begun_anew",
        "How often a partition of this history restarted because its topic was created again; a rewind goes back. "
        "Bad: it grows though no topic was created again on purpose.",
    ),
    gauge(
        "arriving_records_per_second",
        "Records written to the topics over the last minute. Bad: 0, or far from what the producers should write.",
    ),
    counter("calls", "Compiled calls that returned. Bad: it stands still while there is lag."),
    counter(
        "blocks_dropped",
        "Blocks of an earlier incarnation that came late and were not learnt. Bad: it grows while "
        "millrace_incarnation does not.",
    ),
    counter(
        "stale_records", "Records that Kafka sent again from before the position, dropped. Bad: it grows all the time."
    ),
)

_LAG = (
    gauge(
        "lag_records",
        "Offsets that are not learnt yet. Bad: it grows for minutes, since records then arrive faster than they "
        "are learnt.",
    ),
    gauge(
        "lag_seconds",
        "How long ago the newest record that was learnt was written; 0 when nothing is left. Absent if its timestamp "
        "is more than a minute ahead. Bad: more than the users of the model accept.",
    ),
    gauge(
        "catch_up_seconds",
        "Time until the lag is 0 at the rates of the last minute. Absent if it would never be 0, which is bad.",
    ),
    gauge(
        "retention_left_seconds",
        "Time until Kafka may remove the oldest record that is not learnt. Bad: near 0, since what is removed is lost. "
        "Absent if Kafka removes no record for its age.",
    ),
    gauge(
        "partition_lag_records",
        "Offsets of the partition that are not learnt yet. Bad: one is far above the others.",
        "topic",
        "partition",
    ),
    gauge(
        "partition_lag_seconds",
        "How long ago the newest learnt record of the partition was written. Bad: one is far above the others.",
        "topic",
        "partition",
    ),
    gauge(
        "partition_position_offset",
        "The next offset of the partition to be learnt; a rewind goes back. Bad: it stands still while "
        "millrace_partition_lag_records is not 0.",
        "topic",
        "partition",
    ),
    gauge(
        "partition_fetched_offset",
        "The next offset of the partition to be fetched; a rewind goes back. Bad: it stands still below "
        "millrace_partition_end_offset while all before it is learnt.",
        "topic",
        "partition",
    ),
    gauge(
        "partition_end_offset",
        "One past the last offset of the partition. Bad: it goes back, as the topic was created again or truncated.",
        "topic",
        "partition",
    ),
    gauge("partitions_read", "Partitions that are read. Bad: fewer than millrace_partitions."),
    gauge("partitions", "All partitions of the topics, including those that may not join this run."),
    histogram(
        "staleness_seconds",
        "From the timestamp of the oldest record of a call to the call's return. Bad: the p99 is more than the users "
        "of the model accept.",
    ),
)

_CHECKPOINTS = (
    gauge(
        "checkpoint_unsaved_steps",
        "Batches run since the newest durable checkpoint. Bad: it grows beyond what checkpoints.every allows, as no "
        "save succeeds.",
    ),
    counter(
        "checkpoints_saved", "Saves of this process that became durable. Bad: it stands still while records are learnt."
    ),
    counter("checkpoints_failed", "Saves of this process that failed. Bad: it grows; /status says why."),
)

_HTTP = (
    counter(
        "orders",
        "Commands by HTTP, by their kind (other: there is no such command) and by the answer: accepted, unauthorized "
        "(401 or 403), refused (another 4xx), failed (5xx). Bad: unauthorized grows, since a client without permission "
        "keeps trying.",
        "order",
        "outcome",
    ),
    gauge(
        "api_certificate_end_time_seconds",
        "When the first certificate in the file of api.tls.certificate ends, since 1970, as it was read last. Absent "
        "without api.tls. Bad: within days, as clients refuse it from then on.",
    ),
)

_PROCESS = (
    gauge("build_info", "1; which versions run.", "version", "python", "tensorflow", "keras"),
    gauge(
        "deployment_info",
        "1; the hashes of config and model.py, and the source of the records. It changes with them.",
        "model_sha256",
        "config_sha256",
        "cluster_id",
        "group",
    ),
    gauge(
        "memory_bytes",
        "Memory between Kafka and the model, by part: client (fetched), handoff (queued), decoding, assembling, "
        "blocks. Bad: the sum stays above millrace_memory_limit_bytes; one record may be larger than its share.",
        "part",
    ),
    gauge("memory_limit_bytes", "The bound of the sum of millrace_memory_bytes: memory.limit."),
    gauge(
        "loop_lag_seconds",
        "How late the event loops (consumer, api) were for their timers: p99 over half a minute. Bad: above 0.1, as "
        "probes may time out and fetching falls behind.",
        "loop",
    ),
    counter(
        "process_cpu_seconds",
        "Processor time of the process, user and system. Bad: its rate nears the number of cores that it may use, "
        "and the lag grows.",
    ),
    gauge(
        "process_resident_memory_bytes",
        "Resident memory of the process. Bad: it grows for hours, or nears the container's limit.",
    ),
    gauge("process_start_time_seconds", "When the process started, since 1970. Bad: it changes without a deployment."),
    gauge("process_open_fds", "Open file descriptors. Bad: near millrace_process_max_fds."),
    gauge("process_max_fds", "How many file descriptors may be open."),
)

_FIGURES: tuple[type[PartFigures], ...] = (
    # The verdict, the problems and the log read these too: they stand beside the code that fills them.
    Posting,
    ModelFacts,
    LiveSnapshot,
    LastSave,
    SourceStatistics,
    DeadLetterStatistics,
    GroupReport,
    MemberReport,
    *kinds(),
)
_WRITTEN: Mapping[str, tuple[Metric, ...]] = {
    "The trainer": _TRAINER,
    "Records": _RECORDS,
    "Lag": _LAG,
    "Live metrics": (),
    "Checkpoints": _CHECKPOINTS,
    "Kafka": (),
    "The HTTP side": _HTTP,
    "The group": (),
    "Process": _PROCESS,
}
SECTIONS: Mapping[str, tuple[Metric, ...]] = {
    title: (*written, *(one for kind in _FIGURES if kind.section == title for one in metrics_of(kind).values()))
    for title, written in _WRITTEN.items()
}
"""By the titles of docs/metrics.md; those of figures stand behind the others."""
CATALOGUE: Mapping[str, Metric] = {metric.short: metric for section in SECTIONS.values() for metric in section}
"""All of them, by the short name."""
