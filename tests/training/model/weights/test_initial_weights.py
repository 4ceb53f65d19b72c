"""Initial weights: what a model takes over from files and checkpoints, and what is refused."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from millrace.consumers.errors import ConfigError
from millrace.training.checkpoints.part_files import encode
from millrace.training.checkpoints.parts import Array
from millrace.training.errors import OtherModelError
from millrace.training.model.variables import model_variables, read
from millrace.training.model.weights.initial_weights import WeightTable, match, take_over
from millrace.training.model.weights.weight_files import FoundWeights, read_file

pytestmark = [
    pytest.mark.tensorflow,
    # Keras raises it where it writes HDF5.
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


def model(*, ids: int = 20, extra: bool = False, tower: str = "tower", hashed: bool = False, units: int = 3) -> Any:
    user, price = keras.Input((), name="user", dtype="int64"), keras.Input((2,), name="price")
    item = keras.layers.Hashing(ids)(user) if hashed else user
    embedded = keras.layers.Embedding(ids, 4, name="users")(item)
    hidden = keras.layers.Concatenate()([embedded, price])
    hidden = keras.layers.Dropout(0.5)(keras.layers.BatchNormalization()(hidden))
    hidden = keras.Sequential([keras.layers.Dense(units) for _ in range(11)], name=tower)(hidden)
    if extra:
        hidden = keras.layers.Dense(units, name="extra")(hidden)
    built = keras.Model({"user": user, "price": price}, keras.layers.Dense(1, name="score")(hidden))
    built.compile(optimizer="adam", loss="mse")
    for number, variable in enumerate(built.variables):
        if variable.dtype == "float32":
            variable.assign(np.full(variable.shape, number + 1.0, np.float32))
    return built


def arrays_of(built: Any) -> dict[str, Array]:
    return {key: np.array(read(variable)) for key, variable in model_variables(built).items()}


def saved(built: Any, path: Path) -> Path:
    if path.suffix == ".safetensors":
        path.write_bytes(b"".join(encode("model", arrays_of(built))))
    elif path.suffix == ".h5":
        built.save_weights(path)
    else:
        built.save(path)
    return path


def found(arrays: Mapping[str, Array]) -> FoundWeights:
    return FoundWeights(what="old@7", sha256="0" * 64, arrays=arrays)


def taken(built: Any, weights: FoundWeights) -> WeightTable:
    """Set the model's weights to 0, and take over what there is."""
    for variable in built.variables:
        if variable.dtype == "float32":
            variable.assign(np.zeros(variable.shape, np.float32))
    table = match(built, weights)
    take_over(built, table)
    return table


@pytest.mark.parametrize("name", ["old.keras", "old.weights.h5", "old.safetensors"])
def test_every_file_gives_each_variable_its_own_weights_again(name: str, tmp_path: Path) -> None:
    old = model()
    path = saved(old, tmp_path / name)
    new = model()  # with other automatic names, as counters go up
    table = taken(new, read_file(path))
    assert (table.new, table.dropped, len(table.kept)) == ((), (), 1 + 4 + 2 * 11 + 2)
    before, after = arrays_of(old), arrays_of(new)
    assert [
        key for key in before if before[key].dtype == np.float32 and not np.array_equal(before[key], after[key])
    ] == []


@pytest.mark.parametrize("name", ["old.keras", "old.weights.h5", "old.safetensors"])
def test_what_is_new_and_dropped_is_named_and_the_rest_is_kept(name: str, tmp_path: Path) -> None:
    path = saved(model(tower="old_tower"), tmp_path / name)
    table = taken(model(extra=True), read_file(path))
    assert {key.partition("/")[0] for key in table.new} == {"tower", "extra"}
    assert {key.partition("/")[0] for key in table.dropped} == {"old_tower"}
    assert {"users/embeddings", "score/kernel", "score/bias"} <= table.kept.keys()
    assert {key.partition("/")[0] for key in table.by_order} == {"batch_normalization"}
    assert table.summary() == f"{path}: 7 kept, 24 new, 22 dropped"


def test_a_table_of_embeddings_may_grow_and_keeps_the_rows_that_it_had() -> None:
    new = model(ids=30)
    table = taken(new, found(arrays_of(model(ids=20))))
    assert list(table.grown) == ["users/embeddings"]
    rows = arrays_of(new)["users/embeddings"]
    assert (rows[:20].min(), np.abs(rows[20:]).max()) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("new", "old", "complaint"),
    [
        (lambda: model(units=5), model, r"tower/dense/kernel is \[6, 5\] here and \[6, 3\] there"),
        (lambda: model(ids=20), lambda: model(ids=30), r"users/embeddings is \[20, 4\] here and \[30, 4\] there"),
        (lambda: model(ids=30, hashed=True), lambda: model(ids=20, hashed=True), r"users/embeddings is \[30, 4\] here"),
    ],
    ids=["wider", "fewer ids", "hashed ids"],
)
def test_another_shape_is_refused_by_name(new: Callable[[], Any], old: Callable[[], Any], complaint: str) -> None:
    with pytest.raises(OtherModelError, match=complaint) as caught:
        match(new(), found(arrays_of(old())))
    assert "Give each changed layer another name" in str(caught.value)


def test_weights_of_which_none_fits_are_refused_with_the_names_of_both_sides() -> None:
    with pytest.raises(OtherModelError, match="there they are other/kernel, and here users/embeddings, batch_norm"):
        match(model(), found({"other/kernel": np.zeros((2, 2))}))


@pytest.mark.parametrize("name", ["a.keras", "a.weights.h5", "a.safetensors", "a.pt"])
def test_a_file_that_holds_no_weights_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a\.pt is no file of weights|cannot be read: No such file"):
        read_file(tmp_path / name)
    (tmp_path / name).write_bytes(b"no weights at all, yet long enough for a header" * 20)
    with pytest.raises(ConfigError) as caught:
        read_file(tmp_path / name)
    assert "\n" not in str(caught.value)
