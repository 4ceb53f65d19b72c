"""Versions that are served in tests: real SavedModels, published as exports are, or laid down as TF Serving's are."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import tensorflow as tf

from millrace.app.settings import Settings
from millrace.app.settings.exported_records import write_exported_records
from millrace.training.checkpoints.exports.version_folder import (
    ExportDraft,
    ExportMemory,
    ExportProof,
    ExportSource,
    VersionFolder,
)

CONFIG = """\
name: {name}
kafka:   {{bootstrap_servers: [localhost:9092], topics: [clicks]}}
records: {{features: {{x: float32}}, label: {{clicked: float32}}}}
model:   {{build: ./model.py:build_model}}
checkpoints: {{path: ./checkpoints}}
serve: {{exports: ./exports/{name}, listen: "127.0.0.1:0", poll: 100ms, drain: 0s}}
"""
CLICKS: Mapping[str, Mapping[str, Any]] = {
    "price": {"dtype": "float32", "shape": [2]},
    "ad": {"dtype": "string", "shape": []},
    "hour": {"dtype": "int32", "shape": []},
    "tags": {"dtype": "string", "shape": [8], "ragged": True},
    "place": {"dtype": "string", "shape": [], "classes": ["top", "side"]},
}


class HalfPlus(tf.Module):  # type: ignore[misc] # to mypy TensorFlow's classes are Any
    """TF Serving's example: half of x, plus a number."""

    def __init__(self, added: float) -> None:
        super().__init__()
        self.added = tf.Variable(added)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, "x")])  # type: ignore[untyped-decorator]
    def answer(self, x: Any) -> Any:
        return {"y": x / 2.0 + self.added}


class Clicks(tf.Module):  # type: ignore[misc] # as above
    """All kinds of features in, several outputs out, each a plain function of its row."""

    def __init__(self) -> None:
        super().__init__()
        pairs = tf.lookup.KeyValueTensorInitializer(["top", "side"], tf.constant([0, 1], tf.int64))
        self.table = tf.lookup.StaticHashTable(pairs, -1)

    @tf.function(  # type: ignore[untyped-decorator] # as above
        input_signature=[
            {
                "price": tf.TensorSpec([None, 2], tf.float32, "price"),
                "ad": tf.TensorSpec([None], tf.string, "ad"),
                "hour": tf.TensorSpec([None], tf.int32, "hour"),
                "tags_values": tf.TensorSpec([None], tf.string, "tags_values"),
                "tags_row_splits": tf.TensorSpec([None], tf.int64, "tags_row_splits"),
                "place": tf.TensorSpec([None], tf.string, "place"),
            }
        ]
    )
    def answer(self, raw: Any) -> Any:
        tags = tf.RaggedTensor.from_row_splits(raw["tags_values"], raw["tags_row_splits"])
        place = self.table.lookup(raw["place"])
        with tf.control_dependencies([tf.debugging.assert_non_negative(place)]):
            return {
                "sum": tf.reduce_sum(raw["price"], 1) + tf.cast(raw["hour"], tf.float32),
                "ad_upper": tf.strings.upper(raw["ad"]),
                "tags": tf.cast(tags.row_lengths(), tf.int32),
                "first_bytes": tf.strings.reduce_join(tags, axis=1, separator="+"),
                "place": place,
            }


class Documented(tf.Module):  # type: ignore[misc] # as above
    """A model for each request that TF Serving's page has, which answers with what it was sent."""

    @tf.function(  # type: ignore[untyped-decorator] # as above
        input_signature=[
            tf.TensorSpec([None], tf.string, "tag"),
            tf.TensorSpec([None, 5], tf.int64, "signal"),
            tf.TensorSpec([None, 2, 2], tf.float32, "sensor"),
        ]
    )
    def answer(self, tag: Any, signal: Any, sensor: Any) -> Any:
        return {"tag": tf.identity(tag), "signal": tf.identity(signal), "sensor": tf.identity(sensor)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "word")])  # type: ignore[untyped-decorator]
    def words(self, word: Any) -> Any:
        return {"said": tf.identity(word)}

    @tf.function(input_signature=[tf.TensorSpec([None, 1, 2], tf.int32, "pair")])  # type: ignore[untyped-decorator]
    def pairs(self, pair: Any) -> Any:
        return {"pair": tf.identity(pair)}

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, "image")])  # type: ignore[untyped-decorator]
    def images(self, image: Any) -> Any:
        return {"image_bytes": tf.identity(image), "caption": tf.strings.upper(image)}

    @tf.function(  # type: ignore[untyped-decorator] # as above
        input_signature=[
            tf.TensorSpec([None], tf.float32, "values"),
            tf.TensorSpec([], tf.float64, "scale"),
            tf.TensorSpec([None], tf.bool, "wanted"),
        ]
    )
    def mixed(self, values: Any, scale: Any, wanted: Any) -> Any:
        return {"scaled": values * tf.cast(scale, tf.float32), "unwanted": tf.logical_not(wanted)}


def publish(
    root: Path,
    number: int,
    model: tf.Module,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
    settings: Settings | None = None,
    memory: Callable[[Path], ExportMemory | None] = lambda _version: None,
) -> None:
    """Publish a version as the exporter does: with its manifest, in one rename; without settings, as an earlier one."""
    folder = VersionFolder(root)
    source = ExportSource(number=number, incarnation=1, parent=None, sha256="0" * 64)
    draft = ExportDraft(
        name=root.name,
        number=number,
        made_at="2026-11-23T12:00:00Z",
        checkpoint=source,
        positions={"clicks": {"0": 10 * number}},
        records=10 * number,
        metrics={"loss": 0.5},
        inputs=inputs or {"x": {"dtype": "float32", "shape": []}},
        outputs={},
        classes={},
        config_sha256="",
        model_sha256="",
        schema_sha256="",
        millrace="0",
        tensorflow=tf.__version__,
        keras="0",
        proof=ExportProof(rows=256, records="kept", max_difference=0.0, tolerance=0.0),
    )
    with folder.writing(5.0):
        written = folder.draft_folder(number)
        lay_down(written, model)
        if settings is not None:
            write_exported_records(settings, written)
        folder.publish(written, replace(draft, memory=memory(written)))


def lay_down(folder: Path, model: tf.Module) -> None:
    """Write a SavedModel alone, as those are that TF Serving comes with."""
    functions = {"serving_default": model.answer.get_concrete_function()}
    if isinstance(model, Documented):
        others = {one: getattr(model, one) for one in ("words", "pairs", "images", "mixed")}
        functions |= {name: function.get_concrete_function() for name, function in others.items()}
    tf.saved_model.save(model, str(folder), signatures=functions)
