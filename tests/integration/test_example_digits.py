"""The example with images: its records are as its settings say, and what it learns from them holds for others."""

import os
import runpy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from millrace.app.service.model_setup import model_file
from millrace.app.settings import load, to_format, to_schema
from millrace.pipelines.formats import make_decoder
from millrace.training.checkpoints import CheckpointStore, Folder
from millrace.training.model.setup.model_file import load as load_model
from millrace.training.model.weights.weights import PART, model_with_weights
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import run_forked

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "digits"
IMAGES = 12_000
PIXELS = 20 * 20


@pytest.fixture(scope="module")
def producer() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE / "produce.py"))


def drawn(producer: dict[str, Any], seed: int, count: int) -> list[bytes]:
    chunks = producer["drawings"](seed)
    return [*islice((record for chunk in chunks for record in chunk), count)]


def as_arrays(records: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    table = np.frombuffer(b"".join(records), np.uint8).reshape(-1, PIXELS + 1)
    return table[:, :PIXELS].reshape(-1, 20, 20), table[:, PIXELS]


def test_a_record_is_what_the_settings_say(producer: dict[str, Any]) -> None:
    records = load(EXAMPLE / "digits.yaml", {}).settings.records
    images, digits = as_arrays(drawn(producer, 1, 500))
    decoded = make_decoder(to_format(records), to_schema(records)).decode(drawn(producer, 1, 500))
    np.testing.assert_array_equal(decoded.columns["image"], images)
    np.testing.assert_array_equal(decoded.columns["digit"], digits)
    assert set(digits) == set(range(10))


def test_the_same_seed_draws_the_same_digits_and_no_two_are_alike(producer: dict[str, Any]) -> None:
    assert drawn(producer, 3, 700) == drawn(producer, 3, 700)
    assert len(set(drawn(producer, 3, 700) + drawn(producer, 4, 700))) == 1400


@pytest.mark.tensorflow
@pytest.mark.slow
def test_it_learns_to_read_digits_that_it_has_never_seen(
    producer: dict[str, Any], broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    name = topic(partitions=2)
    produce(name, [(number % 2, record) for number, record in enumerate(drawn(producer, 0, IMAGES))])
    where = {
        "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": broker,
        "MILLRACE_KAFKA__TOPICS": name,
        "MILLRACE_CHECKPOINTS__PATH": str(tmp_path),
        "MILLRACE_API__LISTEN": "127.0.0.1:0",
    }
    command = ["run", "-c", str(EXAMPLE / "digits.yaml"), "--until", "now"]
    done = run_forked(command, cwd=ROOT, env={**os.environ, **where}, timeout=240)
    assert done.returncode == 0, done.stderr
    assert accuracy(learnt(tmp_path), *as_arrays(drawn(producer, 99, 1000))) > 0.9


def learnt(checkpoints: Path) -> Any:
    """Return the model with the weights of the newest checkpoint."""
    store = CheckpointStore(Folder(checkpoints / "digits"))
    newest = store.newest()
    assert newest is not None
    settings = load(EXAMPLE / "digits.yaml", {}).settings
    state = store.load(newest.number, only={PART})[PART]
    return model_with_weights(load_model(model_file(settings)), to_schema(settings.records), state)


def accuracy(model: Any, images: npt.NDArray[np.uint8], digits: npt.NDArray[np.uint8]) -> float:
    """Return the portion of these that it reads correctly."""
    return float((model.predict({"image": images}, verbose=0).argmax(1) == digits).mean())
