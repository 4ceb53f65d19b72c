"""The page's group of workers in a real browser: who is slow, who is missing, and who takes commands."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import Rig, serving
from tests.app.groups import group, member
from tests.browsing import SOON_MS, chromium, grave


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture
def url(rig: Rig) -> Iterator[str]:
    with serving(rig) as server:
        yield f"http://127.0.0.1:{server.port}"


def opened(browser: Browser, url: str) -> Page:
    """Open the page; the browser closes it with its context."""
    page = browser.new_context(viewport={"width": 1440, "height": 900}, reduced_motion="reduce").new_page()
    page.set_default_timeout(SOON_MS)
    page.goto(url)
    expect(page.locator("#name")).to_have_text("clicks", timeout=SOON_MS)
    return page


def test_the_page_of_one_process_alone_shows_no_group(browser: Browser, url: str) -> None:
    page = opened(browser, url)
    expect(page.locator("#tick")).to_contain_text("it adds up")
    expect(page.locator("#group")).to_be_hidden()
    expect(page.locator("#balance-title")).to_have_text("Every offset is accounted for")
    expect(page.locator("#shares")).not_to_contain_text("other workers")


def test_a_table_by_worker_shows_who_is_behind_and_who_is_slow(browser: Browser, url: str, rig: Rig) -> None:
    rig.service.board.group = group(0, member(), member())
    page = opened(browser, url)
    rig.service.board.group = group(0, member(waited_s=50, learnt=90), member(lag_records=1234, states=("held",)))
    expect(page.locator("#group-says")).to_contain_text("1,234 records behind. The others wait for worker 1.")
    expect(page.locator("#shares")).to_contain_text("waiting for other workers")
    assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    page.get_by_role("button", name="By worker").press("Enter")
    table = page.get_by_role("dialog", name="The workers of the group")
    expect(table.locator("tbody tr").nth(0)).to_contain_text("the chief")
    worker = table.locator("tbody tr").nth(1)
    expect(worker.locator("th, td").first).to_have_text("worker 1")
    expect(worker.locator("td").first).to_have_text("1,234")
    expect(worker.locator("td").last).to_have_text("slowest, held")
    assert grave(page) == {}


def test_while_the_group_waits_the_page_names_the_missing(browser: Browser, url: str, rig: Rig) -> None:
    rig.service.board.group = group(0, missing=(1,))
    rig.service.phases._phase = Phase.WAITING
    page = opened(browser, url)
    expect(page.locator("#group-says")).to_have_text("A group of 2: waiting for worker 1.")
    expect(page.locator("#verdict")).to_have_text("Waiting for worker 1 of the group.")


def test_the_page_of_a_worker_sends_whoever_commands_to_the_chief(browser: Browser, url: str, rig: Rig) -> None:
    rig.service.board.group = group(1, member(), member())
    page = opened(browser, url)
    expect(page.locator("#group-says")).to_contain_text("This is worker 1; the chief, millrace-0.millrace, saves")
    expect(page.locator("#balance-title")).to_have_text("Every offset of worker 1's partitions is accounted for")
    expect(page.locator("#in-full-title")).to_have_text("The outcome of every offset of worker 1's partitions")
    for button in ("#pause", "#save"):
        expect(page.locator(button)).to_be_disabled()
    expect(page.locator("#as-before")).to_be_hidden()  # the chief sees the records of all
    rig.service.board.group = group(0, member(), member())
    rig.post()
    expect(page.locator("#as-before")).to_be_visible()
