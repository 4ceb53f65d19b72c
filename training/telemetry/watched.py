"""The watched metric: the one by which a model is judged in the verdict, the alerts and the list of checkpoints. Pure.

`choose_watched` decides once, at the start, so that two checkpoints of a run can be compared. The loss is one of the
names.
"""

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from millrace.consumers.errors import ConfigError

LOSS = "loss"
Better = Literal["higher", "lower"]
_WATCH = "training.live_metrics.watch"
_BETTER = "training.live_metrics.better"


@dataclass(frozen=True, slots=True)
class Watched:
    """The name of the watched metric, and which of its values are better."""

    name: str
    higher_is_better: bool

    def better(self, value: float, than: float) -> bool:
        """Return whether `value` is better than the other; a value that is not finite is worse than any that is."""
        if not math.isfinite(value) or not math.isfinite(than):
            return math.isfinite(value) and not math.isfinite(than)
        return value > than if self.higher_is_better else value < than


WATCHED_LOSS = Watched(LOSS, higher_is_better=False)


def choose_watched(
    directions: Mapping[str, bool | None],
    watch: str | None = None,
    better: Better | None = None,
    *,
    first: Sequence[str] = (),
) -> Watched:
    """Return the watched metric; raise ConfigError where the settings do not name one that can be compared.

    `directions` says by name whether higher is better, None where that is not known. Without `watch`, the names in
    `first` are preferred in their order, then the first metric whose direction is known, then the loss.
    """
    known = {LOSS: False} | dict(directions)
    if watch is None:
        comparable = [name for name in directions if name != LOSS and directions[name] is not None]
        name = next((name for name in first if name in comparable), next(iter(comparable), LOSS))
        return Watched(name, higher_is_better=bool(known[name]))
    if watch not in known:
        near = difflib.get_close_matches(watch, known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"{_WATCH}: the model compiles no metric {watch!r}, but {', '.join(known)}{hint}")
    direction = known[watch] if better is None else better == "higher"
    if direction is None:
        raise ConfigError(
            f"{_BETTER}: {watch} is a metric of your own, and nothing says whether more of it is better; write "
            "higher or lower"
        )
    return Watched(watch, higher_is_better=direction)
