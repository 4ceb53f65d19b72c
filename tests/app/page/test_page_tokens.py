"""The page of a service where reading needs a token, in a real browser from a real server."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from millrace.app.settings.sections.api import ApiSettings
from tests.app.api_rig import Rig, serving
from tests.browsing import NewPage, grave, is_complaint

COMMANDS, READS = "correct-horse-battery-staple", "a-token-of-a-reader"


@pytest.fixture
def page(new_page: NewPage, rig: Rig, tmp_path: Path) -> Iterator[Page]:
    for folder, token in (("tokens", COMMANDS), ("readers", READS)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "somebody").write_text(token)
    settings = ApiSettings(listen="127.0.0.1:0", tokens_dir=tmp_path / "tokens", read_tokens_dir=tmp_path / "readers")
    complaints: list[str] = []
    page = new_page()
    page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    with serving(rig, settings) as server:
        page.goto(f"http://127.0.0.1:{server.port}")
        yield page
    assert [one for one in complaints if "403" not in one] == []


def give(page: Page, token: str) -> None:
    page.locator("#token-text").fill(token)
    page.locator("#give-token").click()


def test_the_page_asks_once_for_a_token_and_shows_all_with_it(page: Page) -> None:
    expect(page.locator("#token-title")).to_have_text("Reading needs a token")
    assert grave(page) == {}
    give(page, "a-wrong-token-of-nobody")
    expect(page.locator("#token-refusal")).to_have_text("The request brings a token that nobody has.")
    give(page, READS)
    expect(page.locator("#name")).to_have_text("clicks")
    expect(page.locator("#checkpoints tr")).to_have_count(1)
    expect(page.locator("#charts path.line").first).to_be_attached()
    expect(page.locator("#token")).to_be_hidden()
    expect(page.locator("body")).not_to_have_class("quiet")


def test_a_token_for_reading_is_not_enough_for_a_command_and_stays_good_for_reading(page: Page) -> None:
    give(page, READS)
    pause = page.get_by_role("button", name="Pause")
    pause.click()
    expect(page.locator("#token-title")).to_have_text("This command needs a token")
    expect(page.locator("#token-refusal")).to_contain_text("a token that may only read")
    page.locator("#token").get_by_role("button", name="Cancel").click()
    expect(pause).to_be_enabled()
    pause.click()
    give(page, COMMANDS)
    expect(page.locator("#verdict strong")).to_have_text("Paused:")
    page.get_by_role("button", name="Resume").click()
    expect(pause).to_be_enabled()


def test_a_page_without_a_token_says_what_it_lacks_and_asks_no_more(page: Page) -> None:
    expect(page.locator("#token")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#verdict")).to_contain_text("Locked: this service shows its state only with a token")
    with page.expect_response(lambda answer: "/page/updates" in answer.url):
        pass  # the feed tries again by itself
    expect(page.locator("#token")).to_be_hidden()


def test_a_token_that_is_replaced_is_asked_for_again(page: Page, tmp_path: Path) -> None:
    give(page, READS)
    expect(page.locator("#name")).to_have_text("clicks")
    (tmp_path / "readers" / "somebody").write_text("the-next-token-of-a-reader")
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")  # all is read again
    expect(page.locator("#token-refusal")).to_have_text("The request brings a token that nobody has.")
    give(page, "the-next-token-of-a-reader")
    expect(page.locator("#token")).to_be_hidden()


def test_a_token_that_no_header_can_carry_is_refused_and_asked_for_again(page: Page) -> None:
    give(page, f"{READS[:4]}\u200b{READS[4:]}")  # as copied from a chat
    expect(page.locator("#token-refusal")).to_have_text("The token holds a character that no token has; copy it again.")
    give(page, READS)
    expect(page.locator("#name")).to_have_text("clicks")
