"""What an open page costs: how soon it is of use, what the process spends on it, whether the browser complains.

    python bench/page.py                                          a broker and a trainer of its own, gone afterwards
    python bench/page.py --url http://127.0.0.1:8080 --pid PID    a service that runs; it is paused meanwhile

A page is of use when it says all that it has to say and takes orders: from the navigation's begin, each time in a
browser that has none of its files, and the slowest of some times counts. The CPU is that of the service's process while
its trainer is paused, with an open page less what it is without, before and after. Prints the figures beside the bars;
the exit code is 1 past one of them. Needs Chromium (`make tools`).
"""

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, ViewportSize, sync_playwright
from run import BENCH, BUILD, Case, broker, machine, run, say

from tests.house.figures import Run, figure, keep

BARS: Mapping[str, float] = {"page_of_use_s": 1.0, "page_cpu_share": 0.02, "page_complaints": 0}
"""The most that each figure may be."""
OPENINGS = 7
SETTLING_S = 3.0
RECORDS = 100_000
START_S, STOP_S = 120.0, 60.0
_TOPIC = "bench-page"
_SIZE: ViewportSize = {"width": 1440, "height": 900}
_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
_OF_USE = """() => !document.querySelector("#pause").disabled && document.querySelector("path.line[d^=M]")
    && document.querySelector("#sum").textContent && document.querySelector("#checkpoints tr")"""


@dataclass
class Visitor:
    """A browser, and what it complains of."""

    browser: Browser
    url: str
    complaints: list[str] = field(default_factory=list)

    @contextmanager
    def page(self) -> Iterator[Page]:
        """A page in a context of its own, so that nothing is in its cache; it asks for nothing yet."""
        context = self.browser.new_context(viewport=_SIZE)
        page = context.new_page()
        page.on("console", self._hear)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        yield page
        context.close()

    def of_use_after_s(self) -> float:
        """One opening."""
        with self.page() as page:
            began = time.monotonic()
            page.goto(self.url, wait_until="commit")
            page.wait_for_function(_OF_USE, polling=10)
            return time.monotonic() - began

    def _hear(self, said: ConsoleMessage) -> None:
        if said.type in {"error", "warning"}:
            self.complaints.append(said.text)


def cpu_s(pid: int) -> float:
    """What a process has spent so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: float) -> float:
    """Of one core, over so many seconds."""
    began, cpu = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - cpu) / (time.monotonic() - began)


def order(url: str, path: str) -> None:
    """Have the service do it."""
    urllib.request.urlopen(urllib.request.Request(url + path, method="POST"), timeout=20).close()


def measure(url: str, pid: int, seconds: float) -> dict[str, float]:
    """All figures, of a service that is paused already."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
        visitor = Visitor(browser, url)
        took = [visitor.of_use_after_s() for _ in range(OPENINGS)]
        closed = [share(pid, seconds)]
        with visitor.page() as page:
            page.goto(url)
            page.wait_for_timeout(1000 * SETTLING_S)
            opened = share(pid, seconds)
        closed.append(share(pid, seconds))
        browser.close()
    for complaint in visitor.complaints:
        say(f"the browser: {complaint}")
    say(f"of use after {', '.join(f'{one:.2f}' for one in took)} s; the median {statistics.median(took):.2f} s")
    say(f"of one core {opened:.2%} with an open page, {' and '.join(f'{one:.2%}' for one in closed)} without")
    return {
        "page_of_use_s": max(took),
        "page_cpu_share": opened - statistics.mean(closed),
        "page_complaints": len(visitor.complaints),
    }


@contextmanager
def trainer(bootstrap: str) -> Iterator[tuple[str, int]]:
    """A trainer that has learnt a topic; where it answers, and its process."""
    from millrace.app.tools.local_broker.broker import free_port

    run(Case("produce", "produce.py", {"bootstrap": bootstrap, "topic": _TOPIC, "format": "json", "records": RECORDS}))
    url = f"http://127.0.0.1:{free_port()}"
    with tempfile.TemporaryDirectory(prefix="page-", dir=BUILD) as folder, tempfile.TemporaryFile("w+") as log:
        told = {
            "MILLRACE_KAFKA__BOOTSTRAP_SERVERS": bootstrap,
            "MILLRACE_KAFKA__TOPICS": _TOPIC,
            "MILLRACE_CHECKPOINTS__PATH": folder,
            "MILLRACE_API__LISTEN": url.removeprefix("http://"),
        }
        command = [str(Path(sys.executable).parent / "millrace"), "run", "-c", str(BENCH / "configs/higgs_json.yaml")]
        process = subprocess.Popen(command, env={**os.environ, **told}, stdout=log, stderr=log)
        try:
            if not is_ready(url, process):
                log.seek(0)
                raise SystemExit(f"the trainer is not ready within {START_S:g} s:\n{log.read()[-2000:]}")
            yield url, process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def is_ready(url: str, process: "subprocess.Popen[bytes]") -> bool:
    """Whether it comes up in time."""
    until = time.monotonic() + START_S
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=5):
            return True
        time.sleep(0.2)
    return False


def measured(url: str | None, pid: int | None, seconds: float) -> dict[str, float]:
    """The figures of the service that was named, or of one of our own."""
    if url is not None and pid is not None:
        order(url, "/pause")
        try:
            return measure(url, pid, seconds)
        finally:
            order(url, "/resume")
    with broker(None) as bootstrap, trainer(bootstrap) as (url, pid):
        time.sleep(SETTLING_S)
        order(url, "/pause")
        return measure(url, pid, seconds)


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", help="of a service that runs; needs --pid")
    parser.add_argument("--pid", type=int, help="of its process; needs --url")
    parser.add_argument("--seconds", type=float, default=15.0, help="of each look at the CPU; there are three")
    given = parser.parse_args()
    if (given.url is None) != (given.pid is None):
        parser.error("--url and --pid go together")
    if shutil.which("chromium") is None:
        raise SystemExit("there is no chromium on the PATH; `make tools` installs it")
    figures, where = measured(given.url, given.pid, given.seconds), machine()
    for name, value in figures.items():
        print(f"{name:16} {value:8.4f}   at most {BARS[name]:g}")
    run = Run(date=f"{datetime.now(UTC):%Y-%m-%d}", commit=str(where["commit"]), command="make bench-page")
    print(f"{run.date}, commit {run.commit}, {where['cpus']} cores ({where['cpu']})")
    if past := [name for name, value in figures.items() if value > BARS[name]]:
        raise SystemExit(f"past the bar: {', '.join(past)}")
    keep({name: figure(name, value, run, aim=f"≤ {BARS[name]:g}") for name, value in figures.items()})
    print("docs/figures.json has them; `make bench-report` writes the page")


if __name__ == "__main__":
    main()
