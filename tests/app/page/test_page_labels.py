"""The labels beside the page's charts in a real browser: whatever they hold, each of their buttons can be clicked."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from millrace.app.api.routes import events
from tests.app.api_rig import P0, Rig, serving
from tests.browsing import NewPage
from tests.conftest import WaitFor

COVERED = """() => [...document.querySelectorAll("#charts button, #charts select")].filter((button) => {
    button.scrollIntoView({ block: "center" });
    const { x, y, width, height } = button.getBoundingClientRect();
    return width > 0 && !button.contains(document.elementFromPoint(x + width / 2, y + height / 2));
}).map((button) => button.id)"""
SLICE = {"records": 9, "values": {}, "lowest": {}, "highest": {}, "cumulative": {}, "live": {}}
PROBLEM = {"problem": "lost", "what": "Kafka had no more of it.", "since": "2026-11-21T03:00:00Z", "fix": "Look at it."}


@pytest.fixture
def page(new_page: NewPage, rig: Rig, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    """Open the page of a service that has a problem, and everything to look at beside the metric."""
    rig.produce(P0, 16)
    rig.learn_all()
    rig.post()
    monkeypatch.setattr(events, "MAX_LISTENERS", 0)  # so that the page reads /status

    def with_all(route: Route) -> None:
        told = route.fetch().json()
        told["training"] |= {"slices": {"all": SLICE}, "served": {"1": SLICE}, "calibration": {"answers": 9}}
        told["problems"] = [PROBLEM]
        told["verdict"] = f"Reading {'a-topic.of_' * 20}."
        route.fulfill(json=told)

    with serving(rig) as server:
        page = new_page()
        page.route("**/status", with_all)
        page.goto(f"http://127.0.0.1:{server.port}")
        for name in ("How true", "For whom", "Served", "Inputs"):
            expect(page.get_by_role("button", name=name)).to_be_visible()
        yield page


def test_no_button_is_covered_on_a_screen_of_any_size(page: Page, wait_for: WaitFor) -> None:
    plot = page.locator(".plot").first
    for width, height in ((1440, 900), (1366, 768), (1280, 720), (390, 844), (360, 740)):
        page.set_viewport_size({"width": width, "height": height})
        wait_for(lambda: plot.evaluate("(plot) => plot.viewBox.baseVal.width <= innerWidth"))
        assert page.evaluate(COVERED) == [], (width, height)
        assert page.evaluate("document.scrollingElement.scrollWidth") <= width
