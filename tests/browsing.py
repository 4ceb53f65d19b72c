"""A real browser, Debian's Chromium, and what counts as a complaint of it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Browser, ConsoleMessage, sync_playwright

from tests.programs import program

SOON_MS = 20_000
_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-sync",
    "--no-first-run",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    """While this lasts, a browser without a window."""
    path = program("chromium", how="make tools")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def is_complaint(said: ConsoleMessage) -> bool:
    """Browsers write down every refusal by themselves, also one that is answered: by asking for a token, in a line."""
    refused = re.search(r"status of (401|422)", said.text) is not None
    return said.type in {"error", "warning"} and not refused
