"""`millrace validate --against-checkpoint`: may this model go on from what is on disk? No Kafka is there to ask."""

from pathlib import Path

import pytest

from millrace.app.service.first_weights import take_initial_weights
from millrace.app.service.model_setup import make_learner, model_file
from millrace.app.service.provenance import hyperparameter_options
from millrace.app.settings import Settings, load
from millrace.app.tools.validate import CheckOutcome, CheckResult
from millrace.app.tools.validate.checkpoint_check import weights_checks
from millrace.app.tools.validate.examination import examine_against
from millrace.training.checkpoints import CheckpointStore, FolderLease, SaveReason, SaveRequest
from millrace.training.model.hyperparameters import Hyperparameters
from millrace.training.model.setup.model_file import load as load_model
from tests.app.checkpoint_history import config_in, folder_in

pytestmark = pytest.mark.tensorflow
MODEL = """\
import keras


def build_model(units: int = 3, rate: float = 0.1):
    price = keras.Input((), name="price")
    hidden = keras.layers.Dense(units)(keras.layers.Reshape((1,))(price))
    model = keras.Model({"price": price}, keras.layers.Dense(1)(hidden))
    model.compile(optimizer=keras.optimizers.SGD(rate), loss="mse")
    return model
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    return config_in(tmp_path, "training: {batch_size: 32}\n")


def publish(settings: Settings, folder: Path) -> None:
    """Publish what a start publishes as number 0, as far as the model is in it."""
    learner = make_learner(load_model(model_file(settings)), settings)
    parts = [*learner.parts, Hyperparameters(learner.model, hyperparameter_options(settings))]
    writer = FolderLease.acquire(folder_in(folder), "a test")
    try:
        CheckpointStore(folder_in(folder), writer).publish(
            SaveRequest(reason=SaveReason.START, parent=None, step=0, incarnation=1, positions={}, provenance={}),
            {part.name: part.snapshot() for part in parts},
        )
    finally:
        writer.release()


def last(path: Path, number: int | None = None) -> CheckResult:
    *_, check = examine_against(path, number)
    return check


def test_without_a_checkpoint_there_is_nothing_to_refuse(config: Path, tmp_path: Path) -> None:
    checks = [*examine_against(config, None)]
    assert [(check.name, check.outcome) for check in checks] == [
        ("settings", "ok"),
        ("model file", "ok"),
        ("model", "ok"),
        ("checkpoint", "ok"),
    ]
    assert not (tmp_path / "checkpoints").exists()


def test_the_same_model_can_resume_while_a_trainer_holds_the_folder(config: Path, tmp_path: Path) -> None:
    publish(load(config, {}).settings, tmp_path)
    holder = FolderLease.acquire(folder_in(tmp_path), "millrace run clicks")
    try:
        assert last(config).outcome is CheckOutcome.OK
        assert last(config, 0).outcome is CheckOutcome.OK
    finally:
        holder.release()


def test_another_learning_rate_can_resume_with_a_warning(config: Path, tmp_path: Path) -> None:
    publish(load(config, {}).settings, tmp_path)
    config.write_text(config.read_text().replace("build_model}", "build_model, args: {rate: 0.2}}"))
    check = last(config)
    assert (check.outcome, check.exit_code) == (CheckOutcome.WARN, 0)
    assert "rate" in check.detail


def test_another_model_or_a_number_that_is_not_there_is_refused_with_4(config: Path, tmp_path: Path) -> None:
    publish(load(config, {}).settings, tmp_path)
    missing = last(config, 7)
    assert (missing.outcome, missing.exit_code) == (CheckOutcome.FAIL, 4)
    config.write_text(config.read_text().replace("build_model}", "build_model, args: {units: 4}}"))
    check = last(config)
    assert (check.outcome, check.exit_code) == (CheckOutcome.FAIL, 4)
    assert "dense/bias is [4] here and [3] there" in check.detail


def test_a_damaged_checkpoint_is_refused_with_4(config: Path, tmp_path: Path) -> None:
    publish(load(config, {}).settings, tmp_path)
    (folder_in(tmp_path).checkpoint(0) / "model.safetensors").write_bytes(b"x")
    assert [(check.outcome, check.exit_code) for check in (last(config), last(config, 0))] == [
        (CheckOutcome.FAIL, 4)
    ] * 2


def test_a_model_that_does_not_build_is_reported_as_such(config: Path, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build_model():\n    raise ValueError('no')\n")
    checks = [*examine_against(config, None)]
    assert [(check.name, check.outcome, check.exit_code) for check in checks[2:]] == [
        ("model", "fail", 2),
        ("checkpoint", "skip", 0),
    ]


def weighed(config: Path, source: str, resumes_from: int | None = None) -> CheckResult:
    """Return the check of a first start of another model that names these initial weights."""
    text = config.read_text()
    config.write_text(text.replace("model.py:build_model", f"model.py:build_model, initial_weights: '{source}'"))
    settings = load(config).settings
    learner = make_learner(load_model(model_file(settings)), settings)
    (check,) = weights_checks(settings, learner, resumes_from)
    return check


def test_initial_weights_of_a_checkpoint_are_matched_and_recorded(config: Path, tmp_path: Path) -> None:
    publish(load(config).settings, tmp_path)
    check = weighed(config, "clicks@0")
    assert (check.outcome, check.detail) == (CheckOutcome.OK, "clicks@0: 4 kept")
    settings = load(config).settings
    learner = make_learner(load_model(model_file(settings)), settings)
    facts = take_initial_weights(settings, learner)["initial_weights"]
    assert (facts["source"], facts["kept"], facts["new"], len(facts["sha256"])) == ("clicks@0", 4, [], 64)


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("clicks@9", "no checkpoint has the number 9"),
        ("other@latest", "holds no checkpoint"),
        ("gone.keras", "No such file"),
        ("./checkpoints", "no folder of a checkpoint"),
    ],
)
def test_initial_weights_that_are_not_there_are_refused(
    config: Path, tmp_path: Path, source: str, complaint: str
) -> None:
    publish(load(config).settings, tmp_path)
    check = weighed(config, source)
    assert check.outcome is CheckOutcome.FAIL
    assert check.detail.startswith("model.initial_weights: ")
    assert complaint in check.detail


def test_a_start_that_resumes_says_that_it_takes_no_initial_weights(config: Path) -> None:
    check = weighed(config, "gone.keras", resumes_from=37)
    assert check.detail == "gone.keras is ignored, as the next start resumes from checkpoint 37"
