"""What the model itself answers to records, by the trainer's own way through `preprocess` and `predict`.

An export has to answer the same. Runs in the process that exports, on the model that it has built.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.pipelines.schema import Column
from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.balance.class_weights import corrected, weights_of
from millrace.pipelines.stream.dataset import NO_LABEL, flat_preprocess
from millrace.training.checkpoints.parts import PartState
from millrace.training.model.call.class_balance import output_of
from millrace.training.model.call.compiled_call import as_the_model_takes_it
from millrace.training.model.export.answers import plain, raw_columns
from millrace.training.model.export.served_module import CLASS, ServedModel, ServedModule, by_name, class_of, logits_of
from millrace.training.model.probes import Probe


def correction_of(model: Any, options: BalanceSettings | None, state: PartState | None) -> Any:
    """Return what corrects the output of a model that learnt balanced classes, as its live metrics are; or None."""
    output = None if options is None else output_of(model, options)
    if options is None or output is None:
        return None
    known: Mapping[str, float] = {} if state is None else state.facts.get("counts", {})
    counts = tf.constant([float(known.get(one, 0.0)) for one in options.classes], tf.float64)
    weights = np.asarray(weights_of(counts, options))
    return lambda predicted: corrected(predicted, tf.constant(weights), output)


def expected_answers(served: ServedModel, probe: Probe) -> dict[str, Column]:
    """Return the model's answers to decoded rows, by the export's names; their bits are those of `predict`."""
    x, _, _ = as_the_model_takes_it(served.model, _seen_in_training(served, probe), NO_LABEL, None)
    # With AutoGraph, as the trainer's call has it; Keras' own `predict` has none, and refuses branches in some layers.
    predicted = _second_time(tf.function(lambda rows: served.model(rows, training=False)), x)
    answers = by_name(served.model, served.schema, predicted)
    if served.corrected is not None:
        answers = {name: served.corrected(answer) for name, answer in answers.items()}
    for field in served.schema.labels:
        chosen = None
        if field.name in answers:
            chosen = class_of(answers[field.name], field, logits=logits_of(served.model, field.name))
        if chosen is not None:
            answers.setdefault(field.name + CLASS, chosen)
    return {name: plain(answer) for name, answer in answers.items()}


def features_that_differ(served: ServedModel, module: ServedModule, probe: Probe) -> list[str]:
    """Return the names of the features that the model sees otherwise in the export than in training."""
    trained = _seen_in_training(served, probe)
    exported = tf.function(module.model_inputs, autograph=False)(
        {name: tf.constant(column) for name, column in raw_columns(served.schema, probe.features).items()}
    )
    return sorted(
        name
        for name in trained.keys() | exported.keys()
        if name not in trained
        or name not in exported
        or not np.array_equal(_comparable(trained[name]), _comparable(exported[name]))
    )


def _seen_in_training(served: ServedModel, probe: Probe) -> Mapping[str, Any]:
    preprocess = None if served.preprocess is None else tf.function(served.preprocess)
    features: Mapping[str, Any]
    features, _, _ = _second_time(
        lambda *rows: flat_preprocess(preprocess, *rows),
        {name: tf.constant(column) for name, column in probe.features.items()},
        {name: tf.constant(column) for name, column in probe.labels.items()},
        tf.ones([len(next(iter(probe.features.values())))]),
    )
    return features


def _second_time(function: Callable[..., Any], *given: Any) -> Any:
    """Return what a function gives when it is called again.

    What draws random numbers then gives others than a fresh process, also where both draw them from the same seed.
    """
    function(*given)
    return function(*given)


def _comparable(tensor: Any) -> Column:
    """Return a column in which a NaN equals itself."""
    column = plain(tensor)
    return np.nan_to_num(column, nan=np.inf) if column.dtype.kind == "f" else column
