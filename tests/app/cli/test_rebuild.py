"""`millrace rebuild` before anything is learnt: what it needs, and what it says where that is not there."""

from pathlib import Path

from tests.app.cli.conftest import Typed

CONFIG = """
name: clicks
kafka: {bootstrap_servers: [127.0.0.1:9], topics: [clicks]}
records: {format: json, features: {x: float32}, label: {y: float32}}
model: {build: ./model.py:build}
checkpoints: {path: ./checkpoints}
"""
DETERMINISTIC = CONFIG + "training: {deterministic: true, max_wait: null, replicas: 1}\n"


def test_without_the_deterministic_mode_it_says_in_one_line_what_to_set(typed: Typed, tmp_path: Path) -> None:
    config = tmp_path / "clicks.yaml"
    config.write_text(CONFIG)
    done = typed("rebuild", "-c", str(config))
    assert done.returncode == 2
    assert "training.deterministic: it is false, so no journal is kept" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_it_writes_into_an_empty_folder_only(typed: Typed, tmp_path: Path) -> None:
    config = tmp_path / "clicks.yaml"
    config.write_text(DETERMINISTIC)
    done = typed("rebuild", "3", "-c", str(config), "--into", str(tmp_path))
    assert (done.returncode, "is not an empty folder" in done.stderr) == (2, True)
