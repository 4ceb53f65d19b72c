"""How late labels come, as a distribution that is kept in few numbers."""

import numpy as np
import pytest

from millrace.pipelines.shaping.labels.delays import BUCKETS, buckets_of, quantiles


@pytest.mark.parametrize("scale", [3, 700, 60_000, 86_400_000])
def test_no_quantile_is_too_short_and_none_a_fifth_too_long(scale: int) -> None:
    delays = np.random.default_rng(scale).exponential(scale, 20_000).astype(np.int64)
    found = quantiles(np.bincount(buckets_of(delays), minlength=BUCKETS))
    for share in (0.5, 0.9, 0.99):
        exact = np.quantile(delays, share, method="inverted_cdf")
        assert exact <= 1000 * found[f"{share:g}"] + 1e-6
        assert 1000 * found[f"{share:g}"] <= 1.2 * exact + 1


def test_what_came_before_its_record_was_not_late() -> None:
    assert buckets_of(np.array([-5000, 0, 1, 366 * 86_400_000])).tolist() == [0, 0, 4, 140]
    assert quantiles(np.zeros(BUCKETS, np.int64)) == {}
    assert quantiles(np.bincount([0, 0], minlength=BUCKETS)) == {"0.5": 0.0, "0.9": 0.0, "0.99": 0.0}
