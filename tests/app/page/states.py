"""Ten states of the page as pictures, at two widths, light and dark, to be looked at as a person in a hurry would.

python -m tests.app.page.states build/page
"""

import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from playwright.sync_api import Browser, Page, expect

from millrace.training.checkpoints import SaveReason
from millrace.training.recovery.crash_guard import CrashLoop
from millrace.training.telemetry.events import EventKind, Severity
from millrace.training.telemetry.phases import Phase
from tests.app.api_rig import P0, P1, Rig, running, serving
from tests.app.groups import group, member
from tests.app.page.test_page_history import kept
from tests.browsing import SOON_MS, chromium
from tests.training.trainer.inputs.world import Watch, World

SIZES = {"1440": (1440, 900), "390": (390, 844)}


def learning(rig: Rig) -> None:
    """Have a day of history, and learn."""
    noise = np.random.default_rng(1).normal(0, 0.004, 1380)
    curve = 0.75 - 0.12 * np.exp(-np.arange(1380) / 200) + noise
    kept(rig, 23 * 3600.0, curve.tolist(), baseline=0.62, lag_s=np.abs(3 + 40 * noise).tolist())
    rig.produce(P0, 4000)
    rig.produce(P1, 3900)
    rig.learn_all()
    rig.publish(SaveReason.INTERVAL, rig.last.number if rig.last else None, accuracy=0.74)
    rig.post()
    for number in range(1, 4):
        text = f"Checkpoint {number} is durable."
        rig.service.events.report(EventKind.CHECKPOINT, text, number=number, reason="interval")


def changed(rig: Rig) -> None:
    """Have a field that is a hundred times what it was."""
    learning(rig)
    watch = Watch(World(16, seed=1))
    watch.go(60.0)
    watch.go(10.0, lambda columns: columns.update(price_0=columns["price_0"] * 100))
    rig.service.watchers = (watch.inputs,)
    rig.post()
    text, field = watch.marks[-1][2], watch.marks[-1][1]
    rig.service.events.report(EventKind.INPUT_CHANGED, text, severity=Severity.WARNING, field=field)


def behind(rig: Rig) -> None:
    """Be a million records behind."""
    learning(rig)
    rig.source.meter.ends({P0: 1_200_000, P1: 3900})


def bad_records(rig: Rig) -> None:
    """Have records that were set aside."""
    learning(rig)
    rig.produce(P0, 400, bad=60)
    rig.learn_all()
    text = "60 records were set aside as malformed."
    rig.service.events.report(EventKind.SET_ASIDE, text, severity=Severity.WARNING, reason="malformed", records=60)
    rig.post()


def paused(rig: Rig) -> None:
    """Be paused by somebody."""
    learning(rig)
    rig.service.events.report(EventKind.PAUSED, "Paused: the price feed is broken.", reason="the price feed is broken")
    rig.service.phases.enter(Phase.PAUSED, "the price feed is broken")


def kafka_away(rig: Rig) -> None:
    """Have no answer from Kafka."""
    learning(rig)
    rig.service.events.report(EventKind.PROBLEM, "Kafka does not answer at localhost:9092.", problem="kafka_away")


def crash_loop(rig: Rig) -> None:
    """Have died three times over the same records."""
    rig.brake(CrashLoop(starts=3, number=0, suspects={P0: (100, 164)}))


def save_fails(rig: Rig) -> None:
    """Have a volume that is full."""
    learning(rig)
    rig.save_error = "No space left on device"
    rig.post()


def chief(rig: Rig) -> None:
    """Lead a group of which one worker is behind."""
    learning(rig)
    rig.service.board.group = group(0, member(waited_s=50, learnt=90), member(lag_records=1234, states=("held",)))


STATES: Mapping[str, Callable[[Rig], None]] = {
    "before-any-record": lambda _rig: None,
    "learning": learning,
    "field-changed": changed,
    "behind": behind,
    "bad-records": bad_records,
    "paused": paused,
    "kafka-away": kafka_away,
    "crash-loop": crash_loop,
    "save-fails": save_fails,
    "group": chief,
}


def shot(browser: Browser, url: str, place: Path, state: str) -> None:
    """Write a picture for each width and scheme."""
    for width, (wide, high) in SIZES.items():
        for scheme in ("light", "dark"):
            with browser.new_context(
                viewport={"width": wide, "height": high}, color_scheme=scheme, reduced_motion="reduce"
            ) as context:
                page: Page = context.new_page()
                page.set_default_timeout(SOON_MS)
                page.goto(url)
                expect(page.locator("#name")).to_have_text("clicks")
                page.locator('#spans [value="24h"]').check(force=True)
                expect(page.locator("#charts .grid").first).to_be_attached()
                expect(page.locator("#verdict")).not_to_be_empty()
                page.screenshot(path=place / f"{state}-{width}-{scheme}.png")


def main(place: Path) -> None:
    """Show the page in each state."""
    place.mkdir(parents=True, exist_ok=True)
    with chromium() as browser:
        for state, enter in STATES.items():
            with tempfile.TemporaryDirectory() as folder, running(Path(folder)) as rig, serving(rig) as server:
                enter(rig)
                shot(browser, f"http://127.0.0.1:{server.port}", place, state)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
