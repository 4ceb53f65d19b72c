"""What an open page costs: how soon it is of use, and how much of a core the process spends on it.

    python bench/page.py --url http://127.0.0.1:8080 --pid PID

The trainer is paused meanwhile, so that the difference is the page's. Needs Chromium on the PATH.
"""

import argparse
import json
import os
import shutil
import time
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-sync", "--no-first-run"]
_OF_USE = "() => !document.querySelector('#pause').disabled && document.querySelector('#sum').textContent.length > 9"


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def share(pid: int, seconds: float) -> float:
    """Of one core, over so many seconds."""
    began, cpu = time.monotonic(), cpu_s(pid)
    time.sleep(seconds)
    return (cpu_s(pid) - cpu) / (time.monotonic() - began)


def order(url: str, path: str) -> None:
    urllib.request.urlopen(urllib.request.Request(url + path, method="POST"), timeout=20).close()


def measure(url: str, pid: int, seconds: float) -> dict[str, Any]:
    order(url, "/pause")
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=_FLAGS)
            soon = []
            for _ in range(5):
                page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
                began = time.monotonic()
                page.goto(url, wait_until="commit")
                page.wait_for_function(_OF_USE, polling=10)
                soon.append(time.monotonic() - began)
                page.context.close()
            without = [share(pid, seconds)]
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            page.goto(url)
            page.wait_for_timeout(3000)
            with_it = [share(pid, seconds)]
            page.context.close()
            without.append(share(pid, seconds))
            browser.close()
    finally:
        order(url, "/resume")
    closed = sum(without) / len(without)
    return {
        "of_use_after_s": [round(one, 3) for one in soon],
        "cpu_closed": round(closed, 4),
        "cpu_open": round(with_it[0], 4),
        "cpu_of_the_page": round(with_it[0] - closed, 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="What an open page costs.")
    parser.add_argument("--url", default="http://127.0.0.1:8080")
    parser.add_argument("--pid", type=int, required=True, help="of the service")
    parser.add_argument("--seconds", type=float, default=20.0)
    options = parser.parse_args()
    print(json.dumps(measure(options.url, options.pid, options.seconds)))


if __name__ == "__main__":
    main()
