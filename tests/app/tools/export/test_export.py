"""`millrace export`: what is published answers raw features as the model does, and what would not is refused."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from millrace.app.cli.export import in_words
from millrace.app.settings import Loaded
from millrace.training.checkpoints.folder import Folder
from millrace.training.checkpoints.pins import Pins
from millrace.training.checkpoints.store import CheckpointStore
from millrace.training.errors import ExportRefusedError, MissingCheckpointError, ModelError
from millrace.training.history.journal import Chain
from millrace.training.telemetry.events import Events
from tests.app.checkpoint_history import folder_in
from tests.app.tools.export.exported_model import CONFIG, MODEL, project
from tests.app.tools.test_rebuild_plan import _segment
from tests.training.checkpoints.small_volume import make_read_only, small_volume

pytestmark = pytest.mark.tensorflow
RANDOM = MODEL.replace("RATES.lookup", "tf.random.uniform(tf.shape(features['price'])) * RATES.lookup")


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Loaded, Path]:
    """One version of checkpoint 2, proven by a real fresh process."""
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    path = tmp_path_factory.mktemp("exported")
    loaded = project(path)
    made = export_checkpoint(loaded, None, folder_of(loaded.settings))
    assert made.manifest.number == 2
    return loaded, made.folder


@pytest.mark.slow
def test_an_export_takes_what_producers_send_and_names_classes(exported: tuple[Loaded, Path]) -> None:
    import tensorflow as tf

    signature = tf.saved_model.load(str(exported[1])).signatures["serving_default"]
    answers = signature(
        price=tf.constant([1.0, 2.0]),
        ad=tf.constant(["x", "1"]),
        color=tf.constant(["blue", "red"]),
        seen_values=tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
        seen_row_splits=tf.constant([0, 5, 6], tf.int64),
        tags_values=tf.constant(["a"]),
        tags_row_splits=tf.constant([0, 0, 1], tf.int64),
    )
    chosen = np.array([b"cat", b"dog", b"cow"])[np.argmax(answers["kind"].numpy(), axis=1)]
    assert answers["kind_class"].numpy().tolist() == chosen.tolist()


@pytest.mark.slow
def test_a_manifest_says_what_it_is_made_of_and_how_it_was_proven(exported: tuple[Loaded, Path]) -> None:
    found = json.loads((exported[1] / "millrace.json").read_text())
    assert (found["checkpoint"]["number"], found["positions"], found["records"]) == (
        2,
        {"clicks": {"0": 20, "1": 10}},
        28,
    )
    assert found["inputs"]["seen"] == {"dtype": "float32", "shape": [4], "ragged": True}
    assert found["inputs"]["color"] == {"dtype": "string", "shape": [], "classes": ["red", "green", "blue"]}
    assert found["classes"] == {"kind": ["cat", "dog", "cow"]}
    assert found["proof"]["rows"] == 256
    assert found["proof"]["max_difference"] <= found["proof"]["tolerance"] < 1e-5
    data = found["files"]["variables/variables.data-00000-of-00001"]["bytes"]
    weights = 4 * (16 * 3 + 5 * 2 + 50 * 3 + 3 * 2 + 8 * 17 + 3 * 9)
    names = 2_000
    assert weights < data < weights + names, "each weight is written once"


@pytest.mark.slow
def test_a_checkpoint_is_pinned_while_its_version_is_there(exported: tuple[Loaded, Path]) -> None:
    pins = Pins(Folder(exported[0].settings.checkpoints.path / "clicks"))
    assert [(pin.number, pin.by) for pin in pins.all()] == [(2, f"export to {exported[1].parent}")]


@pytest.fixture(params=[pytest.param(None, marks=pytest.mark.nightly), 7], ids=["unseeded", "seeded"])
def seed(request: pytest.FixtureRequest) -> Iterator[int | None]:
    """With a seed, as many a program sets one, a fresh process draws the same numbers as this one at first."""
    import tensorflow as tf

    tf.random.set_seed(request.param)
    yield request.param
    tf.random.set_seed(None)


@pytest.mark.slow
@pytest.mark.usefixtures("seed", "forked_modules")
def test_a_preprocess_that_draws_is_refused_with_the_feature_that_differs(tmp_path: Path) -> None:
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    loaded = project(tmp_path, model=RANDOM)
    folder = folder_of(loaded.settings)
    with pytest.raises(ExportRefusedError, match=r"the output 'kind.*' differs.*preprocess gives it another price"):
        export_checkpoint(loaded, 2, folder)
    assert (folder.numbers(), folder.leftovers()) == ([], [])
    assert Pins(Folder(loaded.settings.checkpoints.path / "clicks")).all() == []


def test_a_checkpoint_of_another_model_file_is_not_exported(tmp_path: Path) -> None:
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    loaded = project(tmp_path, saves=0)
    (tmp_path / "model.py").write_text(MODEL.replace("log1p", "log"))
    with pytest.raises(ModelError, match=r"model.py is not the file that checkpoint 0 was learnt by"):
        export_checkpoint(loaded, 0, folder_of(loaded.settings))


def test_a_checkpoint_that_knows_the_hash_of_the_model_file_alone_is_of_this_model(tmp_path: Path) -> None:
    from millrace.app.service.lifecycle_events import tell_started
    from millrace.app.service.provenance import provenance_of
    from millrace.app.tools.export.export_inputs import _require_same_code
    from millrace.app.tools.rebuild.rebuild import _remarks

    (tmp_path / "helper.py").write_text("")
    # Earlier versions found the helper by PYTHONPATH, so their checkpoints have the hash of the file alone.
    loaded = project(tmp_path, model=f"import helper\n{MODEL}", saves=0)
    path, events = loaded.settings.model.build.file, Events()
    manifest, now = CheckpointStore(folder_in(tmp_path)).manifest(0), provenance_of(loaded, None)
    assert now["model_sha256"] != manifest.provenance["model_sha256"]
    _require_same_code(loaded.settings, manifest)
    made = replace(_segment(0, [], {}, []), model_sha256=manifest.provenance["model_sha256"])
    chain = Chain(number=0, base=0, beginning=None, numbers=[0], blocks=0, rows=0, read=lambda _: made)
    assert _remarks(loaded, chain) == []
    then = replace(manifest, provenance={**now, "model_sha256": manifest.provenance["model_sha256"]})
    tell_started(events.report, then, now, path)
    assert [event.text for event in events.since() if "Changed" in event.text] == []
    path.write_text(f"{path.read_text()}# changed\n")
    tell_started(events.report, then, provenance_of(loaded, None), path)
    assert "Changed since checkpoint 0: model.py." in [event.text for event in events.since()]


@pytest.mark.slow
@pytest.mark.usefixtures("forked_modules")
def test_checkpoints_that_can_only_be_read_are_exported_and_not_pinned(tmp_path: Path) -> None:
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    with small_volume(tmp_path / "checkpoints", 16_000_000) as volume:
        loaded = project(tmp_path)
        make_read_only(volume)
        made = export_checkpoint(loaded, None, folder_of(loaded.settings))
        assert (made.manifest.number, made.pinned) == (2, False)
        assert "\ncheckpoint 2 is not pinned" in in_words(made)
        assert Pins(Folder(volume / "clicks")).all() == []


def test_the_latest_is_not_exported_before_it_has_learnt_anything(tmp_path: Path) -> None:
    from millrace.app.tools.export.export_inputs import checkpoint_to_export

    settings = project(tmp_path, saves=0).settings
    with pytest.raises(
        MissingCheckpointError, match=r"^checkpoint 0, the latest, has learnt nothing: .*`millrace export 0"
    ):
        checkpoint_to_export(settings, None)
    assert checkpoint_to_export(settings, 0).manifest.number == 0, "by its number it is"


def test_a_text_that_is_not_listed_is_refused_and_not_guessed(tmp_path: Path) -> None:
    import tensorflow as tf

    from millrace.training.model.export.served_module import ServedModel, ServedModule

    settings = project(tmp_path, saves=0).settings
    schema = settings.row_schema
    module = ServedModule(ServedModel(model=None, schema=schema, preprocess=None))
    raw = {
        "price": tf.constant([1.0]),
        "ad": tf.constant(["a"]),
        "color": tf.constant(["pink"]),
        "seen_values": tf.constant([], tf.float32),
        "seen_row_splits": tf.constant([0, 0], tf.int64),
        "tags_values": tf.constant([], tf.string),
        "tags_row_splits": tf.constant([0, 0], tf.int64),
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match="color: a text is none of those that"):
        module.model_inputs(raw)
    seen = module.model_inputs({**raw, "color": tf.constant(["green"])})
    assert {name: seen[name].numpy().tolist() for name in ("color", "seen", "seen_count")} == {
        "color": [1],
        "seen": [[-1.0] * 4],
        "seen_count": [0],
    }


def test_a_feature_with_the_name_of_anothers_values_is_refused_in_a_line(tmp_path: Path) -> None:
    from millrace.app.tools.export.export import export_checkpoint
    from millrace.app.tools.export.export_folder import folder_of

    loaded = project(tmp_path, CONFIG.replace("price: float32", "price: float32\n    tags_values: float32"), saves=0)
    with pytest.raises(ModelError, match=r"records.features: 'tags_values' is a feature, and the export needs that"):
        export_checkpoint(loaded, 0, folder_of(loaded.settings))
