"""`millrace prove` on a broker of its own: it kills, compares, and leaves nothing behind."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.faults.harness.fork_server import run_forked

pytestmark = [pytest.mark.timeout(900), pytest.mark.slow]
_ROOT = Path(__file__).parents[2]
_WITHIN_S = 850
"""A group of two that restarts twice takes a minute on a quiet machine, and seven beside a load of 14."""
_NOBODY = "127.0.0.1:1"
_CONFIG = f"""\
name: mine
kafka:   {{bootstrap_servers: ["{_NOBODY}"], topics: [clicks]}}
records: {{format: json, features: {{price: float32, ad: string, hour: int32}}, label: {{clicked: float32}}}}
model:   {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
"""


_LATER = "labels: {topics: [later], join: {record: id}, label: {clicked: {dtype: float32, absent: 0.0}}}\n"


def prove(
    folder: Path, model: str, kills: int, *more: str, config: str = _CONFIG
) -> "subprocess.CompletedProcess[str]":
    (folder / "mine.yaml").write_text(config)
    (folder / "model.py").write_text(model)
    scratch = folder / "scratch"
    scratch.mkdir()
    words = ["prove", "-c", "mine.yaml", "--json", "--kills", str(kills), "--seed", "2", *more]
    env = {**os.environ, "PYTHONPATH": str(_ROOT), "TMPDIR": str(scratch)}
    return run_forked(words, cwd=folder, env=env, timeout=_WITHIN_S)


def test_a_users_model_is_killed_over_records_of_its_schema_and_leaves_nothing(tmp_path: Path) -> None:
    model = (_ROOT / "examples" / "clicks" / "model.py").read_text()
    done = prove(tmp_path, model, 1, config=_CONFIG.replace(", label: {clicked: float32}", "") + _LATER)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 0 < told["labelled"] < told["records"]
    assert told["joined_otherwise"] == 0
    assert (told["lost"], told["learnt_twice"], told["valid_rejected"], told["kept"]) == (0, 0, 0, True)
    assert told["kills"] >= 1
    assert told["records"] > sum(told["set_aside"].values()) > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine.yaml", "model.py", "scratch"]
    assert [*(tmp_path / "scratch").iterdir()] == []


@pytest.mark.parametrize(
    ("kills", "points"),
    [
        pytest.param(1, {"AfterSave": 1}, marks=pytest.mark.nightly),
        pytest.param(2, {"AfterSave": 1, "save.before_data": 1}, marks=pytest.mark.nightly),
    ],
    ids=["the chief", "and its successor"],
)
def test_the_workers_of_a_group_are_killed_and_their_one_model_is_compared(
    tmp_path: Path, kills: int, points: dict[str, int]
) -> None:
    model = (_ROOT / "examples" / "clicks" / "model.py").read_text()
    done = prove(tmp_path, model, kills, "--workers", "2", "--seed", "3")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["lost"], told["learnt_twice"], told["valid_rejected"], told["kept"]) == (0, 0, 0, True)
    assert told["points"] == points
    assert told["restored_newest"] == kills + 1
    assert told["records"] > sum(told["set_aside"].values()) > 0
    assert [*(tmp_path / "scratch").iterdir()] == []


def test_a_model_that_does_not_start_is_no_proof_and_says_why_in_one_line(tmp_path: Path) -> None:
    done = prove(tmp_path, "def build_model():\n    raise RuntimeError('no layers today')\n", kills=1)
    assert done.returncode == 1
    assert "nothing is proved" in done.stderr
    assert "no layers today" in done.stderr
    assert "Traceback" not in done.stderr
