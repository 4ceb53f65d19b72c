"""The terminal view of a running service: its status as a drawing, once or updated each second."""

import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from millrace.app.printable import printable
from millrace.app.tools.service_client import Remote
from millrace.consumers.errors import UnreachableError
from millrace.consumers.rounded import rounded_value

KEPT = 120
_EVERY_S = 1.0
_ANSWER_S = 3.0
_CHIEF = 0
_BLOCKS = "▁▂▃▄▅▆▇█"
_NOTHING = " "
_WIDTH = min(44, KEPT)
_BAR = 40
_HUGE = 1e15
"""From here on a number is written with an exponent."""
_COLOURS = {"well": "green", "warn": "yellow", "bad": "red", "busy": "cyan", "rest": "dim"}
"""By mood."""
_SHARES = (
    ("compute", "computing", "green"),
    ("input", "waiting for input", "yellow"),
    ("records", "waiting for records", "cyan"),
    ("workers", "waiting for other workers", "red"),
    ("saving", "saving", "magenta"),
)


@dataclass(slots=True, kw_only=True)
class StatusReadings:
    """The readings of one service."""

    status: Mapping[str, Any]
    silent_s: float = 0.0
    """Since when it has not answered."""
    metric: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    lag: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))
    rate: deque[float | None] = field(default_factory=lambda: deque(maxlen=KEPT))

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> "StatusReadings":
        """Begin with the first answer."""
        watched = cls(status={})
        watched.see(status)
        return watched

    def see(self, status: Mapping[str, Any]) -> None:
        """Take in an answer."""
        self.status, self.silent_s = _printable(status), 0.0
        self.metric.append(live_metric(status)[1])
        self.lag.append(status["stream"].get("lag_s"))
        self.rate.append(status["throughput"]["records_per_s"].get("10s"))

    def miss(self, silent_s: float) -> None:
        """Note that the service has not answered for `silent_s` seconds."""
        self.silent_s = silent_s
        for series in (self.metric, self.lag, self.rate):
            series.append(None)


def _printable(answer: Any) -> Any:
    """Return an answer whose texts move no cursor: an error's may hold what stands in a record."""
    if isinstance(answer, Mapping):
        return {name: _printable(one) for name, one in answer.items()}
    if isinstance(answer, list):
        return [_printable(one) for one in answer]
    return printable(answer) if isinstance(answer, str) else answer


def live_metric(status: Mapping[str, Any]) -> tuple[str, float | None, float | None]:
    """Return the live metric that matters most: its name, its value, and what guessing would have scored."""
    live = status.get("live") or {}
    name = live.get("headline", "loss")
    return name, live.get(name), live.get("baseline", {}).get(name)


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


def watch(remote: Remote, first: Mapping[str, Any], screen: Console) -> None:
    """Show the service until Ctrl-C, on the caller's thread.

    While it does not answer, the view stays and shows for how long: the service may be restarting.
    """
    watched, heard = StatusReadings.of(first), time.monotonic()
    with suppress(KeyboardInterrupt), Live(drawn(watched), console=screen, auto_refresh=False) as live:
        while True:
            live.update(drawn(watched), refresh=True)
            time.sleep(_EVERY_S)
            try:
                watched.see(remote.ask("/status", within_s=_ANSWER_S))
                heard = time.monotonic()
            except UnreachableError:
                watched.miss(time.monotonic() - heard)


def drawn(watched: StatusReadings) -> RenderableType:
    """Return the whole status as a drawing."""
    status, throughput = watched.status, watched.status["throughput"]

    # Whose status it is, and how fresh.
    kafka = status["kafka"]
    away = ", KAFKA AWAY" if not kafka["connected"] and status["mood"] != "busy" else ""
    if watched.silent_s:
        fresh = Text(f"no answer for {watched.silent_s:.0f} s", "bold red")
    else:
        fresh = Text(f"as of {status['as_of']}", "dim")

    # The verdict, with a dot in the colour of the mood, and the problems.
    headline = Table.grid(padding=(0, 1, 0, 0))
    colour = "red" if watched.silent_s > 0 else _COLOURS.get(status["mood"], "dim")
    headline.add_row(Text("●", colour), Text(status["verdict"], "bold"))
    problems = []
    for problem in status["problems"]:
        since, what = problem["since"], problem["what"].rstrip(".")
        red = ("! ", "bold red"), (f"{what}. ", "red")
        problems.append(Text.assemble(*red, problem["fix"], (f" (since {since})", "dim")))

    # One bar of what the trainer's time goes to, and the advice.
    bar, legend, before = Text(), [], 0.0
    for key, words, colour in _SHARES:
        if (share := throughput["waiting"].get(key)) is None:
            continue
        bar.append("█" * (round((before + share) * _BAR) - round(before * _BAR)), colour)
        before += share
        legend.append(f"{words} {share:.0%}")

    newest = status.get("checkpoint")
    if newest is not None:
        checkpoint = f"checkpoint {newest['number']}, {newest['age_s']:,.0f} s old, at step {newest['step']:,}"
    elif (status.get("group") or {}).get("worker"):
        checkpoint = "the chief has the checkpoints"
    else:
        checkpoint = "no checkpoint yet"
    return Group(
        Text.assemble((status["name"], "bold"), f"  from {', '.join(kafka['topics'])}{away}  ", fresh),
        headline,
        *problems,
        Text(),
        _series(watched),
        Text(),
        Text.assemble(bar, "  " if bar else "", ", ".join(legend)),
        Text(throughput["advice"], "dim"),
        Text(_records(status)),
        Text(checkpoint),
        *_group(status.get("group")),
    )


def _series(watched: StatusReadings) -> Table:
    name, value, guess = live_metric(watched.status)
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True)
    stream, throughput = watched.status["stream"], watched.status["throughput"]
    live = watched.status.get("live") or {}
    words = live.get("guesses", {}).get(name, "guessing")
    beside = "" if guess is None else f"{words}: {rounded_value(guess)}"
    if (again := live.get("no_change", {}).get(name)) is not None:
        beside += f", no change: {rounded_value(again)}"
    # What is better the higher is mostly a share; an error has a scale of its own.
    at_least = 1.0 if live.get("watch", {}).get("better") == "higher" else 0.0
    table.add_row("how well", _number(value, f" {name}"), beside, _line(watched.metric, at_least))
    lag = _number(stream.get("lag_s"), " s")
    table.add_row("how far behind", lag, _number(stream.get("lag_records"), " records"), _line(watched.lag))
    arriving = _number(throughput.get("arriving_per_s"), "/s arriving")
    table.add_row("how fast", _number(throughput["records_per_s"].get("10s"), "/s"), arriving, _line(watched.rate))
    return table


def _line(values: Sequence[float | None], at_least: float = 0.0) -> str:
    """Draw values from 0 to the highest, or to a value that the scale has to include."""
    known = [value for value in values if value is not None]
    return sparkline(list(values), low=0.0, high=max([*known, at_least, 1e-9]), width=_WIDTH)


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return "unknown"
    return f"{value:,.0f}{unit}" if 100 <= abs(value) < _HUGE or value == 0 else f"{value:.3g}{unit}"


def _records(status: Mapping[str, Any]) -> str:
    records = status["records"]
    parts = [f"{records['learnt']:,} learnt"]
    parts += [f"{count:,} {reason}" for reason, count in records["set_aside"].items() if count]
    parts += [f"{count:,} skipped by {order}" for order, count in records["skipped"].items() if count]
    parts += [f"{records[key]:,} {key}" for key in ("filtered", "gaps", "lost") if records.get(key)]
    balance = "it balances" if records["balanced"] else "IT DOES NOT BALANCE"
    cut = "".join(f"; {count:,} cut in {feature}" for feature, count in records.get("truncated", {}).items())
    return f"{records['offsets']:,} offsets = {' + '.join(parts)}: {balance}{cut}"


def _group(group: Mapping[str, Any] | None) -> Iterator[RenderableType]:
    """Yield the table of the workers, and whom to command; nothing for one worker alone."""
    if group is None:
        return
    table = Table.grid(padding=(0, 2, 0, 0))
    for number, member in group["members"].items():
        slow = int(number) == group.get("slowest")
        states = [f"not there: {member['address']}"] if member.get("missing") else []
        states += [*(["slowest"] if slow else []), *member.get("states", ())]
        table.add_row(
            Text(member["name"] + (" (this one)" if int(number) == group["worker"] else "")),
            _figure(member.get("lag_records"), " behind"),
            _figure(member.get("records_per_s"), "/s"),
            _figure(member.get("partitions"), " partitions"),
            "" if member.get("waiting") is None else f"waits {member['waiting']:.0%} for the others",
            Text(", ".join(states), "red" if slow or member.get("missing") else ""),
        )
    yield Text()
    yield table
    if group["worker"] != _CHIEF:
        yield Text(f"The chief takes the commands: {group['chief'].rpartition(':')[0]}", "dim")


def _figure(value: float | None, unit: str) -> str:
    return "" if value is None else f"{value:,.0f}{unit}"


def sparkline(values: Sequence[float | None], *, low: float, high: float, width: int) -> str:
    """Return the newest values as blocks, the last one rightmost; a missing value is a blank."""
    blocks = []
    for value in values[-width:]:
        share = 0.0 if value is None else min(1.0, max(0.0, (value - low) / (high - low)))
        blocks.append(_NOTHING if value is None else _BLOCKS[round(share * (len(_BLOCKS) - 1))])
    return "".join(blocks).rjust(width)
