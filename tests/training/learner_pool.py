"""A pool of learners: building one traces and compiles its call, which is most of what a short test costs.

A test lends learners and keeps them to its end, so two in use are always two objects. Given back, a learner is reset:
every variable has its first value again, on each replica, and so has what its Python objects hold; only the compiled
functions stay. One that cannot be reset, because a test has replaced something in it, is left to the garbage collector.
Tests of the building itself (refusals, tracing, the proof) build their own. A test that learns twice by the same model,
to compare, may have its learner anew in between.
"""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType
from typing import Any

import keras
import numpy as np

from millrace.training.model.learner import Learner, LearnerOptions
from millrace.training.model.variables import copies, optimizers_of

Recipe = tuple[tuple[Any, ...], LearnerOptions]
"""A function of a module with its arguments, and the options."""
Place = tuple[int, str]
_TRACED = frozenset({"of_batches", "_computing", "_stated_texts"})
"""Attributes that tracing sets, once; they stay right as long as what was traced is kept."""
_RESET = frozenset({"_index"})
"""Attributes that a reset sets to their first values: the witness's rows."""
_PLAIN = (bool, int, float, str, frozenset, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """A learner, and how it was when it had been built."""

    learner: Learner
    recipe: Recipe | None
    """None where the test has made the function, so that nobody can ask for it again."""
    values: list[tuple[Any, Any]]
    """Every variable with its first value, one a replica."""
    attributes: dict[Place, Any]
    randomness: tuple[Any, Any]
    """Python's and NumPy's, which building has drawn from."""

    @classmethod
    def of(cls, learner: Learner, recipe: Recipe | None) -> "_Kept":
        all_of_them = [*learner.state, *learner.metric_variables(), learner.witness.identities]
        variables = [copy for one in all_of_them for copy in copies(one)]
        values = [(variable, np.array(variable.numpy())) for variable in variables]
        return cls(learner, recipe, values, _attributes(learner), (random.getstate(), np.random.get_state()))

    @property
    def is_as_built(self) -> bool:
        """Whether no attribute was set since, but for those that tracing or a reset sets."""
        now = _attributes(self.learner)
        return now.keys() == self.attributes.keys() and all(
            value is now[place] or (isinstance(value, _PLAIN) and value == now[place])
            for place, value in self.attributes.items()
        )

    def reset(self) -> None:
        """Bring everything back to how it was built."""
        for variable, value in self.values:
            variable.assign(value)
        self.learner.witness._index = {}
        keras.utils.set_random_seed(self.learner.options.seed)
        random.setstate(self.randomness[0])
        np.random.set_state(self.randomness[1])


class LearnerPool:
    """Lends learners, the same again to one test after the other."""

    def __init__(self, most: int = 16) -> None:
        self._most = most
        """The most learners that wait; the one that has waited longest goes first."""
        self._idle: list[_Kept] = []
        self._lent: list[_Kept] = []

    def lend(self, build: Callable[[], Any], options: LearnerOptions) -> Learner:
        """Return a learner as it is when it has just been built."""
        function, *arguments = _call_of(build)
        recipe = ((function, *arguments), options) if _is_a_modules(function) else None
        kept = next((one for one in self._idle if one.recipe == recipe), None)
        if kept is None:
            kept = _Kept.of(Learner(build, None, options), recipe)
        else:
            self._idle.remove(kept)
            kept.reset()
        self._lent.append(kept)
        return kept.learner

    def anew(self, learner: Learner) -> None:
        """Bring a learner that is lent back to how it was built."""
        [kept] = [one for one in self._lent if one.learner is learner]
        assert kept.is_as_built, "the test has replaced something in it"
        kept.reset()

    def take_back(self) -> None:
        """Take back all learners that are lent. They are reset when they are lent again."""
        self._idle += [kept for kept in self._lent if kept.recipe is not None and kept.is_as_built]
        self._lent.clear()
        del self._idle[: -self._most]


POOL = LearnerPool()
"""The pool of this process."""


def _call_of(build: Callable[[], Any]) -> tuple[Any, ...]:
    """Return the function and, where it is given some, its arguments."""
    if isinstance(build, partial):
        return build.func, *build.args, *sorted(build.keywords.items())
    return (build,)


def _is_a_modules(build: Callable[..., Any]) -> bool:
    return isinstance(build, FunctionType) and build.__qualname__ == build.__name__ and build.__name__ != "<lambda>"


def _attributes(learner: Learner) -> dict[Place, Any]:
    """Return the attributes of the learner and of our own objects in it, and the plain ones of model and optimizers."""
    ours = list(_ours(learner, {}))
    found = {(id(owner), name): value for owner in ours for name, value in _set_on(owner)}
    theirs = [learner.model, *optimizers_of(learner.model).values()]
    plain = {
        (id(owner), name): value for owner in theirs for name, value in vars(owner).items() if isinstance(value, _PLAIN)
    }
    return found | plain


def _ours(value: Any, seen: dict[int, Any]) -> Iterator[Any]:
    ours = type(value).__module__.startswith("millrace.training.")
    if id(value) in seen or not hasattr(value, "__dict__") or not ours:
        return
    seen[id(value)] = value
    if isinstance(value, threading.local):  # holds what is being traced, and nothing between two tracings
        return
    yield value
    for inner in vars(value).values():
        yield from _ours(inner, seen)


def _set_on(owner: Any) -> Iterator[tuple[str, Any]]:
    for name, value in vars(owner).items():
        if name not in _TRACED | _RESET and not isinstance(getattr(type(owner), name, None), cached_property):
            yield name, value
