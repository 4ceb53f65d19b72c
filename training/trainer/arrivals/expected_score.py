"""What answers will have scored when their labels have come, by how often such answers came true of late. Pure.

An answer's probability is taken for the share of those like it, in the calibration's ten bins, that came true. So the
estimate is as good as the answers of before are like these: it knows nothing of a change that only labels would show.
"""

from collections.abc import Mapping

import numpy as np

from millrace.training.telemetry.baseline import BaselinePlan
from millrace.training.telemetry.label_sums import Labels
from millrace.training.telemetry.tallies import BINNED, SURE, Tallies, Values, odds_bins, probabilities_of

BINS = 10
FEWEST = 100
"""Answers with labels, by which it can be told at all."""


def expected_scores(answers: Values, known: Tallies, plan: BaselinePlan) -> Mapping[str, float]:
    """Return the expected scores of answers [row, column], by the tallies of others with labels; none if too few."""
    if plan.labels not in {Labels.BINARY, Labels.CLASSES, Labels.ONE_HOT} or BINNED not in known:
        return {}
    missed, came = known[BINNED].reshape(2, -1)
    counts = missed + came
    answers = answers[np.isfinite(answers).all(axis=1)]
    if counts.sum() < FEWEST or not len(answers):
        return {}
    answers = probabilities_of(answers, plan) if plan.logits else answers
    p = (answers.ravel() if plan.labels is Labels.BINARY else answers.max(axis=1)).astype(np.float32)
    p = np.clip(p, SURE, 1 - SURE)
    # Bins of about as many answers each: the share that came true in each, by the bin of the odds.
    reached = np.cumsum(counts) - counts / 2
    group = np.minimum(reached / counts.sum() * BINS, BINS - 1).astype(np.int64)
    in_group = np.bincount(group, counts, BINS)
    true = (np.bincount(group, came, BINS) / np.maximum(in_group, 1))[group[odds_bins(p)]]
    if plan.labels is not Labels.BINARY:
        return {"accuracy": float(true.mean())}
    p = p.astype(np.float64)
    return {
        "accuracy": float(np.where(p > 0.5, true, 1 - true).mean()),
        "log_loss": float(-(true * np.log(p) + (1 - true) * np.log(1 - p)).mean()),
    }
