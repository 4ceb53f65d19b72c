"""A model as a TensorFlow SavedModel: raw features in, by the schema's names and types; answers out, with class names.

A `tf.Module` with one `tf.function`, in which the user's `preprocess` runs, and of which `tf.saved_model.save` writes
each weight once (Keras' own `export` writes it twice). Runs in a process of its own, beside a trainer.

The signature `serving_default` takes:

- a feature of one shape as it is, the rows first;
- a list of varying length (`pad` or `ragged`) as `<name>_values` and `<name>_row_splits`, an int64; the function cuts,
  pads and counts it as the decoder does, so nobody sends a padding or a length;
- a feature of listed texts (`one_of` with an integer dtype) as text; the function looks its place up, and raises for a
  text that is not listed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import tensorflow as tf

from millrace.pipelines.schema import Field, Schema
from millrace.pipelines.stream.dataset import flat_preprocess
from millrace.training.errors import ModelError
from millrace.training.model.call.compiled_call import as_the_model_takes_it
from millrace.training.model.export.answers import SIGNATURE, SPLITS, VALUES
from millrace.training.model.probes import make_probe
from millrace.training.model.setup.keras_internals import arguments_of, converted, layers_of

CLASS = "_class"
_NEITHER = "records.features"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What is exported."""

    model: Any
    schema: Schema
    preprocess: Callable[..., Any] | None
    corrected: Callable[[Any], Any] | None = None
    """Makes of the model's one output what it would be without a balance of classes."""


def require_servable(schema: Schema) -> None:
    """Raise ModelError where two inputs of the signature would have one name."""
    names = [name for field in schema.features for name in input_names(field)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ModelError(
            f"{_NEITHER}: {twice!r} is a feature, and the export needs that name for a list of varying length, which "
            "goes in as values and row splits; give one of them another name"
        )


def input_names(field: Field) -> tuple[str, ...]:
    """Return the names of the tensors in which a feature comes."""
    return (field.name,) if field.pad is None else (field.name + VALUES, field.name + SPLITS)


class ServedModule(tf.Module):  # type: ignore[misc]  # to mypy TensorFlow's classes are Any
    """The function that is exported, and what it holds."""

    def __init__(self, served: ServedModel) -> None:
        super().__init__(name="millrace")
        require_servable(served.schema)
        self.served = served
        self._tables = {field.name: _table(field) for field in served.schema.features if field.classes is not None}
        self._held: list[Any] = []
        self.answer = tf.function(self._answer, input_signature=[self._specs()], autograph=False)

    def model_inputs(self, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what `preprocess` makes of raw features, by name."""
        features = self._decoded(raw)
        rows = tf.shape(next(iter(features.values())))[0]
        # `preprocess` is given labels, and the export has none: any that the schema allows.
        label = make_probe(self.served.schema, 1).labels
        labels = {name: tf.repeat(tf.constant(column), rows, axis=0) for name, column in label.items()}
        # Traced as the dataset traces it; AutoGraph rewrites it and nothing of ours.
        preprocess = None if self.served.preprocess is None else tf.function(self.served.preprocess)
        return flat_preprocess(preprocess, features, labels, tf.ones([rows]))[0]

    def save(self, folder: Path, user_code: Sequence[ModuleType]) -> None:
        """Write the SavedModel, with every variable and table that the function reads."""
        concrete = self.answer.get_concrete_function()
        ours = self._tables.values()
        # The user's files hold variables and tables under names of their own.
        named = chain.from_iterable(vars(module).values() for module in user_code)
        beside = chain.from_iterable(map(_leaves, named))
        self._held = _held_by(concrete, chain(ours, _of_model(self.served.model), beside))
        tf.saved_model.save(self, str(folder), signatures={SIGNATURE: concrete})

    def inputs(self) -> dict[str, dict[str, Any]]:
        """Return what goes in, as the manifest says it."""
        return {field.name: _described(field) for field in self.served.schema.features}

    def outputs(self) -> dict[str, dict[str, Any]]:
        """Return what comes out, as the manifest says it."""
        found = self.answer.get_concrete_function().structured_outputs
        return {
            name: {"dtype": tensor.dtype.name, "shape": list(tensor.shape[1:])}
            for name, tensor in sorted(found.items())
        }

    def classes(self) -> dict[str, list[str]]:
        """Return the names of the classes, by the output that answers with one of them."""
        outputs = self.outputs()
        named = {name: field.classes for name, field in self._labels(outputs).items() if field.classes is not None}
        return {name: list(classes) for name, classes in named.items() if name + CLASS in outputs}

    def _specs(self) -> dict[str, Any]:
        specs = {}
        for field in self.served.schema.features:
            shape = field.shape if field.pad is None else field.shape[1:]
            dtype = tf.string if field.classes is not None else tf.as_dtype(field.dtype)
            names = input_names(field)
            specs[names[0]] = tf.TensorSpec([None, *shape], dtype, names[0])
            if field.pad is not None:
                specs[names[1]] = tf.TensorSpec([None], tf.int64, names[1])
        return specs

    def _answer(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        x, _, _ = as_the_model_takes_it(self.served.model, self.model_inputs(raw), {}, None)
        called = converted(self.served.model.__call__)(x, training=False)
        answers = by_name(self.served.model, self.served.schema, called)
        if self.served.corrected is not None:
            answers = {name: self.served.corrected(answer) for name, answer in answers.items()}
        for name, field in self._labels(answers).items():
            chosen = class_of(answers[name], field, logits=logits_of(self.served.model, name))
            if chosen is not None and name + CLASS not in answers:
                answers[name + CLASS] = chosen
        return {name: tf.identity(answer, name) for name, answer in answers.items()}

    def _labels(self, answers: Mapping[str, Any]) -> dict[str, Field]:
        """Return the labels whose names are those of outputs."""
        return {field.name: field for field in self.served.schema.labels if field.name in answers}

    def _decoded(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Return the features as the dataset has them."""
        features: dict[str, Any] = {}
        for field in self.served.schema.features:
            names = input_names(field)
            values = raw[names[0]]
            if field.classes is not None:
                values = self._place_of(field, values)
            if field.pad is None:
                features[field.name] = values
                continue
            ragged = tf.RaggedTensor.from_row_splits(values, raw[names[1]])
            padding = tf.constant(field.pad, tf.as_dtype(field.dtype))
            features[field.name] = ragged.to_tensor(padding, shape=[None, *field.shape])
            if field.lengths is not None:
                lengths = tf.minimum(ragged.row_lengths(), field.shape[0])
                features[field.lengths.name] = tf.cast(lengths, tf.int32)
        return features

    def _place_of(self, field: Field, texts: Any) -> Any:
        places = self._tables[field.name].lookup(texts)
        listed = tf.debugging.assert_greater_equal(
            places, tf.constant(0, tf.int64), f"{field.name}: a text is none of those that records.features lists"
        )
        with tf.control_dependencies([listed]):
            return tf.cast(places, tf.as_dtype(field.dtype))


def by_name(model: Any, schema: Schema, answers: Any) -> dict[str, Any]:
    """Return the model's outputs by name: a mapping's keys, or the label's name where there is one of each."""
    if isinstance(answers, Mapping):
        return {str(name): answer for name, answer in answers.items()}
    if isinstance(answers, list | tuple):
        names = getattr(model, "output_names", None) or [f"output_{at}" for at in range(len(answers))]
        return dict(zip(names, answers, strict=True))
    if len(schema.labels) == 1:
        return {schema.labels[0].name: answers}
    names = getattr(model, "output_names", None) or ["output"]
    return {names[0]: answers}


def class_of(answer: Any, label: Field, *, logits: bool) -> Any:
    """Return the name of each row's class; None where the label names none, or the answer has no such form."""
    if label.classes is None or answer.shape.rank not in {1, 2} or not answer.dtype.is_floating:
        return None
    columns = answer.shape[-1] if answer.shape.rank == 2 else 1
    if columns == len(label.classes) and columns > 1:
        chosen = tf.argmax(answer, axis=-1)
    elif columns == 1 and len(label.classes) == 2:
        chosen = tf.cast(tf.reshape(answer, [-1]) > (0.0 if logits else 0.5), tf.int64)
    else:
        return None
    return tf.gather(tf.constant(label.classes), chosen)


def logits_of(model: Any, output: str) -> bool:
    """Return whether the loss of an output says that it is a logit."""
    loss = getattr(model, "loss", None)
    if isinstance(loss, Mapping):
        loss = loss.get(output)
    return bool(arguments_of(loss).get("from_logits", False))


def _table(field: Field) -> Any:
    classes = field.classes or ()
    pairs = tf.lookup.KeyValueTensorInitializer(tf.constant(classes), tf.range(len(classes), dtype=tf.int64))
    return tf.lookup.StaticHashTable(pairs, default_value=-1)


def _described(field: Field) -> dict[str, Any]:
    about: dict[str, Any] = {
        "dtype": "string" if field.classes is not None else field.dtype,
        "shape": list(field.shape),
    }
    if field.pad is not None:
        about["ragged"] = True
    if field.classes is not None:
        about["classes"] = list(field.classes)
    return about


def _held_by(concrete: Any, candidates: Iterator[Any]) -> list[Any]:
    """Return the variables and tables that a function reads; ModelError where one has no owner that is known."""
    wanted = {id(captured): captured for captured in concrete.captured_inputs if captured.dtype == tf.resource}
    held = []
    for one in candidates:
        handle = getattr(one, "handle", None) if isinstance(one, tf.Variable) else getattr(one, "resource_handle", None)
        if handle is not None and wanted.pop(id(handle), None) is not None:
            held.append(one)
    if wanted:
        raise ModelError(
            "model.build: the model or preprocess reads a variable or a lookup table that belongs neither to a layer "
            "nor to the model file; assign it to an attribute of its layer, or to a name in the file, and export again"
        )
    return held


def _of_model(model: Any) -> Iterator[Any]:
    """Yield the model's variables, and what its layers hold."""
    for variable in model.variables:
        yield getattr(variable, "value", variable)
    for layer in layers_of(model):
        for value in vars(layer).values():
            yield from _leaves(value)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list | tuple):
        yield from value
    else:
        yield value
