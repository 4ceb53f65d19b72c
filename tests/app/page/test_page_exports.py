"""The page's exports in a real browser: the newest version, what holds the next one back, and the last ones."""

import time
from pathlib import Path

import pytest
from playwright.sync_api import expect

from millrace.app.service.figures import ExportFigures
from millrace.app.settings import load
from millrace.training.checkpoints.exports.version_folder import VersionFolder
from millrace.training.telemetry.events import EventKind
from tests.app.api_rig import CONFIG, P0, Rig
from tests.browsing import NewPage, grave
from tests.training.checkpoints.exports.test_version_folder import publish

HELD_BACK = "accuracy is 0.25, and accuracy >= 0.5 is asked"


@pytest.fixture
def versions(rig: Rig, tmp_path: Path) -> VersionFolder:
    """Have the service export to a folder that has two versions."""
    config = tmp_path / "exporting.yaml"
    config.write_text(CONFIG + "export: {path: ./exports, every: 5m}\n")
    rig.service.settings = load(config, {}).settings
    figures(rig, ExportFigures(made=0, refused=0))
    folder = VersionFolder(tmp_path / "exports" / "clicks")
    with folder.writing():
        publish(folder, 3)
        publish(folder, 7)
    return folder


def figures(rig: Rig, now: ExportFigures) -> None:
    rig.service.exporting.figures = lambda: now  # type: ignore[method-assign]  # none are made beside this trainer


def test_a_service_that_exports_nothing_is_not_asked_for_exports(new_page: NewPage, url: str) -> None:
    page = new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(url)
    expect(page.locator("#tick")).to_contain_text("it adds up")
    expect(page.locator("#exported")).to_be_hidden()
    assert any("/checkpoints" in one for one in asked)
    assert not any("/exports" in one for one in asked if "/page/" not in one)


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (390, 844)])
def test_the_newest_version_and_what_is_held_back_are_a_line_each(
    new_page: NewPage, versions: VersionFolder, url: str, rig: Rig, width: int, height: int
) -> None:
    figures(rig, ExportFigures(made=0, refused=0, missing=(HELD_BACK,), missing_since=time.time() - 600))
    page = new_page(url, width=width, height=height)
    expect(page.locator("#exported-version")).to_contain_text("Version 7 exported")
    expect(page.locator("#exported-version")).to_contain_text("ago · accuracy 0.500")
    if width > height:
        rig.produce(P0, 8)
        rig.learn_all()
        rig.post()
        expect(page.locator('[data-name="exported"]')).to_have_text("version 7 had 0.500")
    expect(page.locator("#exporting")).to_contain_text(f"for 10 min: {HELD_BACK}.")
    with versions.writing():
        publish(versions, 9)
    figures(rig, ExportFigures(made=1, refused=0, newest=9, error="no room is left"))
    rig.service.events.report(EventKind.EXPORTED, "Version 9 is published.", version=9)
    expect(page.locator("#exported-version")).to_contain_text("Version 9 exported")
    expect(page.locator("#exporting")).to_have_text("The last export was refused: no room is left.")
    figures(rig, ExportFigures(made=1, refused=0, newest=9, running=11, running_since=time.time() - 480))
    expect(page.locator("#exporting")).to_have_text("Checkpoint 11 is being exported, for 8 min now.")
    page.get_by_role("button", name="Versions").press("Enter")
    rows = page.get_by_role("dialog", name="The exported versions").locator("tbody tr")
    expect(rows.locator("th")).to_have_text(["9", "7", "3"])
    expect(rows.nth(1)).to_contain_text("accuracy 0.500")
    if width > height:
        expect(rows.nth(1)).to_contain_text("70 learnt")
        assert page.evaluate("document.scrollingElement.scrollHeight <= innerHeight")
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert grave(page) == {}
