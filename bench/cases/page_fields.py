"""How long the page takes in a browser, if the records have 200 fields of which one has changed.

From asking for the page until it says how the training goes, and from pressing *Inputs* until each field stands there.
The service has learnt a minute of the world of `tests/training/trainer/inputs/world.py` and learns nothing more; the
browser is Debian's Chromium, without a window, and begins anew in each round. Medians.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

from playwright.sync_api import Browser, expect
from rig import report

from tests.app.api_rig import Rig, running, serving
from tests.browsing import SOON_MS, chromium
from tests.training.trainer.inputs.world import Watch, World


def opened(browser: Browser, port: int, fields: int) -> tuple[float, float]:
    """Return the seconds until the page is there, and until the fields are."""
    with browser.new_context() as context:
        page = context.new_page()
        page.set_default_timeout(SOON_MS)
        began = time.perf_counter()
        page.goto(f"http://127.0.0.1:{port}")
        button = page.get_by_role("button", name="Inputs")
        expect(button).to_be_visible()
        there = time.perf_counter()
        button.press("Enter")
        expect(page.locator("table.inputs tbody tr")).to_have_count(fields)
        return there - began, time.perf_counter() - there


def watched(rig: Rig, fields: int) -> int:
    """Give the service what it knows of the fields after a minute, and return how many it shows."""
    watch = Watch(World(fields, seed=1))
    watch.go(60.0)
    watch.go(10.0, lambda columns: columns.update(price_0=columns["price_0"] * 100))
    rig.service.watchers = (watch.inputs,)
    rig.post()
    return len(watch.inputs.fields)


def main() -> None:
    """Read the options, open the page, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fields", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as rig:
        fields = watched(rig, given.fields)
        with serving(rig) as server, chromium() as browser:
            turns = [opened(browser, server.port, fields) for _ in range(given.rounds)]
    page_s, fields_s = (statistics.median(turn[at] for turn in turns) for at in (0, 1))
    report({"page_opens_s": page_s, "page_fields_s": fields_s}, {"fields": fields, "rounds": given.rounds})


if __name__ == "__main__":
    main()
