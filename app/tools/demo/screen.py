"""The demo's output: a view that updates in a terminal, or plain lines where there is none.

The view is that of `millrace status`, with a few lines of the demo's own. It stays in the terminal's own scrollback
with the cursor visible, so that a kill leaves the terminal usable.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.rule import Rule
from rich.text import Text

from millrace.app.tools.demo.drifting_stream import last_drift, next_drift
from millrace.app.tools.demo.report import AccuracySample
from millrace.app.tools.demo.witness_check import WitnessResult
from millrace.app.tools.status_view import StatusReadings, drawn

_LINE_EVERY_S = 5.0
_CALM = ("training", "idle", "saving")
"""States in which a rate says more than the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The state of the demo at one instant."""

    pid: int
    page: str
    status: Mapping[str, Any]
    now: AccuracySample
    testimony: WitnessResult | None


class Screen:
    """What the demo writes to."""

    def __init__(self, console: Console, *, plain: bool) -> None:
        self._console, self._plain = console, plain or not console.is_terminal
        self._live: Live | None = None
        self._readings: StatusReadings | None = None
        self._line_at = float("-inf")

    def say(self, line: str) -> None:
        """Print a line that stays, above the view if there is one."""
        self._console.print(Text(line), soft_wrap=self._plain)

    def show(self, view: View) -> None:
        """Draw the view again; without a terminal, print a line every few seconds."""
        if self._plain:
            if time.monotonic() - self._line_at >= _LINE_EVERY_S:
                self._line_at = time.monotonic()
                self.say(as_line(view))
            return
        if self._live is None or self._readings is None:
            self._readings = StatusReadings(status=view.status)
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            self._console.show_cursor(True)  # noqa: FBT003 - rich's own signature
        self._readings.see(view.status)
        self._live.update(as_drawing(view, self._readings), refresh=True)

    def close(self) -> None:
        """End the view; the last drawing stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


def as_drawing(view: View, readings: StatusReadings) -> RenderableType:
    """Return the view as a drawing for a terminal."""
    now, testimony = view.now, view.testimony
    if testimony is None:
        witness = Text("The witness speaks with the first checkpoint.", "dim")
    else:
        style = "green" if testimony.holds else "bold red"
        witness = Text.assemble(f"Witness, checkpoint {testimony.checkpoint}: ", (f"{testimony}.", style))
    return Group(
        Rule(Text.assemble(("millrace demo", "bold"), f"  process {view.pid}  ", (view.page, "cyan underline"))),
        drawn(readings),
        Text(),
        Text.assemble(
            ("live accuracy ", "bold green"),
            (_share(now.live), "bold green"),
            ("   frozen at the drift ", "red"),
            (_share(now.frozen), "red"),
            (f"   majority class {_share(now.majority)}", "dim"),
        ),
        Text(rule_now(now.at_s)),
        witness,
        Text(),
        Text.assemble("Now be cruel: ", (f"kill -9 {view.pid}", "bold red"), ", and start it again. Ctrl-C ends it."),
    )


def as_line(view: View) -> str:
    """Return the view as one line for a log."""
    now, status = view.now, view.status
    how = status["verdict"]
    if status["state"] in _CALM:
        lag_s = status["stream"].get("lag_s")
        lag = "lag unknown" if lag_s is None else "under 1 s behind" if lag_s < 1 else f"{lag_s:.0f} s behind"
        how = f"{status['throughput']['records_per_s'].get('10s', 0):,.0f} records/s, {lag}"
    newest = status.get("checkpoint")
    facts = [
        f"{now.at_s:6.1f} s",
        f"live {_share(now.live)}  frozen {_share(now.frozen)}  majority {_share(now.majority)}",
        how,
        f"{status['records']['learnt']:,} learnt",
        "No checkpoint yet" if newest is None else f"Checkpoint {newest['number']}, {newest['age_s']:.0f} s old",
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


def _share(value: float | None) -> str:
    return "  -  " if value is None else f"{value:.3f}"
