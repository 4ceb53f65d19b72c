"""Every way in which the user's file, or what it builds, can fail is told in one line with its place."""

import hashlib
import importlib
import re
import sys
from pathlib import Path
from typing import Any

import keras
import pytest
import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.training.errors import ModelError
from millrace.training.model.setup.model_code import beside_sha256, is_code_of
from millrace.training.model.setup.model_file import LoadedModelFile, ModelFile, load
from tests.training.conftest import FEATURES, MakeLearner, mlp

pytestmark = pytest.mark.tensorflow

GOOD = """\
def build_model(units=4, *, rate=0.1):
    return units, rate
"""


def _written(folder: Path, text: str, name: str = "model.py") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def _load(folder: Path, text: str, function: str = "build_model", **more: Any) -> LoadedModelFile:
    return load(ModelFile(path=_written(folder, text), function=function, **more))


def _told(folder: Path, text: str, **more: Any) -> str:
    with pytest.raises(ModelError) as told:
        _load(folder, text, **more)
    line = str(told.value)
    assert "\n" not in line
    return line


def test_the_function_is_called_with_the_arguments_of_the_settings(tmp_path: Path) -> None:
    assert _load(tmp_path, GOOD, args={"units": 8, "rate": 0.5}).build() == (8, 0.5)


def test_a_build_names_a_file_beside_the_config_and_a_function(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    found = ModelFile.parse("./models/../model.py:build_model", tmp_path)
    assert (found.path, found.function) == (tmp_path.resolve() / "model.py", "build_model")


@pytest.mark.parametrize("build", ["./model.py", "build_model", ":build_model", "./model.py:"])
def test_a_build_without_file_or_function_is_told_what_to_write(build: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=re.escape(f"{build!r} lacks its function; write ./model.py:build_model")):
        ModelFile.parse(build, tmp_path)


def test_a_missing_file_is_named_in_full(tmp_path: Path) -> None:
    path = tmp_path / "nowhere.py"
    with pytest.raises(ModelError, match=re.escape(f"there is no file {path}; the path is relative to the config")):
        load(ModelFile(path=path, function="build_model"))


def test_a_file_that_is_no_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"model\.txt is not a Python file; it must end with \.py"):
        load(ModelFile(path=_written(tmp_path, GOOD, "model.txt"), function="build_model"))


def test_a_syntax_error_is_told_with_its_line(tmp_path: Path) -> None:
    line = _told(tmp_path, "import math\n\ndef build_model(:\n    pass\n")
    assert re.search(r"model\.py does not import: SyntaxError: [^()]+ \(line 3\)$", line)


def test_an_import_that_fails_is_told_with_its_line(tmp_path: Path) -> None:
    line = _told(tmp_path, "import math\nimport a_module_that_nobody_has\n")
    assert line.endswith("ModuleNotFoundError: No module named 'a_module_that_nobody_has' (line 2)")


def test_an_error_in_what_the_file_calls_is_told_with_the_files_own_line(tmp_path: Path) -> None:
    line = _told(tmp_path, "import json\n\n\nTABLE = json.loads('{')\n")
    assert line.endswith("(line 4)")
    assert "JSONDecodeError" in line


def test_a_missing_function_is_told_with_those_that_there_are(tmp_path: Path) -> None:
    text = "from math import sqrt\n\ndef make(): ...\n\ndef build(): ...\n\nclass Model: ...\n"
    assert _told(tmp_path, text).endswith("has no function 'build_model'; it has build, make")
    assert _told(tmp_path, "").endswith("has no function 'build_model'; it has none")


def test_a_name_that_is_no_function_is_refused(tmp_path: Path) -> None:
    assert _told(tmp_path, "build_model = 3\n").startswith("model.build: 'build_model' in ")
    assert _told(tmp_path, "build_model = 3\n").endswith("is a int, not a function")


@pytest.mark.parametrize(
    ("args", "why"),
    [
        ({"layers": 3}, "got an unexpected keyword argument 'layers'"),
        ({"units": 3, "learning_rate": 1}, "got an unexpected keyword argument 'learning_rate'"),
    ],
)
def test_arguments_that_do_not_fit_are_told_beside_the_signature(args: Any, why: str, tmp_path: Path) -> None:
    line = _told(tmp_path, GOOD, args=args)
    named = ", ".join(args)
    assert line == f"model.args: build_model(units=4, *, rate=0.1) cannot be called with {named}: {why}"


def test_a_missing_argument_is_told(tmp_path: Path) -> None:
    line = _told(tmp_path, "def build_model(buckets): ...\n")
    assert line.endswith(
        "build_model(buckets) cannot be called with no arguments: missing a required argument: 'buckets'"
    )


def test_a_build_that_raises_is_told_with_the_line_where_it_did(tmp_path: Path) -> None:
    text = "def build_model():\n    sizes = [1]\n    return deep(sizes)\n\ndef deep(sizes):\n    return sizes[1]\n"
    with pytest.raises(ModelError, match=r"^model\.build: build_model raised IndexError: .* \(line 6\)$"):
        _load(tmp_path, text).build()


def test_a_build_that_raises_without_a_word_is_told_all_the_same(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"raised AssertionError: no message \(line 2\)$"):
        _load(tmp_path, "def build_model():\n    raise AssertionError\n").build()


EXITS = "SystemExit: it calls sys.exit(0), which would end the service; raise an error instead"


def test_a_file_or_a_build_that_exits_is_refused_with_its_line(tmp_path: Path) -> None:
    assert _told(tmp_path, "import sys\nsys.exit(0)\n").endswith(f"model.py does not import: {EXITS} (line 2)")
    with pytest.raises(ModelError) as caught:
        _load(tmp_path, "import sys\ndef build_model():\n    sys.exit(0)\n").build()
    assert str(caught.value) == f"model.build: build_model raised {EXITS} (line 3)"


@pytest.mark.parametrize("signature", ["x", "features, label", "features, label, weight, more"])
def test_a_preprocess_that_takes_no_batch_is_refused(signature: str, tmp_path: Path) -> None:
    line = _told(tmp_path, f"{GOOD}\ndef preprocess({signature}):\n    pass\n")
    assert line.startswith(f"model.preprocess: preprocess({signature}) cannot be called with a batch (")
    assert line.endswith("write def preprocess(features, label, weight)")


@pytest.mark.parametrize("signature", ["*batch", "features, label=None, weight=None"])
def test_a_preprocess_that_takes_a_batch_in_its_own_way_is_accepted(signature: str, tmp_path: Path) -> None:
    assert _load(tmp_path, f"{GOOD}\ndef preprocess({signature}):\n    pass\n").preprocess is not None


BESIDE = """\
import helper
from parts import layers
from parts.text import cleaned
import parts.text as text


def build_model():
    import lazy
    return helper.UNITS, layers.WIDTH, cleaned(), text.cleaned(), lazy.WHEN
"""


def _with_files(folder: Path, files: dict[str, str]) -> ModelFile:
    for name, content in {"model.py": BESIDE, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)
    return ModelFile(path=folder / "model.py", function="build_model")


def _files(units: int) -> dict[str, str]:
    return {
        "helper.py": f"from parts import layers\n\nUNITS = {units} * layers.WIDTH\n",
        "lazy.py": "import helper\n\nWHEN = helper.UNITS\n",
        "parts/__init__.py": "",
        "parts/layers.py": "from ..parts.sizes import WIDTH\n",
        "parts/sizes.py": "WIDTH = 2\n",
        "parts/text.py": "from . import layers\n\n\ndef cleaned():\n    return layers.WIDTH\n",
    }


def test_a_model_imports_what_stands_beside_it_also_later_and_apart_from_others(tmp_path: Path) -> None:
    first = load(_with_files(tmp_path / "first", _files(3)))
    second = load(_with_files(tmp_path / "second", _files(5)))
    assert first.build() == (6, 2, 2, 2, 6)
    assert second.build() == (10, 2, 2, 2, 10)
    assert not {"helper", "lazy", "parts"} & sys.modules.keys()
    assert not [*tmp_path.rglob("__pycache__")]


def test_a_changed_file_beside_the_model_is_imported_anew(tmp_path: Path) -> None:
    assert load(_with_files(tmp_path, _files(3))).build()[0] == 6
    assert load(_with_files(tmp_path, _files(4))).build()[0] == 8


def test_a_lazy_import_in_preprocess_is_traced(tmp_path: Path) -> None:
    text = f"{GOOD}\ndef preprocess(f, l, w):\n    import helper\n    return helper.UNITS * f, l, w\n"
    loaded = load(_with_files(tmp_path, {"model.py": text, "helper.py": "UNITS = 3\n"}))
    assert loaded.preprocess is not None
    features, _, _ = tf.function(loaded.preprocess)(tf.constant(2), None, None)
    assert int(features) == 6


def test_an_error_beside_the_model_is_told_with_its_file_and_line(tmp_path: Path) -> None:
    broken = _with_files(tmp_path, {**_files(3), "parts/sizes.py": "\nWIDTH = 1 / 0\n"})
    with pytest.raises(ModelError, match=r"ZeroDivisionError: division by zero \(parts/sizes\.py, line 2\)$"):
        load(broken)
    broken = _with_files(tmp_path, {**_files(3), "helper.py": "UNITS = (\n"})
    with pytest.raises(ModelError, match=r"SyntaxError: .* \(helper\.py, line 1\)$"):
        load(broken)


@pytest.mark.parametrize("name", ["training", "app", "pipelines", "consumers"])
def test_a_users_own_packages_may_bear_the_names_of_our_folders(name: str, tmp_path: Path) -> None:
    files = {
        "model.py": f"from {name}.mine import UNITS\n{GOOD}",
        f"{name}/__init__.py": "",
        f"{name}/mine.py": "UNITS = 3\n",
    }
    source = _with_files(tmp_path, files)
    load(source)
    assert sorted(beside_sha256(source.path)) == [f"{name}/__init__.py", f"{name}/mine.py"]


def test_a_users_package_of_our_name_is_said_to_be_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "millrace").mkdir()
    (tmp_path / "millrace" / "mine.py").write_text("")
    line = _told(tmp_path, f"import millrace.mine\n{GOOD}")
    assert line.endswith(
        "(line 1); millrace is this program's own package, so what is called so beside the file is not found: rename it"
    )


def test_a_relative_import_in_the_model_file_is_told_what_to_write(tmp_path: Path) -> None:
    (tmp_path / "helper.py").write_text("UNITS = 3\n")
    line = _told(tmp_path, f"from .helper import UNITS\n{GOOD}")
    assert line.endswith(
        "(line 1); write `from helper import x` in the place of `from .helper import x`: model.py is no package"
    )


def test_a_library_finds_no_file_beside_the_model(tmp_path: Path) -> None:
    source = _with_files(
        tmp_path, {"model.py": f"import helper\n{GOOD}", "helper.py": "", "wave.py": "raise OSError\n"}
    )
    load(source)
    assert "Wave_read" in dir(importlib.import_module("wave"))  # of the standard library
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("helper")


def test_what_a_model_imports_beside_itself_is_in_its_hash(tmp_path: Path) -> None:
    source = _with_files(tmp_path, {**_files(3), "notes.py": ""})
    hashes = [source.sha256]
    assert list(beside_sha256(source.path)) == [
        "helper.py", "lazy.py", "parts/__init__.py", "parts/layers.py", "parts/sizes.py", "parts/text.py"
    ]  # fmt: skip
    load(source).build()
    assert source.sha256 == hashes[0]
    for name in ("lazy.py", "parts/sizes.py", "parts/__init__.py"):
        (tmp_path / name).write_text((tmp_path / name).read_text() + "\n")
        hashes.append(source.sha256)
    assert len({*hashes}) == 4
    (tmp_path / "notes.py").write_text("# not imported\n")
    assert source.sha256 == hashes[-1]


def test_the_hash_of_the_file_alone_is_that_of_its_code_as_earlier_versions_wrote_it(tmp_path: Path) -> None:
    source = _with_files(tmp_path, _files(3))
    earlier = hashlib.sha256(source.path.read_bytes()).hexdigest()
    assert earlier != source.sha256
    assert [is_code_of(source.path, sha256) for sha256 in (earlier, source.sha256, "f0")] == [True, True, False]
    changed = source.sha256
    (tmp_path / "helper.py").write_text("UNITS = 1\n")
    assert not is_code_of(source.path, changed)


def test_of_a_long_message_the_first_line_is_told(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"ValueError: first \(line 2\)$"):
        _load(tmp_path, "def build_model():\n    raise ValueError('first\\nsecond')\n").build()


PREPROCESSING = GOOD + "\n\ndef preprocess(f, l, w): ...\n\ndef scale(f, l, w): ...\n"


def test_a_preprocess_is_found_by_its_name_or_by_the_one_that_the_settings_give(tmp_path: Path) -> None:
    assert _load(tmp_path, GOOD).preprocess is None
    by_itself = _load(tmp_path, PREPROCESSING).preprocess
    named = _load(tmp_path, PREPROCESSING, preprocess="scale").preprocess
    assert by_itself is not None
    assert named is not None
    assert (by_itself.__name__, named.__name__) == ("preprocess", "scale")


def test_a_preprocess_that_is_not_there_is_told_under_its_own_setting(tmp_path: Path) -> None:
    line = _told(tmp_path, PREPROCESSING, preprocess="scaled")
    assert line.startswith("model.preprocess: ")
    assert line.endswith("has no function 'scaled'; it has build_model, preprocess, scale")


def test_a_users_folder_of_our_name_is_not_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "training").mkdir()
    (tmp_path / "training" / "__init__.py").write_text("raise AssertionError('imported')\n")
    text = "import millrace.training.errors\n\ndef build_model():\n    return millrace.training.errors.ModelError\n"
    assert _load(tmp_path, text).build() is ModelError


@pytest.mark.parametrize("refused", [False, True])
def test_loading_leaves_nothing_beside_the_file(refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", refused)
    _load(tmp_path, GOOD)
    assert [path.name for path in tmp_path.iterdir()] == ["model.py"]
    assert sys.dont_write_bytecode is refused


def test_the_hash_is_of_the_file_as_it_is(tmp_path: Path) -> None:
    path = _written(tmp_path, GOOD)
    first = ModelFile(path=path, function="build_model").sha256
    assert first == hashlib.sha256(GOOD.encode()).hexdigest()
    path.write_text(GOOD + "\n")
    assert ModelFile(path=path, function="build_model").sha256 != first


# What was built


def _uncompiled() -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    return keras.Model(inputs, keras.layers.Dense(1)(inputs))


def _scaled() -> Any:
    model = _uncompiled()
    model.compile(optimizer=keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam()), loss="mse")
    return model


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda: "a model", "model.build: it returned a str, not a keras.Model"),
        (lambda: None, "model.build: it returned None; end build_model with return model"),
        (_uncompiled, "model.build: the model is not compiled; end build_model with model.compile("),
        (_scaled, "model.build: a LossScaleOptimizer drops updates by itself"),
    ],
)
def test_what_is_no_compiled_model_is_refused(learner_of: MakeLearner, build: Any, text: str) -> None:
    with pytest.raises(ModelError, match="^" + re.escape(text)):
        learner_of(build)


def test_a_batch_that_does_not_divide_into_the_replicas_is_refused(learner_of: MakeLearner) -> None:
    with pytest.raises(ModelError, match=r"training\.batch_size: 10 does not divide into 3 replicas; take a multiple"):
        learner_of(replicas=3, batch=10)


def test_a_model_that_cannot_take_the_rows_is_told_in_one_line(learner_of: MakeLearner) -> None:
    labels = (Field(name="y", source="y", dtype="float32", shape=(5,)),)
    schema = Schema(features=(Field(name="x", source="x", dtype="float32", shape=(FEATURES,)),), labels=labels)
    with pytest.raises(ModelError, match=r"^model\.build: the model does not build on the schema's rows: [^\n]+$"):
        learner_of(mlp, schema=schema)
