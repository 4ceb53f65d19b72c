"""A model that is changed and forked: how good it is after 50,000 records, beside the old one and one that begins anew.

An old model learns a stream of five classes for long. Then all ways learn the same next records, and are asked after
each block for rows that none has learnt: the old one, which goes on; forks of it, which take its weights and what its
optimizer knows as `millrace fork` does, with a layer more that begins as zeros, with one that begins as Keras draws it,
and with another optimizer; and the changed model with new weights. `--picture` draws how often they are right.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
from reservoir import CLASSES, FEATURES, MANY, World, block_of
from rig import report
from windows import BATCH, BATCHES

from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.setup.strategy import DeviceOptions
from millrace.training.model.variables import optimizers_of
from millrace.training.model.weights.initial_weights import keep_slots, match, take_over
from millrace.training.model.weights.weight_files import FoundWeights

sys.path.insert(0, str(Path(__file__).parents[1]))
from lines import lines

UNITS, WIDE, APART, ASKED = 16, 128, 0.7, 20_000


def classifier(*, third: str | None = None, optimizer: str = "adam") -> Any:
    """Build a small classifier of five classes; with a wide layer beside, whose way in is initialized by `third`."""
    x = keras.Input((FEATURES,), name="x")
    hidden = keras.layers.Dense(UNITS, activation="relu", name="first")(x)
    hidden = keras.layers.Dense(UNITS, activation="relu", name="second")(hidden)
    if third is not None:
        wide = keras.layers.Dense(WIDE, activation="relu", name="wide")(x)
        added = keras.layers.Dense(UNITS, kernel_initializer=third, name="third")(wide)
        hidden = keras.layers.Add(name="sum")([hidden, added])
    model = keras.Model(x, keras.layers.Dense(CLASSES, activation="softmax", name="score")(hidden))
    model.compile(keras.optimizers.get(optimizer), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def learner_of(build: Callable[[], Any]) -> Learner:
    """Build a learner of these classes."""
    return Learner(
        build, None, LearnerOptions(schema=MANY, batch_size=BATCH, devices=DeviceOptions(replicas=1), seed=1)
    )


def forked(old: Learner, build: Callable[[], Any]) -> Learner:
    """Begin a changed model with what the old one knows."""
    state = {part.name: part.snapshot() for part in old.parts}
    new = learner_of(build)
    take_over(new.model, match(new.model, FoundWeights(what="old", sha256="", arrays=state["model"].arrays)))
    classes = {name: type(one).__name__ for name, one in optimizers_of(old.model).items()}
    keep_slots(new.model, state["optimizer"].arrays, classes)
    return new


class Stream:
    """Rows of one world; those that are asked for are none of those that are learnt."""

    def __init__(self) -> None:
        self._world = World(11, apart=APART)
        self._learnt = 0
        kinds = self._world.mixed(ASKED)
        self.asked = (self._world.rows(kinds), kinds)

    def blocks(self, records: int) -> list[Any]:
        """Return the next blocks, of so many records."""
        found = []
        for _ in range(records // (BATCH * BATCHES)):
            kinds = self._world.mixed(BATCH * BATCHES)
            found.append(block_of(self._world.rows(kinds), kinds, self._learnt))
            self._learnt += len(kinds)
        return found

    def answers(self, learner: Learner) -> tuple[float, float]:
        """Return the loss on the rows that are asked for, and the share that is right."""
        x, y = self.asked
        given = learner.model(x).numpy()
        loss = -np.log(np.maximum(given[np.arange(len(y)), y], 1e-7))
        return float(loss.mean()), float((given.argmax(axis=1) == y).mean())


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=2_000_000, help="that the old model has learnt")
    parser.add_argument("--then", type=int, default=50_000, help="that all of them learn afterwards")
    parser.add_argument("--picture", type=Path, help="where to draw the curves, as SVG")
    given = parser.parse_args()
    stream, old = Stream(), learner_of(classifier)
    for block in stream.blocks(given.records):
        old.learn(block)
    zeros, drawn = partial(classifier, third="zeros"), partial(classifier, third="glorot_uniform")
    ways = {
        "fork, a layer of zeros": forked(old, zeros),
        "fork, a drawn layer": forked(old, drawn),
        "fork, SGD": forked(old, partial(classifier, optimizer="sgd")),
        "the old one": old,
        "begun anew": learner_of(zeros),
    }
    found = {name: [stream.answers(learner)] for name, learner in ways.items()}
    for block in stream.blocks(given.then):
        for name, learner in ways.items():
            learner.learn(block)
            found[name].append(stream.answers(learner))
    if given.picture:
        curves = {name: [right for _, right in each] for name, each in found.items()}
        charts = {f"The share that is right, over the next {given.then:,} records": curves}
        given.picture.write_text(lines(f"Models forked after {given.records:,} records", charts, []))
    losses = {name: (each[0][0], each[-1][0]) for name, each in found.items()}
    ends = {name: round(last / losses["the old one"][1], 4) for name, (_, last) in losses.items()}
    report(
        {"fork_loss_of_old": ends["fork, a layer of zeros"], "anew_loss_of_old": ends["begun anew"]},
        {
            "loss": {name: [round(one, 4) for one in pair] for name, pair in losses.items()},
            "right": {name: [round(each[0][1], 4), round(each[-1][1], 4)] for name, each in found.items()},
            "loss_of_old": ends,
        },
    )


if __name__ == "__main__":
    main()
