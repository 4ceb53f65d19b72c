"""The proof on metrics: their states are sums, so that the states of two calls add up to those of both in one.

The live metrics depend on it: a state covers one call, and the sums over calls are kept outside of Keras. A maximum, a
mean or the last value cannot be added up. Runs while the model is examined, and leaves its state as it was.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from millrace.training.model.call.metrics import State
from millrace.training.model.learner import Learner
from millrace.training.model.proof.kept_state import KeptState
from millrace.training.model.proof.proof import Finding
from millrace.training.model.variables import read

CLAIM = "the metrics' states are sums"
_TOLERANCE = 0.01
"""Relative to the sums. Rounding may move a row over a threshold; a maximum or a mean is wrong by about a half."""


def states_add_up(learner: Learner) -> list[Finding]:
    """Examine the metrics, and have those left out whose values would be wrong; no findings without metrics."""
    metrics = learner.call.metrics
    if not metrics.metrics:
        return []
    wrong = {name for name, metric in metrics.metrics.items() if not metric.variables}
    detail = "keeps no Keras variable: create its state by add_variable or add_weight"
    if not wrong:
        wrong = {name for name in metrics.metrics if _starts_elsewhere(learner, name)}
        detail = "starts from a value other than 0: keep sums and counts, and compute the value in result()"
    if not wrong:
        compared = _states(learner)
        if compared is None:
            text = "the model gives NaN or infinity on made-up rows; its own records will show"
            return [Finding(claim=CLAIM, holds=None, detail=text)]
        wrong = {name for name, apart, together in compared if not _same(apart, together)}
        detail = (
            "keeps a maximum, a mean or the last value, which cannot be added up over calls: keep sums and counts, "
            "and compute the value in result()"
        )
    metrics.left_out = frozenset(wrong)
    if not wrong:
        return [Finding(claim=CLAIM, holds=True)]
    text = f"metric {', '.join(sorted(wrong))} {detail}. With training.proof: warn it is not shown"
    return [Finding(claim=CLAIM, holds=False, detail=text)]


def _starts_elsewhere(learner: Learner, name: str) -> bool:
    metric = learner.call.metrics.metrics[name]
    with learner.strategy.scope():
        metric.reset_state()
    return any(np.any(np.asarray(read(variable))) for variable in metric.variables)


def _states(learner: Learner) -> list[tuple[str, list[State], list[State]]] | None:
    """Return each metric's states: added up over two calls, and of one call; None where an update is not finite."""
    one, other = learner.rows_of(learner.probe(1)), learner.rows_of(learner.probe(2))
    kept = KeptState(learner)
    call = partial(learner.call, visit=None)  # as they are: shaped rows would be counted, too
    with kept.undone():
        first, second = call(one), call(other)
    with kept.undone():
        both = call(tf.nest.map_structure(lambda a, b: tf.concat([a, b], 0), one, other))
    if not all(result.finite.all() for result in (first, second, both)):
        return None
    compared, at = [], 0
    for name, metric in learner.call.metrics.metrics.items():
        places = range(at, at := at + len(metric.variables))
        apart = [first.states[place] + second.states[place] for place in places]
        compared.append((name, apart, [both.states[place] for place in places]))
    return compared


def _same(apart: Sequence[State], together: Sequence[State]) -> bool:
    return all(_close(a, b) for a, b in zip(apart, together, strict=True))


def _close(apart: Any, together: Any) -> bool:
    scale = max(float(np.abs(apart).sum()), float(np.abs(together).sum()))
    return float(np.abs(apart - together).sum()) <= _TOLERANCE * scale + 1e-6
