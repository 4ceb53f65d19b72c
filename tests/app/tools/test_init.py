"""What `init` makes of records: formats, kinds of fields, parts, and models that a start would take."""

import json
import math
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from millrace.app.cli import init as init_module
from millrace.app.cli.command_list import application
from millrace.app.settings import Settings, load, to_decoder
from millrace.app.tools.init import drafted_model, topic_sample
from millrace.app.tools.init.column_roles import (
    ChosenRoles,
    Roles,
    Task,
    cast,
    deletes_and_tombstones,
    envelope_of,
    label_by_name,
    likely_labels,
    likely_times,
    sequences_of,
    without_envelope,
)
from millrace.app.tools.init.columns import ColumnKind, ColumnLook, columns_of
from millrace.app.tools.init.draft_files import Draft, name_of, refuse_to_overwrite, write
from millrace.app.tools.init.drafted_config import DraftTarget, config_text, input_names
from millrace.app.tools.init.drafted_model import model_text
from millrace.app.tools.init.kinds import kinds_of
from millrace.app.tools.init.later_labels import later_labels
from millrace.app.tools.init.questions import asked_parts
from millrace.app.tools.init.topic_sample import SampledRecords, look_at
from millrace.consumers.errors import ConfigError, UnreachableError
from millrace.consumers.kafka.options import KafkaOptions
from millrace.consumers.records import Chunk, Partition
from millrace.pipelines.formats.draft import Look
from millrace.pipelines.stream.decode import decode_chunk

PLACE = DraftTarget(name="t", bootstrap_servers=("localhost:9092",), topic="t", held=1000)


def json_look(*rows: dict[str, Any]) -> Look:
    return look_at([json.dumps(row).encode() for row in rows])


def kinds(look: Look) -> dict[str, ColumnKind]:
    return {column.source: column.kind for column in columns_of(look.rows)}


def test_kinds_are_inferred_from_the_records() -> None:
    draw = random.Random(1)
    rows = [
        {
            "n": draw.random(),
            "few": draw.randrange(4),
            "id": number,
            "text": draw.choice("abc"),
            "key": f"k{number}",
            "flag": draw.random() < 0.5,
            "list": [1, 2.5],
            "varying": [1] * draw.randrange(3),
            "texts": [draw.choice("abc") for _ in range(draw.randrange(3))],
            "same": ["a", "b"],
            "empty": [],
            "holed": [1, None],
            "keys": [f"k{number}"],
            "flags": [True],
            "at": 1_790_000_000_000 + number,
            "written": f"2026-11-21T03:{number % 60:02}:00.5+01:00",
            "day": f"2026-11-{1 + number % 30:02}",
            "object": {},
            "mixed": draw.choice([1, "1"]),
            "nothing": None,
        }
        for number in range(100)
    ]
    assert kinds(json_look(*rows)) == {
        "n": ColumnKind.NUMBER,
        "few": ColumnKind.CATEGORY,
        "id": ColumnKind.UNFIT,
        "text": ColumnKind.TEXT,
        "key": ColumnKind.UNFIT,
        "flag": ColumnKind.FLAG,
        "list": ColumnKind.NUMBERS,
        "varying": ColumnKind.VARYING_NUMBERS,
        "texts": ColumnKind.TEXTS,
        "same": ColumnKind.TEXTS,
        "empty": ColumnKind.UNFIT,
        "holed": ColumnKind.UNFIT,
        "keys": ColumnKind.UNFIT,
        "flags": ColumnKind.UNFIT,
        "at": ColumnKind.TIME,
        "written": ColumnKind.TIME,
        "day": ColumnKind.TIME,
        "object": ColumnKind.UNFIT,
        "mixed": ColumnKind.UNFIT,
        "nothing": ColumnKind.UNFIT,
    }


def test_fields_that_tell_nothing_of_a_record_are_left_out_with_the_reason() -> None:
    draw = random.Random(4)
    rows = [
        {
            "event": "order.placed",
            "version": 3,
            "ratio": 1.5,
            "live": True,
            "card_token": f"tok-{draw.randrange(50_000)}",
            "customer_id": draw.randrange(9_000),
            "coupon": draw.choice([None, "A"]),
            "machine": (machine := f"m{draw.randrange(7)}"),
            "cents": draw.randrange(100_000),
            "label": draw.randrange(2),
            "$key": machine,
            "$header.content-type": "json",
        }
        for _ in range(800)
    ]
    roles = cast(columns_of(rows), ChosenRoles(label="label"))
    assert [column.source for column in roles.features] == ["coupon", "machine", "cents"]
    whys = {column.source: column.why.partition(";")[0] for column in roles.left_out}
    constant, identity = "the same value in every record", "an identity: most of its values come only once"
    assert whys == {
        **dict.fromkeys(("event", "version", "ratio", "live", "$header.content-type"), constant),
        **dict.fromkeys(("card_token", "customer_id"), identity),
        "$key": "the same as machine in every record",
    }
    named = cast(columns_of(rows), ChosenRoles(label="label", features=("card_token", "event")))
    assert [(column.source, column.why) for column in named.features] == [("card_token", ""), ("event", "")]


def test_whole_numbers_beyond_int64_are_numbers_and_no_identities(tmp_path: Path) -> None:
    rows = [
        {"user_id": 2**63 + at % 9, "few": 2**64 - 2**60 * (at % 4), "near": 2**62 + at % 4, "yes": at % 2}
        for at in range(120)
    ]
    # One value beyond it is one record that is set aside.
    rows[7]["near"] = 2**63
    values = [json.dumps(row).encode() for row in rows]
    look = look_at(values)
    roles = cast(columns_of(look.rows), ChosenRoles(label="yes"))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    records = load(tmp_path / "millrace.yaml", {}).settings.records
    assert {name: field.dtype for name, field in records.features.items()} == {"few": "float32", "near": "int64"}
    assert [one.offset for one in decode_chunk(chunk_of(values), to_decoder(records)).refused] == [7]
    (left,) = [column for column in columns_of(rows) if column.source == "user_id"]
    assert left.why.startswith("whole numbers beyond int64, in which categories are read")


def test_few_values_of_another_kind_do_not_hide_what_a_field_holds() -> None:
    row = {"size": 1.5, "at": "2026-11-21T03:00:00Z", "name": "a", "scan": "iVBORw0KGgo=", "seen": True}
    rows: list[dict[str, Any]] = [
        {**row, "size": number / 7, "name": "abc"[number % 3], "seen": number % 2 == 0} for number in range(300)
    ]
    rows[40] = {"size": "big", "at": "soon", "name": 3, "scan": "none", "seen": "yes"}
    expected = {
        "size": ColumnKind.NUMBER,
        "at": ColumnKind.TIME,
        "name": ColumnKind.TEXT,
        "scan": ColumnKind.IMAGE,
        "seen": ColumnKind.FLAG,
    }
    assert {column.source: column.kind for column in columns_of(rows)} == expected
    roles = cast(columns_of(rows), ChosenRoles(label="seen"))
    assert "field: seen, dtype: bool" in config_text(PLACE, Look(format="json", rows=rows, looked_at=300), roles)


def test_a_field_that_repeats_the_label_is_no_feature() -> None:
    rows = [{"a": number % 3, "x": number % 5, "$key": number % 3} for number in range(60)]
    for label, other in (("$key", "a"), ("a", "$key")):
        roles = cast(columns_of(rows), ChosenRoles(label=label))
        assert [column.source for column in roles.features] == ["x"]
        assert [column.source for column in roles.left_out] == [other]


def change(number: int, prefix: str) -> dict[str, Any]:
    """Return a change event, flat, of which each fifth is a delete."""
    row = {"income": 1.5 * (number % 13), "grade": "ABC"[number % 3], "defaulted": number % 2 == 0}
    deleted, first = number % 5 == 4, number % 4 == 0
    return {
        **{f"{prefix}before.{name}": None if first else value for name, value in row.items()},
        **{f"{prefix}after.{name}": None if deleted else value for name, value in row.items()},
        f"{prefix}source.table": "loans",
        f"{prefix}source.pos": 10 * (number % 30),
        f"{prefix}op": "d" if deleted else "c" if first else "u",
    }


@pytest.mark.parametrize("prefix", ["", "payload."])
def test_change_events_are_learnt_from_the_new_row_alone(prefix: str) -> None:
    rows = [change(number, prefix) for number in range(100)]
    columns = columns_of(rows)
    assert envelope_of(columns) == prefix
    assert deletes_and_tombstones(rows, prefix, 100, 7).count("of 107 records 20 are deletes") == 1
    columns = without_envelope(columns_of([row for row in rows if row[f"{prefix}op"] != "d"]), prefix)
    roles = cast(columns, ChosenRoles(label=f"{prefix}after.defaulted"))
    assert [one.source for one in roles.features] == [
        f"{prefix}{name}" for name in ("after.income", "after.grade", "op")
    ]
    assert all(one.why for one in roles.left_out)


def test_records_with_an_operation_alone_are_no_change_events() -> None:
    assert envelope_of(columns_of([{"op": "cu"[number % 2], "after": 1, "x": number} for number in range(60)])) is None


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_csv_is_recognized_by_its_columns_and_named_by_its_header(delimiter: str) -> None:
    lines = [["price", "ad", "clicked"], ["1.5", "a", "1"], ["2", "", "0"]]
    look = look_at([delimiter.join(line).encode() for line in lines])
    settings = {"columns": ["price", "ad", "clicked"], **({"delimiter": delimiter} if delimiter != "," else {})}
    assert (look.format, look.section, look.hints) == ("csv", {"csv": settings}, {})
    assert list(look.rows) == [{"price": 1.5, "ad": "a", "clicked": 1}, {"price": 2, "ad": None, "clicked": 0}]


@pytest.mark.parametrize("at", [0, 1, 40, 99])
def test_header_line_of_csv_names_the_columns_wherever_it_lies(at: int, tmp_path: Path) -> None:
    values = [f"{'ab'[number % 2]};{number % 9}.5;{number % 2}".encode() for number in range(100)]
    values[at:at] = [b"kind;size;label"]
    look = look_at([*values, b"kind;size;label"])
    assert (look.section["csv"]["columns"], look.hints, len(look.rows)) == (["kind", "size", "label"], {}, 100)
    assert [one.partition(" are")[0] for one in look.notes] == ["2 of the records looked at"]
    roles = cast(columns_of(look.rows), ChosenRoles(label="label"))
    assert {column.kind for column in roles.features} == {ColumnKind.TEXT, ColumnKind.NUMBER}
    text = config_text(PLACE, look, roles)
    assert "# 2 of the records looked at are the header line" in text
    write(tmp_path, Draft(config=text, model=model_text("t", roles)))
    decoded = to_decoder(load(tmp_path / "millrace.yaml", {}).settings.records).decode([*values])
    assert [refused.reason for refused in decoded.refused] == ["wrong_type"]


def test_header_line_of_csv_is_no_row_beside_given_names() -> None:
    values = [b"kind,size", *(f"{'ab'[number % 2]},{number % 9}".encode() for number in range(60))]
    look = look_at(values, ("x", "y"))
    assert (look.section["csv"], len(look.rows), len(look.notes)) == ({"columns": ["x", "y"]}, 60, 1)


def test_csv_without_a_header_gets_generated_or_given_names() -> None:
    values = [b"1.5,a,1", b"2,b,0"]
    assert look_at(values).section["csv"]["columns"] == ["column_1", "column_2", "column_3"]
    assert list(look_at(values).hints) == ["csv"]
    assert look_at(values, ("x", "y", "z")).section["csv"]["columns"] == ["x", "y", "z"]
    with pytest.raises(ConfigError, match="--columns: 2 names, and the records have 3 columns"):
        look_at(values, ("x", "y"))


def test_unknown_records_are_refused_with_a_guess_of_their_format() -> None:
    with pytest.raises(ConfigError, match="all have 8 bytes, so they may be raw tensors"):
        look_at([b"\xff\x00\x01\x02\x03\x04\x05\x06"] * 3)
    with pytest.raises(ConfigError, match=r"none of JSON, CSV, text and tf.train.Example"):
        look_at([b"\1hello", b"\2you"])


@pytest.mark.parametrize(
    "value",
    [(13).to_bytes(4, "little"), b"[" * 100_000],
    ids=["raw int32", "deep JSON"],
)
def test_records_that_break_a_parser_are_refused_in_one_line(value: bytes) -> None:
    with pytest.raises(ConfigError, match="none of JSON, CSV"):
        look_at([value] * 3)


@pytest.mark.parametrize("value", [b"one\rtwo, three", b"a," + b"b" * 140_000], ids=["carriage return", "long column"])
def test_lines_that_break_the_parser_of_csv_are_texts(value: bytes) -> None:
    assert look_at([value] * 3).format == "text"


def test_one_line_that_is_not_csv_does_not_hide_the_others() -> None:
    look = look_at([b"1,a", b"2,b", b"3,c"] * 10 + [b"one\rtwo,three"])
    assert (look.format, len(look.rows), look.looked_at) == ("csv", 30, 31)


ROWS: list[dict[str, Any]] = [
    {
        "x": 1.5 * (number % 7),
        "a b": "abc"[number % 3],
        "f": number % 2 == 0,
        "c": number % 5,
        "v": [number % 3, 0.5],
        "sizes": None if number % 11 == 0 else [1.5 * (number % 4)] * (number % 6),
        "tags": None if number % 13 == 0 else ["red", "blue", "green"][: number % 4],
        "yes": number % 2,
        "class": number % 4,
        "kind": ["cat", "dog", "other"][number % 3],
        "cost": 100 + 1.25 * number,
        "time": 1_790_000_000_000 + number,
        "w": 1.0 + number % 3,
    }
    for number in range(120)
]
LISTS = ("v", "sizes", "tags")
FEATURES = ("x", "a b", "f", "c", *LISTS)


def roles_of(look: Look, label: str, **more: Any) -> Roles:
    features = tuple(source for source in FEATURES if source in look.rows[0])
    return cast(columns_of(look.rows), ChosenRoles(label=label, features=features, **more))


TASKS = [
    ("yes", Task.BINARY),
    ("f", Task.BINARY),
    ("class", Task.CLASSES),
    ("kind", Task.NAMED_CLASSES),
    ("cost", Task.NUMBER),
]


def csv_of(rows: list[dict[str, Any]]) -> list[bytes]:
    lines: list[list[object]] = [[*rows[0]], *([*row.values()] for row in rows)]
    return [",".join(map(str, line)).encode() for line in lines]


def chunk_of(values: list[bytes]) -> Chunk:
    """Return values as they come from Kafka."""
    return Chunk(
        partition=Partition("t", 0),
        incarnation=1,
        start=0,
        end=len(values),
        offsets=np.arange(len(values)),
        timestamps=np.arange(len(values)),
        keys=[None] * len(values),
        values=values,
        headers=[()] * len(values),
        nbytes=0,
        fetched_at=0.0,
    )


def draft_of(
    values: list[bytes], label: str, task: Task, folder: Path, features: tuple[str, ...] = FEATURES
) -> Settings:
    """Write the draft of config and model, decode the records by it, and return its settings."""
    look = look_at(values)
    features = tuple(source for source in features if source in look.rows[0] and source != label)
    wanted = ChosenRoles(label=label, features=features, weight="w", event_time="time")
    roles = cast(columns_of(look.rows), wanted)
    assert roles.task is task
    write(folder, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(folder / "millrace.yaml", {}).settings
    decoded = to_decoder(settings.records).decode(values)
    assert len(decoded.kept) == len(ROWS)
    return settings


def assert_the_model_starts(settings: Settings) -> None:
    from millrace.app.service.model_setup import examine, make_learner, model_file
    from millrace.training.model.setup.model_file import load as load_model

    learner = make_learner(load_model(model_file(settings)), settings)
    assert all(finding.holds for finding in examine(learner))


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("label", "task"),
    [
        TASKS[0],
        # In the gate `yes` has the head of `f`, and a draft for CSV that of `class`.
        *(pytest.param(*each, marks=[pytest.mark.slow, pytest.mark.nightly]) for each in TASKS[1:3]),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in TASKS[3:]),
    ],
)
def test_a_draft_decodes_its_records_and_its_model_starts(label: str, task: Task, tmp_path: Path) -> None:
    # By the label only the head of a model differs, so one of them has each kind of field, and the others two.
    features = FEATURES if (label, task) == TASKS[0] else FEATURES[:2]
    assert_the_model_starts(draft_of([json.dumps(row).encode() for row in ROWS], label, task, tmp_path, features))


def test_a_draft_for_csv_decodes_its_records_whatever_the_label(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key not in LISTS} for row in ROWS]
    for label, task in TASKS:
        (tmp_path / label).mkdir()
        draft_of(csv_of(rows), label, task, tmp_path / label)


@pytest.mark.parametrize("as_values", [csv_of, lambda rows: [json.dumps(row).encode() for row in rows]])
def test_a_draft_balances_a_rare_class_and_no_other(as_values: Any, tmp_path: Path) -> None:
    rows = [{"x": 1.5 * (number % 7), "yes": int(number % 60 == 3)} for number in range(120)]
    for name, every, target in (("rare", rows, {"0": 0.8333, "1": 0.1667}), ("often", rows[:15], {})):
        look = look_at(as_values(every))
        roles = cast(columns_of(look.rows), ChosenRoles(label="yes", features=("x",)))
        (tmp_path / name).mkdir()
        text = config_text(PLACE, look, roles)
        write(tmp_path / name, Draft(config=text, model=model_text("t", roles)))
        assert load(tmp_path / name / "millrace.yaml", {}).settings.balance.target == target
        assert ("1 of 60 records is of class 1" in text) is bool(target)


def with_windows(values: list[Any], partitions: int, folder: Path, more: tuple[str, ...] = ()) -> tuple[str, Settings]:
    """Return the draft for a key of these values, and its settings."""
    rows = [
        {"user_id": value, "x": 1.5 * (at % 7), "few": at % 4, "t": "abc"[at % 3], "yes": at % 2}
        | {"n": [0.5 * at] * (at % 5), "tags": ["ab"[at % 2]] * (at % 4), "said": f"it was {at} of them"}
        for at, value in enumerate(values)
    ]
    look = look_at([json.dumps(row).encode() for row in rows])
    roles = cast(columns_of(look.rows), ChosenRoles(label="yes", features=("user_id", "x", "few", "t", *more)))
    sequences = sequences_of(look.rows, roles, partitions)
    text = config_text(PLACE, look, roles, sequences)
    write(folder, Draft(config=text, model=model_text("t", roles, sequences)))
    return text, load(folder / "millrace.yaml", {}).settings


@pytest.mark.parametrize(
    ("values", "key"),
    [
        ([f"u{number * number % 29}" for number in range(120)], "user_id"),
        ([number * number % 29 for number in range(120)], "user_id"),
        ([1000 + number % 70 for number in range(350)], "user_id"),
        ([f"u{number // 2}" for number in range(120)], None),
        (["a", "b"] * 60, None),
    ],
)
def test_a_draft_has_windows_where_a_key_repeats(values: list[Any], key: str | None, tmp_path: Path) -> None:
    text, settings = with_windows(values, 1, tmp_path)
    assert (settings.windows.by, "windows" in text) == (key, key is not None)
    if key is not None:
        assert f"of {len({*values})} values of user_id" in text


def test_windows_that_would_miss_records_in_other_partitions_are_a_comment(tmp_path: Path) -> None:
    text, settings = with_windows([f"u{number % 29}" for number in range(120)], 3, tmp_path)
    assert settings.windows.by is None
    assert "# windows: {by: user_id, length: 20}" in text
    assert "GRU" not in (tmp_path / "model.py").read_text()


def test_key_of_the_records_that_repeats_a_field_keeps_its_sequences_whole() -> None:
    rows = [{"device": f"d{at % 9}", "x": 1.5 * (at % 7), "yes": at % 2, "$key": f"d{at % 9}"} for at in range(120)]
    roles = cast(columns_of(rows), ChosenRoles(label="yes"))
    assert {one.source: one.why for one in roles.left_out} == {"$key": "the same as device in every record"}
    sequences = sequences_of(rows, roles, 3)
    assert sequences is not None
    assert (sequences.key.source, sequences.whole) == ("device", True)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_drafted_model_of_sequences_starts(tmp_path: Path) -> None:
    keys = [f"u{number * number % 29}" for number in range(120)]
    _, settings = with_windows(keys, 1, tmp_path, more=("n", "tags", "said"))
    assert "GRU" in (tmp_path / "model.py").read_text()
    assert_the_model_starts(settings)


@pytest.mark.tensorflow
def test_a_draft_for_csv_has_a_model_that_starts(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key not in LISTS} for row in ROWS]
    assert_the_model_starts(draft_of(csv_of(rows), "class", Task.CLASSES, tmp_path))


def drafted(rows: list[dict[str, Any]], features: tuple[str, ...]) -> str:
    look = json_look(*rows)
    return config_text(PLACE, look, cast(columns_of(look.rows), ChosenRoles(label="yes", features=features)))


def test_a_varying_list_gets_a_bound_above_the_longest_seen() -> None:
    rows = [{"n": [0.5] * (number % 9), "t": ["a"] * (number % 4), "yes": number % 2} for number in range(60)]
    text = drafted(rows, ("n", "t"))
    assert "n: {dtype: float32, shape: [16], pad: 0.0, length: n_length}" in text
    assert 't: {dtype: string, shape: [4], pad: "", length: t_length}' in text
    assert "a list of numbers, of varying length, up to 8 seen; elements beyond 16 are cut, and counted" in text


@pytest.mark.tensorflow
def test_padding_changes_no_prediction_and_an_empty_list_has_one(tmp_path: Path) -> None:
    import numpy as np
    import tensorflow as tf

    from millrace.app.service.model_setup import model_file
    from millrace.training.model.setup.model_file import load as load_model

    rows = [{"n": [2.5, 3.5, 4.5][: number % 4], "t": ["a"] * (number % 3), "yes": number % 2} for number in range(60)]
    look = json_look(*rows)
    roles = cast(columns_of(look.rows), ChosenRoles(label="yes"))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    model = load_model(model_file(load(tmp_path / "millrace.yaml", {}).settings)).build()
    guesses = model(
        {
            "n": tf.constant([[2.5, 0, 0, 0], [2.5, 9, 9, 9], [0, 0, 0, 0], [9, 9, 9, 9]], tf.float32),
            "n_length": tf.constant([1, 1, 0, 0]),
            "t": tf.constant([["a", "", "", ""], ["a", "b", "b", "b"], ["", "", "", ""], ["b", "b", "b", "b"]]),
            "t_length": tf.constant([1, 1, 0, 0]),
        }
    )
    one, filled_otherwise, empty, empty_otherwise = np.asarray(guesses)[:, 0]
    assert one == filled_otherwise != empty == empty_otherwise
    assert np.isfinite(empty)


def test_draft_refers_to_nothing_that_an_installation_lacks(tmp_path: Path) -> None:
    rare = [f"{number % 7}.5,{int(number % 60 == 3)}".encode() for number in range(120)]
    for values, label in ((rare, "column_2"), ([json.dumps(row).encode() for row in ROWS], "kind")):
        look = look_at(values)
        roles = cast(columns_of(look.rows), ChosenRoles(label=label))
        sequences = sequences_of(look.rows, roles, 2)
        text = config_text(PLACE, look, roles, sequences) + model_text("t", roles, sequences)
        assert "docs/" not in text
        assert ".md" not in text
    with pytest.raises(ConfigError) as raised:
        look_at([b"\1hello", b"\2you"])
    assert "docs/" not in str(raised.value)


def test_the_length_of_a_list_takes_no_name_of_a_field() -> None:
    row = {"n": [1], "n length": 2.5, "n_length": 3.5}
    text = drafted([{**row, "yes": 0}, {**row, "n": [], "yes": 1}], ("n", "n length", "n_length"))
    assert "length: n_length__}" in text


def test_numbers_beyond_float32_do_not_spoil_the_mean() -> None:
    rows = [{"n": value, "l": [value, 2.0]} for value in (2.0, float("nan"), float("inf"), 10**400, 1e300)]
    for column in columns_of(rows):
        assert column.centre == 2.0


def test_label_weight_and_event_time_must_fit_their_roles() -> None:
    columns = columns_of(json_look(*ROWS).rows)
    for wanted, says in [
        (ChosenRoles(label="v"), "'v' cannot be predicted"),
        (ChosenRoles(label="no"), "the records have no field 'no'; they have x, a b"),
        (ChosenRoles(label="yes", weight="kind"), "'kind' is no number"),
        (ChosenRoles(label="yes", event_time="cost"), "holds no time that can be read"),
        (ChosenRoles(label="yes", features=("yes",)), "the label, weight or event time already"),
        (ChosenRoles(label="yes", features=("time",)), "'time' cannot be learnt from"),
    ]:
        with pytest.raises(ConfigError, match=says):
            cast(columns, wanted)


def test_a_question_is_repeated_until_the_answer_fits() -> None:
    asked = typer.Typer()
    parts: list[ChosenRoles] = []
    seen = columns_of(json_look(*ROWS).rows)
    asked.command()(lambda: parts.append(asked_parts(seen, ChosenRoles(label=None))))
    answers = ["nobody", "v", "yes", "cost", "-", "yes", "w"]
    result = CliRunner().invoke(asked, input="\n".join(answers) + "\n")
    assert parts == [ChosenRoles(label="yes", event_time=None, weight="w")]
    assert result.stdout.count("to be predicted?") == 3
    assert "'nobody' is none of class, x, " in result.output


def test_roles_that_no_field_can_fill_are_not_asked_for() -> None:
    asked = typer.Typer()
    parts: list[ChosenRoles] = []
    seen = columns_of([{"text": "abc"[number % 3], "flag": number % 2 == 0} for number in range(60)])
    asked.command()(lambda: parts.append(asked_parts(seen, ChosenRoles(label=None))))
    CliRunner().invoke(asked, input="\n")
    assert parts == [ChosenRoles(label="text")]


def test_ctrl_c_at_a_question_raises_keyboard_interrupt(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_given: object, **_more: object) -> str:
        raise typer.Abort

    monkeypatch.setattr(typer, "prompt", interrupted)
    with pytest.raises(KeyboardInterrupt):
        asked_parts(columns_of(json_look(*ROWS).rows), ChosenRoles(label=None))


def test_the_likeliest_field_is_offered_first() -> None:
    columns = columns_of(json_look(*ROWS).rows)
    assert likely_labels(columns)[0] == "class"
    assert likely_times(columns) == ["time"]


@pytest.mark.parametrize(
    ("rows", "label"),
    [
        ([{"Label": n % 2, "is_new": n % 2, "x": n / 7} for n in range(60)], "Label"),
        ([{"y": n % 2, "target": n % 2, "x": n / 7} for n in range(60)], None),
        ([{"is_new": n % 2, "labels": n % 2, "x": n / 7} for n in range(60)], None),
        ([{"label": f"k{n}", "x": n / 7} for n in range(60)], None),
    ],
    ids=["one", "two", "like one", "cannot be one"],
)
def test_the_one_field_that_is_named_as_labels_are_is_taken(rows: list[dict[str, Any]], label: str | None) -> None:
    assert label_by_name(columns_of(json_look(*rows).rows)) == label


def test_names_that_keras_refuses_are_simplified_and_stay_distinct() -> None:
    columns = columns_of([{"a b": 1.5, "a_b": 2.5, "1": 0.5, "é": 1.0}])
    assert [*input_names(columns).values()] == ["a_b", "a_b_", "field_1", "field__"]
    assert (name_of("Payments.v1"), name_of("_x y")) == ("payments.v1", "x-y")


def test_init_logs_in_by_the_environment_to_the_typed_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[KafkaOptions] = []

    def refusing(options: KafkaOptions) -> None:
        tried.append(options)
        raise UnreachableError("nobody is here")

    monkeypatch.setattr(topic_sample, "KafkaSource", refusing)
    (tmp_path / "password").write_text("canary-9c1d\n")
    environ = {
        "SECURITY_PROTOCOL": "SASL_PLAINTEXT",
        "SASL_MECHANISM": "SCRAM-SHA-512",
        "SASL_USERNAME": "me",
        "SASL_PASSWORD_FILE": "password",  # relative to where the config will be
        "TOPICS": "theirs",
        "BOOTSTRAP_SERVERS": "away:1",
    }
    for name, value in environ.items():
        monkeypatch.setenv(f"MILLRACE_KAFKA__{name}", value)
    typed = ("--topic", "mine", "--bootstrap-servers", "here:1, there:2", "--label", "y", "--out", str(tmp_path))
    done = CliRunner().invoke(application, ["init", *typed])
    assert isinstance(done.exception, UnreachableError)
    (options,) = tried
    assert (options.servers, options.topics) == ("here:1,there:2", ("mine",))
    assert options.security == {
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "SCRAM-SHA-512",
        "sasl_plain_username": "me",
        "sasl_plain_password": "canary-9c1d",
    }


def test_no_input_bears_the_name_of_a_layer_of_the_draft() -> None:
    layers = set(re.findall(r"keras\.layers\.(\w+)", Path(drafted_model.__file__).read_text()))
    assert {"Dense", "GRU", "AveragePooling2D"} <= layers
    names = {re.sub(r"(?<=[a-z])(?=[A-Z])", "_", layer).lower() for layer in layers} | {"prediction", "dense_1"}
    found = input_names([ColumnLook(source=name) for name in (*sorted(names), "price")])
    assert {source for source, name in found.items() if source == name} == {"price"}


def test_half_a_pair_of_surrogates_is_no_class(tmp_path: Path) -> None:
    rows = [{"x": at / 2, "kind": ["a", "b", "\ud800"][at % 3]} for at in range(60)]
    look = json_look(*rows)
    roles = cast(columns_of(look.rows), ChosenRoles(label="kind"))
    assert roles.label.distinct == ("a", "b")
    draft = Draft(config=config_text(PLACE, look, roles, None), model=model_text("t", roles, None))
    write(tmp_path, draft)
    assert 'CLASSES = ["a", "b"]' in (tmp_path / "model.py").read_text()


@pytest.mark.parametrize(
    ("record", "label"),
    [
        ({}, {}),
        ({"id": ["a"]}, {}),
        ({}, {"id": ["a"]}),
        ({}, {"id": "k7", "label": [1]}),
        ({"id": None}, {"id": None}),
    ],
    ids=str,
)
def test_an_odd_record_or_label_is_none_that_later_labels_are_known_by(
    record: dict[str, Any], label: dict[str, Any]
) -> None:
    records = [{"id": f"k{at}", "x": at / 2} for at in range(100)]
    labels = [{"id": f"k{at}", "label": at % 2} for at in range(100)]
    (found, look), (later, label_look) = (
        (sampled(rows), json_look(*rows))
        for rows in ([*records, {"x": 1.0, **record}], [*labels, {"label": 1, **label}])
    )
    told, joined = later_labels("labels", (found, look), (later, label_look), None)
    assert (told.key, told.absent, told.early) == (("id", "id"), 0, "1s")
    assert told.share == pytest.approx(100 / 101)
    assert joined.rows[-1]["label"] == 0


def sampled(rows: list[dict[str, Any]]) -> SampledRecords:
    """Return records as they are read of a topic."""
    values = [json.dumps(row).encode() for row in rows]
    return SampledRecords(
        values=values,
        beside=[{}] * len(values),
        held=len(values),
        partitions=1,
        tombstones=0,
        records_per_s=1.0,
        times=range(len(values)),
    )


def test_nothing_is_overwritten_without_force(tmp_path: Path) -> None:
    write(tmp_path, Draft(config="", model=""))
    with pytest.raises(ConfigError, match="would be overwritten"):
        refuse_to_overwrite(tmp_path, force=False)
    refuse_to_overwrite(tmp_path, force=True)


NESTED = [
    {
        "buyer": None if number % 17 == 0 else {"city": "abc"[number % 3], "zip code": number % 7, "geo": {"lat": 1.5}},
        "items": [{"price": 1.5 * at, "tags": ["a"], "name": "ab"[at % 2]} for at in range(number % 4)],
        "a.b": number % 5,
        "made": {"at": f"2026-11-21T03:{number % 60:02}:00", "by": {"kind": ["cat", "dog", "other"][number % 3]}},
        "sent": 1_790_000_000_000_000 + number * 10**6,
        "counts": {f"user-{number}": 1},
        "meta": {},
    }
    for number in range(120)
]


def test_nested_fields_are_drafted_by_their_paths(tmp_path: Path) -> None:
    values = [json.dumps(row).encode() for row in NESTED]
    look = look_at(values)
    roles = cast(columns_of(look.rows), ChosenRoles(label="made.by.kind", event_time="made.at"))
    assert {column.source: column.kind for column in roles.features} == {
        "buyer.city": ColumnKind.TEXT,
        "buyer.zip code": ColumnKind.CATEGORY,
        "buyer.geo.lat": ColumnKind.NUMBER,
        "items[].price": ColumnKind.VARYING_NUMBERS,
        "items[].name": ColumnKind.TEXTS,
        r"a\.b": ColumnKind.CATEGORY,
    }
    assert {column.source: column.why for column in roles.left_out} == {
        "items[].tags": "a list of something else than numbers or texts",
        "sent": "a time in us since 1970",
        "counts": "an object (of user-0, user-1, user-2, user-3, …); name those to learn from by their paths, as in "
        "field: name.key",
        "meta": "an object (of nothing); name those to learn from by their paths, as in field: name.key",
    }
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(tmp_path / "millrace.yaml", {}).settings
    assert settings.records.event_time is not None
    assert (settings.records.event_time.format, settings.records.event_time.zone) == ("iso8601", "UTC")
    decoded = decode_chunk(chunk_of(values), to_decoder(settings.records))
    assert len(decoded) == len(NESTED)
    assert decoded.labels["made.by.kind"].tolist() == [number % 3 for number in range(120)]
    assert decoded.features["buyer_city"][:3].tolist() == [b"", b"b", b"c"]


@pytest.mark.parametrize(
    ("at", "form"),
    [
        (1_790_000_000_000, "ms"),
        (1_790_000_000.5, "s"),
        (1_790_000_000_000_000_000, "ns"),
        ("2026-11-21T03:00:0{}.5+01:00", "iso8601"),
    ],
)
def test_a_time_is_drafted_as_it_is_written(at: float | str, form: str) -> None:
    rows = [{"at": at.format(n % 7) if isinstance(at, str) else at + n * 60, "y": n % 2, "x": n % 9} for n in range(99)]
    look = json_look(*rows)
    columns = columns_of(look.rows)
    assert likely_times(columns) == ["at"]
    text = config_text(PLACE, look, cast(columns, ChosenRoles(label="y", event_time="at")))
    assert f"event_time: {{field: at{'' if form == 'ms' else f', format: {form}'}}}\n" in text


def test_keys_and_headers_are_drafted_beside_the_values(tmp_path: Path) -> None:
    headers = [
        (("label", b"%d" % (number % 2)), ("a.b", b"xyz"[number % 3 :]), ("raw", b"\xff")) for number in range(120)
    ]
    keys = [b"user-%d" % (number % 6) for number in range(120)]
    for form, values in (
        ("json", [b'{"x": %d}' % (n % 9) for n in range(120)]),
        ("csv", [b"%d,%d" % (n % 9, n % 8) for n in range(120)]),
    ):
        beside = [topic_sample.beside_of(key, each) for key, each in zip(keys, headers, strict=True)]
        look = look_at(values, beside=beside)
        assert look.format == form
        columns = columns_of(look.rows)
        assert label_by_name(columns) == "$header.label"
        roles = cast(columns, ChosenRoles(label="$header.label"))
        assert [column.source for column in roles.left_out] == ["$header.raw"]
        folder = tmp_path / form
        folder.mkdir()
        write(folder, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
        settings = load(folder / "millrace.yaml", {}).settings
        chunk = replace(chunk_of(values), keys=keys, headers=headers)
        decoded = decode_chunk(chunk, to_decoder(settings.records))
        assert len(decoded) == 120
        assert decoded.features["key"].tolist() == keys
        assert decoded.features["header_a_b"].tolist() == [b"xyz"[number % 3 :] for number in range(120)]
        assert decoded.labels["$header.label"].tolist() == [float(number % 2) for number in range(120)]


SECONDS = [{"at": 1_790_000_000.25 + 60 * number, "yes": number % 2, "x": number % 9 / 2} for number in range(100)]


@pytest.mark.parametrize("whole", [False, True])
def test_times_in_seconds_are_left_out_with_the_reason(whole: bool) -> None:
    rows = [{**row, "at": int(row["at"])} for row in SECONDS] if whole else SECONDS
    roles = cast(columns_of(json_look(*rows).rows), ChosenRoles(label="yes"))
    assert [column.source for column in roles.features] == ["x"]
    (left_out,) = roles.left_out
    assert "seconds since 1970" in left_out.why


@pytest.mark.tensorflow
def test_numbers_that_float32_would_make_coarse_are_scaled_in_float64(tmp_path: Path) -> None:
    import numpy as np
    import tensorflow as tf

    from millrace.app.service.model_setup import model_file
    from millrace.training.model.setup.model_file import load as load_model

    look = json_look(*SECONDS)
    roles = cast(columns_of(look.rows), ChosenRoles(label="yes", features=("at",)))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(tmp_path / "millrace.yaml", {}).settings
    assert settings.records.features["at"].dtype == "float64"
    model = load_model(model_file(settings)).build()
    one, next_minute = np.asarray(model({"at": tf.constant([1_790_000_000.25, 1_790_000_060.25], tf.float64)}))[:, 0]
    assert one != next_minute


TEXTS = [
    {"text": f"{'a fine' if number % 2 else 'no good'} thing, number {number}!", "key": f"k{number}", "yes": number % 2}
    for number in range(200)
]


def test_free_text_is_left_out_unless_it_is_named() -> None:
    columns = columns_of(json_look(*({"x": number % 9 / 2, **row} for number, row in enumerate(TEXTS))).rows)
    roles = cast(columns, ChosenRoles(label="yes"))
    assert {column.source: column.why for column in roles.left_out}["text"].startswith("free text; name it")
    named = cast(columns, ChosenRoles(label="yes", features=("text",)))
    assert [column.kind for column in named.features] == [ColumnKind.FREE_TEXT]
    with pytest.raises(ConfigError, match="another text in every record"):
        cast(columns, ChosenRoles(label="yes", features=("key",)))


@pytest.mark.tensorflow
def test_a_model_of_free_text_learns_from_its_words(tmp_path: Path) -> None:
    from millrace.app.service.model_setup import examine, make_learner, model_file
    from millrace.training.model.setup.model_file import load as load_model

    look = json_look(*TEXTS)
    roles = cast(columns_of(look.rows), ChosenRoles(label="yes", features=("text",)))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(tmp_path / "millrace.yaml", {}).settings
    learner = make_learner(load_model(model_file(settings)), settings)
    assert all(finding.holds for finding in examine(learner))
    rows = decoded_rows(settings, look, learner)
    first = learner.learn(rows).result.losses[0]
    for _ in range(20):
        last = learner.learn(rows).result.losses[0]
    assert last < first / 2


def decoded_rows(settings: Any, look: Look, learner: Any) -> Any:
    """Return a batch of the records as the model takes them."""
    from millrace.pipelines.stream.record_sample import sample_of
    from millrace.training.model.probes import Probe

    sample = sample_of([decode_chunk(chunk_of_rows(look), to_decoder(settings.records))], settings.training.batch_size)
    assert sample is not None
    taken = sample.taken(np.resize(np.arange(len(sample)), settings.training.batch_size))
    return learner.rows_of(Probe(features=taken.features, labels=taken.labels))


def chunk_of_rows(look: Look) -> Chunk:
    offsets = np.arange(len(look.rows))
    return Chunk(
        partition=Partition("t", 0),
        incarnation=0,
        start=0,
        end=len(offsets),
        offsets=offsets,
        timestamps=offsets,
        keys=[None] * len(offsets),
        values=[json.dumps(row).encode() for row in look.rows],
        headers=[()] * len(offsets),
        nbytes=1,
        fetched_at=0.0,
    )


def test_outliers_move_neither_centre_nor_spread() -> None:
    draw = random.Random(3)
    values = [draw.gauss(50, 2) for _ in range(400)]
    (column,) = columns_of([{"n": value} for value in [*values, *([4e9] * 4)]])
    assert column.centre == pytest.approx(50, abs=0.5)
    assert column.spread == pytest.approx(2, rel=0.2)
    (mostly_zero,) = columns_of([{"n": value} for value in [*([0.0] * 300), *values[:100]]])
    assert 5 < mostly_zero.spread < 50


def fraud(count: int) -> list[dict[str, Any]]:
    """Return payments of which one in 600 is fraud, by what a logistic regression finds."""
    draw = random.Random(9)
    by_kind = [draw.gauss(0, 0.8) for _ in range(18)]
    by_country = {country: draw.gauss(0, 0.8) for country in ("DE", "FR", "US", "BR", "VN", "PL")}
    made = []
    for _ in range(count):
        log_amount, kind, country, hour = (
            draw.gauss(3, 1),
            draw.randrange(18),
            draw.choice([*by_country]),
            draw.randrange(24),
        )
        logit = -7.3 + log_amount - 3 + by_kind[kind] + by_country[country] + (1.2 if hour < 5 else 0)
        payment = {"amount": math.exp(log_amount), "kind": kind, "country": country, "hour": hour}
        made.append({**payment, "label": int(draw.random() < 1 / (1 + math.exp(-logit)))})
    return made


@pytest.mark.slow
@pytest.mark.tensorflow
def test_drafted_model_finds_a_rare_class_after_few_records_of_it(tmp_path: Path) -> None:
    import tensorflow as tf

    from millrace.app.service.model_setup import model_file
    from millrace.training.model.setup.model_file import load as load_model

    rows, learnt = fraud(40_000), 28_000
    look = json_look(*rows[:4_000])
    roles = cast(columns_of(look.rows), ChosenRoles(label="label"))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    settings = load(tmp_path / "millrace.yaml", {}).settings
    model = load_model(model_file(settings)).build()
    x = {name: tf.constant([row[name] for row in rows]) for name in ("amount", "country")}
    x |= {name: tf.constant([row[name] for row in rows], tf.int64) for name in ("kind", "hour")}
    y = np.array([row["label"] for row in rows], np.float32)
    target, share = settings.balance.target, y[:learnt].mean()
    weights = np.where(y > 0, target["1"] / share, target["0"] / (1 - share))
    size, passes = settings.training.numbers.batch_size, settings.training.numbers.passes
    for at in range(0, learnt, size):
        batch = slice(at, at + size)
        for _ in range(passes):
            model.train_on_batch({name: column[batch] for name, column in x.items()}, y[batch], weights[batch])
    auc = tf.keras.metrics.AUC(num_thresholds=10_000)
    later = {name: column[learnt:] for name, column in x.items()}
    auc.update_state(y[learnt:], model.predict(later, batch_size=1_000, verbose=0)[:, 0])
    assert float(auc.result()) > 0.76, "hidden layers alone, with four passes, have 0.70; guessing is 0.5"


@pytest.mark.tensorflow
def test_a_regression_with_outliers_learns_more_than_the_median(tmp_path: Path) -> None:
    import tensorflow as tf

    from millrace.app.service.model_setup import model_file
    from millrace.training.model.setup.model_file import load as load_model

    draw = random.Random(7)

    def record() -> dict[str, Any]:
        x, shop = draw.random(), draw.choice("abc")
        cost = 100 + 40 * x + 20 * "abc".index(shop) + draw.gauss(0, 1)
        return {"x": x, "shop": shop, "cost": cost * (1e5 if draw.random() < 0.01 else 1)}

    rows = [record() for _ in range(12_000)]
    look = json_look(*rows[:400])
    roles = cast(columns_of(look.rows), ChosenRoles(label="cost"))
    write(tmp_path, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    model = load_model(model_file(load(tmp_path / "millrace.yaml", {}).settings)).build()

    def columns(some: list[dict[str, Any]]) -> tuple[dict[str, Any], Any]:
        features = {name: tf.constant([row[name] for row in some]) for name in ("x", "shop")}
        return features, np.array([row["cost"] for row in some])

    x, y = columns(rows[:10_000])
    model.fit(x, y.astype(np.float32), batch_size=64, shuffle=False, verbose=0)
    x, y = columns(rows[10_000:])
    errors = np.abs(model.predict(x, batch_size=500, verbose=0)[:, 0] - y)
    of_the_median = np.abs(np.median(y) - y)
    ordinary = y < 1e4
    assert errors.mean() < of_the_median.mean()
    assert errors[ordinary].mean() < of_the_median[ordinary].mean() / 2


def test_of_several_kinds_of_records_those_with_the_label_are_learnt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By `records.where`: the draft decodes all of them, and filters the others."""
    draw = random.Random(2)
    rows: list[dict[str, Any]] = [
        {"type": "impression", "price": draw.random(), "hour": draw.randrange(24), "clicked": draw.randrange(2)}
        if number % 3
        else {"type": ["login", "search"][number % 2], "user": f"u{number}"}
        for number in range(120)
    ]
    values = [json.dumps(row).encode() for row in rows]
    chunk = chunk_of(values)
    found = SampledRecords(
        values=values, beside=[{}] * 120, held=120, partitions=1, tombstones=0, records_per_s=1.0, chunks=[chunk]
    )
    monkeypatch.setattr(init_module, "sampled_records", lambda _, **__: found)
    typed = ("--topic", "t", "--bootstrap-servers", "here:1", "--label", "clicked", "--out", str(tmp_path), "--json")
    done = CliRunner().invoke(application, ["init", *typed], catch_exceptions=False)
    report = json.loads(done.stdout)
    assert (report["where"], report["set_aside"]) == ({"type": "impression"}, {})
    decoded = decode_chunk(chunk, to_decoder(load(tmp_path / "millrace.yaml", {}).settings.records))
    assert (len(decoded), len(decoded.filtered), decoded.refused) == (80, 40, ())
    assert kinds_of([{"type": "a", "y": 1}] * 50 + [{"type": "b", "y": 1}] * 50, "y") is None
    assert kinds_of([{"type": "a", "y": 1}] * 50 + [{"type": "a"}] * 50, "y") is None
    nested = [{"all": [1, 2], "in": {"a": 1}, "type": "a", "y": 1}] * 50 + [{"all": [1], "type": "b"}] * 50
    assert kinds_of(nested, "y") == ("type", ["a"]), "beside lists and objects"
