"""`augment`: what is learnt of a batch, drawn by its place in its partition; what is scored stays as it came."""

from dataclasses import replace
from functools import cache
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.consumers.records import Partition
from millrace.training.model.learner import Learner
from millrace.training.model.proof.function_proofs import draws_by_seed
from millrace.training.model.proof.proof import ModelProof
from tests.training.conftest import BATCH, block, largest_difference, mlp, options_of, state_of

pytestmark = pytest.mark.tensorflow


@cache
def _noise() -> Any:
    return keras.layers.GaussianNoise(0.5)


def by_layers(features: Any, label: Any, weight: Any) -> Any:
    """Add noise by a layer that is kept and by one that is made as the step is traced."""
    made = keras.layers.GaussianNoise(0.5)
    return {"x": _noise()(features["x"], training=True) + made(features["x"], training=True)}, label, weight


def by_seed(features: Any, label: Any, weight: Any, seed: Any) -> Any:
    """Add noise by TensorFlow's stateless operations."""
    return {"x": features["x"] + tf.random.stateless_normal(tf.shape(features["x"]), seed)}, label, weight


def poisoned(features: Any, label: Any, weight: Any) -> Any:
    """Turn what is learnt into something else altogether."""
    return {"x": features["x"] * 1000.0 + 7.0}, 1.0 - label, weight * 3.0


def augmented(augment: Any, **given: Any) -> Learner:
    """Build a learner whose model file has this `augment`."""
    learner = Learner(mlp, None, replace(options_of(**given), augment=augment))
    learner.witness.lay([Partition("t", 0)])
    return learner


def test_what_is_scored_stays_as_it_came_and_what_is_learnt_does_not() -> None:
    plain, shaped = augmented(None), augmented(poisoned)
    one, other = plain.learn(block(1)).result, shaped.learn(block(1)).result
    np.testing.assert_allclose(one.losses, other.losses, rtol=1e-6)
    for mine, theirs in zip(one.states, other.states, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert largest_difference(state_of(plain), state_of(shaped)) > 1e-3
    assert [(finding.holds, finding.detail) for finding in draws_by_seed(shaped)] == [
        (True, "it draws nothing on the rows at hand")
    ]
    assert [finding.claim for finding in ModelProof(shaped).findings() if finding.holds is not True] == []


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [pytest.param(1, marks=pytest.mark.nightly), 2])
@pytest.mark.parametrize("augment", [by_layers, pytest.param(by_seed, marks=pytest.mark.nightly)])
def test_a_batch_draws_by_its_offset_partition_pass_and_visit_alone(augment: Any, replicas: int) -> None:
    def learnt(rows: Any, *, passes: int = 1, visit: int = 0, partition: int = 0) -> Any:
        learner = fresh if replicas == 1 else several
        for part, first in zip(learner.parts, begun, strict=True):
            part.restore(first)
        learner.witness.lay([Partition("t", partition)])
        learner.call(rows, passes=passes, visit=visit)
        return state_of(learner)

    fresh = augmented(augment, passes=2)
    several = augmented(augment, passes=2, replicas=replicas)
    begun = [part.snapshot() for part in fresh.parts]
    first = learnt(block(1))
    learnt(block(2, seed=3))  # what was drawn before does not matter
    assert largest_difference(first, learnt(block(1))) == 0
    again = augmented(augment, passes=2, replicas=replicas)
    fresh = several = again  # nor do the objects, as after a restart
    assert largest_difference(first, learnt(block(1))) == 0
    for other in (learnt(block(1, first=BATCH)), learnt(block(1), visit=1), learnt(block(1), partition=1)):
        assert largest_difference(first, other) > 1e-4


@pytest.mark.parametrize(
    ("augment", "words"),
    [
        (lambda features, label, weight: ({"x": features["x"][:, :3]}, label, weight), "keep its shape"),
        (lambda features, label, weight: ({"x": tf.cast(features["x"], tf.float64)}, label, weight), "tf.float32"),
        (lambda features, label, weight: ({"u": features["x"]}, label, weight), "feature 'u' is on one side only"),
        (lambda *columns: columns[:2], "it must return"),
        (lambda features, label, weight: (features["z"], label, weight), "augment: KeyError"),
    ],
)
def test_an_augment_that_does_not_fit_is_refused_by_name(augment: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        augmented(augment)


def test_an_augment_that_draws_by_other_means_than_its_seed_is_refused() -> None:
    def traced_once(features: Any, label: Any, weight: Any) -> Any:
        return {"x": features["x"] + np.float32(np.random.default_rng().normal())}, label, weight

    def of_tensorflow(features: Any, label: Any, weight: Any) -> Any:
        return {"x": features["x"] + tf.random.normal(tf.shape(features["x"]))}, label, weight

    def infinite(features: Any, label: Any, weight: Any) -> Any:
        return {"x": features["x"] / 0.0}, label, weight

    learner = augmented(by_seed)
    found = {}
    for augment in (by_seed, traced_once, of_tensorflow, infinite):
        learner.options = replace(learner.options, augment=augment)
        [found[augment]] = draws_by_seed(learner)
    assert [finding.holds for finding in found.values()] == [True, False, False, False]
    assert "is NaN or infinity" in found[infinite].detail
    assert all("`seed`" in found[augment].detail for augment in (traced_once, of_tensorflow))
