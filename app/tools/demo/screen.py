"""The demo's output: a view that updates several times a second in a terminal, or plain lines where there is none.

The view stays in the terminal's own scrollback with the cursor visible, so that a kill leaves the terminal usable.
"""

import time
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from millrace.app.tools.demo.screen_view import View, as_line, drawn

_LINE_EVERY_S = 5.0


class Screen(Protocol):
    """What the demo writes to."""

    def say(self, line: str) -> None:
        """Print a line that stays."""

    def show(self, view: View) -> None:
        """Show the present state."""

    def close(self) -> None:
        """End the view."""


class Drawing:
    """A view in a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None

    def say(self, line: str) -> None:
        """Print a line above the view."""
        self._console.print(Text(line))

    def show(self, view: View) -> None:
        """Draw the view again."""
        if self._live is None:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
            self._console.show_cursor(True)  # noqa: FBT003 - rich's own signature
        self._live.update(drawn(view), refresh=True)

    def close(self) -> None:
        """End the view; the last drawing stays on the screen."""
        if self._live is not None:
            self._live.stop()
            self._live = None


class Lines:
    """Lines in a log."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = float("-inf")

    def say(self, line: str) -> None:
        """Print a line."""
        self._console.print(Text(line), soft_wrap=True)

    def show(self, view: View) -> None:
        """Print a line every few seconds."""
        if time.monotonic() - self._last >= _LINE_EVERY_S:
            self._last = time.monotonic()
            self.say(as_line(view))

    def close(self) -> None:
        """Do nothing: lines need no end."""


def screen_for(console: Console, *, plain: bool) -> Screen:
    """Return the kind of screen that suits the console."""
    return Lines(console) if plain or not console.is_terminal else Drawing(console)
