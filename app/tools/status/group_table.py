"""The group of a status as a table for a terminal. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

_CHIEF = 0


def group_drawn(group: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    """Yield the table of the workers, and whom to command; nothing for one worker alone."""
    if group is None:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, member in group["members"].items():
        slow = int(number) == group.get("slowest")
        table.add_row(
            Text(member["name"] + (" (this one)" if int(number) == group["worker"] else "")),
            _number(member.get("lag_records"), " behind"),
            _number(member.get("records_per_s"), "/s"),
            _number(member.get("partitions"), " partitions"),
            "" if member.get("waiting") is None else f"waits {member['waiting']:.0%} for the others",
            Text(", ".join(_states(member, slow=slow)), "red" if slow or member.get("missing") else ""),
        )
    yield Text()
    yield table
    if group["worker"] != _CHIEF:
        yield Text(f"The chief takes the commands: {group['chief'].rpartition(':')[0]}", "dim")


def _states(member: Mapping[str, Any], *, slow: bool) -> Iterator[str]:
    if member.get("missing"):
        yield f"not there: {member['address']}"
    if slow:
        yield "slowest"
    yield from member.get("states", ())


def _number(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.0f}{unit}"
