"""Whether a service that has just been started has something to show. Pure."""

from collections.abc import Mapping
from typing import Any


def has_figures(status: Mapping[str, Any]) -> bool:
    """Return whether a training call has returned and its figures are posted, or none is to be expected.

    None is to be expected of a service that is paused, has ended or has failed, and of one that is caught up.
    """
    mood, stream = status["mood"], status["stream"]
    if mood == "busy":
        return False
    if mood in {"bad", "rest"} or (status["state"] == "idle" and stream.get("lag_records") == 0):
        return True
    learnt = status["throughput"]["records_per_s"].get("5m", 0.0)
    scored = (status.get("live") or {}).get("records", 0)
    return bool(learnt and scored)
