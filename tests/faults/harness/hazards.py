"""The model that is killed, with records that no step survives: one aborts the process, another holds its step up.

It is copied beside a config as `hazards.py`, and waits for files that a test puts beside it.
"""

import os
import time
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from tests.faults.harness import model as plain

ABORTS, HANGS = -2.0, -1.5
"""What a record's `curse` is; any other is harmless."""
BUILD, STEP = "build", "step"
"""The files that let a build, or a step, go on."""
_BESIDE = Path(__file__).parent


def _await(name: str) -> None:
    while not (_BESIDE / name).exists():
        time.sleep(0.02)


def _meet(curses: Any) -> None:
    found = set(curses.numpy().ravel().tolist())
    if ABORTS in found:
        os.abort()
    if HANGS in found:
        _await(STEP)


class Hazardous(plain.Counting):
    """Meets its records before it learns them."""

    def train_step(self, data: Any) -> Any:
        """Meet, then learn."""
        tf.py_function(_meet, [data[0]["curse"]], [])
        return super().train_step(data)


def build_model(*, waits: bool = False) -> keras.Model:
    """Build the model; where it waits, not before it may."""
    if waits:
        _await(BUILD)
    made = plain.build_model()
    model = Hazardous(made.input, made.output)
    model.ids = made.ids
    model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=["accuracy"])
    return model
