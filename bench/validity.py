"""Whether a run is to be believed: the parts alone cost what they cost, in proportion to each other.

What the product costs is told as a multiple of its parts, so a part that got slower would make the product look better.
Machines differ, and one machine differs from day to day, in all parts alike. So each part's cost is taken as a multiple
of the geometric mean of all, and held against what that was when the parts were frozen, on the same kind of CPU.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PARTS = ("getmany-json", "decode-json", "getmany-raw", "decode-raw", "train")
REFERENCE = Path(__file__).with_name("reference.json")
SLIPPED = 1.10


def multiples(costs: Mapping[str, float]) -> dict[str, float]:
    """Each part's cost over the geometric mean of all."""
    mean = math.exp(statistics.fmean(math.log(costs[part]) for part in PARTS))
    return {part: round(costs[part] / mean, 4) for part in PARTS}


def verdict(cpu: str, costs: Mapping[str, float], reference: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the report says of it: valid, invalid and why, or unknown."""
    if not set(PARTS) <= costs.keys():
        return {"valid": None, "why": "not all parts were run"}
    known = json.loads(REFERENCE.read_text()) if reference is None else reference
    now = multiples(costs)
    if known["cpu"] != cpu:
        return {"valid": None, "why": f"the reference is of {known['cpu']}, this is {cpu}", "multiples": now}
    slipped = slower(now, known["multiples"])
    why = f"slower than they were, by their proportion: {', '.join(slipped)}" if slipped else None
    return {"valid": not slipped, "why": why, "multiples": now}


def slower(now: Mapping[str, float], then: Mapping[str, float]) -> Sequence[str]:
    """The parts that slipped."""
    return [f"{part} ({now[part] / then[part]:.2f} times)" for part in PARTS if now[part] > SLIPPED * then[part]]
