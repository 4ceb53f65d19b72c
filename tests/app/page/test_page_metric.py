"""The page's chart of the live metrics in a real browser: the watched one, the loss, and others to choose."""

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from tests.app.api_rig import P0, Rig, serving
from tests.browsing import NewPage, grave


@pytest.fixture
def page(new_page: NewPage, rig: Rig) -> Iterator[Page]:
    """Open the page of a service that has scored some records."""
    rig.produce(P0, 16)
    rig.learn_all()
    rig.post()
    with serving(rig) as server:
        page = new_page()
        page.goto(f"http://127.0.0.1:{server.port}")
        expect(page.locator("#name")).to_have_text("clicks")
        yield page


def test_the_chart_shows_the_watched_metric_and_names_the_guess(page: Page) -> None:
    panel = page.locator("#panel-metric")
    expect(panel.locator("[data-name=metric]")).to_have_text("accuracy over 1m")
    expect(panel.locator("[data-name=baseline]")).to_have_text("base rate")
    expect(panel.locator("[data-name=no-change]")).to_have_text("no change 0.500")
    expect(panel.locator("[data-name=loss]")).to_have_text("loss 0.500")


def test_another_metric_is_chosen_drawn_and_kept_over_a_reload(page: Page) -> None:
    chosen = page.get_by_label("The metric that the chart shows")
    page.reload()  # the history has names once something was scored
    expect(chosen).to_be_visible()
    assert chosen.locator("option").all_inner_texts() == ["accuracy", "loss"]
    chosen.select_option("loss")
    panel = page.locator("#panel-metric")
    for _ in range(2):
        expect(panel.locator("[data-name=metric]")).to_have_text("loss over 1m")
        expect(panel.locator("[data-value=metric]")).to_have_text("0.500")
        expect(panel.locator("[data-value=baseline]")).to_have_text("0.562")
        expect(panel.locator("[data-name=loss]")).to_have_text("")
        expect(chosen).to_have_value("loss")
        assert re.search(r"metric=loss", page.url)
        page.reload()
    assert grave(page) == {}


def test_a_metric_that_is_not_there_gives_way_to_the_watched_one(page: Page) -> None:
    page.goto(f"{page.url}?metric=gini")
    expect(page.locator("[data-name=metric]")).to_have_text("accuracy over 1m")
    assert "gini" not in page.url


def test_the_axis_is_no_narrower_than_a_tenth_of_the_value(page: Page) -> None:
    def range_of(values: list[float], least: float = 0.1) -> list[float]:
        script = "async ([values, least]) => (await import('/page/scale.js')).rounded(values, { least }).range"
        found: list[float] = page.evaluate(script, [values, least])
        return found

    low, high = range_of([0.910, 0.912, 0.911])
    assert high - low >= 0.09
    assert low <= 0.910
    assert high >= 0.912
    assert range_of([0.999, 1.0])[1] == pytest.approx(1.0), "a share ends at 1"
    assert range_of([0.2, 0.9]) == range_of([0.2, 0.9], least=0), "what differs more is drawn as it was"


def test_a_number_of_any_size_is_short(page: Page) -> None:
    script = "async (ns) => import('/page/words.js').then(({ metric, brief }) => ns.map((n) => [metric(n), brief(n)]))"
    shown: list[list[str]] = page.evaluate(script, [3.4e38, -1e300, 1e15, 1.2345e12, 1234.5, 0.5])
    assert shown == [
        ["3.40e+38", "3.40e+38"],
        ["-1.00e+300", "-1.00e+300"],
        ["1.00e+15", "1.00e+15"],
        ["1.23T", "1.23T"],
        ["1.23K", "1230"],
        ["0.500", "0.5"],
    ]


def test_on_a_low_screen_the_loss_stands_beside_the_value(page: Page) -> None:
    page.set_viewport_size({"width": 1440, "height": 640})
    loss = page.locator("#panel-metric.tight [data-name=loss]")
    expect(loss).to_be_visible()
    value, beside = page.locator("#panel-metric [data-value=metric]").bounding_box(), loss.bounding_box()
    assert value is not None
    assert beside is not None
    assert value["x"] + value["width"] < beside["x"]
    assert value["y"] < beside["y"] < value["y"] + value["height"]
