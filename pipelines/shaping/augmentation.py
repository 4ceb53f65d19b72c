"""Augmentation: the user's `augment`, traced into the training call between scoring and learning.

What it draws is a function of a seed that the caller derives from the batch's first offset. A Keras layer draws from a
counter in a variable, which would go on from anywhere after a restart; so while `augment` is traced, every such counter
reads as a value that is derived from the seed, and what the layer writes to it is forgotten. Nothing of it is state.

Owns no state; runs while a graph is traced, on the thread that traces.
"""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.shaping.options import Augment, takes_seed


class Augmentation:
    """One `augment` function. Call it on the rows of a batch, in a graph."""

    def __init__(self, augment: Augment, *, traced_as: Augment | None = None) -> None:
        """`traced_as` is the function as AutoGraph rewrites it; None takes it as it is."""
        self._augment = traced_as or augment
        self._takes_seed = takes_seed(augment)

    def __call__(
        self, features: Mapping[str, Any], labels: Any, weights: Any, seed: Any
    ) -> tuple[dict[str, Any], Any, Any]:
        """Return the rows to learn in place of these. `seed` is two numbers, int64; the same give the same rows.

        Raise ConfigError where the rows that come back have other names, dtypes or shapes.
        """
        none = isinstance(labels, Mapping) and not labels
        given = [dict(features), None if none else labels, weights]
        arguments = [*given, seed] if self._takes_seed else given
        with SeededDraws(seed):
            try:
                result = self._augment(*arguments)
            except Exception as error:
                line = (str(error).strip().splitlines() or [repr(error)])[-1].strip()
                raise ConfigError(f"augment: {type(error).__name__} on rows of the schema: {line}") from error
        if not isinstance(result, tuple) or len(result) != 3 or not isinstance(result[0], Mapping):
            kinds = [type(part).__name__ for part in result] if isinstance(result, tuple) else type(result).__name__
            raise ConfigError(f"augment: it must return (features by name, label, weight); it returned {kinds}")
        if (lost := features.keys() ^ result[0].keys()) or none != (result[1] is None):
            what = f"feature {min(lost)!r}" if lost else "the label"
            raise ConfigError(f"augment: it must return what it is given, and {what} is on one side only")
        augmented = {name: _like(column, features[name], f"feature {name!r}") for name, column in result[0].items()}
        return augmented, labels if none else _labels(result[1], labels), _like(result[2], weights, "the weight")


def folded(seed: Any, *numbers: Any) -> Any:
    """Return a seed made of another one and of numbers; in a graph. Neighbouring numbers give unrelated seeds."""
    for number in numbers:
        seed = tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64))
    # The last number folded in stands in the seed as it is: a caller who counts up from it meets no other seed.
    return tf.random.experimental.stateless_fold_in(seed, tf.constant(0, tf.int64))


class SeededDraws(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """While it is open, the seed generators of Keras layers begin at values derived from one seed.

    They are told apart by the sequence in which they are first read, which the code decides. No variable is changed.
    """

    def __init__(self, seed: Any) -> None:
        # Layers that `augment` makes as it runs are thrown away with it: their variables are never to be initialised.
        super().__init__(initialize_variables=False)
        self._seed = seed
        self._generators: list[Any] = []
        """Kept, because a variable is known by its id, which would be given again once it was freed."""

    def get_current_value(self, variable: Any) -> Any:
        """Return what the variable reads as in this scope; None for its own value."""
        value = super().get_current_value(variable)
        if value is None and variable.name == "seed_generator_state":
            self._generators.append(variable)
            value = tf.cast(folded(self._seed, len(self._generators)), variable.dtype)
            self.add_update((variable, value))
        return value


def _labels(columns: Any, given: Any) -> Any:
    if not isinstance(given, Mapping):
        return _like(columns, given, "the label")
    if not isinstance(columns, Mapping) or columns.keys() != given.keys():
        raise ConfigError(f"augment: it must return the labels by name, {', '.join(given)}")
    return {name: _like(columns[name], column, f"label {name!r}") for name, column in given.items()}


def _like(column: Any, given: Any, what: str) -> Any:
    """Return the column as a tensor; ConfigError where the model could not take it in place of the one given."""
    column = tf.convert_to_tensor(column)
    if column.dtype != given.dtype:
        raise ConfigError(
            f"augment: {what} comes back as {column.dtype.name} and went in as {given.dtype.name}; end with "
            f"tf.cast(…, tf.{given.dtype.name}), rounded before if that is a whole number"
        )
    if not column.shape.is_compatible_with(given.shape):
        raise ConfigError(f"augment: {what} comes back as {column.shape} and went in as {given.shape}; keep its shape")
    # Layers of images may lose the size that the traced call needs.
    return tf.ensure_shape(column, given.shape)
