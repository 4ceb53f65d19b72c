"""The learner: the user's model under the strategy, its compiled call, and its parts of a checkpoint.

Owns the model from its building on; everything that touches TensorFlow variables goes through it. Runs on the starting
thread while it is built and on the trainer's thread from then on.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from millrace.consumers.errors import ConfigError
from millrace.pipelines.schema import Schema
from millrace.pipelines.shaping import BalanceSettings, ReservoirSettings
from millrace.pipelines.shaping.augmentation import Augmentation
from millrace.pipelines.shaping.options import Augment
from millrace.pipelines.stream.blocks import Rows
from millrace.pipelines.stream.dataset import flat_preprocess
from millrace.training.checkpoints.parts import Part
from millrace.training.errors import ModelError, gist, op_gist
from millrace.training.model.call.call_shaping import ShapingOptions
from millrace.training.model.call.compiled_call import CallOptions, CallResult, TrainingCall, batch_of, first_batch
from millrace.training.model.call.culprit_search import Culprits, CulpritSearch, Places, alone
from millrace.training.model.call.finite_guard import FiniteLook
from millrace.training.model.call.metrics import metric_at_fault, metric_refusal, scores_by_itself, weights_given
from millrace.training.model.call.recent_rows import RecentRows
from millrace.training.model.call.reservoir import Reservoir
from millrace.training.model.call.running_scale import RunningScale
from millrace.training.model.call.witness import Witness
from millrace.training.model.probes import Probe, ProbeRows, ReadSample
from millrace.training.model.setup.build_errors import check_inputs, explained, unadapted
from millrace.training.model.setup.keras_internals import build, converted
from millrace.training.model.setup.mixture import MixedModel
from millrace.training.model.setup.strategy import DeviceOptions, make_strategy
from millrace.training.model.variables import (
    VariablesPart,
    model_variables,
    optimizer_variables,
    rates_of,
    refuse_uncaptured,
)

log = logging.getLogger(__name__)


Preprocess = Callable[..., Any]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerOptions:
    """How a model is built and trained."""

    schema: Schema
    batch_size: int
    """Rows of a batch that this process takes: all of them, or its portion where it is a member of a group."""
    devices: DeviceOptions
    seed: int = 0
    samples: tuple[ReadSample, ...] = ()
    """Where real records for the probes come from, the best first."""
    passes: int = 1
    """How often each batch is learnt; it is scored before the first update and counts once."""
    memory: int | None = None
    """Of how many recent rows the passes after the first draw theirs; None repeats the batch."""
    members: int | None = None
    """The same for the members of a mixture: the most rows that one of them draws from. Then `memory` is None."""
    rows_together: bool = False
    """Whether the loss compares rows of a batch; then all batches are whole, and only whole ones are learnt."""
    augment: Augment | None = None
    """Makes the rows that are learnt of those that are scored."""
    balance: BalanceSettings | None = None
    """What the classes are to weigh in what is learnt."""
    reservoir: ReservoirSettings | None = None
    """What is remembered of what was learnt, to be learnt again."""
    beside: int | None = None
    """How many remembered rows are learnt beside each batch; None for as many as make the share, 0 for none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """The outcome of one block."""

    result: CallResult
    culprits: Culprits
    """Records without which the updates are finite; they are set aside."""


class Learner:
    """One model, built, wrapped and traced."""

    def __init__(self, build: Callable[[], Any], preprocess: Preprocess | None, options: LearnerOptions) -> None:
        self.options = options
        self._build_model = build
        self.preprocess = preprocess
        # Traced as the dataset traces it: what runs only eagerly must fail at the start and not in the stream.
        self._traced_preprocess = None if preprocess is None else tf.function(preprocess)
        self.strategy = make_strategy(options.devices)
        here = len(self.strategy.extended.worker_devices)
        if options.batch_size % here:
            raise ModelError(
                f"training.batch_size: {options.batch_size} does not divide into {here} replicas; "
                f"take a multiple of {here}"
            )
        self.probes = ProbeRows(options.schema, options.batch_size, options.samples)
        if preprocess is not None:
            keras.utils.set_random_seed(options.seed)  # op determinism refuses to trace a random op without a seed
            self._require_preprocess()
        if options.augment is not None:
            self._require_augment(options.augment)
        # Outside of the strategy's scope, where there would be one on each device.
        shaping = self._shaping()
        keras.utils.set_random_seed(options.seed)
        with self.strategy.scope():
            self.model = _checked(build())
            self.witness = Witness()
            check_inputs(self.model, self.rows_of(self.probe()))
            self._build()
            rows = self.rows_of(self.probe())
            self.scale = RunningScale(options.schema, rows)
            self.call = TrainingCall(
                self.model,
                self.strategy,
                self.witness,
                CallOptions(
                    batch_size=options.batch_size,
                    scale=self.scale,
                    passes=options.passes,
                    # Rows that are learnt otherwise than they came are scored apart from that; so is what the model's
                    # own code scores, which would count the rows that are given again.
                    inference_pass=options.augment is not None
                    or self._behaves_differently(rows)
                    or (shaping.gives_rows_again and scores_by_itself(self.model)),
                    shaping=shaping,
                ),
            )
        self.places: Places = alone
        """How the rows of a batch are numbered in a search for culprits; replaced in a group."""
        self._look = self._finite_look()

    def alone(self, batch_size: int) -> "Learner":
        """Build the same model again, by the same code, on one replica that takes batches of this size."""
        one = replace(self.options.devices, replicas=1, group=None)
        samples = (lambda: self.probes.sample,)
        unshaped = replace(self.options, augment=None, balance=None, memory=None, members=None)
        options = replace(unshaped, devices=one, batch_size=batch_size, samples=samples)
        if (kept := options.reservoir) is not None and self.call.shaping.reservoir is not None:
            # As many rows beside a batch, so that the others pull by as much; none of them is looked at.
            beside = self.call.shaping.reservoir.beside * batch_size // self.options.batch_size
            options = replace(options, reservoir=kept.model_copy(update={"size": 1, "by": None}), beside=beside)
        learner = Learner(self._build_model, self.preprocess, options)
        learner.scale.begin_as(self.scale)
        return learner

    @property
    def replicas(self) -> int:
        """The number of devices that share a batch."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def batch_size(self) -> int:
        """The rows of one update, those of all members of a group together."""
        return self.options.batch_size * self.replicas // len(self.strategy.extended.worker_devices)

    @property
    def devices(self) -> tuple[str, ...]:
        """The names of the replicas' devices, as in `CPU:0`."""
        return tuple(name.rpartition("device:")[2] for name in self.strategy.extended.worker_devices)

    @property
    def parameters(self) -> int:
        """The number of trainable parameters."""
        return sum(int(np.prod(variable.shape)) for variable in self.model.trainable_variables)

    @property
    def state_bytes(self) -> int:
        """The bytes that model and optimizer take in a checkpoint."""
        return sum(int(np.prod(v.shape)) * tf.as_dtype(v.dtype).size for v in self.variables)

    @property
    def learning_rate(self) -> float:
        """The rate that the next update takes."""
        return float(np.asarray(self.model.optimizer.learning_rate))

    @property
    def parts(self) -> tuple[Part, ...]:
        """The model's parts of a checkpoint. Seeds are among the model's variables."""
        return (
            VariablesPart("model", model_variables(self.model)),
            VariablesPart("optimizer", optimizer_variables(self.model), optional=rates_of(self.model)),
            self.witness,
            *((self.scale,) if self.scale.fields else ()),
            *(() if self.call.shaping.balance is None else (self.call.shaping.balance,)),
            *self.remembered,
        )

    @property
    def remembered(self) -> tuple[Reservoir | RecentRows, ...]:
        """What holds rows that were learnt; what the settings do not ask for is not among them."""
        shaping = self.call.shaping
        return tuple(one for one in (shaping.reservoir, shaping.recent) if one is not None)

    @property
    def mixtures(self) -> tuple[MixedModel, ...]:
        """The model, if it is one of members."""
        return (self.model,) if isinstance(self.model, MixedModel) else ()

    @property
    def variables(self) -> list[Any]:
        """Every variable of model and optimizers."""
        return [*model_variables(self.model).values(), *optimizer_variables(self.model).values()]

    @property
    def shaping_state(self) -> list[Any]:
        """Every variable of what scales and shapes the rows; the same on all members of a group."""
        balance = self.call.shaping.balance
        return [*self.scale.variables, *(() if balance is None else (balance.counts,))]

    @property
    def state(self) -> list[Any]:
        """Every variable of these parts."""
        rows = [variable for one in self.remembered for variable in one.variables]
        return [*self.variables, self.witness.variable, *self.shaping_state, *rows]

    def probe(self, seed: int = 1) -> Probe:
        """Return a batch that fits the schema: of real records where there are any, or made up."""
        return self.probes.batch(seed)

    def rows_of(self, probe: Probe, present: Mask | None = None) -> Rows:
        """Make a block of one batch from a probe; `present` says which rows are present, None that all are."""
        here = np.ones(self.options.batch_size, np.bool_) if present is None else present
        size = len(here)
        features, labels, tensor_weights = flat_preprocess(
            self._traced_preprocess,
            {name: tf.constant(column) for name, column in probe.features.items()},
            {name: tf.constant(column) for name, column in probe.labels.items()},
            tf.constant(here, tf.float32),
        )
        rows = Rows(
            features=features,
            labels=labels,
            weights=tensor_weights,
            offsets=tf.constant(np.where(here, np.arange(size), -1)),
            partitions=tf.zeros(size, tf.int32),
        )
        block: Rows = tf.nest.map_structure(lambda column: column[tf.newaxis], rows)
        return block

    def trace(self, rows: Rows, *, deterministic: bool) -> None:
        """Trace the call for any number of batches, and refuse a model with state that no part would save."""
        function = self.call.traced(rows)
        # Traces the results too, so that the first posting does not wait for it.
        self.call.metrics.results([np.zeros(variable.shape) for variable in self.call.metrics.variables])
        names = self.witness.identities  # made of what the ledger knows, so that no part needs to hold it
        refuse_uncaptured(function, [*self.state, *self.metric_variables(), names], deterministic=deterministic)

    def not_finite(self) -> list[str]:
        """Return the variables of model and optimizers that hold NaN or infinity; none where all are finite."""
        return self._look.not_finite()

    def metric_variables(self) -> list[Any]:
        """Return the states that each call resets, and the trackers of losses, which nothing reads."""
        return list(self.model.metrics_variables) + self.call.metrics.variables

    def learn(self, rows: Rows, *, replay: bool = True) -> Lesson:
        """Learn one block, all or nothing; search the batches whose update was not finite for the culprits."""
        result = self.call(rows, replay=replay)
        if result.finite.all():
            return Lesson(result=result, culprits=Culprits())
        # Without rows that are given again: one of these may be what makes an update infinite.
        search = CulpritSearch(
            partial(self.call, replay=False),
            lambda: self.rows_of(self.probe()),
            self.places,
            together=self.options.rows_together,
        )
        for index in np.flatnonzero(~result.finite):
            search.search(batch_of(rows, int(index)), int(index))
        return Lesson(result=search.merged(result), culprits=search.culprits)

    def _shaping(self) -> ShapingOptions:
        """Return what is learnt where it differs from what came; not to be called in the strategy's scope."""
        options, here = self.options, len(self.strategy.extended.worker_devices)
        reservoir = recent = None
        if options.reservoir is not None and options.reservoir.size is not None:
            share = options.reservoir.beside(options.batch_size, here)
            beside = share if options.beside is None else options.beside
            members, rows = self.strategy.num_replicas_in_sync // here, self.rows_of(self.probe())
            reservoir = Reservoir.of(options.reservoir, options.schema, beside, rows, options.seed, members)
        if (held := options.memory or options.members) is not None:
            several = 1 if options.members is None else 2
            recent = RecentRows(held, options.passes, self.rows_of(self.probe()), options.seed, several)
        return ShapingOptions(
            augment=options.augment, balance=options.balance, reservoir=reservoir, recent=recent, seed=options.seed
        )

    def _require_preprocess(self) -> None:
        """Run `preprocess` on probes; ConfigError where it runs on none."""

        def check(probe: Probe) -> None:
            self.rows_of(probe)

        try:
            self.probes.require(check)
        except ConfigError as error:
            # What raises for other reasons than the values of its rows is the code's fault on any rows.
            if not isinstance(error.__cause__, tf.errors.OpError):
                raise
            raise ConfigError(f"preprocess: {op_gist(error.__cause__)}, {self._way_out()}") from None

    def _require_augment(self, augment: Augment) -> None:
        """Run `augment` on probes, as the call will trace it; ConfigError where its rows do not fit."""
        if masked := [label.name for label in self.options.schema.labels if label.masked]:
            raise ConfigError(
                f"augment: records may lack the label {masked[0]!r} (mask), and a row that is mixed of several would "
                "have what stands for it; leave one of the two out"
            )
        function = tf.function(Augmentation(augment, traced_as=converted(augment)), autograph=False)

        def check(probe: Probe) -> None:
            rows = self.rows_of(probe)
            columns = tf.nest.map_structure(lambda column: column[0], (rows.features, rows.labels, rows.weights))
            try:
                function(*columns, tf.zeros([2], tf.int64))
            except tf.errors.OpError as error:
                raise ConfigError(f"augment: {op_gist(error)}, on rows of the schema") from error

        self.probes.require(check)

    def _way_out(self) -> str:
        """Say on which rows `preprocess` raised, and how to give it others."""
        texts = [field.name for field in self.options.schema.features if field.dtype == "string"]
        names = [field.name for field in self.options.schema.features if field.example is None]
        lacking = [name for name in texts if name in names] or names
        what = "give its features other examples, or correct it"
        if lacking:
            what = f"give {', '.join(f'records.features.{name}.example' for name in lacking)} a value that it can read"
        if not self.probes.tried:
            return f"on made-up rows, and the topic holds no record to try it on: {what}, or start when there are some"
        return f"on each of {self.probes.tried} records of the topic: correct it, or {what}"

    def _build(self) -> None:
        """Create every variable: layers, metrics, optimizer."""
        self._require_adapted()
        try:
            self.probes.require(self._infer)  # what it raises says more than Keras' "unable to build" does
            x, y, w = first_batch(self.model, self.rows_of(self.probe()))
            with weights_given(self.model):
                build(self.model, x, y, w)
        except (Exception, SystemExit) as error:
            if (metric := metric_at_fault(error)) is not None:
                raise ModelError(f"model.build: {metric_refusal(metric, error)}") from error
            why = explained(self.model, error) or gist(error)
            raise ModelError(f"model.build: the model does not build on the schema's rows: {why}") from error
        self._require_adapted()
        # Before the first call, because its traced loop cannot create variables.
        if self.model.optimizer is not None and not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)

    def _require_adapted(self) -> None:
        # Before the model is run as well: each row at which a table is not initialized is a line of TensorFlow's own.
        if (why := unadapted(self.model)) is not None:
            raise ModelError(f"model.build: {why}")

    def _finite_look(self) -> FiniteLook:
        """Return the look at this model's state; refuse one that can learn nothing from its first weights."""
        optimizers = {f"optimizer/{key}": variable for key, variable in optimizer_variables(self.model).items()}
        look = FiniteLook({**model_variables(self.model), **optimizers})
        weights = {id(variable) for variable in self.model.trainable_variables}
        known = model_variables(self.model)
        if bad := sorted(key for key in look.by_design if key not in known or id(known[key]) in weights):
            raise ModelError(f"model.build: {bad[0]} begins with NaN or infinity; look at its initializer")
        for key in sorted(look.by_design):
            log.warning("%s begins with NaN or infinity, so no checkpoint looks at whether it is finite", key)
        return look

    def _infer(self, probe: Probe) -> None:
        """Run the model on a probe as it will be used; what the pass moves (seeds) is put back."""
        x, _, _ = first_batch(self.model, self.rows_of(probe))
        moved = list(self.model.non_trainable_variables) if self.model.built else []
        before = [np.asarray(variable) for variable in moved]
        try:
            self.model(x, training=False)
        finally:
            for variable, value in zip(moved, before, strict=True):
                variable.assign(value)

    def _behaves_differently(self, rows: Rows) -> bool:
        """Return whether the training pass may score otherwise than the model in use, on any of the rows at hand."""
        if _behaves_differently(self.model, rows):
            return True
        if self.probes.sample is None:
            return False
        try:
            with self.probes.without_records():  # real rows may all be 0 where dropout would show
                return _behaves_differently(self.model, self.rows_of(self.probe()))
        except Exception:  # noqa: BLE001 - the user's own code may raise anything on made-up rows
            return False


def _checked(model: Any) -> Any:
    if model is None:
        raise ModelError("model.build: it returned None; end build_model with return model")
    if not isinstance(model, keras.Model):
        raise ModelError(f"model.build: it returned a {type(model).__name__}, not a keras.Model")
    if getattr(model, "optimizer", None) is None:
        raise ModelError(
            "model.build: the model is not compiled; end build_model with model.compile(optimizer=…, loss=…)"
        )
    if isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer):
        raise ModelError(
            "model.build: a LossScaleOptimizer drops updates by itself, so records would be lost; "
            "use the mixed_bfloat16 policy, which needs no loss scaling"
        )
    return model


def _behaves_differently(model: Any, rows: Rows) -> bool:
    """Return whether the training pass may score otherwise than the model in use.

    Its own `train_step`, dropout, or statistics over the batch are reasons.
    """
    if type(model).train_step is not keras.Model.train_step:
        return True
    x, _, _ = first_batch(model, rows)
    # A training pass moves the seeds of dropout and moving statistics; the model has to begin as it was built.
    seeds = list(model.non_trainable_variables)
    before = [np.asarray(variable) for variable in seeds]
    training, inference = model(x, training=True), model(x, training=False)
    for variable, value in zip(seeds, before, strict=True):
        variable.assign(value)
    pairs = zip(tf.nest.flatten(training), tf.nest.flatten(inference), strict=True)
    return not all(np.allclose(a, b, rtol=1e-4, atol=1e-6, equal_nan=True) for a, b in pairs)
