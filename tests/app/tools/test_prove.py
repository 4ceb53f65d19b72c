"""What a proof is made of: records that a schema admits or refuses, settings that touch nothing, kills, a verdict."""

import json
from collections import Counter
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from random import Random
from time import time as now_s

import pytest

from millrace.app.cli.prove import _facts, _lines
from millrace.app.settings import load
from millrace.app.tools.prove.campaign import Figures, SaveSchedule, compared, judged, spread
from millrace.app.tools.prove.kills import (
    GROUP_POINTS,
    SAVE_POINTS,
    START_POINTS,
    TRAINER_POINTS,
    AfterSave,
    AtPoint,
    group_plan,
    plan,
)
from millrace.app.tools.prove.prove import POINTS, Generated, ProofResult, set_apart, set_group_apart
from millrace.app.tools.traffic.single_writer import ExpectedPosition
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.consumers.user_class import UserClass
from millrace.pipelines.formats import format_of, make_decoder
from millrace.pipelines.schema import DTYPES, Field, Schema, TimeFormat, TimeUnit
from millrace.pipelines.stream.decode import decode_chunk
from millrace.training.ledger.offset_checksum import Evidence
from tests.app.conftest import FIVE_LINES, LoadText
from tests.pipelines.stream.test_decode import chunk_of

RECORDS = 2000
FIELDS = tuple(
    Field(name=f"{dtype}{len(shape)}", source=f"{dtype}{len(shape)}", dtype=dtype, shape=shape)  # type: ignore[arg-type]
    for dtype in DTYPES
    for shape in ((), (2, 3))
)
ROLES = {
    "labels": (Field(name="y", source="y", dtype="float32"),),
    "weight": Field(name="weight", source="w", dtype="float32"),
    "event_time": Field(name="event_time", source="t", dtype="int64"),
}


@pytest.mark.parametrize("form", ["json", "csv", "raw"])
def test_generated_records_decode_and_the_bad_ones_get_their_verdict(form: str) -> None:
    features = tuple(field for field in FIELDS if form != "raw" or field.dtype != "string")
    schema = Schema(features=features, **ROLES)  # type: ignore[arg-type]
    stream, random = Generated(format_of(form), schema, seed=1), Random(1)
    values, verdicts = zip(
        *(stream.draw(ExpectedPosition(0, offset), random) for offset in range(RECORDS)), strict=True
    )
    decoded = make_decoder(form, schema).decode(values)
    assert {refusal.index: refusal.reason for refusal in decoded.refused} == {
        index: verdict for index, verdict in enumerate(verdicts) if verdict is not None
    }
    assert {Reason.EMPTY, Reason.MALFORMED} == {refusal.reason for refusal in decoded.refused}


def test_generated_records_of_nested_fields_decode() -> None:
    sources = {"a.b": (), r"a\.b": (), "a.c.d": (), "e[].f": (2,), "e[].g[]": (2, 3), "h[][].i": (1, 2, 2)}
    fields = tuple(
        Field(name=str(at), source=source, dtype="float32", shape=shape)
        for at, (source, shape) in enumerate(sources.items())
    )
    schema = Schema(features=fields, **ROLES)  # type: ignore[arg-type]
    stream, random = Generated(format_of("json"), schema, seed=1), Random(1)
    drawn = [stream.draw(ExpectedPosition(0, offset), random) for offset in range(200)]
    values = [value for value, verdict in drawn if verdict is None]
    assert len(make_decoder("json", schema).decode(values).kept) == len(values) > 100


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize("unit", ["s", "us", "ns", "iso8601"])
def test_generated_times_and_classes_are_those_of_the_settings(form: str, unit: TimeUnit) -> None:
    kind = Field(name="kind", source="kind", dtype="int32", one_of=(0, 1), classes=("spam", "mail"))
    time = Field(name="event_time", source="t", dtype="int64", time=TimeFormat(unit=unit))
    schema = Schema(features=(FIELDS[0],), labels=(kind,), event_time=time)
    stream, random = Generated(format_of(form), schema, seed=1), Random(1)
    drawn = [stream.draw(ExpectedPosition(0, offset), random) for offset in range(200)]
    values = [value for value, verdict in drawn if verdict is None]
    decoded = decode_chunk(chunk_of(values), make_decoder(form, schema))
    assert len(decoded) == len(values)
    assert {*decoded.labels["kind"].tolist()} == {0, 1}
    assert abs(int(decoded.event_times.min()) / 1000 - now_s()) < 60


def test_records_with_a_key_are_generated_only_where_it_may_be_missing() -> None:
    key = Field(name="who", source="$key", dtype="string")
    with pytest.raises(ConfigError, match=r"'who' is \$key, .* give it a missing value for a proof"):
        Generated(format_of("json"), Schema(features=(FIELDS[0], key)), seed=1)
    Generated(format_of("json"), Schema(features=(FIELDS[0], replace(key, missing="x"))), seed=1)


def test_a_format_that_cannot_be_generated_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"records.format: 'avro' .* prove json, csv or raw"):
        Generated(format_of("avro"), Schema(features=FIELDS[:1]), seed=1)
    with pytest.raises(ConfigError, match=r"records.registry: .* leave the registry out of the copy"):
        Generated(format_of("json"), Schema(features=FIELDS[:1]), seed=1, framed=True)
    image = Field(name="photo", source="photo", dtype="uint8", shape=(2, 2, 1), image="base64")
    with pytest.raises(ConfigError, match="'photo' is an image, and none can be made up"):
        Generated(format_of("json"), Schema(features=(image,)), seed=1)


def test_the_killed_trainer_leaves_the_users_kafka_and_checkpoints_alone(load_text: LoadText, tmp_path: Path) -> None:
    text = FIVE_LINES.replace("topics: [clicks]", "topics: [clicks, set-aside], start: latest, group: theirs")
    text += "export: {path: ./served, every: 1s, announce: versions}\narchive: {path: ./archive}\n"
    text += "serve: {log: {topic: served}}\nmlflow: {tracking_uri: http://mlflow:5000}\n"
    text += "opentelemetry: {endpoint: http://collector:4318}\n"
    text = text.replace("path: ./checkpoints", "path: ./checkpoints, mirror: ./mirror")
    theirs = load_text(text + "training: {batch_size: 32, shuffle: 7}\nstop: {grace: 9s}\n").settings
    home = set_apart(theirs, "127.0.0.1:1234", tmp_path / "apart")
    ours = load(home.config, {}).settings
    assert ours.kafka.bootstrap_servers == ("127.0.0.1:1234",)
    assert (ours.kafka.group, ours.kafka.start) == ("millrace-clicks", "earliest")
    assert ours.kafka.topics == theirs.kafka.topics
    assert home.dead_letters not in ours.kafka.topics
    assert ours.records.dead_letters.topic == home.dead_letters
    assert ours.checkpoints.path == tmp_path / "apart" / "checkpoints"
    assert home.folder.root == ours.checkpoints.path / "clicks"
    assert (theirs.checkpoints.mirror, ours.checkpoints.mirror) == (tmp_path / "mirror", None)
    assert (ours.export.path, ours.export.every, ours.export.announce, ours.archive.path) == (None, None, None, None)
    assert (theirs.serve.log.topic, ours.serve.log.topic) == ("served", None)
    assert (theirs.mlflow.tracking_uri, ours.mlflow.tracking_uri) == ("http://mlflow:5000", None)
    assert (theirs.opentelemetry.endpoint, ours.opentelemetry.endpoint) == ("http://collector:4318", None)
    assert ours.api.host == "127.0.0.1"
    assert (ours.model.build.file, ours.model.build.function) == (tmp_path / "model.py", "build_model")
    assert (ours.training, ours.memory, ours.stop) == (theirs.training, theirs.memory, theirs.stop)
    assert ours.records.features == theirs.records.features


def test_classes_of_the_users_are_found_from_the_config_of_the_proof_too(load_text: LoadText, tmp_path: Path) -> None:
    text = FIVE_LINES.replace("format: json", "format: ./logfmt.py:LogFmt")
    text += "training: {detectors: [./drift.py:Drift]}\nexport: {formats: [saved_model, ./coreml.py:CoreML]}\n"
    theirs = load_text(text).settings
    ours = load(set_apart(theirs, "127.0.0.1:1234", tmp_path / "apart").config, {}).settings
    assert isinstance(ours.records.format, UserClass)
    assert ours.records.format.file == tmp_path / "logfmt.py"
    assert [*ours.training.detector_places.values()] == [f"{tmp_path / 'drift.py'}:Drift"]
    assert [*ours.export.writers.values()] == ["saved_model", f"{tmp_path / 'coreml.py'}:CoreML"]


def test_the_workers_of_a_proof_are_one_group_of_the_same_settings(load_text: LoadText, tmp_path: Path) -> None:
    theirs = load_text(FIVE_LINES + "scale: {workers: 2, timeout: 33s}\n").settings
    homes = set_group_apart(theirs, "127.0.0.1:1234", tmp_path / "apart", 4)
    found = [load(home.config, {}).settings for home in homes]
    assert [each.scale.own_index("anywhere") for each in found] == [0, 1, 2, 3]
    assert len({each.scale.everyone for each in found}) == 1
    assert len(set(found[0].scale.everyone)) == len({each.api.listen for each in found}) == 4
    assert {each.scale.timeout for each in found} == {33.0}
    assert load(set_apart(theirs, "127.0.0.1:1234", tmp_path / "alone").config, {}).settings.scale.workers == 1
    assert not [point for point in POINTS if point.startswith(("group.", "archive.", "journal."))]


def test_a_number_of_workers_that_does_not_suit_the_batch_is_refused(load_text: LoadText, tmp_path: Path) -> None:
    theirs = load_text(FIVE_LINES + "training: {batch_size: 32}\n").settings
    with pytest.raises(ConfigError, match=r"32, which 3 workers cannot share evenly; write a multiple of 3"):
        set_group_apart(theirs, "127.0.0.1:1234", tmp_path / "apart", 3)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_plan_for_a_group_kills_as_often_as_asked_and_at_every_failpoint(workers: int) -> None:
    for kills in range(1, 20):
        assert sum(len(kill.members) for kill in group_plan(Random(kills), kills, workers)) == kills
    plan = list(group_plan(Random(3), 200, workers))
    assert {kill.point for kill in plan} - {None} == {*GROUP_POINTS}
    assert {member for kill in plan for member in kill.members} == {*range(workers)}
    assert any(len(kill.members) == 2 for kill in plan)
    for before, kill in pairwise(plan):
        assert not kill.of_successor or kill.members == before.members[:1], "only who was killed has a successor"
        assert kill.of_successor or kill.point is None, "a failpoint is armed at a start"


def test_no_credential_of_the_users_kafka_is_written_down(load_text: LoadText, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush")
    sasl = "security_protocol: SASL_SSL, sasl_mechanism: PLAIN, sasl_username: anna, sasl_password_file: ./secret"
    theirs = load_text(FIVE_LINES.replace("topics: [clicks]", f"topics: [clicks], {sasl}")).settings
    written = set_apart(theirs, "127.0.0.1:1234", tmp_path / "apart").config.read_text()
    assert not [word for word in ("hush", "secret", "anna", "SASL", "localhost:9092") if word in written]


def test_a_plan_of_fifty_kills_strikes_at_every_failpoint_and_often_in_a_save() -> None:
    faults = list(plan(Random(3), 50))
    struck = Counter(fault.point for fault in faults)
    assert len(faults) == 50
    assert [point for point in TRAINER_POINTS if not struck[point]] == []
    assert [fault.point for fault in faults[: len(START_POINTS)]] == list(START_POINTS)
    assert sum(struck[point] for point in SAVE_POINTS) >= 10
    assert any(isinstance(fault, AfterSave) for fault in faults)


@pytest.mark.parametrize("rounds", range(1, 12))
def test_a_short_plan_has_as_many_kills_as_are_asked_for(rounds: int) -> None:
    for seed in range(20):
        faults = list(plan(Random(seed), rounds, POINTS))
        assert len(faults) == rounds
        assert {fault.point for fault in faults if isinstance(fault, AtPoint)} <= {*POINTS}


def test_one_lost_and_one_repeated_do_not_cancel_out() -> None:
    written = Evidence.of(range(10))
    assert compared(written, Evidence.of(range(10))) == (0, 0)
    assert compared(written, Evidence.of(range(9))) == (1, 0)
    assert compared(written, Evidence.of([*range(10), 4, 4])) == (0, 2)
    assert compared(written, Evidence.of([0, 1, 2, 3, 4, 5, 6, 7, 8, 8])) == (1, 1)
    assert compared(written, Evidence.of([0, 1, 2, 3, 4, 5, 6, 8, 8, 8])) == (1, 1), "the sum alone would not tell"


def test_records_that_wait_for_a_whole_batch_are_not_lost_and_more_are() -> None:
    at = Partition("clicks", 0)
    learnt = {at: Evidence.of([0, 1, 2, 4])}  # offset 3 is set aside
    written = {at: [0, 1, 2, 4, 5, 6]}
    assert judged(written, {at: 5}, learnt, most_waiting=2) == (2, 0, 0)
    assert judged(written, {at: 5}, learnt, most_waiting=1) == (1, 1, 0)
    assert judged(written, {at: 5}, learnt, most_waiting=0) == (0, 2, 0)
    assert judged(written, {at: 6}, learnt, most_waiting=2) == (1, 1, 0), "what is lost before the position never waits"
    assert judged(written, {}, {}, most_waiting=6) == (6, 0, 0)


def test_a_replay_longer_than_a_save_interval_and_a_block_breaks_the_bound() -> None:
    pace = SaveSchedule(every_s=1.0, save_s=1.0, block_rows=256)
    assert pace.bound(10_000, learning_s=10.0) == 256 + 2000
    assert pace.bound(500, learning_s=0.5) == 256 + 500, "before the first save all of it is read again"


def test_a_spread_of_few_values_does_not_flatter() -> None:
    assert spread([3.0, 1.0, 2.0]) == {"n": 3, "p50": 2.0, "p99": 3.0, "max": 3.0}
    assert spread([])["n"] == 0


@pytest.mark.parametrize("broken", ["lost", "learnt_twice", "unbalanced", "valid_rejected", "replay_beyond_bound"])
def test_every_broken_claim_is_reported_and_counts(broken: str) -> None:
    figures = Figures(seed=1, kills=20, records=5000, restored_newest=15)
    assert ProofResult(name="clicks", figures=figures, set_aside={}).kept
    setattr(figures, broken, 3)
    proof = ProofResult(name="clicks", figures=figures, set_aside={})
    assert not proof.kept
    assert "3" in "\n".join(_lines(proof))
    assert json.loads(json.dumps(_facts(proof)))[broken] == 3


def test_the_figures_of_several_histories_add_up() -> None:
    one = Figures(seed=1, kills=3, lost=1, replay=[5], rto_s=[7.0], points=Counter({"call.after": 1}), seconds=2.0)
    total = Figures(seed=1)
    total.add(one)
    total.add(one)
    assert asdict(total) | {"seed": 1} == asdict(
        Figures(
            seed=1, kills=6, lost=2, replay=[5, 5], rto_s=[7.0, 7.0], points=Counter({"call.after": 2}), seconds=4.0
        )
    )
