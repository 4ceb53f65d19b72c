"""A status as a drawing for a terminal. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from millrace.app.tools.status.group_table import group_drawn
from millrace.app.tools.status.sparkline import sparkline
from millrace.app.tools.status.status_readings import KEPT, StatusReadings, live_metric
from millrace.consumers.rounded import rounded_value

_WIDTH = min(44, KEPT)
_BAR = 40
_COLOURS = {"well": "green", "warn": "yellow", "bad": "red", "busy": "cyan", "rest": "dim"}
"""By mood."""
_SHARES = (
    ("compute", "computing", "green"),
    ("input", "waiting for input", "yellow"),
    ("records", "waiting for records", "cyan"),
    ("workers", "waiting for other workers", "red"),
    ("saving", "saving", "magenta"),
)


def headline(status: Mapping[str, Any], *, silent: bool = False) -> Table:
    """Return the verdict, with a dot in the colour of the mood."""
    colour = "red" if silent else _COLOURS.get(status["mood"], "dim")
    table = Table.grid(padding=(0, 1, 0, 0))
    table.add_row(Text("●", colour), Text(status["verdict"], "bold"))
    return table


def drawn(watched: StatusReadings) -> RenderableType:
    """Return the whole status as a drawing."""
    status = watched.status
    return Group(
        Text.assemble((status["name"], "bold"), f"  {_where(status)}  ", _freshness(watched)),
        headline(status, silent=watched.silent_s > 0),
        *_problems(status),
        Text(),
        _series(watched),
        Text(),
        *_time(status["throughput"]),
        Text(_records(status)),
        Text(_checkpoint(status)),
        *group_drawn(status.get("group")),
    )


def _where(status: Mapping[str, Any]) -> str:
    kafka = status["kafka"]
    away = not kafka["connected"] and status["mood"] != "busy"
    return f"from {', '.join(kafka['topics'])}" + (", KAFKA AWAY" if away else "")


def _freshness(watched: StatusReadings) -> Text:
    if watched.silent_s:
        return Text(f"no answer for {watched.silent_s:.0f} s", "bold red")
    return Text(f"as of {watched.status['as_of']}", "dim")


def _problems(status: Mapping[str, Any]) -> Iterator[Text]:
    for problem in status["problems"]:
        since, what = problem["since"], problem["what"].rstrip(".")
        yield Text.assemble(("! ", "bold red"), (f"{what}. ", "red"), problem["fix"], (f" (since {since})", "dim"))


def _series(watched: StatusReadings) -> Table:
    name, value, guess = live_metric(watched.status)
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(4):
        table.add_column(no_wrap=True)
    stream, throughput = watched.status["stream"], watched.status["throughput"]
    live = watched.status.get("live") or {}
    words = live.get("guesses", {}).get(name, "guessing")
    beside = "" if guess is None else f"{words}: {rounded_value(guess)}"
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
    return f"{value:,.0f}{unit}" if value >= 100 or value == 0 else f"{value:.3g}{unit}"


def _time(throughput: Mapping[str, Any]) -> Iterator[Text]:
    """Give one bar of what the trainer's time goes to, and the advice."""
    bar, legend, before = Text(), [], 0.0
    for key, words, colour in _SHARES:
        if (share := throughput["waiting"].get(key)) is None:
            continue
        bar.append("█" * (round((before + share) * _BAR) - round(before * _BAR)), colour)
        before += share
        legend.append(f"{words} {share:.0%}")
    yield Text.assemble(bar, "  " if bar else "", ", ".join(legend))
    yield Text(throughput["advice"], "dim")


def _records(status: Mapping[str, Any]) -> str:
    records = status["records"]
    parts = [f"{records['learnt']:,} learnt"]
    parts += [f"{count:,} {reason}" for reason, count in records["set_aside"].items() if count]
    parts += [f"{count:,} skipped by {order}" for order, count in records["skipped"].items() if count]
    parts += [f"{records[key]:,} {key}" for key in ("gaps", "lost") if records[key]]
    balance = "it balances" if records["balanced"] else "IT DOES NOT BALANCE"
    cut = "".join(f"; {count:,} cut in {feature}" for feature, count in records.get("truncated", {}).items())
    return f"{records['offsets']:,} offsets = {' + '.join(parts)}: {balance}{cut}"


def _checkpoint(status: Mapping[str, Any]) -> str:
    newest = status.get("checkpoint")
    if newest is None and (status.get("group") or {}).get("worker"):
        return "the chief has the checkpoints"
    if newest is None:
        return "no checkpoint yet"
    return f"checkpoint {newest['number']}, {newest['age_s']:,.0f} s old, at step {newest['step']:,}"
