"""Labels that a row may lack: the output's weight is 0 for such a row, in the loss and in the metrics of that output.

Keras takes a weight for each output, in the structure of the outputs. Its mean is over all rows of the batch, so a row
pulls an output with 1/B or not at all, whatever the rows beside it have. What stands in the place of a label that is
missing is replaced by the label of another row: a NaN times 0 would be a NaN.

Pure functions of tensors; they run while a step is being traced.
"""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from millrace.pipelines.stream.label_masks import apart, masks_of
from millrace.training.model.setup.keras_internals import output_structure


def weighed_by_output(model: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
    """Return labels and weights as the model takes them: the weights as they are, unless rows may lack a label."""
    masks = masks_of(labels)
    if not masks:
        return labels, weights
    plain, _ = apart(labels)
    y = {name: _filled(label, masks[name]) if name in masks else label for name, label in plain.items()}
    by_name = {name: weights * tf.cast(masks[name], weights.dtype) if name in masks else weights for name in y}
    outputs = output_structure(model)
    if isinstance(outputs, list | tuple):
        return y, [by_name.get(name, weights) for name in model.output_names]
    if isinstance(outputs, Mapping):
        return y, {**dict.fromkeys(outputs, weights), **by_name}
    return y, by_name


def present_by_output(labels: Any, present: Any) -> dict[str, Any]:
    """Return the presence of each row for each output whose label it may lack."""
    return {name: present * tf.cast(mask, present.dtype) for name, mask in masks_of(labels).items()}


def _filled(label: Any, mask: Any) -> Any:
    """Return a label with that of the first row that has one in the places of those that have none."""
    mask = tf.cast(mask, tf.bool)
    first = label[tf.argmax(tf.cast(mask, tf.int32))]
    if label.dtype.is_floating:
        first = tf.where(tf.math.is_finite(first), first, tf.zeros_like(first))
    return tf.where(tf.reshape(mask, [-1, *[1] * (label.shape.rank - 1)]), label, first)
