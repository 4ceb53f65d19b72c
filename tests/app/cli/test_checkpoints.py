"""`millrace checkpoints`, as it is typed."""

import json
import os
import re
import subprocess
import sys
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from millrace.app.cli.checkpoint_texts import _fact
from millrace.app.cli.command_list import application
from millrace.app.tools import rewind
from millrace.consumers.errors import ConfigError, MillraceError
from millrace.training.checkpoints import Folder, FolderLease
from millrace.training.checkpoints.manifest import FILE_NAME
from millrace.training.checkpoints.sealed_json import seal, unseal
from millrace.training.errors import MissingCheckpointError
from tests.app.checkpoint_history import config_in, folder_in, publish_history

ROOT = Path(__file__).parents[3]
SKIPS = ["--skip", "clicks:0:22-24", "--skip", "clicks:1:12-12"]
REWIND = ["rewind", "--to", "2", *SKIPS, "--reason", "a bad hour"]
MODEL = """\
import keras


def build_model(width=4):
    price = keras.Input((), name="price")
    hidden = keras.layers.Dense(width, activation="relu")(keras.layers.Reshape((1,))(price))
    model = keras.Model({"price": price}, keras.layers.Dense(1)(hidden))
    model.compile(optimizer="adam", loss="mse")
    return model
"""


@pytest.fixture(autouse=True)
def _no_kafka(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Kafka not answer, without a wait."""
    monkeypatch.setattr(rewind, "_beginnings", lambda _settings: None)


@pytest.fixture
def config(tmp_path: Path) -> str:
    publish_history(folder_in(tmp_path), steps=3)
    return str(config_in(tmp_path))


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return folder_in(tmp_path)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(application, ["checkpoints", *arguments], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def damage(folder: Folder, number: int) -> None:
    path = folder.checkpoint(number) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def test_list_shows_the_newest_first(config: str) -> None:
    heading, *lines = run("list", "-c", config).splitlines()
    assert heading.split() == ["number", "condition", "parent", "step", "age", "size", "reason", "note"]
    assert [line.split()[:4] for line in lines] == [
        ["3", "good", "2", "3"],
        ["2", "good", "1", "2"],
        ["1", "good", "0", "1"],
        ["0", "good", "none", "0"],
    ]


def test_list_has_ages_and_sizes_for_people_and_exact_ones_as_json(config: str) -> None:
    _, newest, *_ = run("list", "-c", config).splitlines()
    assert re.search(r" 3 +\d+ s  +\d+ B  +interval", newest)
    one, *_ = json.loads(run("list", "-c", config, "--json"))["checkpoints"]
    assert isinstance(one["bytes"], int)
    assert datetime.fromisoformat(one["created_at"]).tzinfo is not None


@pytest.fixture
def scored(tmp_path: Path) -> str:
    """Return the config of a history whose checkpoints have a live accuracy; that of number 1 is the best."""
    publish_history(folder_in(tmp_path), steps=3, accuracies=[None, 0.875, 0.75, 0.625])
    return str(config_in(tmp_path))


def test_list_shows_the_watched_metric_and_which_is_the_best(scored: str) -> None:
    heading, *lines = run("list", "-c", scored).splitlines()
    at = heading.index("accuracy")
    assert [line[at:].split()[0] for line in lines] == ["0.625", "0.75", "0.875", "start"]
    assert [line.rstrip().endswith("the best") for line in lines] == [False, False, True, False]
    answer = json.loads(run("list", "-c", scored, "--json"))
    assert answer["best"] == 1
    assert answer["checkpoints"][0]["metrics"] == {"accuracy": 0.625, "loss": 0.5}
    assert answer["checkpoints"][0]["measured"] == {
        "watched": "accuracy",
        "higher_is_better": True,
        "records": 12345,
        "window_s": 300.0,
        "baseline": {"accuracy": 0.5, "loss": 0.69},
    }


def test_show_names_the_weights_that_a_model_began_with(config: str, folder: Folder) -> None:
    path = folder.checkpoint(0) / FILE_NAME
    body = unseal(path.read_bytes())
    facts = {"source": "clicks@37", "sha256": "ab" * 32, "kept": 4, "grown": [], "new": ["extra/kernel"], "dropped": []}
    path.write_bytes(seal({**body, "provenance": {**body["provenance"], "initial_weights": facts}}))
    assert "weights of    clicks@37 (sha256 abababababab): 4 kept, 1 new\n" in run("show", "0", "-c", config)


def test_show_and_list_have_the_scores_on_the_golden_set(config: str, folder: Folder) -> None:
    path = folder.checkpoint(3) / FILE_NAME
    body = unseal(path.read_bytes())
    golden = {"rows": 1200, "sha256": "cd" * 32, "values": {"auc": 0.71234, "loss": 0.5}}
    path.write_bytes(seal({**body, "golden": golden}))
    assert "golden set    auc 0.7123, loss 0.5 (1,200 records, sha256 cdcdcdcdcdcd)\n" in run("show", "3", "-c", config)
    newest, before, *_ = json.loads(run("list", "-c", config, "--json"))["checkpoints"]
    assert newest["golden"] == golden
    assert "golden" not in before


def test_pins_are_listed_by_holder_and_lifted_one_by_one(config: str) -> None:
    assert run("pin", "1", "-c", config, "--by", "ann").startswith("checkpoint 1 is pinned by ann since 2")
    (pin,) = json.loads(run("pin", "2", "-c", config, "--json"))["pins"]
    assert pin["by"]
    run("pin", "1", "-c", config, "--by", "export")
    _, _, second, first, _ = run("list", "-c", config).splitlines()
    assert first.endswith("pinned by ann, export")
    assert second.endswith(f"pinned by {pin['by']}")
    assert "pinned        by ann since 2" in run("show", "1", "-c", config)
    said = run("unpin", "1", "-c", config, "--by", "ann")
    assert said == "checkpoint 1 is no longer pinned by ann; still pinned by export\n"
    assert json.loads(run("unpin", "1", "-c", config, "--json")) == {"number": 1, "pins": []}
    refused = CliRunner().invoke(application, ["checkpoints", "unpin", "1", "-c", config])
    assert isinstance(refused.exception, MissingCheckpointError)


def test_a_long_name_of_a_partition_stands_apart_from_its_account() -> None:
    assert _fact("clicks:0", "offsets 0..9") == "clicks:0      offsets 0..9"
    assert _fact("clicks-of-yesterday:0", "offsets 0..9") == "clicks-of-yesterday:0  offsets 0..9"


def test_show_best_names_the_metrics_with_the_watched_one_first(scored: str) -> None:
    said = run("show", "best", "-c", scored)
    assert said.startswith("checkpoint    1 (good)")
    assert (
        "metrics       accuracy 0.875 (guessing scores 0.5; watched, higher is better; 12,345 records)\n"
        "              loss 0.5 (guessing scores 0.69)\n"
    ) in said


def test_a_rewind_to_the_best_shows_which_and_why_and_goes_there(scored: str) -> None:
    rewinding = ["rewind", "-c", scored, "--to", "best"]
    said = CliRunner().invoke(application, [*rewinding, "--dry-run"], catch_exceptions=False).stdout
    assert "back to checkpoint 1: step 1," in said
    assert "it is the best of 3 on the present timeline by accuracy (higher is better): 0.875" in said
    said = CliRunner().invoke(application, rewinding, catch_exceptions=False).stdout
    assert said == "checkpoint 4 is checkpoint 1 again: learning resumes from it\n"


def test_list_as_json_is_what_the_http_side_answers(config: str) -> None:
    from millrace.app.monitoring.checkpoint_models import Checkpoint

    answer = json.loads(run("list", "-c", config, "--json"))
    assert [Checkpoint(**one).number for one in answer["checkpoints"]] == [3, 2, 1, 0]
    assert answer["others"] == []


def test_a_name_without_checkpoints_has_none(tmp_path: Path) -> None:
    assert run("list", "-c", str(config_in(tmp_path))) == "there are no checkpoints yet\n"
    assert not (tmp_path / "checkpoints").exists()


def test_reading_needs_no_write_access_and_takes_no_lock(config: str, folder: Folder) -> None:
    writer = FolderLease.acquire(folder, "a trainer")
    try:
        before = sorted(path.name for path in folder.root.rglob("*"))
        run("list", "-c", config)
        run("show", "2", "-c", config)
        run("verify", "-c", config)
        assert sorted(path.name for path in folder.root.rglob("*")) == before
        writer.check()
    finally:
        writer.release()


def test_show_reports_the_outcome_of_every_offset(config: str) -> None:
    said = run("show", "2", "-c", config)
    assert "checkpoint    2 (good)" in said
    assert "parent        1\n" in said
    assert "parents       1 interval (settings c0c0c0c0c0c0, model.py f0f0f0f0f0f0)\n" in said
    assert "              0 start (settings" in said
    assert "event time    2025-11-21T03:00:00.000Z to 2025-11-21T04:59:59.999Z" in said
    assert "model.py      sha256 f0f0" in said
    assert "versions      millrace 0.1.0, python 3.11.9" in said
    assert "clicks:0      offsets 0..19: learnt 18, set aside 2 malformed, 4 cut in recent\n" in said
    assert "clicks:1      offsets 0..9: learnt 10\n" in said


def test_show_as_json_adds_up(config: str) -> None:
    answer = json.loads(run("show", "3", "-c", config, "--json"))
    assert answer["checkpoint"]["ancestors"] == [2, 1, 0]
    for facts in answer["history"].values():
        settled = facts["learnt"] + sum(facts["set_aside"].values()) + facts["gaps"] + facts["lost"]
        assert settled == facts["position"] - facts["start"]


def test_show_reports_who_commanded_what_and_its_progress(config: str, folder: Folder) -> None:
    assert CliRunner().invoke(application, [*REWIND, "-c", config]).exit_code == 0
    said = run("show", "4", "-c", config)
    why = "by command line: a bad hour"
    assert f"skipped       clicks:0:22-24, clicks:1:12-12 (rewind-4 {why}): 0 of 4 offsets skipped" in said
    assert f"last rewind   checkpoint 4, back to 2 {why}" in said
    answer = json.loads(run("show", "4", "-c", config, "--json"))
    assert answer["skips"][0]["ranges"] == ["clicks:0:22-24", "clicks:1:12-12"]
    assert answer["rewound"] == {"number": 4, "to": 2, "by": "command line", "reason": "a bad hour"}
    assert [(link["first"], link["last"], link["reason"]) for link in answer["chain"]] == [
        (2, 1, "interval"),
        (0, 0, "start"),
    ]


def test_diff_shows_what_came_between(config: str, folder: Folder) -> None:
    assert CliRunner().invoke(application, [*REWIND, "-c", config]).exit_code == 0
    said = run("diff", "1", "3", "-c", config).splitlines()
    assert "checkpoints   1 and 3" in said
    assert "step          1 -> 3" in said
    counts = "position 10 -> 30 (+20), learnt 9 -> 27 (+18), set aside malformed 1 -> 3 (+2)"
    assert f"clicks:0      {counts}" in said
    times = (
        "2025-11-21T03:00:00.000Z to 2025-11-21T03:59:59.999Z -> 2025-11-21T03:00:00.000Z to 2025-11-21T05:59:59.999Z"
    )
    assert f"event time    {times}" in said
    assert [line.split() for line in said[-2:-1]] == [["w", "[4]", "float32", "2", "2", "4"]]
    assert said[-1].startswith("0 of 1 variables of the model are the same")
    assert "skips         none -> rewind-4 (0 of 4 skipped)" in run("diff", "2", "4", "-c", config)


def test_what_people_wrote_moves_no_cursor_and_reverses_no_line(config: str) -> None:
    assert CliRunner().invoke(application, [*REWIND[:-1], "a\x07b\u202ec", "-c", config]).exit_code == 0
    plan = CliRunner().invoke(application, ["rewind", "--to", "4", "--dry-run", "-c", config]).stdout
    for said in (run("show", "4", "-c", config), run("diff", "2", "4", "-c", config), plan):
        assert r"a\x07b\u202ec" in said
        assert all(line.isprintable() for line in said.splitlines())


def test_diff_as_json_has_both_sides_of_everything(config: str) -> None:
    answer = json.loads(run("diff", "1", "3", "-c", config, "--json"))
    assert answer["checkpoints"] == [1, 3]
    assert answer["history"]["clicks:1"]["learnt"] == [5, 15]
    assert answer["made_with"] == {}
    (weights,) = answer["model"]
    assert (weights["largest"], weights["mean"], weights["differing"]) == (2.0, 2.0, 4)


def test_show_of_a_damaged_checkpoint_reports_what_can_be_trusted(config: str, folder: Folder) -> None:
    (folder.checkpoint(2) / "model.safetensors").unlink()
    said = run("show", "2", "-c", config)
    assert "2 (corrupt; model.safetensors is missing)" in said
    assert "parent        1" in said
    assert "offsets" not in said


def test_verify_finds_a_flipped_byte_that_a_list_does_not(config: str, folder: Folder) -> None:
    damage(folder, 1)
    assert "corrupt" not in run("list", "-c", config)
    result = CliRunner().invoke(application, ["checkpoints", "verify", "-c", config])
    assert isinstance(result.exception, MillraceError)
    assert result.exception.exit_code == 4
    assert "checkpoint 1 is corrupt" in str(result.exception)
    assert "1       corrupt    model.safetensors is not what was written" in result.stdout


def test_verify_reads_only_the_checkpoint_that_is_named(config: str, folder: Folder) -> None:
    damage(folder, 1)
    answer = json.loads(run("verify", "2", "-c", config, "--json"))
    assert [(one["number"], one["verified"]) for one in answer["checkpoints"]] == [(2, True)]


def test_a_number_that_is_not_there_is_a_usage_error(config: str) -> None:
    result = CliRunner().invoke(application, ["checkpoints", "show", "9", "-c", config])
    assert isinstance(result.exception, MillraceError)
    assert result.exception.exit_code == 2


def test_the_latest_is_the_one_that_a_start_would_resume_from(config: str, folder: Folder) -> None:
    def latest() -> int:
        return int(json.loads(run("show", "latest", "-c", config, "--json"))["checkpoint"]["number"])

    assert latest() == 3
    damage(folder, 3)
    assert latest() == 2


@pytest.mark.parametrize("which", ["latest", "newest", "-1"])
def test_an_invalid_checkpoint_number_is_a_usage_error(which: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(application, ["checkpoints", "show", which, "-c", str(config_in(tmp_path))])
    assert getattr(result.exception, "exit_code", result.exit_code) == 2


def test_looking_loads_no_tensorflow(config: str) -> None:
    code = (
        "import sys\nfrom millrace.app.cli.command_list import application\n"
        "for words in (['list'], ['show', 'latest'], ['verify']):\n"
        "    application(['checkpoints', *words, '-c', sys.argv[1]], standalone_mode=False)\n"
        "print([name for name in ('tensorflow', 'keras') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, config], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


KERAS_WRITES_HDF5 = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def write_weights(folder: Path, width: int) -> BaseException | None:
    """Publish a model of this width, write its weights by a model.py whose width is 4, and return the error."""
    from millrace.training.model.setup.model_file import ModelFile, load
    from millrace.training.model.variables import model_variables

    (folder / "model.py").write_text(MODEL)
    wide = load(ModelFile(path=folder / "model.py", function="build_model", args={"width": width})).build()
    trained: dict[str, Any] = {key: np.asarray(v.value) + 1.5 for key, v in model_variables(wide).items()}
    publish_history(folder_in(folder), 1, trained)
    np.savez(folder / "trained.npz", **trained)
    words = ["checkpoints", "weights", "1", str(folder / "out.weights.h5"), "-c", str(config_in(folder))]
    return CliRunner().invoke(application, words).exception


@pytest.mark.tensorflow
@KERAS_WRITES_HDF5
def test_weights_are_the_checkpoints_in_plain_keras(tmp_path: Path) -> None:
    from millrace.training.model.setup.model_file import ModelFile, load
    from millrace.training.model.variables import model_variables

    assert write_weights(tmp_path, 4) is None
    fresh = load(ModelFile(path=tmp_path / "model.py", function="build_model")).build()
    fresh.load_weights(tmp_path / "out.weights.h5")
    found = {key: np.asarray(v.value) for key, v in model_variables(fresh).items()}
    with np.load(tmp_path / "trained.npz") as trained:
        assert found.keys() == set(trained.files)
        assert all(np.array_equal(found[key], trained[key]) for key in found)
    with pytest.raises(ConfigError, match="is there already"):
        run("weights", "1", str(tmp_path / "out.weights.h5"), "-c", str(tmp_path / "clicks.yaml"))


@pytest.mark.tensorflow
def test_weights_of_another_model_are_refused_with_both_shapes(tmp_path: Path) -> None:
    refused = write_weights(tmp_path, 7)
    assert isinstance(refused, MillraceError)
    assert "dense/kernel is [1, 4] here and [1, 7] there" in str(refused)
    assert [path.name for path in tmp_path.iterdir() if ".h5" in path.name or path.name.startswith(".")] == []


@pytest.mark.slow
def test_the_lines_of_the_docs_take_weights_out_without_millrace(tmp_path: Path) -> None:
    write_weights(tmp_path, 4)
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "operating.md").read_text(), re.DOTALL)
    look = (
        "\nimport sys\nfound = [bool((variable.value.numpy() == arrays[variable.path]).all()) for variable in "
        "keras.saving.load_model('clicks.keras').variables]\nprint(found, 'millrace' in sys.modules)"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [sys.executable, "-c", code + look],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "[True, True, True, True] False\n", done.stderr
