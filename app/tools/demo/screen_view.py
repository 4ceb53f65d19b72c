"""What the demo shows at one instant, as a drawing for a terminal and as a line. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from millrace.app.tools.demo.accuracy_history import AccuracySample
from millrace.app.tools.demo.drift_schedule import drift, last_drift, next_drift
from millrace.app.tools.demo.witness_check import WitnessResult
from millrace.app.tools.status.sparkline import sparkline
from millrace.app.tools.status.status_view import headline

_WIDTH = 44
"""Seconds that the lines show."""
_LOW, _HIGH = 0.4, 1.0
_CALM = ("training", "idle", "saving")
"""States in which a rate says more than the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of the demo at one instant."""

    pid: int
    page: str
    status: Mapping[str, Any]
    samples: Sequence[AccuracySample]
    """One a second."""
    testimony: WitnessResult | None

    @property
    def now(self) -> AccuracySample:
        """The newest sample."""
        return self.samples[-1]


def drawn(view: View) -> RenderableType:
    """Return the view as a drawing for a terminal."""
    return Group(
        Rule(Text.assemble(("millrace demo", "bold"), f"  process {view.pid}  ", (view.page, "cyan underline"))),
        headline(view.status),
        Text(),
        _lines(view),
        Text(),
        Text(rule_now(view.now.at_s)),
        _records(view),
        _witness(view.testimony),
        Text(),
        Text.assemble("Now be cruel: ", (f"kill -9 {view.pid}", "bold red"), ", and start it again. Ctrl-C ends it."),
    )


def as_line(view: View) -> str:
    """Return the view as one line for a log."""
    now, status = view.now, view.status
    facts = [
        f"{now.at_s:6.1f} s",
        f"live {_share(now.live)}  frozen {_share(now.frozen)}  majority {_share(now.majority)}",
        f"{_rate(status)}, {_lag(status)}" if status["state"] in _CALM else status["verdict"],
        f"{_learnt(status)} learnt",
        _checkpoint(status),
    ]
    return "  ".join(facts)


def rule_now(at_s: float) -> str:
    """Return what the stream's rule is doing, and what it will do next."""
    last, coming = last_drift(at_s), next_drift(at_s)
    soon = f"the next {coming.kind} drift comes in {coming.begins_s - at_s:.0f} s"
    if last is None:
        return f"The rule has not changed yet; {soon}."
    if last.takes_s and at_s < last.ends_s:
        share = (at_s - last.begins_s) / last.takes_s
        return f"The rule is changing gradually, {share:.0%} done; {soon}."
    how = "abruptly" if last.kind == "abrupt" else "gradually, until"
    return f"The rule changed {how} {at_s - last.ends_s:.0f} s ago; {soon}."


def _lines(view: View) -> Table:
    now = view.now
    table = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    rows = (
        ("live accuracy", now.live, [one.live for one in view.samples], "bold green"),
        ("frozen at the drift", now.frozen, [one.frozen for one in view.samples], "red"),
        ("majority class", now.majority, [one.majority for one in view.samples], "dim"),
    )
    for name, value, series, style in rows:
        line = sparkline(series, low=_LOW, high=_HIGH, width=_WIDTH)
        table.add_row(Text(name, style), Text(_share(value), style), Text(line, style))
    table.add_row(Text("drifts", "dim"), "", Text(_marks(view.samples), "yellow"))
    return table


def _marks(samples: Sequence[AccuracySample]) -> str:
    """Return a mark for each sample at which a drift began."""
    shown = samples[-_WIDTH:]
    marks = [" "] * len(shown)
    for place, (one, before) in enumerate(zip(shown[1:], shown, strict=False), start=1):
        past = last_drift(one.at_s)
        if past is not None and before.at_s < past.begins_s:
            marks[place] = "!" if drift(past.number).kind == "abrupt" else "~"
    return "".join(marks).rjust(_WIDTH)


def _records(view: View) -> Text:
    status = view.status
    aside = sum(status["records"]["set_aside"].values())
    balance = "every record accounted for" if status["records"]["balanced"] else "THE BALANCE DOES NOT HOLD"
    return Text(f"{_learnt(status)} learnt, {aside:,} set aside: {balance}. {_checkpoint(status)}.")


def _witness(testimony: WitnessResult | None) -> Text:
    if testimony is None:
        return Text("The witness speaks with the first checkpoint.", "dim")
    style = "green" if testimony.holds else "bold red"
    return Text.assemble(f"Witness, checkpoint {testimony.checkpoint}: ", (f"{testimony}.", style))


def _share(value: float | None) -> str:
    return "  -  " if value is None else f"{value:.3f}"


def _rate(status: Mapping[str, Any]) -> str:
    return f"{status['throughput']['records_per_s'].get('10s', 0):,.0f} records/s"


def _lag(status: Mapping[str, Any]) -> str:
    lag_s = status["stream"].get("lag_s")
    if lag_s is None:
        return "lag unknown"
    return "under 1 s behind" if lag_s < 1 else f"{lag_s:.0f} s behind"


def _learnt(status: Mapping[str, Any]) -> str:
    return f"{status['records']['learnt']:,}"


def _checkpoint(status: Mapping[str, Any]) -> str:
    newest = status.get("checkpoint")
    return "No checkpoint yet" if newest is None else f"Checkpoint {newest['number']}, {newest['age_s']:.0f} s old"
