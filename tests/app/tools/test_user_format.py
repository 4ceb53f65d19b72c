"""A format of the user's, `records.format: ./pairs.py:Pairs`, in each tool that reads or writes records."""

import json
from pathlib import Path

import pytest

from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.settings import Loaded, load, to_decoder, to_format, to_schema
from millrace.app.settings.exported_records import FOLDER, read_exported_records, write_exported_records
from millrace.app.settings.yaml_file import SettingsError
from millrace.app.tools.prove.prove import Generated, set_apart
from millrace.app.tools.serve.record_inputs import RecordInputs, RecordReaders
from millrace.app.tools.validate import CheckOutcome
from millrace.app.tools.validate.record_check import format_checks
from millrace.consumers.errors import ConfigError
from millrace.consumers.reasons import Reason
from millrace.pipelines.formats.row_format import RowFormat
from millrace.training.errors import ModelError

PAIRS = """
from millrace.pipelines.formats.row_format import RowFormat

class Pairs(RowFormat):
    is_flat = True
    is_text = True

    def read(self, value):
        return dict(part.split("=", 1) for part in value.decode().split(" "))

    def write(self, row):
        return " ".join(f"{name}={value}" for name, value in row.items()).encode()
"""
CONFIG = """
name: pairs
kafka: {bootstrap_servers: [localhost:9092], topics: [pairs]}
records:
  format: ./pairs.py:Pairs
  features: {x: float32, kind: {dtype: string, missing: none}}
  label: {y: {dtype: int32, min: 0}}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
"""


def loaded(folder: Path, code: str = PAIRS, config: str = CONFIG) -> Loaded:
    (folder / "pairs.py").write_text(code)
    (folder / "model.py").write_text("def build_model(): ...\n")
    (folder / "pairs.yaml").write_text(config)
    return load(folder / "pairs.yaml", {})


def test_records_are_decoded_by_the_users_class_and_the_rules_of_the_settings(tmp_path: Path) -> None:
    decoder = to_decoder(loaded(tmp_path).settings.records)
    values = [b"x=1.5 y=1", b"nothing", b"x=one y=1", b"x=1 y=-1", b"y=0", b"x=1e99 y=2", b"x=nan y=0", None]
    decoded = decoder.decode([*values, b"x=2 y=0 kind=b"])
    assert {source: column.tolist() for source, column in decoded.columns.items()} == {
        "x": [1.5, 2.0],
        "kind": [b"none", b"b"],
        "y": [1, 0],
    }
    assert [(refusal.index, refusal.reason, refusal.field) for refusal in decoded.refused] == [
        (1, Reason.MALFORMED, None),
        (2, Reason.WRONG_TYPE, "x"),
        (3, Reason.OUT_OF_RANGE, "y"),
        (4, Reason.MISSING, "x"),
        (5, Reason.OUT_OF_RANGE, "x"),
        (6, Reason.NOT_FINITE, "x"),
        (7, Reason.EMPTY, None),
    ]


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ("jsn", "jsn is not one of .*; did you mean json"),
        ("./pairs.py", "a class in a file; write ./logfmt.py:LogFmt"),
        ("3", "3 is not one of"),
    ],
)
def test_a_format_that_is_neither_ours_nor_a_class_is_a_wrong_setting(form: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"pairs.yaml:5: records.format: {says}|'{form}' is neither .*{says}"):
        loaded(tmp_path, config=CONFIG.replace("./pairs.py:Pairs", form))


@pytest.mark.parametrize(
    ("setting", "key"), [("csv: {delimiter: ;}", "csv"), ("registry: {url: ['http://h:1']}", "registry")]
)
def test_settings_of_other_formats_are_refused_beside_a_class(setting: str, key: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=rf"records.{key}: this is about format: .* the format is ./pairs.py:Pairs"):
        loaded(tmp_path, config=CONFIG.replace("  label:", f"  {setting}\n  label:"))


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("Pairs(RowFormat)", "Others(RowFormat)", "has no class 'Pairs'; it has Others"),
        ("Pairs(RowFormat)", "Pairs", "Pairs in .* is no Format"),
        ("def write", "def rite", "lacks write; define write"),
        ("import RowFormat", "import RowFormat, nothing", "does not import: ImportError"),
    ],
)
def test_a_file_that_gives_no_format_is_an_error_that_says_why(old: str, new: str, says: str, tmp_path: Path) -> None:
    records = loaded(tmp_path, PAIRS.replace(old, new)).settings.records
    with pytest.raises(ModelError, match=rf"records.format: .*{says}"):
        to_decoder(records)
    assert [(check.name, check.outcome) for check in format_checks(records)] == [("format", CheckOutcome.FAIL)]


def test_validate_says_each_law_in_a_line_and_which_is_broken(tmp_path: Path) -> None:
    good, broken = tmp_path / "good", tmp_path / "broken"
    good.mkdir()
    broken.mkdir()
    outcomes = [check.outcome for check in format_checks(loaded(good).settings.records)]
    assert outcomes == [CheckOutcome.OK] * 8
    drops = PAIRS.replace("row.items())", "row.items() if name != 'y')")
    failed = [
        check for check in format_checks(loaded(broken, drops).settings.records) if check.outcome is CheckOutcome.FAIL
    ]
    (check,) = failed
    assert "records.format: ./pairs.py:Pairs: it does not hold that records can be made up" in check.detail
    assert "set aside as missing, in 'y'" in check.detail
    assert "\n" not in check.detail


def test_a_checkpoint_tells_by_its_provenance_whether_the_format_has_changed(tmp_path: Path) -> None:
    before = provenance_of(loaded(tmp_path), None)
    after = provenance_of(loaded(tmp_path, f"{PAIRS}\n# changed\n"), None)
    assert before["format_sha256"] != after["format_sha256"]
    assert before["config_sha256"] == after["config_sha256"]
    assert "records.format.sha256" in hyperparameter_options(loaded(tmp_path).settings).settings
    of_ours = provenance_of(loaded(tmp_path, config=CONFIG.replace("./pairs.py:Pairs", "json")), None)
    assert "format_sha256" not in of_ours


def test_a_file_that_has_changed_is_imported_again(tmp_path: Path) -> None:
    records = loaded(tmp_path).settings.records
    first = to_format(records)
    assert to_format(records) is first
    loaded(tmp_path, PAIRS.replace('split(" ")', 'split(";")'))
    assert to_decoder(records).decode([b"x=1;y=1"]).columns["x"].tolist() == [1.0]


def test_an_export_carries_the_file_and_serve_reads_records_by_it(tmp_path: Path) -> None:
    version = tmp_path / "version"
    version.mkdir()
    write_exported_records(loaded(tmp_path).settings, version)
    (tmp_path / "pairs.py").unlink()
    records, framed = read_exported_records(version, None)
    assert (version / FOLDER / "pairs.py").read_text() == PAIRS
    inputs = RecordInputs(records, None, framed=framed).read(b"", {"records": ["x=1.5 y=1", "x=2"]})
    assert inputs["x"].ravel().tolist() == [1.5, 2.0]


@pytest.mark.parametrize("place", ["{outside}/pairs.py", "../pairs.py", "../records/pairs.py", "~/pairs.py"])
def test_serve_runs_no_format_from_outside_of_the_version(place: str, tmp_path: Path) -> None:
    version, outside = tmp_path / "version", tmp_path / "outside"
    version.mkdir()
    outside.mkdir()
    write_exported_records(loaded(tmp_path).settings, version)
    for folder in (outside, version):
        (folder / "pairs.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n{PAIRS}")
    named = f"{place.format(outside=outside)}:Pairs"
    described = version / FOLDER / "records.json"
    described.write_text(described.read_text().replace("pairs.py:Pairs", named))
    said = RecordReaders(None).of(version)
    assert isinstance(said, str)
    assert f"names {named}, which is no file beside it" in said
    assert not (tmp_path / "ran").exists()


def test_serve_reads_no_schema_and_no_secret_from_outside_of_the_version(tmp_path: Path) -> None:
    folder = tmp_path / FOLDER
    folder.mkdir()
    for name in ("secret.avsc", f"{FOLDER}/inside.avsc"):
        (tmp_path / name).write_text('{"type": "record", "name": "R", "fields": [{"name": "x", "type": "float"}]}')
    records = {"format": "avro", "features": {"x": "float32"}, "avro": {"schema_file": "inside.avsc"}}

    def read(**more: object) -> RecordInputs | str:
        body = {"format": 1, "registry": False, "windows": False, "records": {**records, **more}}
        (folder / "records.json").write_text(json.dumps(body))
        return RecordReaders(None).of(tmp_path)

    assert isinstance(read(), RecordInputs)
    assert "names ../secret.avsc, which is no file beside it" in str(read(avro={"schema_file": "../secret.avsc"}))
    registry = {"url": ["http://127.0.0.1:1"], "token_file": "/etc/hostname"}
    assert "has registry, which no export writes" in str(read(registry=registry))


def test_an_export_refuses_a_format_of_more_than_one_file(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("")
    version = tmp_path / "version"
    version.mkdir()
    with pytest.raises(ConfigError, match=r"records.format: pairs.py imports helper.py from beside it"):
        write_exported_records(loaded(tmp_path, f"import helper\n{PAIRS}").settings, version)


def test_a_proof_makes_records_up_by_the_class_and_finds_its_file(tmp_path: Path) -> None:
    settings = loaded(tmp_path).settings
    assert isinstance(to_format(settings.records), RowFormat)
    assert Generated(to_format(settings.records), to_schema(settings.records), 1)
    home = set_apart(settings, "127.0.0.1:1234", tmp_path / "apart")
    assert str(load(home.config, {}).settings.records.format) == f"{tmp_path / 'pairs.py'}:Pairs"
