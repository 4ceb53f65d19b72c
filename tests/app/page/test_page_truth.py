"""How true the answers are, on the page in a real browser."""

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from millrace.training.telemetry.calibration.figures import CalibrationBin, CalibrationFigures, WorstRecord
from millrace.training.trainer.served.figures import ServedFigures
from millrace.training.trainer.slices.figures import SliceFigures
from tests.app.api_rig import Rig, serving
from tests.browsing import NewPage, grave

BINS = (CalibrationBin(100, 0.75, 0.5),)
TEN = tuple(CalibrationBin(1000, at / 20, at / 20 + 0.01) for at in range(10))
QUANTILES = ("p05", "p25", "p50", "p75", "p95")


def opened(
    new_page: NewPage,
    rig: Rig,
    width: int,
    height: int,
    button: str = "How true",
    name: str = "How true the answers are",
) -> Iterator[tuple[Page, Locator]]:
    """Open the page, and a dialog on it by a key."""
    with serving(rig) as server:
        page = new_page(width=width, height=height)
        page.goto(f"http://127.0.0.1:{server.port}")
        page.get_by_role("button", name=button).press("Enter")
        yield page, page.get_by_role("dialog", name=name)


def fits(page: Page, dialog: Locator) -> None:
    box, size = dialog.bounding_box(), page.viewport_size
    assert box is not None
    assert size is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= size["width"]
    assert box["y"] + box["height"] <= size["height"]
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert grave(page) == {}


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_probabilities_stand_beside_what_came_true(new_page: NewPage, rig: Rig, width: int, height: int) -> None:
    rig.calibration = CalibrationFigures(
        answers=10_000, error=0.01, cumulative_error=0.02, bins=TEN, predicted={"1": 0.225}, observed={"1": 0.235}
    )
    rig.post()
    for page, dialog in opened(new_page, rig, width, height):
        expect(dialog.locator("#truth-says")).to_have_text(
            "Over the last 10,000 answers their probabilities are 1.0 points off what came true, as a mean; 2.0 since "
            "the beginning. 22.5 % was predicted, 23.5 % came true."
        )
        rows = dialog.locator("tbody tr")
        expect(rows).to_have_count(10)
        expect(rows.nth(9).locator("td")).to_have_text(["45 %", "46 %", "1,000"])
        expect(dialog.locator("svg circle")).to_have_count(10)
        fits(page, dialog)


def test_classes_are_a_table_of_answers_and_numbers_one_of_quantiles(new_page: NewPage, rig: Rig) -> None:
    rig.calibration = CalibrationFigures(
        answers=100,
        error=0.25,
        cumulative_error=0.25,
        bins=BINS,
        predicted={"0": 0.5, "1": 0.5},
        observed={"0": 0.6, "1": 0.4},
        confusion={"0": {"0": 48, "1": 12}, "1": {"0": 2, "1": 38}},
    )
    rig.post()
    for page, dialog in opened(new_page, rig, 390, 844):
        table = dialog.locator("table.confusion")
        expect(table.locator("tbody tr").nth(0).locator("td")).to_have_text(["48", "12"])
        expect(table.locator("tbody th")).to_have_text(["0", "1"])
        fits(page, dialog)
        of = {name: float(at) for at, name in enumerate(QUANTILES)}
        worst = (WorstRecord("clicks:0", 1234, 9.5),)
        rig.calibration = CalibrationFigures(answers=100, predicted=of, observed=of, residuals=of, worst=worst)
        rig.post()
        expect(dialog.locator("tbody tr")).to_have_count(6)
        expect(dialog.locator("tbody tr").nth(4).locator("td")).to_have_text(["4.000"] * 3)
        expect(dialog.locator("tbody tr").nth(5)).to_contain_text("clicks:0:1234")
        fits(page, dialog)


def sliced(records: int, auc: float) -> SliceFigures:
    return SliceFigures(
        records=records,
        values={"auc": auc, "accuracy": 0.9, "log_loss": 0.3},
        lowest={"auc": auc - 0.02, "accuracy": 0.88, "log_loss": 0.28},
        highest={"auc": auc + 0.02, "accuracy": 0.92, "log_loss": 0.32},
        cumulative={"auc": 0.7, "accuracy": 0.9, "log_loss": 0.3},
        cumulative_records=10 * records,
    )


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_slices_are_a_table_by_field_the_worst_first(new_page: NewPage, rig: Rig, width: int, height: int) -> None:
    rig.slices = {
        "all": sliced(10_000, 0.71),
        "country=DE": sliced(900, 0.55),
        "device=a television that has a long name": sliced(4_000, 0.68),
        "country=FR": sliced(9_100, 0.73),
    }
    rig.post()
    for page, dialog in opened(new_page, rig, width, height, "For whom", "For whom the answers are right"):
        tables = dialog.locator("table")
        expect(tables).to_have_count(2)
        expect(tables.nth(0).locator("tbody th")).to_have_text(["DE", "FR", "all"])
        expect(tables.nth(0).locator("tbody tr").nth(0).locator("td")).to_have_text(
            ["900", "0.5500.530 – 0.570", "0.9000.880 – 0.920", "0.3000.280 – 0.320", "0.700"]
        )
        fits(page, dialog)


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_served_versions_stand_beside_the_model_in_training(
    new_page: NewPage, rig: Rig, width: int, height: int
) -> None:
    def version(records: int, auc: float) -> ServedFigures:
        one = sliced(records, auc)
        return ServedFigures(
            records=one.records,
            values=one.values,
            lowest=one.lowest,
            highest=one.highest,
            live={"auc": 0.75, "accuracy": 0.91, "log_loss": 0.29},
            cumulative=one.cumulative,
            cumulative_records=one.cumulative_records,
            read=2 * one.cumulative_records,
        )

    rig.served = {"9": version(100, 0.7), "10": version(900, 0.72)}
    rig.post()
    for page, dialog in opened(new_page, rig, width, height, "Served", "What the served versions score"):
        expect(dialog.locator("tbody th")).to_have_text(["10", "9"])
        expect(dialog.locator("tbody tr").nth(0).locator("td").nth(1)).to_have_text(
            "0.7200.700 – 0.740; in training 0.750"
        )
        expect(dialog.locator("#served-says")).to_contain_text("Over the last 1,000 logged predictions")
        fits(page, dialog)


def test_without_answers_there_is_nothing_to_open(new_page: NewPage, rig: Rig) -> None:
    rig.post()
    with serving(rig) as server:
        page = new_page()
        page.goto(f"http://127.0.0.1:{server.port}")
        expect(page.locator("#tick")).to_contain_text("it adds up")
        expect(page.locator("#how-true")).to_be_hidden()
        expect(page.locator("#for-whom")).to_be_hidden()
        expect(page.locator("#by-version")).to_be_hidden()
