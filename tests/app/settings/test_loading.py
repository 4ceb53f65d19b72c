"""What a config file and the environment come to."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from millrace.app.settings import Settings, load, to_schema
from millrace.app.settings.environment import read_environment
from millrace.app.settings.loading import leaves
from millrace.app.settings.sections.checkpoints import Every
from millrace.app.settings.spelling import dotted
from millrace.app.settings.yaml_file import SettingsError
from millrace.consumers.kafka.positions import Ago, Offsets
from millrace.consumers.records import Partition
from millrace.pipelines.schema import Field, Schema, TimeFormat

WITH_RECORDS = """\
name: fraud
kafka: {{bootstrap_servers: [localhost:9092], topics: [payments]}}
model: {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
records: {}
"""


@pytest.fixture
def schema_of(load_text: Any) -> Any:
    def schema(records: str) -> Schema:
        return to_schema(load_text(WITH_RECORDS.format(records)).settings.records)

    return schema


def test_five_lines_are_enough(load_text: Any, tmp_path: Path) -> None:
    settings = load_text().settings
    assert settings.name == "clicks"
    assert settings.kafka.bootstrap_servers == ("localhost:9092",)
    assert settings.kafka.group == "millrace-clicks"
    assert settings.model.build.file == tmp_path / "model.py"
    assert settings.model.build.function == "build_model"
    assert settings.checkpoints.path == tmp_path / "checkpoints"
    assert settings.training.max_wait == 0.5
    assert settings.memory.limit == 256 * 2**20
    assert (settings.api.host, settings.api.port) == ("127.0.0.1", 8080)


def test_a_features_own_name_is_taken_as_it_is_and_a_field_is_a_path(schema_of: Any) -> None:
    schema = schema_of("{features: {a.b: int8, $c: int8, d: {dtype: int8, field: e.f}}}")
    assert [field.source for field in schema.features] == [r"a\.b", r"\$c", "e.f"]


def test_raw_records_have_a_text_beside_their_values(schema_of: Any) -> None:
    schema = schema_of("{format: raw, features: {a: int8, b: {dtype: string, field: $key, missing: x}}}")
    assert [field.source for field in schema.features] == ["a", "$key"]


def test_texts_with_the_dtype_of_an_integer_are_classes(schema_of: Any) -> None:
    listed = "dtype: int32, one_of: [x, y, z]"
    schema = schema_of(
        f"{{features: {{a: {{{listed}, missing: z, example: [y, x]}}, b: {{{listed}, shape: [2], pad: y}}, "
        f"c: {{{listed}, shape: [2], ragged: true}}}}, label: {{field: kind, {listed}}}}}"
    )
    a, b, c = schema.features
    assert (a.classes, a.one_of, a.missing, a.example) == (("x", "y", "z"), (0, 1, 2), 2, (1, 0))
    assert (b.pad, b.as_read.pad, c.pad, c.as_read.pad) == (1, "y", 0, "x")
    assert (a.as_read.dtype, a.as_read.one_of, a.as_read.missing) == ("string", ("x", "y", "z"), "z")
    assert (schema.labels[0].dtype, schema.labels[0].classes) == ("int32", ("x", "y", "z"))


def test_an_event_time_has_a_format_and_a_zone(schema_of: Any) -> None:
    records = "{{features: {{a: int8}}, event_time: {{field: t, min: 5{}}}}}"
    in_ms = schema_of(records.format("")).event_time
    assert (in_ms.dtype, in_ms.time, in_ms.min) == ("int64", None, 5)
    text = schema_of(records.format(", format: iso8601, zone: Europe/Berlin")).event_time
    assert text.time == TimeFormat(unit="iso8601", zone="Europe/Berlin", min=5)
    assert (text.as_read.dtype, text.as_read.min) == ("string", None)


@pytest.mark.parametrize(
    "event_time",
    [{"field": "t"}, {"field": "t", "format": "s", "max": 7}, {"field": "t", "format": "iso8601", "zone": "UTC"}],
)
def test_what_is_recorded_of_an_event_time_is_what_is_set(load_text: Any, event_time: dict[str, Any]) -> None:
    for written in (event_time, {"format": "ms", **event_time}):
        records = f"{{features: {{a: int8}}, event_time: {json.dumps(written)}}}"
        shown = load_text(WITH_RECORDS.format(records)).settings.records.event_time.model_dump(mode="json")
        assert shown == event_time


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://bucket/clicks/", "s3://bucket/clicks"),
        ("file:///srv/clicks", Path("/srv/clicks")),
        ("/srv/clicks", Path("/srv/clicks")),
    ],
)
def test_an_archive_is_at_a_url_or_in_a_folder(load_text: Any, text: str, place: Path | str) -> None:
    assert load_text(MILLRACE_ARCHIVE__PATH=text).settings.archive.path == place


def test_the_schema_follows_the_five_lines(load_text: Any) -> None:
    assert to_schema(load_text().settings.records) == Schema(
        features=(
            Field(name="price", source="price", dtype="float32"),
            Field(name="ad", source="ad", dtype="string"),
            Field(name="hour", source="hour", dtype="int32"),
        ),
        labels=(Field(name="clicked", source="clicked", dtype="float32"),),
    )


def test_a_single_label_is_named_by_its_field(schema_of: Any) -> None:
    schema = schema_of("{features: {amount: float32}, label: {field: is_fraud, dtype: int32}}")
    assert schema.labels == (Field(name="is_fraud", source="is_fraud", dtype="int32"),)


def test_several_labels_are_named_as_the_outputs_are(schema_of: Any) -> None:
    schema = schema_of("{features: {a: float32}, label: {click: float32, buy: {dtype: int32, field: bought}}}")
    assert schema.labels == (
        Field(name="click", source="click", dtype="float32"),
        Field(name="buy", source="bought", dtype="int32"),
    )


def test_a_label_may_itself_be_called_field(schema_of: Any) -> None:
    schema = schema_of("{features: {a: float32}, label: {field: float32}}")
    assert schema.labels == (Field(name="field", source="field", dtype="float32"),)


def test_no_label_is_a_schema_without_labels(schema_of: Any) -> None:
    assert schema_of("{features: {a: float32}}").labels == ()


def test_shape_missing_weight_and_event_time_reach_the_schema(schema_of: Any) -> None:
    schema = schema_of(
        "{features: {a: {dtype: string, missing: unknown, shape: [2, 3], field: b}}, "
        "weight: {field: w, missing: 1.0}, event_time: {field: t}}"
    )
    assert schema.features == (Field(name="a", source="b", dtype="string", shape=(2, 3), missing="unknown"),)
    assert schema.weight == Field(name="weight", source="w", dtype="float32", missing=1.0)
    assert schema.event_time == Field(name="event_time", source="t", dtype="int64")


def test_the_environment_goes_over_the_file_and_the_file_over_the_default(load_text: Any) -> None:
    text = WITH_RECORDS.format("{features: {a: float32}}") + "training: {batch_size: 64, seed: 3}\n"
    loaded = load_text(text, MILLRACE_TRAINING__BATCH_SIZE="128")
    training = loaded.settings.training
    assert (training.batch_size, training.seed, training.shuffle) == (128, 3, 0)
    assert loaded.origins["training.batch_size"] == "environment MILLRACE_TRAINING__BATCH_SIZE"
    assert loaded.origins["training.seed"].endswith("clicks.yaml:6")
    assert loaded.origins["training.shuffle"] == "default"


def test_every_value_has_an_origin(load_text: Any) -> None:
    loaded = load_text(MILLRACE_MODEL__ARGS='{"sizes": {"hidden": 3}}')
    assert set(loaded.origins) == {dotted(key) for key, _ in leaves(loaded.settings.model_dump(mode="json"))}
    assert loaded.origins["model.args.sizes.hidden"] == "environment MILLRACE_MODEL__ARGS"
    assert loaded.origins["records.features.price"].endswith("clicks.yaml:3")


@pytest.mark.parametrize("value", ["a:1,b:2", "a:1, b:2", '["a:1", "b:2"]'])
def test_a_list_in_the_environment_is_comma_separated_or_json(load_text: Any, value: str) -> None:
    assert load_text(MILLRACE_KAFKA__BOOTSTRAP_SERVERS=value).settings.kafka.bootstrap_servers == ("a:1", "b:2")


def test_a_list_that_may_be_null_is_a_list_in_the_environment_too() -> None:
    said = {
        "MILLRACE_WINDOWS__OF": "x, price",
        "MILLRACE_SERVE__MEMORY__PARTITIONS": "0,1",
        "MILLRACE_LABELS__TOPICS": "null",
        "MILLRACE_API__PROBES": "a,b",
    }
    assert read_environment(Settings, said).values == {
        ("windows", "of"): ["x", "price"],
        ("serve", "memory", "partitions"): ["0", "1"],
        ("labels", "topics"): None,
        ("api", "probes"): "a,b",
    }


def test_a_variable_below_a_setting_that_is_no_mapping_is_a_problem_of_it(load_text: Any) -> None:
    with pytest.raises(SettingsError, match="name: a mapping is not text"):
        load_text(MILLRACE_NAME__X="1")


def test_variables_replace_what_they_name_the_narrower_over_the_wider(load_text: Any) -> None:
    loaded = load_text(
        MILLRACE_MODEL__ARGS__BUCKETS="10",
        MILLRACE_MODEL__ARGS='{"buckets": 5, "rate": 0.5}',
        MILLRACE_RECORDS__LABEL='{"field": "bought"}',
    )
    assert loaded.settings.model.args == {"buckets": 10, "rate": 0.5}
    assert [label.name for label in to_schema(loaded.settings.records).labels] == ["bought"]


def test_null_in_the_environment_unsets(load_text: Any) -> None:
    assert load_text(MILLRACE_TRAINING__MAX_WAIT="null").settings.training.max_wait is None


def test_variables_in_lower_case_count(load_text: Any) -> None:
    assert load_text(millrace_stop__grace="5s").settings.stop.grace == 5.0


def test_what_others_call_millrace_is_left_alone(load_text: Any) -> None:
    loaded = load_text(MILLRACE_PORT="tcp://10.0.0.1:80", MILLRACE_SERVICE_HOST="10.0.0.1", OTHER__NAME="x")
    assert loaded == load_text()


def test_a_variable_that_names_no_setting_is_ignored_with_a_warning(load_text: Any) -> None:
    loaded = load_text(MILLRACE_LOG_LEVEL="debug", MILLRACE_COLOUR="blue")
    assert loaded.settings == load_text().settings
    assert loaded.warnings == (
        "environment MILLRACE_LOG_LEVEL is ignored, because it names no setting; did you mean MILLRACE_LOGS__LEVEL?",
        "environment MILLRACE_COLOUR is ignored, because it names no setting",
    )


@pytest.mark.parametrize(
    "name",
    [
        "MILLRACE_FAILPOINTS",
        "MILLRACE_TOKEN_FILE",
        "MILLRACE_CA_FILE",
        "MILLRACE_CLIENT_CERTIFICATE",
        "MILLRACE_CLIENT_KEY",
        "MILLRACE_MAVEN_REPOSITORY",
        "MILLRACE_TEST_BOOTSTRAP",
        "MILLRACE_PORT",
        "MILLRACE_SERVICE_PORT_HTTP",
        "MILLRACE_HEADLESS_PORT_8080_TCP_ADDR",
        "MILLRACE_API_SERVICE_HOST",
    ],
)
def test_variables_that_others_read_or_write_cause_no_warning(load_text: Any, name: str) -> None:
    assert load_text(**{name: "x"}).warnings == ()


def test_mappings_are_merged_and_what_stands_beside_goes_first(load_text: Any, tmp_path: Path) -> None:
    text = WITH_RECORDS.format(
        "{features: {a: &a {dtype: float32, missing: 0.0}, b: &b {dtype: int8, shape: [2]},"
        " c: {field: x, <<: [*a, *b], missing: 1.0},\n d: {<<: *c, field: y, min: 9}}}"
    ).replace(" c: {", " c: &c {")
    loaded = load_text(text)
    features = {field.name: field for field in to_schema(loaded.settings.records).features}
    assert features["c"] == Field(name="c", source="x", dtype="float32", shape=(2,), missing=1.0)
    assert features["d"] == Field(name="d", source="y", dtype="float32", shape=(2,), missing=1.0, min=9)
    assert loaded.origins["records.features.d.min"] == f"{tmp_path / 'clicks.yaml'}:6"
    assert loaded.origins["records.features.d.dtype"] == f"{tmp_path / 'clicks.yaml'}:5"


def test_yaml_1_2_is_read(load_text: Any) -> None:
    text = "  args: {country: NO, rate: 1.0e6, small: 1e-3, day: 2026-11-21, n: 100_000, octal: 0o17, on: off, t: 1:30}"
    loaded = load_text(
        WITH_RECORDS.format("{features: {a: float32}}").replace("{build", "\n  build").replace("l}", f"l\n{text}")
    )
    assert loaded.settings.model.args == {
        "country": "NO",
        "rate": 1_000_000.0,
        "small": 0.001,
        "day": "2026-11-21",
        "n": 100_000,
        "octal": 15,
        "on": "off",
        "t": "1:30",
    }


@pytest.mark.parametrize(
    ("start", "position"),
    [("-7d", Ago(604800.0)), ("{clicks:0: 123}", Offsets({Partition("clicks", 0): 123}))],
)
def test_a_start_is_a_position(load_text: Any, start: str, position: object) -> None:
    text = WITH_RECORDS.format("{features: {a: float32}}").replace("topics:", f"start: {start}, topics:")
    assert load_text(text).settings.kafka.start_position == position


@pytest.mark.parametrize(("text", "every"), [("60s", Every(seconds=60.0)), ("5000 steps", Every(steps=5000))])
def test_saves_are_every_so_often_or_every_so_many_steps(load_text: Any, text: str, every: Every) -> None:
    assert load_text(MILLRACE_CHECKPOINTS__EVERY=text).settings.checkpoints.every == every


def test_settings_cannot_be_changed(load_text: Any) -> None:
    with pytest.raises(ValidationError, match="frozen"):
        load_text().settings.training.batch_size = 5


def test_the_process_environment_counts_where_none_is_handed_in(
    load_text: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_text()
    monkeypatch.setenv("MILLRACE_NAME", "from-outside")
    assert load(tmp_path / "clicks.yaml").settings.name == "from-outside"


def test_what_is_dumped_loads_to_the_same_settings(load_text: Any) -> None:
    import json

    settings = load_text(MILLRACE_TRAINING__MAX_WAIT="null", MILLRACE_CHECKPOINTS__EVERY="7 steps").settings
    again = load_text(json.dumps(settings.model_dump(mode="json"))).settings
    assert again == settings


def test_importing_the_settings_loads_nothing_heavy() -> None:
    code = (
        "import sys, millrace.app.settings, millrace.app.settings.connection; "
        "print([m for m in ('tensorflow', 'keras', 'aiokafka', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
