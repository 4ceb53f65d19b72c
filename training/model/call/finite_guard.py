"""The finite guard stops NaN and infinity in updates: no such update is applied. `FiniteLook` finds them in the state.

Wraps the `apply` of each optimizer, so that the model's own `train_step` runs as it is: in the graph, the gradients of
all replicas (and every loss that the step has computed by `compute_loss` so far) are checked together; where anything
is NaN or infinite the whole update is left out, the iteration counter included, on every replica alike.

For the proof the same wrapping can record what reaches the optimizers instead of applying it.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import tensorflow as tf

from millrace.training.model.call.optimizer_steps import OptimizerSteps
from millrace.training.model.call.replica_sums import summed
from millrace.training.model.setup.keras_internals import as_is, converted, trainable_variables_of
from millrace.training.model.setup.mixture import members_of
from millrace.training.model.variables import copies, optimizers_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedUpdate:
    """What one call of an optimizer's `apply` was given, on one replica."""

    optimizer: str
    variables: Sequence[Any]
    gradients: Sequence[Any]
    """One for each variable; None where the loss does not depend on it."""


class _GuardedStep(threading.local):
    """The losses, verdicts and updates of the step being traced. Each replica is traced in a thread of its own."""

    def __init__(self) -> None:
        self.losses: list[Any] = []
        self.totals: list[Any] = []
        """The losses that were known at the last update, summed over all replicas."""
        self.verdicts: list[Any] = []
        self.updates: list[RecordedUpdate] = []
        self.shown = -1


class FiniteGuard:
    """Guards a model's optimizers. Inside the traced step, `verdict()` is whether all updates were finite."""

    def __init__(self, model: Any) -> None:
        self._step = _GuardedStep()
        self._recording = False
        # Replaced on the objects, so that a train_step of the user's own passes through the guard as well.
        for name, optimizer in optimizers_of(model).items():
            optimizer.apply = self._guarded(name, optimizer, optimizer.apply)
        for one in (model, *members_of(model)):
            one.compute_loss = partial(self._noted, one.compute_loss)

    def open(self) -> None:
        """Begin the tracing of a step."""
        self._step.losses, self._step.totals, self._step.verdicts, self._step.updates = [], [], [], []

        self._step.shown = -1

    def show_first_loss(self) -> None:
        """Take the step's first loss for the one that is shown: it was scored apart, before the step."""
        self._step.shown = 0

    def verdict(self) -> Any:
        """Return whether every update of the step was finite, as a tensor; true where the step made none."""
        verdicts = self._step.verdicts or [tf.constant(True)]  # noqa: FBT003 - a tensor's value
        return tf.reduce_all(tf.stack(verdicts))

    def loss(self) -> Any | None:
        """Return the replica's portion of the global batch's loss; None where the model does not use `compute_loss`.

        Of several losses in one step, as of two optimizers that each have their own, it is the last one, unless the
        first was scored apart.
        """
        return self._step.losses[self._step.shown] if self._step.losses else None

    def total_loss(self) -> Any | None:
        """Return the global batch's loss, where it has been summed with the gradients; else None."""
        # A loss that was computed after the last update is in no sum.
        known = self._step.totals and (self._step.shown == 0 or len(self._step.totals) == len(self._step.losses))
        return self._step.totals[self._step.shown] if known else None

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Trace steps whose updates are recorded and not applied."""
        self._recording = True
        try:
            yield
        finally:
            self._recording = False

    def updates(self) -> Sequence[RecordedUpdate]:
        """Return the updates of the step that was traced while recording, in their order."""
        return self._step.updates

    def first_totals(self, count: int) -> Sequence[Any]:
        """Return the global batch's losses that were computed first in the step, which has made an update since."""
        return self._step.totals[:count]

    def _noted(self, compute_loss: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loss = compute_loss(*args, **kwargs)
        self._step.losses.append(tf.convert_to_tensor(loss))
        return loss

    def _guarded(self, name: str, optimizer: Any, apply: Callable[..., Any]) -> Callable[..., None]:
        steps, apply = OptimizerSteps(optimizer), converted(apply)

        @as_is
        def guarded(grads: Iterable[Any], trainable_variables: Iterable[Any] | None = None) -> None:
            gradients = list(grads)
            variables = None if trainable_variables is None else list(trainable_variables)
            if self._recording:
                known = variables or trainable_variables_of(optimizer)
                self._step.updates.append(RecordedUpdate(optimizer=name, variables=known, gradients=gradients))
                return
            context = tf.distribute.get_replica_context()
            present = [gradient for gradient in gradients if gradient is not None]
            losses = [tf.cast(loss, tf.float32) for loss in self._step.losses]
            # One collective for all that the replicas must agree on. A sum is finite only where all its terms are.
            sums = _guarded_sums(context, [*present, *losses])
            present, self._step.totals = sums[: len(present)], sums[len(present) :]
            values = [tensor.values if isinstance(tensor, tf.IndexedSlices) else tensor for tensor in sums]
            flags = [tf.reduce_all(tf.math.is_finite(each)) for each in values]
            finite = tf.reduce_all(tf.stack(flags)) if flags else tf.constant(True)  # noqa: FBT003 - a tensor's value

            @as_is
            def merged(strategy: Any, finite: Any, *present: Any) -> Any:
                # Decided outside of the replicas, so that all take the same branch; `apply` works only in
                # `strategy.run`. Any replica's answer is that of all, as they judge the same sums.
                every = strategy.experimental_local_results(finite)[0]

                def update() -> Any:
                    steps.run(lambda: strategy.run(applied, args=present))
                    return tf.constant(True)  # noqa: FBT003 - a tensor's value

                return tf.cond(every, update, lambda: tf.constant(False))  # noqa: FBT003

            @as_is
            def applied(*present: Any) -> None:
                # Gradients that are None are no tensors, so they stay behind and are put back into their places here.
                left = iter(present)
                apply([None if gradient is None else next(left) for gradient in gradients], variables)

            self._step.verdicts.append(context.merge_call(merged, args=(finite, *present)))

        return guarded


def _guarded_sums(context: Any, tensors: Sequence[Any]) -> list[Any]:
    try:
        return summed(context, tensors)
    except RuntimeError as error:
        if "merge_call" not in str(error):
            raise
        # TensorFlow's own text speaks of its internals only.
        raise RuntimeError(
            "train_step calls an optimizer's apply inside of tf.cond, a loop or a tf.function of its own: call it in "
            "every step, outside of these, with gradients times 0 if nothing is to be learnt"
        ) from error


class FiniteLook:
    """Looks for NaN in these variables, on every replica. Build it when they have their first values.

    The guard sees what passes through an optimizer. A `train_step` that assigns weights by itself, or an
    optimizer that overflows on finite gradients, passes it by; this look at the state itself sees both. It
    runs before every save. One sum over each variable is enough: a sum is finite only if all of its terms
    are, and it costs a third of a comparison of each number. Where a sum of finite numbers overflows, each
    number is compared.

    Owns the compiled functions; runs on the trainer's thread, between calls.
    """

    def __init__(self, variables: Mapping[str, Any]) -> None:
        floats = {key: variable for key, variable in variables.items() if tf.as_dtype(variable.dtype).is_floating}
        self._copies = {key: tuple(copies(variable)) for key, variable in floats.items()}
        self._sums = tf.function(self._sums_are_finite, autograph=False)
        self._exact = tf.function(self._flags, autograph=False)
        self.by_design: frozenset[str] = frozenset()
        """Variables that hold NaN or infinity from the beginning, as a mask may; they are not looked at."""
        if first := self.not_finite():
            self.by_design = frozenset(first)
            self._copies = {key: found for key, found in self._copies.items() if key not in self.by_design}
            self._sums, self._exact = (
                tf.function(self._sums_are_finite, autograph=False),
                tf.function(self._flags, autograph=False),
            )

    def not_finite(self) -> list[str]:
        """Return the variables that hold NaN or infinity; none where everything is finite."""
        if not self._copies or bool(self._sums()):
            return []
        return [key for key, finite in zip(self._copies, self._exact().numpy(), strict=True) if not finite]

    def _sums_are_finite(self) -> Any:
        every = [copy for found in self._copies.values() for copy in found]
        return tf.reduce_all(tf.stack([tf.math.is_finite(tf.reduce_sum(copy)) for copy in every]))

    def _flags(self) -> Any:
        return tf.stack(
            [
                tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(copy)) for copy in found]))
                for found in self._copies.values()
            ]
        )
