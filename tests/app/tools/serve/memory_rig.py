"""A model with `windows` that answers with its row, and versions of it that carry the keys of a checkpoint."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import tensorflow as tf

from millrace.app.settings import Settings, load
from millrace.app.tools.export.exported_memory import window_shaper, write_exported_memory
from millrace.consumers.records import Partition
from millrace.pipelines.shaping.windows.windows import NAME
from millrace.pipelines.stream.decode import Decoded
from millrace.training.checkpoints.part_files import VerifiedCheckpoint
from millrace.training.checkpoints.parts import PartState
from tests.app.tools.serve.exports_rig import publish

CONFIG = """
name: cards
kafka: {bootstrap_servers: [127.0.0.1:1], topics: [cards]}
records:
  features:
    card: string
    amount: float32
    kind: {dtype: int32, one_of: [shop, web]}
  label: {fraud: float32}
  event_time: {field: at}
windows: {by: card, length: 3, lengths: known, gaps: gaps}
model: {build: ./model.py:build_model}
checkpoints: {path: ./checkpoints}
serve: {exports: ./exports/cards, listen: "127.0.0.1:0", poll: 100ms, drain: 0s, memory: {how: follow, max_lag: null}}
"""
HERE, OTHER = Partition("cards", 0), Partition("cards", 1)
RECORD = {"card": "a", "amount": 9.0, "kind": "web", "at": 10_500}
INPUTS: Mapping[str, Mapping[str, Any]] = {
    "kind": {"dtype": "string", "shape": [3], "classes": ["shop", "web"]},
    **{name: {"dtype": "float32", "shape": [3]} for name in ("amount", "gaps")},
    "card": {"dtype": "string", "shape": []},
    "known": {"dtype": "int32", "shape": []},
}


class Echo(tf.Module):  # type: ignore[misc] # to mypy TensorFlow's classes are Any
    """A model that answers with its row."""

    @tf.function(  # type: ignore[untyped-decorator] # as above
        input_signature=[
            {
                "amount": tf.TensorSpec([None, 3], tf.float32, "amount"),
                "card": tf.TensorSpec([None], tf.string, "card"),
                "gaps": tf.TensorSpec([None, 3], tf.float32, "gaps"),
                "kind": tf.TensorSpec([None, 3], tf.string, "kind"),
                "known": tf.TensorSpec([None], tf.int32, "known"),
            }
        ]
    )
    def answer(self, raw: Any) -> Any:
        return {f"{name}_there": tf.identity(column) for name, column in raw.items()}


def settings(folder: Path, more: Mapping[str, str] | None = None) -> Settings:
    path = folder / "cards.yaml"
    path.write_text(CONFIG)
    return load(path, {f"MILLRACE_{name.upper()}": value for name, value in (more or {}).items()}).settings


def learnt(given: Settings, ends: Mapping[Partition, int]) -> VerifiedCheckpoint:
    """Return a checkpoint: the record at each offset is of the card a, or in the other partition of b, and worth it."""
    shaper = window_shaper(given)
    shape = shaper.open(1, dict.fromkeys(ends, 0), at_once=True)
    for partition, end in ends.items():
        amounts = np.arange(end, dtype=np.float32)
        shape(
            Decoded(
                partition=partition,
                incarnation=1,
                start=0,
                end=end,
                fetched_at=0.0,
                lost=0,
                offsets=np.arange(end),
                event_times=np.arange(end) * 1000,
                features={
                    "card": np.array([b"a" if partition == HERE else b"b"] * end, object),
                    "amount": amounts,
                    "kind": np.zeros(end, np.int32),
                },
                labels={"fraud": amounts},
                weights=None,
                refused=(),
                nbytes=0,
            )
        )
    arrays, facts = shaper.saved()
    positions = {str(partition): end for partition, end in ends.items()}
    found = SimpleNamespace(
        parts={NAME: PartState(arrays=arrays, facts=facts)}, manifest=SimpleNamespace(positions=positions)
    )
    return cast("VerifiedCheckpoint", found)


def published(folder: Path, number: int, ends: Mapping[Partition, int]) -> None:
    given = settings(folder)
    write = partial(write_exported_memory, given, learnt(given, ends), [])
    publish(folder / "exports" / "cards", number, Echo(), INPUTS, given, write)


def row(answer: Any, index: int = 0) -> dict[str, Any]:
    assert answer.status_code == 200, answer.text
    found = answer.json()["predictions"][index]
    return {name.removesuffix("_there"): value for name, value in found.items()}
