"""Histograms of numbers: finite, ascending and whole, whatever the numbers are."""

import numpy as np
import pytest

from millrace.app.monitoring.data_view import histogram_of
from millrace.training.trainer.inputs.portraits import LEVELS, Portrait

GREATEST = float(np.finfo(np.float64).max)


@pytest.mark.parametrize(
    ("least", "greatest"),
    [(0.0, 1.0), (3.0, 3.0), (1e17, 1e17), (1.0, 1e9), (-GREATEST, GREATEST), (GREATEST, GREATEST), (1e-300, 1e300)],
)
def test_bins_ascend_and_hold_all_records(least: float, greatest: float) -> None:
    bounds = 2 * np.linspace(least / 2, greatest / 2, LEVELS + 1)
    found = histogram_of(Portrait(missing=0.0, distinct=9, bounds=tuple(bounds.tolist())), None)
    assert found is not None
    assert np.isfinite(found.edges).all()
    assert all(one < other for one, other in zip(found.edges, found.edges[1:], strict=False))
    assert sum(found.now) == pytest.approx(1.0)
    assert found.before is None
