"""What the page shows of the past, in a real browser from a real server: charts, marks, events, partitions."""

import re
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from playwright.sync_api import Page, expect

from millrace.app.monitoring.models import LastValue
from millrace.app.monitoring.sample_history import COLUMNS, SPANS, SampleHistory, Tier
from millrace.training.checkpoints import SaveReason
from millrace.training.recovery.crash_guard import CrashLoop
from millrace.training.telemetry.events import EventKind
from tests.app.api_rig import P0, P1, Rig
from tests.browsing import NewPage, grave

Open = Callable[..., Page]
DEAF = "**/{history,status,checkpoints,page/updates}*"


@pytest.fixture
def open_page(new_page: NewPage, url: str) -> Open:
    """Return how to open the page; with `answered=False` nothing but its files is answered."""

    def opened(*, answered: bool = True) -> Page:
        page = new_page()
        if not answered:
            page.route(DEAF, lambda _route: None)
        page.goto(url)
        if answered:
            expect(page.locator("#name")).to_have_text("clicks")
        return page

    return opened


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_labels_of_the_charts_stand_in_their_places_before_the_first_answer(
    open_page: Open, width: int, height: int
) -> None:
    page = open_page(answered=False)
    page.set_viewport_size({"width": width, "height": height})
    boxes = [page.locator(f"#panel-{name} figcaption").bounding_box() for name in ("metric", "lag", "rate")]
    places = [(box["y"], box["y"] + box["height"]) for box in boxes if box is not None]
    assert len(places) == 3
    assert places[0][1] <= places[1][0] < places[1][1] <= places[2][0]


def test_the_labels_do_not_move_when_the_charts_are_drawn(open_page: Open) -> None:
    page = open_page()
    page.locator("path.line").first.wait_for(state="attached")
    low = page.evaluate(
        """() => ["metric", "lag", "rate"].map((name, i) => {
            const top = document.getElementById(`panel-${name}`).offsetTop;
            const lines = [...document.querySelectorAll("#charts line.grid")].map((one) => one.y1.baseVal.value);
            return lines.length ? Math.min(...lines.map((y) => Math.abs(y - top))) : null;
        })"""
    )
    assert any(distance is not None and distance < 1 for distance in low), "a grid line is at the top of its chart"


def test_pauses_and_kafkas_absence_are_stretches_with_their_own_marks(open_page: Open, rig: Rig) -> None:
    report = rig.service.events.report
    report(EventKind.PROBLEM, "Kafka does not answer at localhost:9092.", problem="kafka_away")
    report(EventKind.PROBLEM_OVER, "Kafka answers again.", problem="kafka_away", lasted_s=1.0)
    report(EventKind.PAUSED, "Paused: for a test.", reason="for a test")
    page = open_page()
    for sign in ("away", "back", "pause"):
        expect(page.locator(f"#charts path.sign.{sign}")).to_have_count(1)
    expect(page.locator("#legend")).to_contain_text("Kafka away")
    expect(page.locator("#charts rect.stretch.pause")).to_have_count(3)
    report(EventKind.RESUMED, "Resumed.")
    expect(page.locator("#charts path.sign.resume")).to_have_count(1)


def test_scheduled_checkpoints_in_a_row_are_one_entry_of_what_happened(open_page: Open, rig: Rig) -> None:
    report = rig.service.events.report
    for number in range(1, 30):
        report(EventKind.CHECKPOINT, f"Checkpoint {number} is durable.", number=number, reason="interval")
    report(EventKind.CHECKPOINT, "Checkpoint 30 is durable: mine.", number=30, reason="demand", note="mine")
    report(EventKind.SET_ASIDE, "3 records were set aside as malformed.", reason="malformed", records=3)
    page = open_page()
    shown = page.locator("#events li span")
    expect(shown).to_have_text(
        [
            "3 records were set aside as malformed.",
            "Checkpoint 30 is durable: mine.",
            "Checkpoints 1 to 29 are durable.",
        ],
    )
    report(EventKind.CHECKPOINT, "Checkpoint 31 is durable.", number=31, reason="interval")
    expect(shown.first).to_have_text("Checkpoint 31 is durable.")
    report(EventKind.CHECKPOINT, "Checkpoint 32 is durable.", number=32, reason="interval")
    expect(shown.first).to_have_text("Checkpoints 31 to 32 are durable.")


def test_the_lag_of_each_partition_is_a_click_away_and_stays_current(open_page: Open, rig: Rig) -> None:
    rig.produce(P0, 5)
    rig.produce(P1, 40)
    page = open_page()
    page.get_by_role("button", name="By partition").click()
    rows = page.locator("#partitions tr")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("clicks:1")
    expect(rows.first.locator("td").first).to_have_text("40")
    rig.source.meter.ends({P0: 500, P1: 40}, {P0: 100, P1: 40})
    expect(rows.first).to_contain_text("500, held at 100")
    page.keyboard.press("Escape")
    expect(page.locator("#lag-by-partition")).to_be_hidden()


def kept(rig: Rig, ago_s: float, metric: Sequence[float], baseline: float = 0.5, lag_s: Sequence[float] = ()) -> None:
    """Have the service take in a minute each of these values, as an earlier process has kept them, from so long ago."""
    began, earlier = time.time() - ago_s, SampleHistory()
    for minute, value in enumerate(metric):
        at = began + 60 * minute
        row = np.full(len(COLUMNS), np.nan)
        row[COLUMNS.index("lag_s")] = lag_s[minute] if lag_s else 0.0
        earlier._tiers["24h"].add(at, at, row)
        tiers = earlier._metrics.setdefault(
            "accuracy", {span.name: Tier(span, ("metric", "baseline")) for span in SPANS}
        )
        tiers["24h"].add(at, at, np.array([value, baseline]))
        earlier.last["accuracy"] = LastValue(value=value, baseline=baseline, at=at)
    earlier.metric = "accuracy"
    curves = rig.service.kept_history._curves
    assert curves is not None
    curves.merge(*earlier.copied(), time.time())


def heights(page: Page, panel: int) -> list[float]:
    """Return how high in its chart each point of a panel's line is: 0 at the bottom, 1 at the top."""
    return page.evaluate(  # type: ignore[no-any-return]  # playwright says Any
        """(panel) => {
            const line = document.querySelectorAll("#charts path.line")[panel];
            const ys = [...line.getAttribute("d").matchAll(/[ML][0-9.]+ ([0-9.]+)/g)].map((one) => Number(one[1]));
            const grid = document.querySelector("#charts path.grid").getAttribute("d").split("M")[panel + 1];
            const [, top, low] = grid.match(/ ([0-9.]+)V([0-9.]+)/).map(Number);
            return ys.map((y) => (low - y) / (low - top));
        }""",
        panel,
    )


def line_through(points: int) -> re.Pattern[str]:
    return re.compile(f"^[^L]+(L[^L]+){{{points - 1}}}$")


def test_before_any_score_the_page_says_so_and_offers_no_guess(open_page: Open) -> None:
    page = open_page()
    expect(page.locator('[data-name="metric"]')).to_have_text("no record scored yet")
    expect(page.locator('[data-value="baseline"]')).to_be_hidden()


def test_after_a_restart_on_an_idle_topic_the_last_score_and_its_curve_are_there(open_page: Open, rig: Rig) -> None:
    kept(rig, 3 * 3600.0 + 60, [0.5, 0.7, 0.9])
    page = open_page()
    page.locator('#spans [value="24h"]').check(force=True)
    expect(page.locator('[data-value="metric"]')).to_have_text("0.900")
    expect(page.locator('[data-name="metric"]')).to_have_text("accuracy, 3 h ago")
    expect(page.locator('[data-value="baseline"]')).to_have_text("0.500")
    expect(page.locator("#charts path.line").first).to_have_attribute("d", line_through(3))


def test_how_the_metric_has_changed_since_yesterday_stands_beside_it(open_page: Open, rig: Rig) -> None:
    kept(rig, 23 * 3600.0, [0.70] * 20)
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    expect(open_page().locator('[data-name="change"]')).to_have_text("+0.050 since yesterday")


def test_a_history_of_an_hour_says_how_long_it_is_and_a_shorter_one_says_nothing(open_page: Open, rig: Rig) -> None:
    kept(rig, 3600.0, [0.80] * 5)
    page = open_page()
    expect(page.locator('[data-name="metric"]')).to_contain_text("accuracy")
    expect(page.locator('[data-name="change"]')).to_have_text("")
    rig.produce(P0, 8)
    rig.learn_all()
    rig.post()
    expect(page.locator('[data-name="change"]')).to_have_text(re.compile("^−0.050 in (60 min|1 h)$"))


def at_mark(page: Page, sign: str) -> tuple[float, float]:
    """Return a place in the large chart, above a mark, from one look: the page draws its marks anew each second."""
    x, top = page.evaluate(
        """(sign) => {
            const mark = document.querySelector(`#charts path.sign.${sign}`).getBoundingClientRect();
            return [mark.x + mark.width / 2, document.getElementById("charts").getBoundingClientRect().y];
        }""",
        sign,
    )
    return x, top + 60


def test_marks_of_checkpoints_and_of_the_records_open_what_they_stand_for(open_page: Open, rig: Rig) -> None:
    rig.produce(P0, 8)
    rig.learn_all()
    number = rig.publish(SaveReason.DEMAND, 0, accuracy=0.7).number
    rig.post()
    report = rig.service.events.report
    report(EventKind.CHECKPOINT, f"Checkpoint {number} is durable.", number=number, reason="demand", note=None)
    page = open_page()
    expect(page.locator("#charts path.sign.checkpoint")).to_have_count(1)
    expect(page.locator('[data-name="metric"]')).to_have_text("accuracy over 1m")
    page.mouse.click(*at_mark(page, "checkpoint"))
    dialog = page.get_by_role("dialog", name=f"Restore checkpoint {number}?")
    expect(dialog).to_be_visible()
    expect(dialog.locator("#plan")).to_contain_text("When it was made: accuracy 0.700")
    expect(dialog.locator("#plan")).to_contain_text("Now: accuracy 0.750, +0.050.")
    page.keyboard.press("Escape")
    page.mouse.click(at_mark(page, "checkpoint")[0] - 60, at_mark(page, "checkpoint")[1])
    expect(page.locator("dialog[open]")).to_have_count(0)
    # The same by the keyboard, at the newest moment.
    page.locator("#cursor").press("Enter")
    expect(dialog).to_be_visible()
    page.keyboard.press("Escape")
    report(EventKind.INPUT_CHANGED, "price: median 3.1 → 31.", field="price")
    expect(page.locator("#charts path.sign.input")).to_have_count(1)
    # Beside the score it stands by its name, for ten minutes.
    expect(page.get_by_role("button", name="Inputs: price")).to_have_attribute("title", "price: median 3.1 → 31.")
    page.locator("#cursor").press("Enter")
    expect(page.get_by_role("dialog", name="Whether the records are as before")).to_be_visible()


def test_the_first_moment_of_a_day_stays_inside_its_chart(open_page: Open) -> None:
    page = open_page()
    page.locator('#spans [value="24h"]').check(force=True)
    expect(page.locator("#charts path.line").nth(1)).to_have_attribute("d", re.compile("."))
    reaches, ends = page.evaluate(
        """() => {
            const box = document.querySelectorAll("#charts path.line")[1].getBBox();
            return [box.x + box.width, document.querySelector("#charts line.grid").x2.baseVal.value];
        }"""
    )
    assert 0 < reaches <= ends


def test_a_guess_that_is_far_away_does_not_press_the_metric_flat(open_page: Open, rig: Rig) -> None:
    kept(rig, 1800.0, [0.86, 0.88, 0.9, 0.93], baseline=0.1)
    page = open_page()
    page.locator('#spans [value="24h"]').check(force=True)
    expect(page.locator("#charts path.line").first).to_have_attribute("d", line_through(4))
    shown = heights(page, 0)
    assert max(shown) - min(shown) > 0.3
    assert page.locator("#charts path.other").first.get_attribute("d") == "", (
        "the guess is beside the chart, as a number"
    )


def test_minutes_of_lag_are_no_line_at_zero_after_a_year_of_it(open_page: Open, rig: Rig) -> None:
    year = 366 * 86_400.0
    kept(rig, 1800.0, [0.9] * 5, lag_s=[year, year, 600.0, 500.0, 480.0])
    page = open_page()
    page.locator('#spans [value="24h"]').check(force=True)
    expect(page.locator("#charts text", has_text="1 year")).to_have_count(1)
    shown = heights(page, 1)
    assert shown[0] > 0.95
    assert 0.2 < shown[4] < 0.8
    expect(page.locator("#charts text", has_text=re.compile("K h"))).to_have_count(0)


def test_records_set_aside_in_a_row_are_one_entry_though_checkpoints_are_between(open_page: Open, rig: Rig) -> None:
    report = rig.service.events.report
    for number in range(1, 4):
        for reason, count in (("malformed", 1000), ("missing", 200)):
            text = f"{count:,} records were set aside as {reason}."
            report(EventKind.SET_ASIDE, text, reason=reason, records=count)
        report(EventKind.CHECKPOINT, f"Checkpoint {number} is durable.", number=number, reason="interval")
    page = open_page()
    shown = page.locator("#events li span")
    expect(shown).to_have_count(2)
    expect(shown.nth(0)).to_have_text("Checkpoints 1 to 3 are durable.")
    expect(shown.nth(1)).to_have_text(
        re.compile(r"^3,600 records were set aside since \d\d:\d\d:\d\d: 3,000 malformed, 600 missing\.$")
    )
    report(EventKind.PAUSED, "Paused: for a test.")
    report(EventKind.SET_ASIDE, "1 record was set aside as malformed.", reason="malformed", records=1)
    expect(shown.nth(0)).to_have_text("1 record was set aside as malformed.")
    expect(shown).to_have_count(4)


def test_a_command_in_a_problem_is_code_that_a_button_copies(open_page: Open, rig: Rig) -> None:
    rig.brake(CrashLoop(starts=3, number=0, suspects={P0: (100, 164)}))
    page = open_page()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    fix = page.locator("#problems .fix")
    command = "millrace rewind -c CONFIG --to 0 --skip clicks:0:100-163"
    expect(fix.locator("code")).to_have_text(command)
    expect(page.locator("#problems")).not_to_contain_text("`")
    fix.get_by_role("button", name=f"Copy {command}").click()
    expect(fix.get_by_role("button")).to_have_text("Copied")
    assert page.evaluate("navigator.clipboard.readText()") == command
    assert grave(page) == {}


@pytest.mark.parametrize(
    ("sentence", "first"),
    [
        (
            "Learning. 41,200 records/s, 3 s behind, bound by compute. Accuracy 0.91 over the last 5 min "
            "(base rate: 0.55). 1 problem to look at.",
            "Learning.",
        ),
        (
            "Kafka has been away for 3 min; the learning goes on by itself when it answers.",
            "Kafka has been away for 3 min;",
        ),
        ("Learning. 41,200 records/s.", "Learning."),
        ("Paused: since 12:30 by Ada.", "Paused:"),
    ],
)
def test_a_usual_verdict_is_one_line_with_its_first_clause_large(open_page: Open, sentence: str, first: str) -> None:
    page = open_page()
    lines, strong = page.evaluate(
        """async (sentence) => {
            const { verdict } = await import("/page/parts.js");
            const node = document.getElementById("verdict");
            verdict(node, sentence);
            const strong = node.querySelector("strong");
            return [node.offsetHeight / strong.offsetHeight, strong.textContent];
        }""",
        sentence,
    )
    assert lines < 1.6
    assert strong == first
