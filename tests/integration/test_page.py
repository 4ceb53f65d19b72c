"""The page in a real browser, on a real service that learns from a real broker: what a person sees and clicks."""

import asyncio
import itertools
import json
import os
import re
import signal
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.admin import AIOKafkaAdminClient
from playwright.sync_api import Page, expect

from millrace.app.tools.local_broker.broker import free_port
from millrace.app.tools.local_broker.topics import create_topic
from millrace.app.tools.prove.trainer_process import Run
from tests.browsing import SOON_MS, NewPage, grave, is_complaint
from tests.faults.harness.fork_server import fork_trainer
from tests.integration.small_model import MODEL

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@dataclass(kw_only=True)
class Home:
    """The folder of a trainer that learns from two topics, of which a test deletes one."""

    path: Path
    bootstrap: str
    topics: tuple[str, str]
    port: int = field(default_factory=free_port)

    @property
    def cwd(self) -> Path:
        return self.path

    @property
    def config(self) -> Path:
        return self.path / "clicks.yaml"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def write(self) -> None:
        (self.path / "model.py").write_text(MODEL)
        settings = {
            "name": "clicks",
            "kafka": {"bootstrap_servers": [self.bootstrap], "topics": list(self.topics)},
            "records": {
                "format": "json",
                "features": {"x": {"dtype": "float32", "shape": [1]}},
                "label": {"y": "float32"},
            },
            "model": {"build": "./model.py:build_model"},
            "training": {"batch_size": 32, "max_wait": "200ms"},
            "checkpoints": {"path": "./checkpoints", "every": "2s"},
            "api": {"listen": f"127.0.0.1:{self.port}"},
        }
        self.config.write_text(json.dumps(settings))  # JSON is YAML


@contextmanager
def written(bootstrap: str, topic: str) -> Iterator[None]:
    """Write some records every tenth of a second within the context."""
    over = threading.Event()

    async def write() -> None:
        async with AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for number in itertools.count():
                if over.is_set():
                    return
                x = (number % 20 - 10) / 10
                await asyncio.gather(
                    *[await producer.send(topic, json.dumps({"x": [x], "y": float(x > 0)}).encode()) for _ in range(20)]
                )
                await asyncio.sleep(0.1)

    thread = threading.Thread(target=lambda: asyncio.run(write()), name="writer")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(20)


def delete(bootstrap: str, topic: str) -> None:
    """Delete a topic on another thread, because the browser's driver has an event loop on this one."""

    async def carry_out() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            await admin.start()
            await admin.delete_topics([topic])
        finally:
            await admin.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, carry_out()).result(30)


@dataclass(frozen=True)
class Served:
    """A running service with its folder and process."""

    home: Home
    run: Run

    def ask(self, method: str, path: str, body: object = None) -> Any:
        code, answer = self.run.ask(method, path, body)
        assert code < 300, answer
        return answer


@pytest.fixture(scope="module")
def served(broker: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """Run a service that learns while records come, and saves every two seconds."""
    path = tmp_path_factory.mktemp("page")
    names = (f"t-{uuid.uuid4().hex[:12]}", f"t-{uuid.uuid4().hex[:12]}")
    for name in names:
        create_topic(broker, name)
    home = Home(path=path, bootstrap=broker, topics=names)
    home.write()
    with written(broker, names[0]), Run(home, launch=fork_trainer) as run:
        run.wait_for(lambda: run.status().get("records", {}).get("learnt"), "it learnt")
        yield Served(home, run)


Open = Callable[..., Page]


@pytest.fixture
def open_page(new_page: NewPage, served: Served) -> Iterator[Open]:
    """Return how to open the page; fails if the console shows an error or the page contacts another origin."""
    complaints: list[str] = []

    def opened(width: int = 1440, height: int = 900, *, dark: bool = False) -> Page:
        page = new_page(width=width, height=height, color_scheme="dark" if dark else "light")
        page.on("console", lambda said: complaints.append(said.text) if is_complaint(said) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda asked: None if asked.url.startswith((served.home.url, "data:")) else complaints.append(asked.url),
        )
        page.goto(served.home.url)
        expect(page.locator("#name")).to_have_text("clicks")
        expect(page.locator("#checkpoints tr").first).to_be_visible()
        return page

    yield opened
    assert complaints == []


def number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or -1)


def test_numbers_move_by_themselves(open_page: Open) -> None:
    page = open_page()
    learnt = page.locator("#sum .term b").first
    before = learnt.inner_text()
    expect(learnt).not_to_have_text(before)
    assert number(learnt.inner_text()) > number(before)
    expect(page.locator("#tick")).to_have_text("✓ it adds up")
    expect(page.locator("#as-of")).to_have_text(re.compile(r"as of \d s ago"))
    expect(page.locator("[data-name=metric]")).to_have_text(re.compile("accuracy"))
    expect(page.locator("[data-value=learnt_per_s]")).to_have_text(re.compile(r"\d"))
    points = page.locator("path.line").nth(2)
    drawn = points.get_attribute("d")
    expect(points).not_to_have_attribute("d", drawn or "")


def test_a_restore_by_clicks_shows_what_it_would_do_and_does_it(open_page: Open, served: Served) -> None:
    page = open_page()
    rows = page.locator("#checkpoints tr")
    text = rows.nth(1).locator("th").inner_text()
    wanted = number(text)
    # By its number: when another checkpoint comes, it is in the next row.
    rows.filter(has=page.locator("th").get_by_text(text, exact=True)).get_by_role("button").click()
    dialog = page.locator("#restore")
    expect(dialog.get_by_role("heading")).to_have_text(f"Restore checkpoint {wanted}?")
    expect(dialog.locator("#plan")).to_contain_text("offsets are read again")
    expect(dialog.locator("#plan")).to_contain_text("Kafka still has them all")
    assert "rewound" not in served.ask("GET", "/status"), "nothing is done before it is confirmed"
    dialog.locator("#reason").fill("a test of the page")
    dialog.locator("#do-restore").click()
    expect(page.locator("#notice")).to_contain_text(f"Restored checkpoint {wanted}")
    rewound = served.ask("GET", "/status")["rewound"]
    assert (rewound["to"], rewound["reason"]) == (wanted, "a test of the page")
    expect(page.locator("#events")).to_contain_text(f"Rewound to checkpoint {wanted}")
    expect(page.locator("#legend")).to_contain_text("rewind")


def _with_another_best(listing: dict[str, Any]) -> dict[str, Any]:
    """Return the list with number 0, which is never restored here, as the best."""
    return {**listing, "best": 0}


def test_checkpoints_show_the_watched_metric_and_the_best_is_offered(open_page: Open, served: Served) -> None:
    served.run.wait_for(lambda: "best" in served.ask("GET", "/checkpoints"), "a checkpoint had scored enough records")
    page = open_page()
    # Another one than the best, so that the dialog offers the best instead.
    page.route("**/checkpoints?*", lambda route: route.fulfill(json=_with_another_best(route.fetch().json())))
    page.reload()
    rows = page.locator("#checkpoints tr")
    row = rows.filter(has=page.locator("td.metric", has_text=re.compile(r"^\d"))).first
    expect(row.locator("td.metric")).to_have_attribute("title", re.compile(r"accuracy [\d.]+ over [\d,]+ records in"))
    row.get_by_role("button").click()
    dialog = page.locator("#restore")
    expect(dialog.locator("#plan")).to_contain_text("When it was made: accuracy")
    offer = dialog.locator("#to-best button")
    expect(offer).to_have_text("Choose the best instead: checkpoint 0")
    offer.click()
    expect(dialog.get_by_role("heading")).to_have_text("Restore checkpoint 0?")
    expect(dialog.locator("#to-best")).to_be_hidden()
    dialog.get_by_role("button", name="Cancel").click()


def test_a_restore_skips_the_ranges_that_were_shown_and_no_others(open_page: Open, served: Served) -> None:
    page, topic = open_page(), served.home.topics[0]
    row = page.locator("#checkpoints tr").nth(1)
    wanted = number(row.locator("th").inner_text())
    position = served.ask("GET", f"/checkpoints/{wanted}")["checkpoint"]["positions"][f"{topic}:0"]
    row.get_by_role("button").click()
    ranges, go = page.get_by_label("Ranges to skip"), page.locator("#do-restore")
    ranges.fill("the bad ones")
    ranges.press("Enter")
    expect(page.locator("#refusal")).to_contain_text("is not a range of offsets")
    expect(go).to_be_disabled()
    ranges.fill(f"{topic}:0:{position}-{position + 3}, {topic}:0:{position + 8}-{position + 9}")
    ranges.press("Tab")
    expect(page.locator("#plan")).to_contain_text("6 are skipped")
    expect(page.locator("#refusal")).to_be_hidden()
    go.click()
    expect(page.locator("#notice")).to_contain_text(f"Restored checkpoint {wanted}")
    (skip,) = served.ask("GET", "/status")["skips"]
    assert skip["ranges"] == [f"{topic}:0:{position}-{position + 3}", f"{topic}:0:{position + 8}-{position + 9}"]


def test_a_cancelled_restore_changes_nothing(open_page: Open, served: Served) -> None:
    page = open_page()
    before = served.ask("GET", "/status")["training"]["incarnation"]
    served.ask("POST", "/checkpoints?wait=30s", {"note": "before the sale"})
    page.locator("#checkpoints tr", has_text="before the sale").get_by_role("button").click()
    expect(page.locator("#note")).to_have_text("Its note: before the sale")
    expect(page.locator("#plan")).to_contain_text("read again")
    page.keyboard.press("Escape")
    expect(page.locator("#restore")).to_be_hidden()
    assert served.ask("GET", "/status")["training"]["incarnation"] == before


def test_a_pause_a_save_and_a_resume_by_clicks(open_page: Open, served: Served) -> None:
    page = open_page()
    page.locator("#pause").click()
    expect(page.locator("#verdict strong")).to_have_text("Paused:")
    expect(page.locator("#announce")).to_contain_text("Paused")
    page.locator("#save").click()
    expect(page.locator("#notice")).to_have_text(re.compile(r"Checkpoint \d+ is durable\."))
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    assert served.ask("GET", "/status")["state"] != "paused"


def test_a_command_that_needs_a_token_asks_once_and_keeps_it(open_page: Open) -> None:
    page, brought = open_page(), list[str | None]()

    def guarded(route: Any) -> None:
        token = route.request.headers.get("authorization")
        brought.append(token)
        if token == "Bearer sesame":
            route.fulfill(json={"state": "paused"})
        else:
            route.fulfill(status=401, json={"status": 401, "detail": "No such token.", "fix": ""})

    page.route("**/pause", guarded)
    errors = page.locator("#token-refusal")
    page.locator("#pause").click()
    for token in ("wrong", "sesame"):
        page.locator("#token-text").fill(token)
        page.locator("#give-token").click()
        if token == "wrong":
            expect(errors).to_have_text("No such token.")
    expect(page.locator("#notice")).to_have_text("Paused.")
    page.locator("#pause").click()
    expect(page.locator("#token")).to_be_hidden()
    assert brought == [None, "Bearer wrong", "Bearer sesame", "Bearer sesame"]
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def test_the_cursor_gives_values_to_keyboard_and_screen_reader(open_page: Open) -> None:
    page = open_page()
    cursor = page.get_by_role("slider")
    cursor.focus()
    page.keyboard.press("Home")
    first = cursor.get_attribute("aria-valuetext")
    assert re.fullmatch(r"\d\d:\d\d:\d\d: accuracy .*, base rate .* behind, .* learnt a second, .*", first or ""), first
    page.keyboard.press("ArrowRight")
    expect(cursor).not_to_have_attribute("aria-valuetext", first or "")
    expect(page.locator(".at")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(".at")).to_be_hidden()


def test_each_chart_says_in_words_what_it_shows(open_page: Open) -> None:
    page = open_page()
    for panel in ("metric", "lag", "rate"):
        expect(page.locator(f"#panel-{panel} [data-summary]")).to_have_text(re.compile("Between .* and .* over"))


@pytest.mark.parametrize(
    "span",
    [pytest.param("2h", marks=pytest.mark.nightly), "24h"],  # in the gate a reload keeps two hours
)
def test_the_charts_reach_further_back_on_request(open_page: Open, span: str) -> None:
    page = open_page()
    with page.expect_response(lambda answer: f"span={span}" in answer.url):
        page.locator(f"input[value='{span}']").check(force=True)
    expect(page.locator("path.band")).to_have_count(3)


@pytest.mark.parametrize("span", ["10m", "2h"])
def test_a_reload_shows_at_once_what_the_charts_had_before(open_page: Open, span: str) -> None:
    """The stream is silent after the reload, so everything drawn comes from the service's history."""
    page = open_page()
    if span != "10m":
        page.locator(f"input[value='{span}']").check(force=True)
        expect(page.locator("path.band")).to_have_count(3)
    before = oldest_moment(page)
    page.route("**/page/updates*", lambda _asked: None)
    page.reload()
    expect(page.locator("path.line").first).to_have_attribute("d", re.compile("^M"))
    expect(page.locator(f"input[value='{span}']")).to_be_checked()
    assert oldest_moment(page) == before
    expect(page.locator("#as-of")).to_have_text("not asked yet")
    assert page.evaluate("[localStorage.length, sessionStorage.length, document.cookie]") == [0, 0, ""]


def oldest_moment(page: Page) -> str:
    """Return the time of the oldest point, as the cursor shows it."""
    page.get_by_role("slider").press("Home")
    return (page.get_by_role("slider").get_attribute("aria-valuetext") or "").partition(": ")[0]


@pytest.mark.parametrize(
    ("width", "height"),
    # In the gate the smallest has the least room, and a problem, which takes some, shows at 1440.
    [(1280, 800), *(pytest.param(*size, marks=pytest.mark.nightly) for size in ((1440, 900), (1920, 1080)))],
)
def test_on_a_desktop_nothing_scrolls(open_page: Open, width: int, height: int) -> None:
    page = open_page(width, height)
    scrolled = page.evaluate("[document.scrollingElement.scrollHeight, document.scrollingElement.scrollWidth]")
    assert scrolled == [height, width]


@pytest.mark.parametrize(
    "width",
    [390, pytest.param(768, marks=pytest.mark.nightly), 1024],  # in the gate the narrowest and the widest
)
def test_on_a_narrow_screen_nothing_scrolls_sideways(open_page: Open, width: int) -> None:
    page = open_page(width, 844)
    assert page.evaluate("document.scrollingElement.scrollWidth") <= width
    page.locator("#checkpoints button").first.click()
    expect(page.locator("#plan")).to_contain_text("read again")
    box = page.locator("#restore").bounding_box()
    assert box is not None
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        # In the gate each width has been in one of the two schemes, and each scheme has had one of the two widths.
        (1440, False),
        (390, True),
        pytest.param(1440, True, marks=pytest.mark.nightly),
        pytest.param(390, False, marks=pytest.mark.nightly),
    ],
    ids=["1440-light", "390-dark", "1440-dark", "390-light"],
)
def test_axe_finds_nothing_serious(open_page: Open, width: int, dark: bool) -> None:
    page = open_page(width, dark=dark)
    assert grave(page) == {}
    page.get_by_role("button", name="All events").click()
    expect(page.locator("#every-event li").first).to_be_visible()
    assert grave(page) == {}
    page.keyboard.press("Escape")
    page.locator("#checkpoints button").first.click()
    expect(page.locator("#plan")).to_contain_text("read again")
    assert grave(page) == {}
    page.keyboard.press("Escape")
    page.route("**/pause", lambda asked: asked.fulfill(status=401, json={"status": 401, "detail": "No such token."}))
    page.locator("#pause").click()
    expect(page.get_by_role("dialog", name="This command needs a token")).to_be_visible()
    assert grave(page) == {}
    page.locator("#token-text").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-refusal")).to_be_visible()
    assert grave(page) == {}


def test_the_page_shows_by_itself_that_the_service_is_gone_and_back(open_page: Open, served: Served) -> None:
    page = open_page()
    os.kill(served.run.pid, signal.SIGSTOP)
    try:
        expect(page.locator("#as-of")).to_have_text(re.compile(r"no answer for \d+ s"))
        expect(page.locator("#announce")).to_have_text("No answer.")
        expect(page.locator("#dot")).to_have_attribute("data-mood", "away")
        expect(page.locator("#pause")).to_be_disabled()
    finally:
        os.kill(served.run.pid, signal.SIGCONT)
    expect(page.locator("#as-of")).to_have_text(re.compile(r"as of \d s ago"))
    expect(page.locator("#pause")).to_be_enabled()


def test_a_problem_shows_since_when_and_its_fix(open_page: Open, served: Served) -> None:
    """Must be the last test of the module, because it deletes one of the two topics."""
    page = open_page()
    gone = served.home.topics[1]
    delete(served.home.bootstrap, gone)
    problem = page.locator("#problems article").filter(has_text=f"Kafka has no {gone}:0")
    expect(problem.get_by_role("heading")).to_be_visible(timeout=2 * SOON_MS)
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        expect(problem.locator(".since")).to_contain_text("since")
        expect(problem.locator(".fix")).to_contain_text("these go on when they are back")
        expect(page.locator("#dot")).to_have_attribute("data-mood", "warn")
        assert page.evaluate("document.scrollingElement.scrollHeight") == 900
        assert grave(page) == {}
