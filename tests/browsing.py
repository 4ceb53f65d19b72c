"""A real browser, Debian's Chromium, what counts as a complaint of it, and what axe finds in a page."""

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Protocol

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

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
    expect.set_options(timeout=SOON_MS)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_FLAGS)
        try:
            yield browser
        finally:
            browser.close()


class NewPage(Protocol):
    def __call__(self, url: str = ..., *, width: int = ..., height: int = ..., **options: Any) -> Page: ...


@contextmanager
def pages(browser: Browser) -> Iterator[NewPage]:
    """Return how to open a page with a storage of its own; at the end all are closed, whatever they still ask for.

    With a URL it has shown the service's name.
    """
    with ExitStack() as opened:

        def new_page(url: str = "", *, width: int = 1440, height: int = 900, **options: Any) -> Page:
            size: Any = {"width": width, "height": height}
            page = opened.enter_context(
                browser.new_context(viewport=size, reduced_motion="reduce", **options)
            ).new_page()
            # A handler that is called as the page closes fails where nobody waits for it: in the next test.
            opened.callback(page.unroute_all, behavior="ignoreErrors")
            page.set_default_timeout(SOON_MS)
            if url:
                page.goto(url)
                expect(page.locator("#name")).to_have_text("clicks")
            return page

        yield new_page


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
