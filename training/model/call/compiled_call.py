"""One block as one compiled call: a loop over k batches in the graph, `strategy.run` inside it, k a tensor.

Each replica takes its rows of a batch by its own number and runs the model's `train_step`, Keras' own or the user's.
The rows are scored as they came, and learnt as `training/model/call/call_shaping.py` makes them.
With `passes` each batch is learnt so often in succession, by a loop in the graph: the first pass scores it, later ones
may take recent rows in its place, and all of its updates are applied or none. Batch by batch and not block by block, so
that the weights do not depend on how many batches a call happens to have. The trainer settles a block by what its call
returns, and never looks inside a call.

Owns the traced function and everything it closes over (finite guard, metrics, witness); runs on the trainer's thread.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.pipelines.schema import RAGGED
from millrace.pipelines.stream.assert_messages import note_assertion, stated_texts
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import replica_rows
from millrace.training.errors import ModelError
from millrace.training.model.call.added_losses import AddedLosses
from millrace.training.model.call.call_shaping import CallShaping, Shaping, ShapingOptions
from millrace.training.model.call.finite_guard import FiniteGuard
from millrace.training.model.call.gradient_projection import projected
from millrace.training.model.call.metrics import CompiledMetrics
from millrace.training.model.call.output_weights import present_by_output, weighed_by_output
from millrace.training.model.call.replica_sums import summed
from millrace.training.model.call.running_scale import RunningScale
from millrace.training.model.call.witness import Witness
from millrace.training.model.setup.keras_internals import as_is, converted, has_loss
from millrace.training.model.setup.mixture import members_of
from millrace.training.model.variables import copies, model_variables, optimizer_variables, optimizers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """The outcome of a call that has returned."""

    finite: npt.NDArray[np.bool_]
    """By batch: whether its updates were applied, one a pass; all of them are, or none."""
    losses: npt.NDArray[np.float64]
    """By batch: the loss of the global batch, before its first update."""
    states: tuple[npt.NDArray[np.float64], ...]
    """The metrics' states over the batches that were applied."""
    outputs: npt.NDArray[np.float32]
    """By batch, row and column: what the metrics were given for each row, before its first update.

    No columns for a model of several outputs, with more than `MOST_COLUMNS`, or with a `compute_metrics` of its own.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """What one batch would have done to the weights by way of the optimizers."""

    gradients: Mapping[tuple[int, str, str], npt.NDArray[np.float64]]
    """By the number of the update, its optimizer and the variable: the gradient summed over the replicas, projected."""
    loss: float
    """As the live metrics count it; NaN where the step reports none."""
    graph: Any
    """The graph in which it was computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """How a call is built."""

    batch_size: int
    scale: RunningScale
    """What the features are scaled by, before all else."""
    passes: int = 1
    """How often each batch is learnt."""
    inference_pass: bool = False
    """Score by an inference pass before the first update, for a model that behaves differently in training."""
    shaping: ShapingOptions = field(default_factory=ShapingOptions)
    """What is learnt where it differs from what came; with `augment`, `inference_pass` has to be true."""


class TrainingCall:
    """The compiled call on one model. Build it inside the strategy's scope, on a built model."""

    def __init__(self, model: Any, strategy: Any, witness: Witness, options: CallOptions) -> None:
        self.model = model
        self.strategy = strategy
        self.witness = witness
        self.metrics = CompiledMetrics(model)
        self.options = options
        self._finite_guard = FiniteGuard(model)
        self._added_losses = AddedLosses(model)
        self._names = {id(variable): key for key, variable in model_variables(model).items()}
        self._optimizer_variables = list(optimizer_variables(model).values())
        self._function = tf.function(self._call, reduce_retracing=True, autograph=False)
        self._train_step = converted(model.train_step)
        self._members = members_of(model)
        self._later_steps = [*map(converted, model.steps)] if self._members else [self._train_step]
        """What learns the rows of a later pass: in a mixture each member its own."""
        self.shaping = CallShaping(model, strategy, witness, options.shaping)
        if not options.inference_pass:
            self.shaping.score_in_step(model, self._finite_guard, self._added_losses)
        self._stated_texts: frozenset[str] | None = None
        self._recorder = tf.function(self._record, autograph=False)

    def __call__(
        self, rows: Rows, *, passes: int | None = None, visit: int | None = 0, replay: bool = True
    ) -> CallResult:
        """Run the block; returns when all of it has been computed. `passes` may ask for fewer than the options do.

        `visit` says how often these rows were learnt before, so that `augment` draws other numbers and the reservoir
        keeps each once; with None the rows are learnt as they are, and not kept. Without `replay` no other row is
        learnt beside them, or in a later pass.
        """
        passes = self.options.passes if passes is None else passes
        if not 1 <= passes <= self.options.passes:
            raise ValueError(f"{passes} passes, where the call was built for 1 to {self.options.passes}")
        if not self._function.experimental_get_tracing_count():
            self.traced(rows)  # for any number of batches: else the next number would trace it again
        try:
            with self.strategy.scope():
                # One tensor for all, as each argument of a call takes its time.
                how = tf.constant([passes, -1 if visit is None else visit, int(replay and visit is not None)])
                finite, losses, states, outputs = self._function(how, *rows)
        except tf.errors.OpError as error:
            # It was traced before it raised, so what its assertions state is known.
            if self._stated_texts is None:
                self._stated_texts = stated_texts(self.traced(rows).graph)
            note_assertion(error, self._stated_texts)
            raise
        return CallResult(
            finite=finite.numpy(),
            losses=losses.numpy().astype(np.float64),
            states=tuple(np.array(state.numpy(), np.float64) for state in states),
            outputs=outputs.numpy(),
        )

    def traced(self, rows: Rows) -> Any:
        """Return the concrete function for any number of batches as these, so that its graph can be inspected."""
        specs = tf.nest.map_structure(lambda column: tf.TensorSpec([None, *column.shape[1:]], column.dtype), rows)
        with self.strategy.scope():
            return self._function.get_concrete_function(tf.TensorSpec([3], tf.int32), *specs)

    @property
    def adds_loss_of_batches(self) -> bool:
        """Whether a layer added a loss of one number for all rows when the step was traced."""
        return self._added_losses.of_batches

    def record(self, rows: Rows) -> RecordedStep:
        """Run a block's first batch, of any size, without an update; return what would reach the optimizers.

        What the step changes otherwise (seeds, statistics, weights that it assigns by itself) is changed.
        """
        features = self.options.scale.as_it_stands(rows.features, tried=True)
        batch = tf.nest.map_structure(lambda column: column[0], (features, rows.labels, rows.weights, rows.offsets))
        with self.strategy.scope(), self._finite_guard.recording():
            graph = self._recorder.get_concrete_function(*batch).graph
            try:
                gradients, loss = self._recorder(*batch)
            except tf.errors.OpError as error:
                note_assertion(error, stated_texts(graph))
                raise
        return RecordedStep(
            gradients={place: np.asarray(gradient, np.float64) for place, gradient in gradients.items()},
            loss=float(loss),
            graph=graph,
        )

    def _call(self, how: Any, features: Any, labels: Any, weights: Any, offsets: Any, partitions: Any) -> Any:
        self.metrics.reset()
        batches = tf.shape(weights)[0]
        rows = Rows(features, labels, weights, offsets, partitions)
        scale = self.options.scale
        scaling = scale.plan(rows, self.strategy, live=how[1] >= 0)
        features = scale.scaled(features, scaling)
        rows = rows._replace(features=features)
        plan = self.shaping.plan(rows, how[1], replay=how[2] > 0)

        def learn(index: Any, finite: Any, losses: Any, outputs: Any) -> Any:
            batch = tf.nest.map_structure(lambda column: column[index], (features, labels, weights, offsets))
            shaping = self.shaping.of_batch(plan, index, offsets[index, 0], partitions[index, 0])
            applied, loss, output = self._learn_batch(how[0], batch, shaping)
            return index + 1, finite.write(index, applied), losses.write(index, loss), outputs.write(index, output)

        # `strategy.run` lies inside of the loop: a loop inside of the replica function fails at its first merge_call.
        arrays = [tf.TensorArray(dtype, size=batches) for dtype in (tf.bool, tf.float32, tf.float32)]
        _, finite, losses, outputs = tf.while_loop(lambda index, *_: index < batches, learn, (tf.constant(0), *arrays))
        applied = finite.stack()
        seen = tf.logical_and(offsets >= 0, applied[:, tf.newaxis])
        scale.count(scaling, applied)
        self.shaping.ended(plan, rows, applied, seen)
        self.witness.add(offsets, partitions, seen)
        sums = self.strategy.run(self.metrics.read)
        states = [self.strategy.experimental_local_results(each)[0] for each in sums]
        return applied, losses.stack(), states, outputs.stack()

    def _record(self, features: Any, labels: Any, weights: Any, offsets: Any) -> Any:
        if not self.metrics.separate:
            self.metrics.reset()
        gradients, shares = self.strategy.run(self._recorded_step, args=(features, labels, weights, offsets))
        total = partial(self.strategy.reduce, tf.distribute.ReduceOp.SUM, axis=None)
        return {place: total(gradient) for place, gradient in gradients.items()}, total(shares)

    def _learn_batch(self, passes: Any, batch: Any, shaping: Shaping) -> Any:
        """Learn one batch on all replicas, in all passes. Where an update is not finite, undo what has changed."""
        # With one pass weights and optimizer are not among them: the finite guard keeps a bad update away from these.
        # Of several passes or optimizers some may have made their updates before another's was found to be bad.
        guarded = [*self.model.non_trainable_variables, *self.metrics.variables]
        if self.options.passes > 1 or len(optimizers_of(self.model)) > 1:
            guarded += [*self.model.trainable_variables, *self._optimizer_variables]
        # By the copies: to read what is reduced on read, as metrics are, takes a collective for each variable.
        guarded = [copy for variable in guarded for copy in copies(variable)]
        before = [copy.read_value() for copy in guarded]
        verdicts, losses, apart, portions = self.strategy.run(self._first_step, args=(*batch, shaping))
        # Any replica answers for all: each verdict comes out of a merge_call, which runs once for all of them, and each
        # loss is the global batch's.
        applied = self.strategy.experimental_local_results(verdicts)[0]
        loss = self.strategy.experimental_local_results(losses)[0]
        young = None
        if self._members:
            _, _, weights, offsets = batch
            apart = [self.strategy.experimental_local_results(one)[0] for one in apart]
            here = tf.math.count_nonzero(offsets >= 0)
            young = self.model.note(tf.stack(apart) * weights.shape[0], here)
        if self.options.passes > 1:
            shaping = self.shaping.entered(batch, shaping, young)
            applied = self._learn_again(applied, passes, batch, shaping)

        def undo() -> Any:
            for copy, value in zip(guarded, before, strict=True):
                copy.assign(value)
            return tf.constant(False)  # noqa: FBT003 - a tensor's value

        if guarded:
            applied = tf.cond(applied, lambda: tf.constant(True), undo)  # noqa: FBT003 - a tensor's value
        self.shaping.left(shaping, applied)
        portions = self.strategy.experimental_local_results(portions)
        return applied, loss, portions[0] if len(portions) == 1 else tf.concat(portions, 0)

    def _learn_again(self, applied: Any, passes: Any, batch: Any, shaping: Shaping) -> Any:
        """Run the passes after the first one, up to one whose update is not finite; return whether all were applied."""

        def again(applied: Any, done: Any) -> Any:
            for number, step in enumerate(self._later_steps):
                rows, shaped = self.shaping.again(batch, shaping, done, number)
                verdicts = self.strategy.run(partial(self._later_step, step), args=(*rows, shaped))
                applied = tf.logical_and(applied, self.strategy.experimental_local_results(verdicts)[0])
            return applied, done + 1

        # A loop in the graph: unrolled, the graph and its tracing would grow with the number of passes.
        applied, _ = tf.while_loop(
            lambda applied, done: tf.logical_and(applied, done < passes), again, (applied, tf.constant(1))
        )
        return applied

    @as_is
    def _first_step(self, features: Any, labels: Any, weights: Any, offsets: Any, shaping: Shaping) -> Any:
        """Score the replica's rows and learn them."""
        mine = self._open(features, labels, weights, offsets)
        if self.options.inference_pass:
            # Score before learning, as the model will behave in use; the training pass is then not counted.
            x, y, w = as_the_model_takes_it(self.model, *mine[:3])
            corrected = partial(self.shaping.corrected, class_weights=shaping.class_weights)
            if self._members:
                y_pred = self.model.scored(x, y, w, corrected)
                self._finite_guard.show_first_loss()
            else:
                y_pred = corrected(self.model(x, training=False))
            self.model.compute_metrics(x, y, y_pred, sample_weight=w)
            self.metrics.mute()
            if self.shaping.shapes and has_loss(self.model) and not self._members:
                self.model.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=w, training=False)
                self._finite_guard.show_first_loss()
        else:
            self.shaping.scored_in_step(mine[2], weighed_by_output(self.model, *mine[1:3])[1], shaping)
        logs = self._train_step(self._as_learnt(mine, shaping))
        # The loss is that of the global batch, on every replica.
        verdict, loss = self._finite_guard.verdict(), self._finite_guard.total_loss()
        if loss is None:
            [loss] = summed(tf.distribute.get_replica_context(), [self._share_of_loss(logs)])
        apart = [*self._finite_guard.first_totals(1 + len(self._members))[1:]]
        return verdict, loss, apart, _columns(self.metrics.given, mine[3])

    @as_is
    def _later_step(
        self, step: Callable[[Any], Any], features: Any, labels: Any, weights: Any, offsets: Any, shaping: Shaping
    ) -> Any:
        """Learn the replica's rows of a further pass, which are not scored."""
        mine = self._open(features, labels, weights, offsets)
        self.metrics.mute()
        step(self._as_learnt(mine, shaping))
        return self._finite_guard.verdict()

    def _as_learnt(self, mine: tuple[Any, Any, Any, Any], shaping: Shaping) -> tuple[Any, Any, Any]:
        """Return the rows as the model learns them."""
        x, y, w = self.shaping.learnt(mine, shaping, self.own_rows)
        self._added_losses.open(w)
        return as_the_model_takes_it(self.model, x, y, w)

    @as_is
    def _recorded_step(self, features: Any, labels: Any, weights: Any, offsets: Any) -> Any:
        batch = self.open_step(features, labels, weights, offsets)
        self.metrics.skip()
        logs = self._train_step(batch)
        gradients = {
            (at, update.optimizer, self._names.get(id(variable), variable.name)): projected(gradient)
            for at, update in enumerate(self._finite_guard.updates())
            for variable, gradient in zip(update.variables, update.gradients, strict=True)
            if gradient is not None
        }
        return gradients, self._share_of_loss(logs)

    def open_step(self, features: Any, labels: Any, weights: Any, offsets: Any) -> tuple[Any, Any, Any]:
        """Begin the tracing of a step: return the replica's own rows as the model takes them."""
        return as_the_model_takes_it(self.model, *self._open(features, labels, weights, offsets)[:3])

    def _open(self, features: Any, labels: Any, weights: Any, offsets: Any) -> tuple[Any, Any, Any, Any]:
        """Begin the tracing of a step: return the replica's own rows, and their offsets."""
        mine = self.own_rows(weights.shape[0])
        x, y, w, o = tf.nest.map_structure(lambda column: column[mine], (features, labels, weights, offsets))
        self._finite_guard.open()
        self._added_losses.open(w)
        self.shaping.open()
        present = tf.cast(o >= 0, tf.float32)
        self.metrics.open(present, present_by_output(y, present))
        return x, y, w, o

    @property
    def _here(self) -> int:
        """The number of replicas of this process."""
        return len(self.strategy.extended.worker_devices)

    def own_rows(self, size: int) -> slice:
        """Return which of a batch's rows are the replica's."""
        context, here = tf.distribute.get_replica_context(), self._here
        replica = context.replica_id_in_sync_group
        # The replicas of several processes are numbered through; the rows at hand are those of this process.
        return replica_rows(size, here, replica if here == context.num_replicas_in_sync else replica % here)

    def _share_of_loss(self, logs: Any) -> Any:
        """Return the replica's portion of the batch's loss: the portions add up to the loss of the global batch."""
        share = self._finite_guard.loss()
        if share is None:
            # Keras' own steps report the mean over the replica's rows, and so does one of the user's.
            share = tf.cast(logs.get("loss", float("nan")), tf.float32) / self.strategy.num_replicas_in_sync
        return tf.cast(share, tf.float32)


MOST_COLUMNS = 64
"""Columns of an output whose rows a call returns: of more, as of images, the copies would take their time."""


def _columns(output: Any, offsets: Any) -> Any:
    """Return an output as columns, a row for each offset; none of one that is not a row of few numbers each."""
    shape = tf.TensorShape(getattr(output, "shape", None))
    columns = 0 if shape.rank not in {1, 2} else 1 if shape.rank == 1 else shape[1] or 0
    if not 0 < columns <= MOST_COLUMNS or not shape[:1].is_compatible_with(offsets.shape):
        return tf.zeros([tf.shape(offsets)[0], 0])
    # No operation more than is needed: each is run once a batch.
    found = tf.cast(output, tf.float32)
    return found[:, None] if shape.rank == 1 else found


def batch_of(rows: Rows, index: int) -> Rows:
    """Return one batch of a block, as a block of its own."""
    batch: Rows = tf.nest.map_structure(lambda column: column[index : index + 1], rows)
    return batch


def first_batch(model: Any, rows: Rows) -> tuple[Any, Any, Any]:
    """Return the first batch of a block as the model's `train_step` takes it."""
    x, y, w = tf.nest.map_structure(lambda column: column[0], (rows.features, rows.labels, rows.weights))
    return as_the_model_takes_it(model, x, y, w)


def as_the_model_takes_it(model: Any, x: Any, y: Any, w: Any) -> tuple[Any, Any, Any]:
    """Return features, labels and weights as the model takes them. Without labels (`NO_LABEL`), y is x.

    Features stay a mapping by name, except that a model with one unnamed input gets the only feature bare. Ragged
    features travel padded, with their lengths beside them, so that every block has one shape; here they become ragged.
    If rows may lack a label, the weights are those of each output.
    """
    y, w = weighed_by_output(model, y, w)
    x = _with_ragged(x)
    # Private, because the public `inputs` is a flat list that does not tell a mapping from a bare input.
    inputs = getattr(model, "_inputs_struct", None)
    if len(x) == 1 and inputs is not None and not isinstance(inputs, dict):
        x = next(iter(x.values()))
    elif inputs is not None and type(inputs).__name__ == "TrackedDict":
        x = type(inputs)(x)  # as a FeatureSpace gives its inputs; Keras warns of any other mapping
    return x, x if isinstance(y, Mapping) and not y else y, w


def _with_ragged(x: Mapping[str, Any]) -> dict[str, Any]:
    names = {name.removesuffix(RAGGED) for name in x if name.endswith(RAGGED)}
    rows = {name: column for name, column in x.items() if not name.endswith(RAGGED)}
    if lost := sorted(names - rows.keys()):
        raise ModelError(f"preprocess gives {lost[0] + RAGGED!r} and not {lost[0]!r}; have it give both, or neither")
    return rows | {
        name: tf.RaggedTensor.from_tensor(x[name], lengths=tf.cast(x[name + RAGGED], tf.int64)) for name in names
    }
