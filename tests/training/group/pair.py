"""One member of a group that learns the same blocks as one process alone: a program, started once for each member.

    python -m tests.training.group.pair INDEX ADDRESSES OUT MODEL …

For each model it writes the state, what each call returned, and the culprits; blocks are full, partial, without a row
of the second member, and with a NaN in a row of the first one.
"""

import os
import pickle
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.stream.blocks import Rows
from millrace.training.group.meeting import Group, meet
from millrace.training.group.membership import Membership
from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.proof.proof import ModelProof
from millrace.training.model.setup.strategy import DeviceOptions
from tests.training.conftest import FEATURES, SCHEMA, block, mlp, state_of, with_feature

GLOBAL_BATCH = 24
_ONE_THREAD = DeviceOptions(replicas=1, threads=1)
_ABSENT = GLOBAL_BATCH // 2
Build = Callable[[], Any]


class OwnStep(keras.Model):
    """Learns by a tape of its own."""

    def train_step(self, data: Any) -> Any:
        """Compute the loss, apply the gradients, update the metrics."""
        x, y, w = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, sample_weight=w)
        self.optimizer.apply(tape.gradient(loss, self.trainable_variables), self.trainable_variables)
        return {**self.compute_metrics(x, y, y_pred, sample_weight=w), "loss": loss}


def _with(optimizer: Callable[[], Any], *layers: Callable[[], Any], metrics: tuple[Any, ...] = ()) -> Build:
    def build() -> Any:
        model = mlp(*(layer() for layer in layers))
        model.compile(optimizer=optimizer(), loss="binary_crossentropy", metrics=["accuracy", *(m() for m in metrics)])
        return model

    return build


def _embedded(**options: Any) -> Any:
    inputs = keras.Input((FEATURES,), name="x")
    tokens = keras.ops.cast(keras.ops.clip(keras.ops.nan_to_num(inputs) * 3 + 8, 0, 15), "int32")
    hidden = keras.layers.Flatten()(keras.layers.Embedding(16, 4)(tokens))
    hidden = keras.layers.Concatenate()([hidden, inputs])
    model = keras.Model(inputs, keras.layers.Dense(1, activation="sigmoid")(hidden))
    optimizer = keras.optimizers.Adam(1e-2, **options)
    model.compile(optimizer=optimizer, loss="binary_crossentropy", metrics=["accuracy"])
    return model


def _adam(**options: Any) -> Callable[[], Any]:
    return lambda: keras.optimizers.Adam(1e-2, **options)


MODELS: Mapping[str, Build] = {
    "Keras' own step": _with(_adam(), metrics=(keras.metrics.AUC,)),
    "a step of its own": lambda: mlp(model=OwnStep),
    "AdamW": _with(lambda: keras.optimizers.AdamW(1e-2)),
    "averaged weights": _with(_adam(use_ema=True, ema_overwrite_frequency=3)),
    "layer normalization": _with(_adam(), keras.layers.LayerNormalization),
    "embeddings": _embedded,
    "clipping by the global norm": _with(_adam(global_clipnorm=0.1)),
    "accumulated gradients": _with(_adam(gradient_accumulation_steps=2)),
    "each batch twice": _with(_adam()),
    "balanced classes": _with(_adam()),
    "a step of its own, twice, by balanced classes": lambda: mlp(model=OwnStep),
    "embeddings by all that Adam offers": lambda: _embedded(
        use_ema=True, ema_overwrite_frequency=3, global_clipnorm=0.1, gradient_accumulation_steps=2
    ),
    "resampled classes": _with(_adam()),
    "running scale": _with(_adam()),
}
_NORMALISED = _with(_adam(), keras.layers.BatchNormalization)
PASSES = {"each batch twice": 2, "a step of its own, twice, by balanced classes": 2}
SCHEMAS = {"running scale": replace(SCHEMA, features=(replace(SCHEMA.features[0], scaled=SCHEMA.features[0].shape),))}
_BALANCE = BalanceSettings(target={"0": 0.2, "1": 0.8}, half_life=1000)
BALANCED = {
    "balanced classes": _BALANCE,
    "a step of its own, twice, by balanced classes": _BALANCE,
    "resampled classes": _BALANCE.model_copy(update={"how": "resample"}),
}
LARGE = (9 << 20) + 5
"""Bytes that go in several pieces."""


def blocks(name: str) -> list[Rows]:
    """Return the blocks of the whole group; for a model with a scale one value is too far away for it."""
    far = [with_feature(block(4, batch=GLOBAL_BATCH, seed=5, first=5000), 3 * GLOBAL_BATCH + 5, 1e6)]
    poisoned = with_feature(block(4, batch=GLOBAL_BATCH, seed=3, first=3000), 3, np.nan)
    return [
        block(4, batch=GLOBAL_BATCH, seed=0),
        block(1, rows=17, batch=GLOBAL_BATCH, seed=1, first=1000),
        block(1, rows=_ABSENT, batch=GLOBAL_BATCH, seed=2, first=2000),
        poisoned,
        block(2, batch=GLOBAL_BATCH, seed=4, first=4000),
        *(far if name in SCHEMAS else ()),
    ]


def learnt(name: str, index: int, members: int, group: Group | None) -> dict[str, Any]:
    """Learn all blocks by a model, of each the portion of this member; return what came of it."""
    share = GLOBAL_BATCH // members
    devices = DeviceOptions(replicas=1, threads=1, group=None if group is None else group.strategy)
    options = LearnerOptions(
        schema=SCHEMAS.get(name, SCHEMA),
        batch_size=share,
        devices=devices,
        seed=7,
        passes=PASSES.get(name, 1),
        balance=BALANCED.get(name),
    )
    learner = Learner(MODELS[name], None, options)
    if group is not None:

        def places(present: int) -> tuple[int, int]:
            counts = group.exchange.rows(np.array([present], np.int64))[:, 0]
            return int(counts[:index].sum()), int(counts.sum())

        learner.places = places
    calls, culprits = list[Any](), list[Any]()
    for rows in blocks(name):
        mine: Rows = tf.nest.map_structure(lambda column: column[:, index * share : (index + 1) * share], rows)
        lesson = learner.learn(mine)
        result = lesson.result
        calls.append((result.finite.tolist(), result.losses.tolist(), [state.tolist() for state in result.states]))
        culprits += lesson.culprits.offsets
    seen = np.asarray(learner.witness.variable)[0].tolist()
    return {"state": state_of(learner), "calls": calls, "culprits": culprits, "seen": seen}


def large(group: Group, index: int) -> tuple[list[Any], list[bool]]:
    """Collect and spread bytes of several sizes; return what the chief got of whom, and whether all got the chief's."""
    collected = []
    for size in (0, 10 * index, LARGE - 3 * index):
        found = group.exchange.collect(bytes([index + 1]) * size)
        collected.append([(len(raw), sum(raw[:1]), raw == raw[:1] * len(raw)) for raw in found])
    texts = [b"", bytes(range(9)), bytes(range(251)) * (LARGE // 251)]
    return collected, [group.exchange.spread(text if index == 0 else b"") == text for text in texts]


def threads_of(learner: Learner, group: Group) -> list[int]:
    """Return how many threads this process has before and after some hundred collectives, of each kind."""
    rows = tf.nest.map_structure(lambda column: column[:, : GLOBAL_BATCH // 2], block(50, batch=GLOBAL_BATCH, seed=5))
    learner.learn(rows)
    before = len([*Path("/proc/self/task").iterdir()])
    learner.learn(rows)
    for _ in range(100):
        group.exchange.rows(np.zeros(1, np.int64))
    return [before, len([*Path("/proc/self/task").iterdir()])]


def _learner(build: Build, group: Group) -> Learner:
    devices = DeviceOptions(replicas=1, threads=1, group=group.strategy)
    return Learner(build, None, LearnerOptions(schema=SCHEMA, batch_size=GLOBAL_BATCH // 2, devices=devices, seed=7))


def refuted(learner: Learner) -> list[str]:
    """Prove a model, as every member does at a start; return what does not hold."""
    findings = ModelProof(learner).findings()
    return [f"{finding.claim}: {finding.detail}" for finding in findings if not finding.holds]


def main() -> None:
    """Meet the others, learn every model, write."""
    index, addresses, out, names = int(sys.argv[1]), sys.argv[2].split(","), Path(sys.argv[3]), sys.argv[4:]
    group = meet(Membership(index=index, addresses=addresses, timeout_s=120.0), _ONE_THREAD)
    sizes = (10, 3000, 40_000)
    gathered = [[len(raw) for raw in group.exchange.gather(bytes([index]) * (size + index))] for size in sizes]
    numbers = np.arange(5.0) if index == 0 else np.zeros(5)
    collected, spread = large(group, index)
    found = {name: learnt(name, index, len(addresses), group) for name in MODELS if name in names}
    embedded = _learner(_embedded, group)
    told = {
        "models": found,
        "gathered": gathered,
        "collected": collected,
        "spread": spread,
        "sent": group.exchange.broadcast_array(numbers).tolist(),
        "threads": threads_of(embedded, group),
        "refuted": {"embeddings": refuted(embedded), "batch normalization": refuted(_learner(_NORMALISED, group))},
    }
    out.write_bytes(pickle.dumps(told))
    group.exchange.rows(np.zeros(1, np.int64))  # nobody leaves before all are done
    time.sleep(1)  # until what was sent last has left: the other may read it still
    os._exit(0)  # the runtime's own end waits for those that have left


if __name__ == "__main__":
    main()
