"""How a draft gives numbers to its model: scaled, in steps between quantiles, and by their values if they are few."""

import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from millrace.app.settings import Settings, load, to_decoder
from millrace.app.tools.init.column_roles import ChosenRoles, Task, cast
from millrace.app.tools.init.columns import columns_of
from millrace.app.tools.init.draft_files import Draft, write
from millrace.app.tools.init.drafted_config import DraftTarget, config_text
from millrace.app.tools.init.drafted_model import model_text
from millrace.app.tools.init.topic_sample import look_at
from millrace.pipelines.stream.decode import decode_chunk
from tests.app.tools.test_init import chunk_of

PLACE = DraftTarget(name="t", bootstrap_servers=("localhost:9092",), topic="t", held=1000)


def drafted(rows: list[dict[str, Any]], folder: Path, label: str = "y") -> Settings:
    """Write the draft for these records, and return its settings."""
    look = look_at([json.dumps(row).encode() for row in rows])
    roles = cast(columns_of(look.rows), ChosenRoles(label=label))
    write(folder, Draft(config=config_text(PLACE, look, roles), model=model_text("t", roles)))
    return load(folder / "millrace.yaml", {}).settings


def model_of(settings: Settings) -> Any:
    from millrace.app.service.model_setup import model_file
    from millrace.training.model.setup.model_file import load as load_model

    return load_model(model_file(settings)).build()


def given_by(model: Any, features: dict[str, np.ndarray]) -> np.ndarray:
    """Return what the drafted model's first dense layer is given."""
    import keras

    dense = next(layer for layer in model.layers if isinstance(layer, keras.layers.Dense))
    return np.asarray(keras.Model(model.inputs, dense.input)(features))


def test_quantiles_divide_a_number_into_ten_parts_without_its_outliers() -> None:
    draw = random.Random(3)
    values = [*(draw.random() for _ in range(4_000)), 1e9, -1e9]
    (column,) = columns_of([{"n": value} for value in values])
    assert column.quantiles == pytest.approx([0.01, *(step / 10 for step in range(1, 10)), 0.99], abs=0.03)
    (few,) = columns_of([{"n": number % 7 / 2} for number in range(100)])
    assert few.quantiles == (0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    (mostly_zero,) = columns_of([{"n": max(0, number - 60) / 7} for number in range(100)])
    assert mostly_zero.quantiles[0] == 0.0
    assert len({*mostly_zero.quantiles}) == len(mostly_zero.quantiles) < 8


@pytest.mark.tensorflow
def test_a_number_is_given_scaled_and_in_steps_between_its_quantiles(tmp_path: Path) -> None:
    rows = [{"n": number / 2, "y": number % 2} for number in range(101)]
    settings = drafted(rows, tmp_path)
    ends = np.array([-100.0, 0.5, 25.0, 27.5, 1e6], np.float32)
    given = given_by(model_of(settings), {"n": ends})
    assert given.shape == (5, 11)
    assert (given[1:, 0] > given[:-1, 0]).all(), "scaled"
    steps = given[:, 1:]
    assert (steps[0] == -1).all()
    assert (steps[-1] == 1).all()
    np.testing.assert_allclose(steps[2], [1] * 5 + [-1] * 5, atol=1e-5)
    np.testing.assert_allclose(steps[3], [1] * 5 + [0] + [-1] * 4, atol=1e-5)


@pytest.mark.tensorflow
def test_small_whole_numbers_are_numbers_and_each_value_an_input(tmp_path: Path) -> None:
    rows = [{"n": 3 + number % 4, "y": number % 2} for number in range(100)]
    model = model_of(drafted(rows, tmp_path))
    given = given_by(model, {"n": np.array([3, 5, 99], np.int64)})
    assert given[:, 1:4].round(5).tolist() == [[-1, -1, -1], [1, 1, -1], [1, 1, 1]]
    assert given[:, 4:].tolist() == [[2, 0, 0, 0], [0, 0, 2, 0], [0, 0, 0, 0]]
    assert not [one for one in model.layers if "embedding" in one.name]


@pytest.mark.tensorflow
@pytest.mark.parametrize("lowest", [0, -5])
def test_an_absent_whole_number_lies_below_all_that_were_seen(lowest: int, tmp_path: Path) -> None:
    rows = [{"n": None if number % 9 == 0 else lowest + number % 4, "y": number % 2} for number in range(99)]
    settings = drafted(rows, tmp_path)
    decoded = decode_chunk(chunk_of([json.dumps(row).encode() for row in rows]), to_decoder(settings.records))
    absent = decoded.features["n"][0]
    assert absent == lowest - 1
    given = given_by(model_of(settings), {"n": np.array([absent, lowest], np.int64)})
    assert given[:, 1].tolist() == pytest.approx([-1, 1]), "the first step is from absent to the least value"


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(("columns", "values"), [(1, 64), (24, 2), (24, 64), (60, 64), (150, 30), (300, 9)])
@pytest.mark.parametrize("classes", [2, 64])
def test_no_draft_of_small_whole_numbers_is_large(columns: int, values: int, classes: int, tmp_path: Path) -> None:
    draw = random.Random(5)
    rows: list[dict[str, Any]] = [
        {**{f"n{column}": draw.randrange(values) for column in range(columns)}, "y": number % classes}
        for number in range(400)
    ]
    assert model_of(drafted(rows, tmp_path)).count_params() < 100_000


@pytest.mark.tensorflow
def test_embeddings_have_the_size_that_was_seen(tmp_path: Path) -> None:
    rows = [
        {"few": "abc"[number % 3], "user_id": number % 100, "shop": f"s{number % 300}", "y": number % 2}
        for number in range(2_000)
    ]
    model = model_of(drafted(rows, tmp_path))
    sizes = sorted(one.input_dim for one in model.layers if "embedding" in one.name)
    assert sizes == [64, 512, 2048]


@pytest.mark.parametrize(
    ("values", "task"),
    [
        ([*range(20)], Task.CLASSES),
        ([*range(40)], Task.CLASSES),
        ([*range(64)], Task.CLASSES),
        ([0, 7, 19], Task.CLASSES),
        ([*range(18, 60)], Task.NUMBER),
        ([*range(0, 60, 5)], Task.NUMBER),
        ([*range(-1, 30)], Task.NUMBER),
        ([*range(65)], Task.NUMBER),
    ],
)
def test_whole_number_labels_from_0_on_are_classes_up_to_64(values: list[int], task: Task) -> None:
    rows = [{"x": number % 7 / 2, "y": values[number % len(values)]} for number in range(400)]
    assert cast(columns_of(rows), ChosenRoles(label="y")).task is task


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("forked_modules")
def test_a_drafted_model_is_exported_and_serialized_with_its_steps(tmp_path: Path) -> None:
    import keras
    import onnxruntime
    import tensorflow as tf

    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of
    from millrace.training.model.export.onnx import FILE
    from tests.app.tools.export.exported_model import project

    draw = random.Random(7)
    rows = [
        {"n": draw.gauss(3, 2), "few": draw.randrange(4), "at": 1_790_000_000.25 + draw.randrange(5000), "y": n % 3}
        for n in range(200)
    ]
    look = look_at([json.dumps(row).encode() for row in rows])
    roles = cast(columns_of(look.rows), ChosenRoles(label="y", features=("n", "few", "at")))
    more = "export: {path: ./exports, formats: [saved_model, onnx]}\n"
    # Of one model, as a fast topic has it: the weights that are published here are those of `build_model`.
    config = re.sub(r"\n +members: .*", "", config_text(replace(PLACE, name="clicks"), look, roles))
    loaded = project(tmp_path, config + more, model_text("t", roles))
    folder = export_checkpoint(loaded, None, folder_of(loaded.settings)).folder
    dtypes = {"n": np.float32, "few": np.int64, "at": np.float64}
    features = {name: np.array([row[name] for row in rows], dtype) for name, dtype in dtypes.items()}
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    expected = signature(**{name: tf.constant(column) for name, column in features.items()})
    session = onnxruntime.InferenceSession(str(folder / FILE), providers=["CPUExecutionProvider"])
    (answer,) = session.run(None, features)
    np.testing.assert_allclose(answer, next(iter(expected.values())).numpy(), atol=1e-5)
    model = model_of(loaded.settings)
    again = keras.models.model_from_json(model.to_json())
    np.testing.assert_array_equal(given_by(model, features), given_by(again, features))
