"""/docs as a person sees it, in a real browser under its own policy: readable by everybody, on every screen."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from tests.app.api_rig import Rig, serving
from tests.browsing import chromium, grave, is_complaint


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_axe_finds_nothing_serious_and_nothing_scrolls_sideways(
    browser: Browser, rig: Rig, width: int, dark: bool
) -> None:
    complaints: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme="dark" if dark else "light")
    page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
    with serving(rig) as server:
        page.goto(f"http://127.0.0.1:{server.port}/docs")
        expect(page.get_by_role("heading", level=1)).to_have_text("The HTTP side of clicks")
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert grave(page) == {}
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
        page.get_by_role("link", name="POST /checkpoints/{number}/restore").click()
        expect(page.locator("article:target h3")).to_contain_text("/restore")
    page.close()
    assert complaints == []
