"""The page's dialog to restore a checkpoint in a real browser; what the service answers to it is made up."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from millrace.training.checkpoints import SaveReason
from tests.app.api_rig import Rig, serving
from tests.browsing import NewPage

MADE = "2026-11-21T03:00:00.000Z"
PLAN = {"as_of": MADE, "created_at": MADE, "step": 1, "replayed": 5, "skipped": 0, "gone": 0}


@pytest.fixture
def restores() -> list[Route]:
    """The restores that were sent and are not answered yet."""
    return []


@pytest.fixture
def page(new_page: NewPage, rig: Rig, restores: list[Route]) -> Iterator[Page]:
    """Open the page of a service with two checkpoints, and have checkpoint 1 restored by clicks."""
    rig.publish(SaveReason.INTERVAL, 0)

    def answer(route: Route) -> None:
        if "wait=" in route.request.url:
            restores.append(route)
        else:
            route.fulfill(json=PLAN)

    with serving(rig) as server:
        page = new_page()
        page.route("**/restore*", answer)
        page.goto(f"http://127.0.0.1:{server.port}")
        with page.expect_request("**/restore?wait=60s"):
            page.get_by_label("Restore checkpoint 1").click()
            page.locator("#do-restore").click()
        yield page


def test_a_restore_that_is_under_way_is_told_apart_from_one_that_is_looked_at(
    page: Page, restores: list[Route]
) -> None:
    page.keyboard.press("Escape")
    page.get_by_label("Restore checkpoint 0").click()
    title = page.locator("#restore-title")
    expect(title).to_have_text("Restore checkpoint 0?")
    restores.pop().fulfill(json={"checkpoint": {"number": 7}})
    expect(page.locator("#notice")).to_have_text("Restored checkpoint 1, as checkpoint 7.")
    expect(title).to_be_visible()


def test_a_refusal_after_the_dialog_was_closed_is_told(page: Page, restores: list[Route]) -> None:
    page.keyboard.press("Escape")
    expect(page.locator("#restore")).to_be_hidden()
    restores.pop().fulfill(status=409, json={"status": 409, "detail": "The records are gone."})
    expect(page.locator("#notice")).to_have_text("Checkpoint 1 was not restored. The records are gone.")
