"""Whether the records are as they were, on the page in a real browser."""

from datetime import datetime
from zoneinfo import ZoneInfo

import httpx
import pytest
from playwright.sync_api import expect

from tests.app.api_rig import Rig, serving
from tests.app.page.test_page_truth import fits, opened
from tests.browsing import NewPage
from tests.training.trainer.inputs.world import Watch, World


@pytest.fixture(scope="module")
def watch() -> Watch:
    found = Watch(World(16, seed=1))
    found.go(60.0)
    found.go(10.0, lambda columns: columns.update(price_0=columns["price_0"] * 100))
    return found


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_field_that_has_changed_is_first_and_shown_now_and_before(
    new_page: NewPage, rig: Rig, watch: Watch, width: int, height: int
) -> None:
    rig.service.watchers = (watch.inputs,)
    rig.post()
    for page, dialog in opened(new_page, rig, width, height, "Inputs", "Whether the records are as before"):
        expect(dialog.locator("#inputs-says")).to_contain_text("One field is other than before")
        first = dialog.locator("table.inputs tbody tr").first
        expect(first.locator("th")).to_have_text("price_0")
        expect(first.locator("td.what")).to_contain_text("median")
        expect(dialog.locator("table.inputs tbody tr")).to_have_count(17)
        first.get_by_role("button", name="price_0").press("Enter")
        full = dialog.get_by_role("region", name="price_0")
        expect(full.locator("svg")).to_have_count(2)
        expect(full.locator("tbody tr")).to_have_count(6)
        dialog.get_by_role("button", name="device_0").press("Enter")
        texts = dialog.get_by_role("region", name="device_0")
        expect(texts.locator("tbody th").first).to_have_text("value 1")
        fits(page, dialog)


def test_the_moments_are_those_of_the_clock_of_who_looks(new_page: NewPage, rig: Rig, watch: Watch) -> None:
    rig.service.watchers = (watch.inputs,)
    rig.post()
    with serving(rig) as server:
        page = new_page(timezone_id="Asia/Tokyo")
        page.goto(f"http://127.0.0.1:{server.port}")
        page.get_by_role("button", name="Inputs").click()
        until = datetime.fromisoformat(httpx.get(f"{page.url}data").json()["until"])
        there = until.astimezone(ZoneInfo("Asia/Tokyo")).strftime("%Y-%m-%d %H:%M:%S")
        expect(page.locator("#inputs-says")).to_contain_text(f"until {there}.")
