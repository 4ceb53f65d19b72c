"""The page's feed in a real browser from a real server; clock and visibility are simulated."""

import re
from collections.abc import Callable

import httpx
import pytest
from playwright.sync_api import Page, Route, expect

from millrace.app.api.routes import events
from millrace.app.monitoring import snapshot
from tests.app.api_rig import P0, Rig
from tests.browsing import NewPage

LATER_MS = 31_000
Open = Callable[[], Page]


@pytest.fixture
def open_page(new_page: NewPage, url: str) -> Open:
    """Return how to open the page under a simulated clock and wait until it shows something."""

    def opened() -> Page:
        page = new_page()
        page.clock.install()
        page.goto(url)
        expect(page.locator("#name")).to_have_text("clicks")
        return page

    return opened


def switch_tab(page: Page, state: str) -> None:
    """Simulate a change of tabs, because a browser without windows reports every tab as visible."""
    page.evaluate(
        """(state) => {
            Object.defineProperty(document, "hidden", { get: () => state === "hidden", configurable: true });
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        state,
    )


def test_without_the_cursor_the_newest_value_is_shown_whatever_the_span(open_page: Open, rig: Rig) -> None:
    """A step of a long span is a mean over ten seconds or a minute, fetched up to a minute ago."""
    page = open_page()

    def of_old(route: Route) -> None:
        history = route.fetch().json()
        history["mean"]["learnt_per_s"] = [123_456] * len(history["at"])
        route.fulfill(json=history)

    page.route("**/history?span=24h", of_old)
    page.locator("input[value='24h']").check(force=True)
    cursor, said = page.get_by_role("slider"), page.locator("[data-value=learnt_per_s]")
    expect(page.locator("path.band")).to_have_count(3)
    cursor.focus()
    page.keyboard.press("End")
    expect(said).to_have_text("123,456")
    page.keyboard.press("Escape")
    expect(said).to_have_text("0")
    rig.produce(P0, 400)
    rig.learn_all()
    expect(said).to_have_text(re.compile(r"^[1-9]\d{0,3}$"))


def test_a_page_in_the_background_leaves_its_place_to_a_visible_one(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 1)
    first, second = open_page(), open_page()
    refused = "#problems article:has-text('This page gets no live updates')"
    expect(second.locator(refused)).to_contain_text("1 listeners are the most")
    switch_tab(first, "hidden")
    expect(second.locator(refused)).to_be_hidden()
    switch_tab(first, "visible")
    expect(first.locator(refused)).to_be_visible()
    switch_tab(second, "hidden")
    expect(first.locator(refused)).to_be_hidden()


def test_a_page_without_a_stream_says_so_and_stays_correct(
    open_page: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(events, "MAX_LISTENERS", 0)
    page = open_page()
    expect(page.locator("#problems .fix")).to_contain_text("Close other pages of this service")
    httpx.post(f"{url}/pause", timeout=20)
    expect(page.locator("#verdict strong")).to_have_text("Paused:")
    expect(page.get_by_role("button", name="Resume")).to_be_enabled()
    expect(page.locator("#as-of")).to_have_text("as of 1 s ago")
    expect(page.locator("body")).not_to_have_class("quiet")


def test_time_in_the_background_does_not_count_as_silence(open_page: Open) -> None:
    page = open_page()
    switch_tab(page, "hidden")
    page.clock.fast_forward(20 * LATER_MS)
    expect(page.locator("#announce")).not_to_have_text("No answer.")
    page.route("**/page/updates*", lambda _route: None)
    switch_tab(page, "visible")
    expect(page.locator("#as-of")).to_have_text("as of 10 min ago")
    expect(page.locator("#as-of")).to_have_text("no answer for 4 s")


def test_the_title_stays_correct_in_the_background(open_page: Open, url: str) -> None:
    page = open_page()
    switch_tab(page, "hidden")
    httpx.post(f"{url}/pause", timeout=20)
    page.clock.fast_forward(LATER_MS)
    expect(page).to_have_title("clicks · Paused")


def test_the_page_reloads_once_when_the_service_has_another_version(
    open_page: Open, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = open_page()
    page.evaluate("window.old = true")
    with page.expect_event("load"):
        monkeypatch.setattr(snapshot, "version", lambda: "99.0.0")
    assert page.evaluate("window.old") is None
    page.evaluate("window.old = true")
    httpx.post(f"{url}/pause", timeout=20)
    expect(page.get_by_role("button", name="Resume")).to_be_enabled()
    assert page.evaluate("window.old")


def test_the_second_sum_names_what_it_is_counted_from(open_page: Open) -> None:
    """A rewind starts the count again, and so does a start of the process."""
    expect(open_page().locator("#flow")).to_contain_text("0 fetched since the last start or rewind")


def test_a_service_that_answers_with_an_error_is_not_shown_as_one_that_answers(open_page: Open) -> None:
    page = open_page()
    refused = {"type": "about:blank", "status": 500, "detail": "A defect."}
    asked = re.compile(r"/(page/updates|status|events)\b")
    page.route(asked, lambda route: route.fulfill(status=500, json=refused))
    switch_tab(page, "hidden")
    switch_tab(page, "visible")  # the stream is opened anew
    expect(page.locator("#as-of")).to_have_text(re.compile(r"^no answer for [4-9] s$"))
    page.unroute(asked)
    expect(page.locator("#as-of")).to_have_text("as of 1 s ago")
