"""Records that lack labels, with a real Kafka: each is learnt for the outputs whose label it has, and counted once."""

import json
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from millrace.app.tools.prove.checkpoint_reader import Shelf, Statement
from millrace.training.checkpoints.folder import Folder
from tests.conftest import MakeTopic, Produce
from tests.faults.harness.fork_server import millrace

pytestmark = [pytest.mark.broker, pytest.mark.slow, pytest.mark.tensorflow]
BATCH, HALF = 16, 288
"""Half of the records: those of them that have a label are 14 whole batches."""
MODEL = """\
import keras


def build_model():
    x = keras.Input((2,), name="x")
    hidden = keras.layers.Dense(4, activation="tanh", name="hidden")(x)
    outputs = {
        "clicked": keras.layers.Dense(1, activation="sigmoid", name="clicked")(hidden),
        "seconds": keras.layers.Dense(1, name="seconds")(hidden),
    }
    model = keras.Model(x, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss={"clicked": "binary_crossentropy", "seconds": "mse"},
        metrics={"clicked": ["accuracy"], "seconds": ["mae"]},
    )
    return model
"""
BOTH = {
    "clicked": {"dtype": "float32", "missing": "mask"},
    "seconds": {"dtype": "float32", "missing": "mask", "min": 0},
}


def config_of(folder: Path, broker: str, topic: str, **sections: Any) -> Path:
    """Write a model and a config; return the config's path."""
    (folder / "model.py").write_text(MODEL)
    settings = {
        "name": "ads",
        "kafka": {"bootstrap_servers": [broker], "topics": [topic]},
        "records": {"features": {"x": {"dtype": "float32", "shape": [2]}}, "label": BOTH},
        "model": {"build": "./model.py:build_model"},
        "training": {"batch_size": BATCH, "seed": 5, "deterministic": True, "max_wait": None, "replicas": 1},
        "checkpoints": {"path": "./checkpoints"},
        "api": {"listen": "127.0.0.1:0"},
        **sections,
    }
    path = folder / "ads.yaml"
    path.write_text(json.dumps(settings))  # JSON is YAML
    return path


def record(number: int) -> dict[str, Any]:
    """Return a record: of nine, three have both labels, two the first, two the second, and two none."""
    x = np.random.default_rng(number).normal(size=2)
    labels: dict[str, Any] = {"clicked": float(x.sum() > 0), "seconds": float(abs(x[0]))}
    if number % 9 in {3, 4, 7, 8}:
        labels["clicked"] = None
    if number % 9 in {5, 6, 7, 8}:
        del labels["seconds"]
    return {"x": x.tolist(), **labels}


def newest(folder: Path) -> Statement:
    found = Shelf(Folder(folder / "checkpoints" / "ads")).newest()
    assert found is not None
    return found


def plain_weights(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what plain Keras learns with a weight for each output, by the shapes' names."""
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    keras.utils.set_random_seed(5)
    model = scope["build_model"]()
    model.jit_compile = False  # XLA computes the same sums in another order
    for first in range(0, len(records), BATCH):
        some = records[first : first + BATCH]
        y = {name: np.array([one.get(name) or 0.0 for one in some], np.float32) for name in BOTH}
        w = {name: np.array([one.get(name) is not None for one in some], np.float32) for name in BOTH}
        absent = BATCH - len(some)
        columns = ({name: np.pad(column, (0, absent)) for name, column in each.items()} for each in (y, w))
        x = np.pad(np.array([one["x"] for one in some], np.float32), ((0, absent), (0, 0)))
        model.train_on_batch(x, *columns)
    return {variable.path: np.asarray(variable) for variable in model.trainable_variables}


def test_what_is_learnt_is_that_of_plain_keras_with_a_weight_for_each_output(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    ads, records = topic(partitions=1), [record(number) for number in range(2 * HALF)]
    produce(ads, [(0, json.dumps(one).encode()) for one in records])
    config = config_of(tmp_path, broker, ads)
    assert "proof" in millrace("validate", "-c", str(config))
    for end in (HALF, 2 * HALF):
        millrace("run", "-c", str(config), "--until", f"{ads}:0={end}")
    found, learnt = newest(tmp_path), [one for one in records if one["clicked"] is not None or "seconds" in one]
    [account] = found.accounts.values()
    assert account.learnt == len(learnt) == 28 * BATCH
    assert account.skipped == {"unlabelled": 2 * HALF - len(learnt)}
    for path, weight in plain_weights(learnt).items():
        mine = next(array for name, array in found.arrays.items() if name.endswith(path))
        np.testing.assert_allclose(mine, weight, atol=1e-6)
    for verb in (("export", "latest", "--to", str(tmp_path / "out")), ("checkpoints", "show", "latest")):
        millrace(*verb, "-c", str(config))


def test_a_label_that_did_not_come_masks_its_output(
    broker: str, topic: MakeTopic, produce: Produce, tmp_path: Path
) -> None:
    ads, views = topic(partitions=1), topic(partitions=1)
    began = round(time.time() * 1000) - 4 * 3600_000
    records = [{**record(9 * number), "id": f"i{number}"} for number in range(10 * BATCH)]
    times = [began + 1000 * number for number in range(len(records))]
    viewed = [number for number in range(len(records)) if number % 3 == 0]
    produce(ads, [(0, json.dumps({**one, "seconds": None}).encode()) for one in records], timestamps=times)
    produce(
        views,
        [(0, json.dumps({"id": f"i{n}", "seconds": records[n]["seconds"]}).encode()) for n in viewed],
        timestamps=[times[n] + 5_000 for n in viewed],
    )
    config = config_of(
        tmp_path,
        broker,
        ads,
        records={"features": {"x": {"dtype": "float32", "shape": [2]}}, "label": {"clicked": "float32"}},
        labels={
            "topics": [views],
            "join": {"record": "id"},
            "label": {"seconds": {"dtype": "float32", "absent": "mask"}},
            "within": "1m",
            "early": "1s",
            "on_silence": "absent",
        },
    )
    millrace("run", "-c", str(config), "--until", f"{ads}:0={len(records)}")
    found = newest(tmp_path)
    learnt = [one if number in viewed else {**one, "seconds": None} for number, one in enumerate(records)]
    [account] = found.accounts.values()
    assert (account.learnt, account.skipped) == (len(records), {})
    for path, weight in plain_weights(learnt).items():
        mine = next(array for name, array in found.arrays.items() if name.endswith(path))
        np.testing.assert_allclose(mine, weight, atol=1e-6)
