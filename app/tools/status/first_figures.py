"""Whether a service that has just been started has something to show. Pure."""

from collections.abc import Mapping
from typing import Any


def has_figures(status: Mapping[str, Any]) -> bool:
    """Return whether a training call has returned and its figures are posted, or none is to be expected.

    None is to be expected of a service that is paused, has ended or has failed, and of one that is caught up and has
    learnt nothing. What a call has learnt is counted at once, and scored with the next posting.
    """
    mood, stream = status["mood"], status["stream"]
    if mood == "busy":
        return False
    learnt = status["throughput"]["records_per_s"].get("5m", 0.0)
    caught_up = status["state"] == "idle" and stream.get("lag_records") == 0
    if mood in {"bad", "rest"} or (caught_up and not learnt):
        return True
    scored = (status.get("live") or {}).get("records", 0)
    return bool(learnt and scored)
