"""Where the demo shows itself: drawn anew several times a second in a terminal, or plain lines where there is none.

The drawing stays in the terminal's own scroll, with its cursor on, so that a kill leaves the terminal as it was.
"""

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from app.tools.demo.screen_view import View, as_line, drawn

_LINE_EVERY_S = 5.0


class Screen(Protocol):
    """Takes what there is to show."""

    def say(self, line: str) -> None:
        """Something that stays."""

    def show(self, view: View) -> None:
        """How it stands now."""

    def close(self) -> None:
        """Nothing more is shown."""


class Drawing:
    """In a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """Above the drawing."""
        self._console.print(Text(line))

    def show(self, view: View) -> None:
        """Draw it anew."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            self._console.show_cursor(True)  # noqa: FBT003 - rich's own signature
        self._live.update(drawn(view), refresh=True)

    def close(self) -> None:
        """Leave the last drawing where it is."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Lines:
    """In a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = float("-inf")

    def say(self, line: str) -> None:
        """A line."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, view: View) -> None:
        """A line every few seconds."""
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            self.say(as_line(view))

    def close(self) -> None:
        """Nothing to leave."""


def screen_for(console: Console, *, plain: bool) -> Screen:
    """The one that suits."""
    return Lines(console) if plain or not console.is_terminal else Drawing(console)
