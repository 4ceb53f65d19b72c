"""What watches the calls of a group: each member sees its own, and the chief takes in what the others have seen.

All members make the same calls, so that the chief knows of each call the records of all of them, and sees what one
worker would have seen that had learnt them. Who is not the chief holds nothing beyond the next report. Called by all
members in the same sequence, on their trainers' threads, between the same two calls.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from millrace.training.checkpoints.parts import Array, PartState
from millrace.training.group.meeting import Group
from millrace.training.group.one_state import packed, unpacked
from millrace.training.telemetry.group_report import CHIEF
from millrace.training.telemetry.watcher import Watcher


class WatchedTogether:
    """The watchers of one member."""

    def __init__(self, group: Group, watchers: Sequence[Watcher]) -> None:
        self._exchange, self._is_chief, self._watchers = group.exchange, group.membership.is_chief, watchers

    def report(self) -> None:
        """Bring what the members have seen since the last report to the chief."""
        if not self._watchers:
            return
        for watcher in self._watchers:
            watcher.agree(self._exchange.gather)
        mine = b"" if self._is_chief else packed(_together({one.name: one.share() for one in self._watchers}))
        if not (raw := self._exchange.collect(mine)):
            return
        shares = [unpacked(each) for number, each in enumerate(raw) if number != CHIEF]
        for watcher in self._watchers:
            watcher.take_shares([_of_one(share, watcher.name) for share in shares])

    def forget(self) -> None:
        """Drop what is not reported yet, as the state goes back; the chief's goes back with its checkpoint."""
        if not self._is_chief:
            for watcher in self._watchers:
                watcher.restore(PartState())


def _together(states: Mapping[str, PartState]) -> PartState:
    arrays: dict[str, Array] = {}
    facts: dict[str, Any] = {}
    for name, state in states.items():
        arrays |= {f"{name}/{key}": array for key, array in state.arrays.items()}
        facts[name] = state.facts
    return PartState(arrays=arrays, facts=facts)


def _of_one(state: PartState, name: str) -> PartState:
    first = f"{name}/"
    arrays = {key.removeprefix(first): array for key, array in state.arrays.items() if key.startswith(first)}
    return PartState(arrays=arrays, facts=state.facts[name])
