"""The page's group of workers in a real browser: who is slow, who is missing, and who takes commands."""

from playwright.sync_api import expect

from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import Rig
from tests.app.groups import group, member
from tests.browsing import NewPage, grave


def test_the_page_of_one_process_alone_shows_no_group(new_page: NewPage, url: str) -> None:
    page = new_page(url)
    expect(page.locator("#tick")).to_contain_text("it adds up")
    expect(page.locator("#group")).to_be_hidden()
    expect(page.locator("#balance-title")).to_have_text("Every offset is accounted for")
    expect(page.locator("#shares")).not_to_contain_text("other workers")


def test_a_table_by_worker_shows_who_is_behind_and_who_is_slow(new_page: NewPage, url: str, rig: Rig) -> None:
    rig.service.board.group = group(0, member(), member())
    page = new_page(url)
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


def test_while_the_group_waits_the_page_names_the_missing(new_page: NewPage, url: str, rig: Rig) -> None:
    rig.service.board.group = group(0, missing=(1,))
    rig.service.phases._phase = Phase.WAITING
    page = new_page(url)
    expect(page.locator("#group-says")).to_have_text("A group of 2: waiting for worker 1.")
    expect(page.locator("#verdict")).to_have_text("Waiting for worker 1 of the group.")


def test_the_page_of_a_worker_sends_whoever_commands_to_the_chief(new_page: NewPage, url: str, rig: Rig) -> None:
    rig.service.board.group = group(1, member(), member())
    page = new_page(url)
    expect(page.locator("#group-says")).to_contain_text("This is worker 1; the chief, millrace-0.millrace, saves")
    expect(page.locator("#balance-title")).to_have_text("Every offset of worker 1's partitions is accounted for")
    expect(page.locator("#in-full-title")).to_have_text("The outcome of every offset of worker 1's partitions")
    for button in ("#pause", "#save"):
        expect(page.locator(button)).to_be_disabled()
    expect(page.locator("#as-before")).to_be_hidden()  # the chief sees the records of all
    rig.service.board.group = group(0, member(), member())
    rig.post()
    expect(page.locator("#as-before")).to_be_visible()
