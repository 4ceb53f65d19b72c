"""Every number of /status, /lag and /throughput has a series that says the same, or a reason why it has none."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from millrace.app.monitoring.all_figures import kinds, places
from millrace.app.monitoring.metrics.collector import ServiceCollector
from millrace.app.monitoring.models import LagAnswer, Status, ThroughputAnswer
from millrace.app.monitoring.observer import Observation, Observer
from millrace.app.monitoring.snapshot import take
from millrace.app.monitoring.status import lag_answer, status_of, throughput_answer
from millrace.app.service.figures import ExportFigures
from millrace.consumers.metric import MODEL, Metric, Moment, NoMetric, PartFigures
from millrace.training.checkpoints import SaveReason
from millrace.training.ledger.interventions import Skip
from tests.app.answer_fields import fields_of, made_up
from tests.app.api_rig import P0, P1, Rig
from tests.app.groups import group, member
from tests.app.metrics_text import Scrape

ANSWERS: Mapping[str, type[BaseModel]] = {"status": Status, "lag": LagAnswer, "throughput": ThroughputAnswer}
SERIES: Mapping[str, str] = {
    **{f"status.{place}": one.short for place, one in places() if isinstance(one, Metric)},
    "status.stream.lag_records": "lag_records",
    "status.stream.lag_s": "lag_seconds",
    "status.stream.catch_up_s": "catch_up_seconds",
    "status.stream.retention_s_left": "retention_left_seconds",
    "status.stream.partitions.assigned": "partitions_read",
    "status.stream.partitions.of": "partitions",
    "status.throughput.records_per_s.*": "learnt_records_per_second",
    "status.throughput.arriving_per_s": "arriving_records_per_second",
    "status.throughput.waiting.*": "trainer_time_ratio",
    "status.records.offsets": "history_settled_offsets",
    "status.records.learnt": "history_offsets{outcome=learnt}",
    "status.records.set_aside.*": "records_set_aside_total",
    "status.records.skipped.*": "history_offsets{outcome=skipped}",
    "status.records.filtered": "history_offsets{outcome=filtered}",
    "status.records.gaps": "history_offsets{outcome=empty}",
    "status.records.lost": "history_offsets{outcome=lost}",
    "status.records.truncated.*": "records_truncated_total",
    "status.records.begun_anew": "partitions_begun_anew",
    "status.records.fetched": "records_fetched_total",
    "status.records.held": "records_held",
    "status.records.discarded": "records_discarded_total",
    "status.records.balanced": "balanced",
    "status.live.*": "live_value",
    "status.live.records": "live_records",
    "status.live.age_s": "live_age_seconds",
    "status.live.baseline.*": "live_baseline",
    "status.live.no_change.*": "live_no_change",
    "status.live.watch.value": "live_watched_value",
    "status.live.watch.baseline": "live_watched_baseline",
    "status.live.watch.ahead": "live_watched_ahead",
    "status.live.cumulative.*": "live_cumulative_value",
    "status.live.cumulative.records": "live_cumulative_records",
    "status.training.step": "step",
    "status.training.learning_rate": "learning_rate",
    "status.training.replicas": "replicas",
    "status.training.incarnation": "incarnation",
    "status.checkpoint.number": "checkpoint_number",
    "status.checkpoint.age_s": "checkpoint_age_seconds",
    "status.checkpoint.took_s": "checkpoint_took_seconds",
    "status.checkpoint.stall_ms": "checkpoint_stall_seconds",
    "status.model.parameters": "model_parameters",
    "status.kafka.connected": "kafka_connected",
    "status.group.workers": "group_workers",
    "status.group.lag_records": "group_worker_lag_records",
    "status.group.members.*.lag_records": "group_worker_lag_records",
    "status.group.members.*.learnt": "group_worker_learnt_total",
    "status.group.members.*.waited_s": "group_worker_waited_seconds_total",
    "lag.lag_records": "lag_records",
    "lag.lag_s": "lag_seconds",
    "lag.catch_up_s": "catch_up_seconds",
    "lag.retention_s_left": "retention_left_seconds",
    "lag.partitions.*.position": "partition_position_offset",
    "lag.partitions.*.fetched": "partition_fetched_offset",
    "lag.partitions.*.end": "partition_end_offset",
    "lag.partitions.*.lag_records": "partition_lag_records",
    "lag.partitions.*.lag_s": "partition_lag_seconds",
    "lag.commits.accepted": "commits_total{outcome=accepted}",
    "lag.commits.refused.*": "commits_total{outcome=refused}",
    "throughput.records_per_s.*": "learnt_records_per_second",
    "throughput.arriving_per_s": "arriving_records_per_second",
    "throughput.waiting.*": "trainer_time_ratio",
    "throughput.queued_bytes.client": "memory_bytes{part=client}",
    "throughput.queued_bytes.handoff": "memory_bytes{part=handoff}",
    "throughput.queued_bytes.decoding": "memory_bytes{part=decoding}",
    "throughput.queued_bytes.assembling": "memory_bytes{part=assembling}",
    "throughput.queued_bytes.blocks": "memory_bytes{part=blocks}",
    "throughput.queued_bytes.total": "memory_bytes",
    "throughput.queued_bytes.limit": "memory_limit_bytes",
    "throughput.loop_lag_ms.consumer": "loop_lag_seconds{loop=consumer}",
    "throughput.loop_lag_ms.api": "loop_lag_seconds{loop=api}",
}
"""By where a number stands in an answer. What stands there by name is told by that label, or added up."""
WITHOUT: Mapping[str, str] = {
    **{f"status.{place}": one.why for place, one in places() if isinstance(one, NoMetric)},
    "status.training.calibration.confusion.*.*": "would be as many as the square of the classes",
    "status.stream.staleness_s.*": "millrace_staleness_seconds is a histogram, of all calls",
    "throughput.staleness_s.*": "millrace_staleness_seconds is a histogram, of all calls",
    "lag.partitions.*.readable_end": "is there while a transaction is open; millrace_problem shows one that stays open",
    "status.records.handed": "what the trainer was given is settled, or held by it",
    "status.checkpoint.parent": "names a checkpoint",
    "status.checkpoint.step": "is millrace_step without millrace_checkpoint_unsaved_steps",
    "status.resumes_by_itself": "is a word beside the state; millrace_problem shows dead letters that wait",
    "status.skips.number": "names a checkpoint",
    "status.skips.offsets": "of a single order",
    "status.skips.passed": "of a single order; together they are in millrace_history_offsets",
    "status.skips.lifted_by": "names a checkpoint",
    "status.rewound.number": "names a checkpoint",
    "status.rewound.to": "names a checkpoint",
    "status.group.worker": "names a worker",
    "status.group.slowest": "names a worker",
    "status.group.records_per_s": "is the rate of millrace_group_worker_learnt_total",
    "status.group.members.*.records_per_s": "is the rate of millrace_group_worker_learnt_total",
    "status.group.members.*.waiting": "is the rate of millrace_group_worker_waited_seconds_total",
    "status.group.members.*.partitions": "each worker tells its own as millrace_partitions_read",
    "status.group.members.*.missing": "is there while the group waits; millrace_phase shows that",
}
OF_NO_SHAPE = {"status.live.*", "status.live.cumulative.records"}
"""They stand in a mapping, or where the user's metrics do."""
Key = frozenset[str]
"""What a number is of: values of labels."""
WHOLE: Key = frozenset()


def numbers(shape: Any, path: str) -> Iterator[str]:
    """Yield the paths of the numbers in answers of this shape."""
    if isinstance(shape, type) and issubclass(shape, BaseModel | PartFigures):
        for name, inner in fields_of(shape).items():
            yield from numbers(inner, f"{path}.{name}")
    elif shape == Moment:
        return  # is shown as text
    elif isinstance(shape, type) and issubclass(shape, int | float):
        yield path
    elif get_origin(shape) is Mapping:
        yield from numbers(get_args(shape)[1], f"{path}.*")
    else:
        for inner in get_args(shape):
            yield from numbers(inner, path)


@pytest.fixture
def observation(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Observation:
    """Observe a service to which everything has happened that has a number."""
    rig.source.meter.retention({"clicks": 3_600_000})
    rig.produce(P0, 8, bad=1)
    rig.produce(P1, 3)
    rig.learn_all()
    rig.produce(P0, 13)
    rig.service.ledger.skip(Skip(partition=P0, start=9, end=12, order="rewind-1", reason="a bad hour"))
    facts = rig.feed.facts_of(rig.draw().facts.number)
    (span,) = facts.spans
    cut = replace(span, learnt=span.learnt - 4, skipped={"rewind-1": 3}, filtered=1, truncated={"words": 2})
    rig.service.ledger.settle(replace(facts, spans=(cut,)))
    rig.service.ledger.restart_partition(P1, 3)
    rig.produce(P0, 6)
    for refusal in (None, None, None, "CommitFailedError", "UnknownError"):
        rig.source.meter.committed(refusal)
    for spend in (rig.service.meter.saved, rig.service.meter.waited):
        spend(0.05)
    rig.service.meter.waited_for_workers(0.05)
    rig.service.board.group = group(0, member(learnt=8, lag_records=7), member(learnt=3, lag_records=2, waited_s=1.5))
    figures = ExportFigures(made=2, refused=1, newest=1, running=2, unannounced=3)
    monkeypatch.setattr(rig.service.exporting, "figures", lambda: figures)
    rig.publish(SaveReason.DEMAND, 0)
    rig.post()
    seen = Observer(lambda: take(rig.service)).look()
    # The rig has not all capabilities: what it lacks reports something made up.
    reported = {kind.name: made_up(kind) for kind in kinds()} | dict(seen.snapshot.figures)
    snapshot = replace(seen.snapshot, figures=reported)
    return replace(seen, snapshot=snapshot, arriving_per_s=0.3, starved=0.1, loop_lag_p99_s=0.002)


def shown_at(answer: Any, path: list[str], key: Key = frozenset()) -> dict[Key, float]:
    """Return the numbers of an answer at a path, by what stands for its asterisk."""
    if not path:
        return {key: answer} if isinstance(answer, int | float) else {}
    first, *rest = path
    if first != "*":
        return shown_at(answer[first], rest, key) if first in answer else {}
    below = (shown_at(each, rest, frozenset(name.split(":"))) for name, each in answer.items())
    return {at: value for found in below for at, value in found.items()}


def told_by(scrape: Scrape, series: str) -> dict[Key, float]:
    """Return the values of a metric by its labels; of `name{label=value}` only those that have it."""
    short, _, wanted = series.rstrip("}").partition("{")
    having = {tuple(wanted.split("="))} if wanted else set()
    return {
        frozenset(value for name, value in sample.labels.items() - having if name != MODEL): sample.value
        for sample in scrape.families[f"millrace_{short}"].samples
        if having <= sample.labels.items()
    }


def agree(shown: float, told: float) -> bool:
    """Return whether two numbers agree to the digits that are shown."""
    return shown == (told if isinstance(shown, int) else pytest.approx(told, abs=0.51 * 10.0 ** -decimals(shown)))


def decimals(shown: float) -> int:
    """Return the number of digits after the point."""
    return len(str(shown).partition(".")[2])


def test_every_number_has_a_series_or_a_reason_why_not() -> None:
    known = {path for name, shape in ANSWERS.items() for path in numbers(shape, name)}
    assert SERIES.keys() & WITHOUT.keys() == set()
    assert known | OF_NO_SHAPE == SERIES.keys() | WITHOUT.keys()


def test_each_series_says_what_the_answers_say(observation: Observation) -> None:
    answers = {"status": status_of, "lag": lag_answer, "throughput": throughput_answer}
    read = {name: make(observation).model_dump(mode="json", exclude_none=True) for name, make in answers.items()}
    text, _ = ServiceCollector(lambda: observation, dict).render("")
    scrape = Scrape(text.decode())
    differing = {}
    for path, series in SERIES.items():
        found, told = shown_at(read, path.split(".")), told_by(scrape, series)
        shown = {
            key: value for key, value in found.items() if path.replace("*", "".join(key)) not in SERIES.keys() - {path}
        }
        assert shown, f"{path} is not there, so nothing would be compared"
        if (WHOLE in shown) != (WHOLE in told):
            shown, told = {WHOLE: sum(shown.values())}, {WHOLE: sum(told.values())}
        if not all(agree(value, told[key] * (1000 if "_ms" in path else 1)) for key, value in shown.items()):
            differing[path] = (shown, told)
    assert differing == {}
