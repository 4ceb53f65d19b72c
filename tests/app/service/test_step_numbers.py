"""The numbers of a step that the config leaves to auto: what holds where nothing, or a checkpoint, has settled them."""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millrace.app.service.provenance import hyperparameter_options, provenance_of
from millrace.app.service.step_numbers import as_recorded, numbers_in, settled_in_group, with_numbers
from millrace.app.settings import Settings, load
from millrace.app.settings.sections.training import StepNumbers
from millrace.training.checkpoints.lease import FolderLease
from millrace.training.checkpoints.manifest import SaveReason, SaveRequest
from millrace.training.checkpoints.parts import PartState
from millrace.training.checkpoints.store import CheckpointStore
from tests.app.checkpoint_history import config_in, folder_in, publish_history

DEFAULT = StepNumbers(batch_size=1024, passes=1, memory=None)
SMALL = StepNumbers(batch_size=8, passes=4, memory=300)
Configure = Callable[[str], Settings]


@pytest.fixture
def configure(tmp_path: Path) -> Configure:
    return lambda training: load(config_in(tmp_path, f"training: {training}\n"), {}).settings


def publish(folder: Path, **numbers: int | None) -> None:
    """Publish the next checkpoint, learnt with these numbers."""
    writer = FolderLease.acquire(folder_in(folder), "a test")
    try:
        facts = {f"training.{name}": value for name, value in numbers.items()}
        newest = CheckpointStore(folder_in(folder)).newest()
        assert newest is not None
        store = CheckpointStore(folder_in(folder), writer)
        request = SaveRequest(
            parent=newest.number, reason=SaveReason.INTERVAL, step=1, incarnation=1, positions={}, provenance={}
        )
        store.publish(request, {"hyperparameters": PartState(facts=facts)})
    finally:
        writer.release()


def test_what_nothing_has_settled_is_1024_rows_learnt_once(configure: Configure) -> None:
    training = configure("{}").training
    assert training.numbers == DEFAULT
    assert training.left_to_auto == {"batch_size", "passes", "memory"}
    own = configure("{batch_size: 64, passes: 2, memory: null}").training
    assert (own.numbers, own.left_to_auto) == (StepNumbers(batch_size=64, passes=2), frozenset())


def test_a_number_of_the_config_wins_and_the_others_are_taken(configure: Configure) -> None:
    numbers = with_numbers(configure("{batch_size: 64}"), SMALL).training
    assert (numbers.batch_size, numbers.passes, numbers.memory) == (64, 4, 300)
    assert with_numbers(configure("{passes: 2}"), SMALL).training.numbers == StepNumbers(
        batch_size=8, passes=2, memory=300
    )
    assert with_numbers(configure("{memory: null}"), SMALL).training.numbers == replace(SMALL, memory=None)


def test_numbers_fit_what_the_config_says_besides(configure: Configure) -> None:
    assert with_numbers(configure("{replicas: 3}"), SMALL).training.numbers.batch_size == 9
    assert with_numbers(configure("{batch_size: 512}"), SMALL).training.numbers.memory is None
    assert with_numbers(configure("{passes: 1}"), SMALL).training.numbers.memory is None
    assert with_numbers(configure("{passes: 4, memory: 50}"), DEFAULT).training.numbers.batch_size == 50
    members = configure("{passes: 4, members: {recent: 60, since_drift: 100}}")
    assert with_numbers(members, DEFAULT).training.numbers == StepNumbers(batch_size=60, passes=4)


def test_a_checkpoint_says_with_which_numbers_it_goes_on(
    configure: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    settings = configure("{}")
    assert as_recorded(settings).training.numbers == DEFAULT
    publish_history(folder_in(tmp_path), steps=1)
    assert as_recorded(settings).training.numbers == DEFAULT, "an older version recorded none"
    publish(tmp_path, batch_size=8, passes=4, memory=300)
    publish(tmp_path, batch_size=32, passes=2, memory=None)
    assert as_recorded(settings).training.numbers == StepNumbers(batch_size=32, passes=2)
    assert as_recorded(settings, 2).training.numbers == SMALL
    assert "auto: 8 rows a step, 4 passes, a memory of 300 records: as in checkpoint 2" in caplog.text
    assert as_recorded(configure("{batch_size: 64, passes: 1, memory: null}")).training.numbers.batch_size == 64


def test_what_is_damaged_is_passed_over(configure: Configure, tmp_path: Path) -> None:
    publish_history(folder_in(tmp_path), steps=0)
    publish(tmp_path, batch_size=8, passes=4, memory=300)
    publish(tmp_path, batch_size=32, passes=2, memory=None)
    (folder_in(tmp_path).checkpoint(2) / "hyperparameters.json").write_bytes(b"{}")
    assert as_recorded(configure("{}")).training.numbers == SMALL


def test_what_a_checkpoint_lacks_is_what_it_was_then() -> None:
    assert numbers_in({}) == DEFAULT
    assert numbers_in({"training.batch_size": 64, "optimizer.learning_rate": 0.1}) == StepNumbers(batch_size=64)


def test_the_workers_of_a_group_take_the_same_whenever_they_start(
    configure: Configure, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    publish_history(folder_in(tmp_path), steps=0)
    publish(tmp_path, batch_size=8, passes=4, memory=300)
    assert settled_in_group(configure("{}")).training.numbers == DEFAULT
    assert "1,024 rows a step: the workers of a group have to take the same" in caplog.text


def test_what_is_recorded_is_numbers_however_they_were_settled(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("def build_model(): ...\n")

    def recorded(training: str, numbers: StepNumbers | None = None) -> tuple[Any, ...]:
        loaded = load(config_in(tmp_path, f"training: {training}\n"), {})
        if numbers is not None:
            loaded = replace(loaded, settings=with_numbers(loaded.settings, numbers))
        options = hyperparameter_options(loaded.settings).settings
        found = tuple(options[f"training.{name}"] for name in ("batch_size", "passes", "memory"))
        return *found, provenance_of(loaded, None)["config_sha256"]

    assert recorded("{}") == recorded("{batch_size: 1024, passes: 1, memory: null}")
    assert recorded("{}", SMALL) == recorded("{batch_size: 8, passes: 4, memory: 300}")
