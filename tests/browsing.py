"""A real browser, Debian's Chromium, what counts as a complaint of it, and what axe finds in a page."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

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


def grave(page: Page) -> dict[str, list[str]]:
    """What axe calls serious or critical, with the places."""
    found = Axe().run(page).response["violations"]
    return {
        one["id"]: [node["html"] for node in one["nodes"]] for one in found if one["impact"] in {"serious", "critical"}
    }
