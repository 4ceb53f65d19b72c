"""`millrace archive list`, `verify` and `prune`, on an archive that is there."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from millrace.app.cli.command_list import application
from millrace.app.tools.validate.settings_checks import archive_check
from millrace.consumers.archive.archive_store import Place
from millrace.consumers.archive.stores import store_at
from millrace.consumers.errors import ArchiveDamagedError, ConfigError, MillraceError
from tests.consumers.archive.records import chunk, shard_of

CONFIG = """
name: clicks
kafka: {bootstrap_servers: [127.0.0.1:9], topics: [clicks]}
records: {format: json, features: {x: float32}, label: {y: float32}}
model: {build: ./model.py:build}
checkpoints: {path: ./checkpoints}
"""


def config_of(folder: Path, place: Place) -> str:
    """Return a config whose archive holds three shards, with a gap."""
    path = folder / "clicks.yaml"
    path.write_text(CONFIG + f"archive: {{path: {place}}}\n")
    for start, end in ((0, 10), (10, 20), (25, 30)):
        shard_of(place, [chunk(start, end)])
    return str(path)


@pytest.fixture
def config(tmp_path: Path) -> str:
    """Give a config whose archive is a folder."""
    return config_of(tmp_path, tmp_path / "archive")


def said(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["archive", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*arguments: str) -> MillraceError:
    result = CliRunner().invoke(application, ["archive", *arguments])
    assert isinstance(result.exception, MillraceError), result.output
    return result.exception


def test_list_shows_each_partition_and_names_each_gap(config: str) -> None:
    told = said("list", "-c", config)
    assert [*told.splitlines()[1].split()[:5]] == ["clicks:0", "3", "25", "0", "29"]
    assert "gap: clicks:0 has no offsets 20 to 24 (5)" in told
    facts = json.loads(said("list", "-c", config, "--json"))
    assert facts["gaps"] == [{"partition": "clicks:0", "first": 20, "next_offset": 25}]
    assert (facts["records"], facts["missing_offsets"], len(facts["shards"])) == (25, 5, 3)


def test_verify_reads_every_byte_and_exits_4_at_a_damaged_file(config: str, tmp_path: Path) -> None:
    assert "3 shards are what was written; 0 are not" in said("verify", "-c", config)
    path = next((tmp_path / "archive").rglob("*0009.parquet"))
    raw = bytearray(path.read_bytes())
    raw[0] ^= 1
    path.write_bytes(raw)
    error = refused("verify", "-c", config)
    assert isinstance(error, ArchiveDamagedError)
    assert error.exit_code == 4


def test_prune_shows_first_and_removes_then(config: str) -> None:
    removed = json.loads(said("prune", "--older-than", "1d", "-c", config, "--dry-run", "--json"))["removed"]
    assert [shard["first"] for shard in removed] == [0, 10]
    assert "2 shards with 20 records" in said("prune", "--older-than", "1d", "-c", config)
    assert [shard["first"] for shard in json.loads(said("list", "-c", config, "--json"))["shards"]] == [25]


def test_an_archive_in_s3_is_listed_verified_checked_and_pruned_as_a_folder_is(tmp_path: Path, bucket: str) -> None:
    path = config_of(tmp_path, bucket)
    assert "3 shards are what was written; 0 are not" in said("verify", "-c", path)
    assert "3 shards with 25 records; 5 offsets are in none" in archive_check(bucket).detail
    assert "2 shards with 20 records" in said("prune", "--older-than", "1d", "-c", path)
    (left,) = json.loads(said("list", "-c", path, "--json"))["shards"]
    assert left["file"] == f"{bucket}/clicks/0/{25:020}-{29:020}.parquet"
    store_at(bucket).put(left["file"].removeprefix(f"{bucket}/"), b"something else")  # type: ignore[attr-defined]
    assert isinstance(refused("verify", "-c", path), ArchiveDamagedError)


def test_without_a_path_there_is_no_archive_and_the_setting_is_named(tmp_path: Path) -> None:
    path = tmp_path / "clicks.yaml"
    path.write_text(CONFIG)
    for words in (["list"], ["verify"], ["prune", "--older-than", "1d"], []):
        error = refused(*words, "-c", str(path))
        assert isinstance(error, ConfigError)
        assert "archive.path" in str(error)


def test_options_before_a_command_are_refused_and_not_ignored(config: str) -> None:
    result = CliRunner().invoke(application, ["archive", "-c", config, "list"])
    assert result.exit_code == 2
    assert "after list" in result.output
