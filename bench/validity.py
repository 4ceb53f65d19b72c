"""Whether a run is to be believed, by what was seen in the run itself: how busy others were, and how far rounds differ.

Both sides of each ratio run on the same machine within minutes, so a slow machine does no harm. What harms is somebody
else at work beside one of the two sides, and that shows as cores that others took, or as rounds that disagree.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

BUSY_CORES = 0.15
"""More than this beside a run, in the median of all runs, and no figure is believed."""
SPREAD = 0.35
"""From the lowest round to the highest, as a share of the median: more, and the figure is not believed."""
ROUNDS = 3
"""Fewer say nothing of the spread."""


def verdict(by_round: Mapping[str, Sequence[float]], others: Sequence[float | None]) -> dict[str, Any]:
    """Return whether the run is valid, and why not; None where that is not known.

    `others` are the cores that other processes took beside each run of a case. Cases that run once give no rounds:
    of them only the others tell.
    """
    known = [cores for cores in others if cores is not None]
    seen = {
        "others_cores": round(statistics.median(known), 3) if known else None,
        "others_cores_most": round(max(known), 3) if known else None,
        "spread": {name: spread(values) for name, values in by_round.items()},
    }
    if known and statistics.median(known) > BUSY_CORES:
        return {"valid": False, "why": f"other processes took {statistics.median(known):.2f} cores", **seen}
    if not known and not by_round:
        return {"valid": None, "why": "nothing tells what ran beside it", **seen}
    if any(len(values) < ROUNDS for values in by_round.values()):
        return {"valid": None, "why": f"fewer than {ROUNDS} rounds say nothing of the spread", **seen}
    far = [f"{name} by {spread(values):.0%}" for name, values in by_round.items() if spread(values) > SPREAD]
    return {"valid": not far, "why": f"rounds differ: {', '.join(far)}" if far else None, **seen}


def spread(values: Sequence[float]) -> float:
    """Return how far the lowest is from the highest, as a share of the median."""
    return round((max(values) - min(values)) / statistics.median(values), 3)
