"""The settings that a checkpoint remembers, and what `validate` says of those that have changed."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from millrace.app.service.provenance import hyperparameter_options
from millrace.app.settings import Settings, load
from millrace.app.tools.validate import CheckOutcome
from millrace.app.tools.validate.checkpoint_check import folder_checks
from millrace.pipelines.where.conditions import WhereCondition
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.hyperparameters import NAME, Hyperparameters, OnChange
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.conftest import SCHEMA, mlp
from tests.training.trainer_rig import Topic, running

CONFIG = """\
name: clicks
kafka:   {bootstrap_servers: [127.0.0.1:1], topics: [clicks]}
records: {features: {x: {dtype: float32, shape: [6], missing: 0}}, label: {y: float32}}
model:   {build: ./model.py:build_model, args: {layers: [8, 8], api_token: "s3cret"}}
checkpoints: {path: ./checkpoints}
"""
Configure = Callable[..., Settings]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    def write(*further: str, model: str = "def build_model(): ...\n") -> Settings:
        (tmp_path / "model.py").write_text(model)
        (tmp_path / "clicks.yaml").write_text("\n".join([CONFIG, *further]))
        return load(tmp_path / "clicks.yaml", {}).settings

    return write


def test_what_matters_to_what_is_learnt_is_remembered_and_no_secret_is(configure: Configure) -> None:
    options = hyperparameter_options(configure("training: {batch_size: 12, max_wait: null}"))
    wanted = {
        "training.batch_size": 12,
        "training.max_wait": None,
        "training.shuffle": 0,
        "training.seed": 0,
        "model.args.layers": [8, 8],
        "model.preprocess": None,
        "model.augment": None,
        "records.features.x": {"dtype": "float32", "shape": [6], "missing": 0},
        "records.label": {"y": "float32"},
    }
    assert {name: options.settings[name] for name in wanted} == wanted
    assert options.on_change is OnChange.BUILD
    assert "s3cret" not in str(options)


def test_another_memory_of_the_passes_is_a_change(configure: Configure) -> None:
    sizes = ("null", "300")
    given = [f"training: {{batch_size: 12, passes: 8, memory: {size}}}" for size in sizes]
    one, other = (hyperparameter_options(configure(each)).settings for each in given)
    assert {name: (one[name], other[name]) for name in one if one[name] != other[name]} == {
        "training.memory": (None, 300)
    }


def test_another_model_file_is_a_change_and_another_checkpoint_path_is_none(
    configure: Configure,
) -> None:
    before = hyperparameter_options(configure()).settings
    other = hyperparameter_options(configure(model="def build_model(): return 1\n")).settings
    assert {name for name in before if before[name] != other[name]} == {"model.sha256"}
    assert hyperparameter_options(configure("memory: {limit: 8MiB}", "logs: {level: debug}")).settings == before


@pytest.mark.parametrize(
    ("plain", "with_example"),
    [
        ({"t": "string"}, {"t": {"dtype": "string", "example": "a"}}),
        ({"n": {"dtype": "int8", "shape": [2]}}, {"n": {"dtype": "int8", "shape": [2], "example": [1, 2]}}),
    ],
)
@pytest.mark.parametrize(
    ("label", "label_with_example"),
    [
        ({"y": "float32"}, {"y": {"dtype": "float32", "example": 1}}),
        ({"field": "y"}, {"field": "y", "example": 1}),
        ({"example": "float32"}, {"example": {"dtype": "float32", "example": [0, 1]}}),
    ],
)
def test_an_example_changes_nothing_that_is_learnt(
    configure: Configure, plain: Any, with_example: Any, label: Any, label_with_example: Any
) -> None:
    def recorded(features: Any, label: Any) -> Any:
        settings = configure()
        records = type(settings.records).model_validate({"features": features, "label": label})
        return hyperparameter_options(settings.model_copy(update={"records": records})).settings

    assert recorded(with_example, label_with_example) == recorded(plain, label)


def _learner(rate: float) -> Learner:
    options = LearnerOptions(schema=SCHEMA, batch_size=12, devices=DeviceOptions(replicas=1), seed=7)
    return Learner(lambda: _model(rate), None, options)


def _model(rate: float) -> Any:
    model = mlp()
    model.optimizer.learning_rate = rate
    return model


@pytest.mark.tensorflow
def test_a_checkpoint_that_has_a_setting_by_its_old_name_is_compared_by_the_new_one(configure: Configure) -> None:
    options = hyperparameter_options(configure("windows: {length: 3, every: 2}"))
    others = {name: value for name, value in options.settings.items() if name != "windows.every"}
    for old, changed in ((2, ()), (5, ("windows.every: 5 in the checkpoint, 2 in model and settings; 2 is used",))):
        parts = {"optimizer": PartState(), NAME: PartState(facts={**others, "windows.stride": old})}
        found = Hyperparameters(_model(0.5), options).foreseen(parts)
        assert tuple(map(str, found)) == changed


@pytest.mark.tensorflow
def test_a_condition_that_only_the_checkpoint_or_only_the_settings_have_is_a_change(configure: Configure) -> None:
    settings = configure()
    records = settings.records.model_copy(update={"where": {"type": WhereCondition.model_validate("click")}})
    without, selecting = map(hyperparameter_options, (settings, settings.model_copy(update={"records": records})))
    for then, now in ((without, selecting), (selecting, without)):
        parts = {"optimizer": PartState(), NAME: PartState(facts=dict(then.settings))}
        [change] = Hyperparameters(_model(0.5), now).foreseen(parts)
        assert str(change).startswith("records.where.type: ")


@pytest.mark.tensorflow
def test_validate_names_changed_hyperparameters_and_those_a_start_refuses(configure: Configure, tmp_path: Path) -> None:
    settings, topic = configure("training: {batch_size: 12}"), Topic()
    then = {"build": lambda: _model(0.5), "hyperparameters": hyperparameter_options(settings)}
    with running(tmp_path / "checkpoints", topic, **then) as run:
        run.stop()

    def checked(settings: Settings, rate: float) -> tuple[CheckOutcome, str]:
        found = {check.name: check for check in folder_checks(settings, _learner(rate), None)}["checkpoint"]
        return found.outcome, found.detail

    assert checked(settings, 0.5) == (CheckOutcome.OK, "resumes from 0 (step 0), which is from this model")
    said = "optimizer.learning_rate: 0.5 in the checkpoint, 0.25 in model and settings; 0.25 is used"
    assert checked(settings, 0.25) == (CheckOutcome.WARN, f"resumes from 0 with other hyperparameters: {said}")
    strict = configure("training: {batch_size: 24, on_hyperparameter_change: checkpoint}")
    outcome, detail = checked(strict, 0.5)
    assert outcome is CheckOutcome.FAIL
    assert "cannot hold training.batch_size, which is 12 in the checkpoint and 24 in the settings" in detail
