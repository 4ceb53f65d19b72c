"""The page's balance in a real browser: every reason and count is available without a mouse."""

import pytest
from playwright.sync_api import Locator, expect

from millrace.consumers.reasons import Reason
from millrace.consumers.records import Partition
from millrace.pipelines.stream.blocks import BlockFacts, Span
from millrace.training.ledger.interventions import Skip
from tests.app.api_rig import P1, Rig
from tests.browsing import NewPage, grave

SET_ASIDE = {reason: 10 * place for place, reason in enumerate(Reason, 1)}


def settle(rig: Rig, partition: Partition, start: int, learnt: int, **counts: int) -> None:
    """Settle `learnt` records and some of every other outcome; `counts` are truncated lists by feature."""
    ledger = rig.service.ledger
    skipped, gaps, lost = 500, 40, 7
    end = start + learnt + sum(SET_ASIDE.values()) + skipped + gaps + lost
    ledger.skip(Skip(order="rewind-17", partition=partition, start=start, end=start + skipped, reason="poisoned"))
    span = Span(
        partition=partition,
        index=partition.number,
        start=start,
        end=end,
        learnt=learnt,
        set_aside=SET_ASIDE,
        skipped={"rewind-17": skipped},
        gaps=gaps,
        lost=lost,
        truncated=counts,
    )
    facts = BlockFacts(
        number=0,
        incarnation=ledger.incarnation,
        spans=(span,),
        batches=1,
        rows=learnt,
        seed=0,
        fetched_at=0.0,
        oldest_ms=1,
        newest_ms=1,
    )
    assert ledger.settle(facts)


def rows(dialog: Locator) -> dict[str, str]:
    """Return the values of the dialog by their labels."""
    cells = [row.split("\t") for row in dialog.locator("tbody").inner_text().splitlines()]
    return {label.strip(): said for label, said in cells}


def test_reasons_commands_and_truncations_are_text_beneath_the_sum(new_page: NewPage, url: str, rig: Rig) -> None:
    page = new_page(url)
    expect(page.locator("#made-of")).to_be_hidden()
    settle(rig, P1, 0, 9_000, last_amounts=1234)
    said = page.locator("#made-of span")
    most = [f"{count} {reason.replace('_', ' ')}" for reason, count in reversed(SET_ASIDE.items())]
    expect(said).to_have_text(
        [
            f"set aside: {most[0]}, {most[1]}, {most[2]} and {len(most) - 3} more",
            "skipped: 500 by rewind-17",
            "lists cut to their bound: 1,234 in last_amounts",
        ],
    )
    expect(page.locator("#sum")).to_contain_text("7 lost to retention")
    assert page.locator(".balance [title]").count() == 0


def test_the_whole_balance_is_a_dialog_that_a_key_opens(new_page: NewPage, url: str, rig: Rig) -> None:
    page = new_page(url, width=390, height=844)
    settle(rig, P1, 0, 9_000, last_amounts=1234, words=3, ids=2)
    expect(page.locator("#sum")).to_contain_text("9,000 learnt")
    page.get_by_role("button", name="In full").press("Enter")
    dialog = page.get_by_role("dialog", name="The outcome of every offset")
    expect(dialog).to_be_visible()
    found, set_aside = rows(dialog), sum(SET_ASIDE.values())
    assert {name: found[name.replace("_", " ")] for name in Reason} == {name: str(n) for name, n in SET_ASIDE.items()}
    assert (found["offsets"], found["learnt"], found["set aside"]) == (
        f"{9_000 + set_aside + 547:,}",
        "9,000",
        f"{set_aside:,}",
    )
    assert (found["skipped"], found["by rewind-17"]) == ("500", "500")
    assert (found["without a record"], found["lost to retention"]) == ("40", "7")
    assert (found["in last_amounts"], found["in words"], found["in ids"]) == ("1,234", "3", "2")
    expect(dialog.locator("#classes")).to_have_text(
        "Share of the stream → of what is learnt: class 0 90 % → 50 %, class 1 10 % → 50 %"
    )
    expect(dialog.locator("#windows")).to_have_text(
        "Windows: the last records of 812 keys are held; 3 times a key made room for another"
    )
    expect(dialog.locator("#reservoir")).to_have_text(
        "Reservoir: 1,000 of 90,000 records learnt; since half of them 45,000 more were learnt"
    )
    box = dialog.bounding_box()
    assert box is not None
    assert (box["x"] >= 0, box["x"] + box["width"] <= 390, box["y"] + box["height"] <= 844) == (True, True, True)
    assert grave(page) == {}


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1920, 1080)])
def test_nothing_scrolls_on_a_desktop_however_many_problems_there_are(
    new_page: NewPage, url: str, rig: Rig, width: int, height: int
) -> None:
    page = new_page(url, width=width, height=height)
    settle(rig, P1, 0, 9_000, last_amounts=1234, words=3, ids=2)
    rig.save_error = "OSError: [Errno 28] No space left on device: '/var/lib/millrace/clicks/checkpoints/.saving-9-3'"
    rig.source.meter.committed("CommitFailedError")
    rig.source.meter.waiting([Partition("clicks", number) for number in range(2, 30)])
    rig.source.meter.unanswered("no answer within 10 s")
    rig.post()
    expect(page.locator("#problems article")).to_have_count(4)
    expect(page.locator("#made-of")).to_contain_text("in last_amounts")
    assert page.evaluate("document.scrollingElement.scrollHeight") == height
    page.locator("#problems article").last.scroll_into_view_if_needed()
    expect(page.locator("#problems article").last).to_be_in_viewport()
    assert grave(page) == {}
