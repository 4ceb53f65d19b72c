"""What shapes the rows of a call between scoring and learning: rows of the past, weights of classes, `augment`.

The rows are scored as they came. They are learnt beside some of the reservoir's, then with the weights of their
classes, then as `augment` returns them; of these a model has none, some or all. With `training.memory` the later passes
take recent rows in place of the batch's, in the same way. For the proof rows are learnt as they are.

Owns all of these, and the scoring within the training pass. Its methods with tensors run while the call is traced.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from millrace.pipelines.shaping import BalanceSettings
from millrace.pipelines.shaping.augmentation import Augmentation, folded
from millrace.pipelines.shaping.options import Augment
from millrace.pipelines.stream.blocks import Rows
from millrace.training.model.call.added_losses import AddedLosses
from millrace.training.model.call.class_balance import BalancePlan, ClassBalance
from millrace.training.model.call.finite_guard import FiniteGuard
from millrace.training.model.call.recent_rows import RecentRows
from millrace.training.model.call.reservoir import Replays, Reservoir, beside
from millrace.training.model.call.step_scoring import StepScoring
from millrace.training.model.call.witness import Witness
from millrace.training.model.setup.keras_internals import converted


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapingOptions:
    """What is learnt where it differs from what came."""

    augment: Augment | None = None
    """Makes of the rows that are scored those that are learnt."""
    balance: BalanceSettings | None = None
    """What the classes are to weigh in what is learnt."""
    reservoir: Reservoir | None = None
    """Rows that are learnt again beside each batch."""
    recent: RecentRows | None = None
    """Rows that the later passes of a batch draw theirs of; None repeats the batch."""
    seed: int = 0
    """The seed of what `augment` draws, beside the batch's place in its partition."""

    @property
    def gives_rows_again(self) -> bool:
        """Whether the first pass has rows of the past beside those of the batch."""
        return self.reservoir is not None and self.reservoir.beside > 0


class CallPlan(NamedTuple):
    """What all batches of a call are shaped by; tensors [k, …], and empty where something has no part in it."""

    visit: Any
    """How often the rows were learnt before; negative where they are learnt as they came."""
    balance: Any
    replays: Any
    replay_factors: Any
    """By what the weights of these rows are multiplied, where classes are balanced."""
    recent: Any
    """By what the later passes draw."""


class Shaping(NamedTuple):
    """What the rows of one batch are shaped by; tensors."""

    visit: Any
    seed: Any
    """What `augment` draws by."""
    factors: Any
    """By what the weights of the rows are multiplied, where classes are balanced."""
    class_weights: Any
    replays: Any
    replay_factors: Any
    recent: Any
    """By what the later passes draw; once the batch has entered, what they take."""


Batch = tuple[Any, Any, Any, Any]
"""Features, labels, weights and offsets."""
Own = Callable[[int], slice]
"""Returns which of so many rows are the replica's."""


class CallShaping:
    """Shapes the rows of the calls of one model. Build it inside the strategy's scope."""

    def __init__(self, model: Any, strategy: Any, witness: Witness, options: ShapingOptions) -> None:
        self._strategy, self._witness, self._seed = strategy, witness, options.seed
        augment = options.augment
        self.balance = None if options.balance is None else ClassBalance(options.balance, model)
        self.reservoir, self.recent = options.reservoir, options.recent
        self._augmentation = None if augment is None else Augmentation(augment, traced_as=converted(augment))
        self._scoring: StepScoring | None = None

    @property
    def augments(self) -> bool:
        """Whether the rows of each pass are drawn."""
        return self._augmentation is not None

    @property
    def shapes(self) -> bool:
        """Whether anything is learnt otherwise than it came."""
        return self.augments or self.balance is not None or self._beside > 0

    @property
    def _beside(self) -> int:
        """How many rows of the past are learnt beside each batch."""
        return 0 if self.reservoir is None else self.reservoir.beside

    def score_in_step(self, model: Any, guard: FiniteGuard, added: AddedLosses) -> None:
        """Have the training pass score its rows as they came, so that no pass of its own is needed for that."""
        if self.shapes:
            self._scoring = StepScoring(model, guard, added)

    # Once a call, outside of replicas.

    def plan(self, rows: Rows, visit: Any, *, replay: Any) -> CallPlan:
        """Return what the batches of a call are shaped by."""
        balance: Any = ()
        replays: Any = ()
        factors: Any = ()
        if self.balance is not None:
            balance = self.balance.plan(
                (rows.features, rows.labels, rows.weights, rows.offsets), self._strategy, live=visit >= 0
            )
        if self.reservoir is not None and self._beside:
            replays = self.reservoir.draw(rows, self._witness.identity(), visit, replay=replay)
            if self.balance is not None:
                factors = self.balance.factors(replays.features, replays.labels, balance)
        recent: Any = ()
        if self.recent is not None:
            recent = self.recent.draws(rows, self._witness.identity(), visit, replay=replay)
        return CallPlan(visit, balance, replays, factors, recent)

    def of_batch(self, plan: CallPlan, index: Any, offset: Any, partition: Any) -> Shaping:
        """Return what shapes a batch that begins with this offset."""
        seed = tf.zeros([2], tf.int64)
        if self._augmentation is not None:
            identity = tf.gather(self._witness.identity(), tf.maximum(partition, 0))
            seed = folded(tf.constant([self._seed, 0], tf.int64), identity, offset, plan.visit)
        factors, class_weights = tf.zeros([1]), tf.ones([1])
        if self.balance is not None:
            factors, class_weights = plan.balance.factors[index], plan.balance.class_weights[index]
        replays, replay_factors = tf.nest.map_structure(
            lambda column: column[index], (plan.replays, plan.replay_factors)
        )
        recent = plan.recent
        if self.recent is not None:
            live = recent.live
            recent = tf.nest.map_structure(lambda column: column[index], recent._replace(live=()))._replace(live=live)
        return Shaping(plan.visit, seed, factors, class_weights, replays, replay_factors, recent)

    def entered(self, batch: Batch, shaping: Shaping, young: Any) -> Shaping:
        """Return what shapes a batch in its later passes, which may draw from it too; `young` as in `RecentRows`."""
        if self.recent is None:
            return shaping
        return shaping._replace(recent=self.recent.enter(Rows(*batch, ()), shaping.recent, young))

    def again(self, batch: Batch, shaping: Shaping, done: Any, member: int) -> tuple[Batch, Shaping]:
        """Return what a further pass of a member learns, and what shapes it."""
        if self._augmentation is not None:
            shaping = shaping._replace(seed=folded(shaping.seed, done))
        if self.recent is None:
            return batch, shaping
        rows = self.recent.take(shaping.recent, done - 1, Rows(*batch, ()), member)
        batch = (rows.features, rows.labels, rows.weights, rows.offsets)
        if self.balance is not None:
            x, y = tf.nest.map_structure(lambda column: column[tf.newaxis], (rows.features, rows.labels))
            weighed = BalancePlan((), shaping.class_weights[tf.newaxis], ())
            shaping = shaping._replace(factors=self.balance.factors(x, y, weighed)[0])
        return batch, shaping

    def left(self, shaping: Shaping, applied: Any) -> None:
        """Take in whether a batch was learnt."""
        if self.recent is not None:
            self.recent.keep(shaping.recent, tf.logical_and(applied, shaping.visit >= 0))

    def ended(self, plan: CallPlan, rows: Rows, applied: Any, seen: Any) -> None:
        """Take in what was learnt: `applied` by batch, `seen` by row."""
        if self.balance is not None:
            self.balance.count(plan.balance, applied)
        if self.reservoir is not None:
            # Each row once, however often it comes.
            self.reservoir.keep(rows, self._witness.identity(), tf.logical_and(seen, plan.visit == 0))

    # In a step, on a replica.

    def open(self) -> None:
        """Begin the tracing of a step that scores nothing, or not as the rows came."""
        if self._scoring is not None:
            self._scoring.close()

    def scored_in_step(self, weights: Any, by_output: Any, shaping: Shaping) -> None:
        """Have the step score its rows, which have these weights as they came; `by_output` is what the model takes."""
        if self._scoring is not None:
            again = self._beside // len(self._strategy.extended.worker_devices)
            self._scoring.open(
                (weights, by_output), partial(self.corrected, class_weights=shaping.class_weights), again=again
            )

    def corrected(self, predicted: Any, class_weights: Any) -> Any:
        """Return the output as it would be without the weights of classes."""
        return predicted if self.balance is None else self.balance.corrected(predicted, class_weights)

    def learnt(self, mine: Batch, shaping: Shaping, own: Own) -> tuple[Any, Any, Any]:
        """Return features, labels and weights as they are learnt, of the replica's rows and their offsets."""
        x, y, w, offsets = mine
        if self.balance is not None:
            w *= shaping.factors[own(shaping.factors.shape[0])]
        if self._beside:
            # The replica's portion of the rows of the past, with the weights of their classes.
            replays: Replays = shaping.replays
            if self.balance is not None:
                replays = replays._replace(weights=replays.weights * shaping.replay_factors)
            rows = own(replays.weights.shape[0])
            past: Replays = tf.nest.map_structure(lambda column: column[rows], replays)
            x, y, w, offsets = beside((x, y, w, offsets), (past.features, past.labels, past.weights, past.numbers))
        if self._augmentation is not None:
            # Other rows on another replica, and the same numbers drawn for them would be none the better.
            seed = folded(shaping.seed, tf.distribute.get_replica_context().replica_id_in_sync_group)
            augment = partial(self._augmentation, x, y, w, seed)
            x, y, w = tf.cond(shaping.visit >= 0, augment, lambda: (x, y, w))
            w = tf.where(offsets >= 0, w, 0.0)  # whatever it returns, an absent row must not train the model
        return x, y, w
