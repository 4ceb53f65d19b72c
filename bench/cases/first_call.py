"""From starting `millrace run` to the return of its first call, on an existing topic with records.

The command as users have it, in a process of its own, with checkpoints of its own, everything at its default; the
median of some starts. That a call has returned is read from `/status`, asked every 50 ms from the moment it answers.
"""

import argparse
import contextlib
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rig import CONFIGS, STATE, STOP_S, as_environment, get, place, report

START_AT_MOST_S = 120.0


def free_port() -> int:
    """One that nobody listens on just now."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def first_call_s(bootstrap: str, topic: str, checkpoints: str) -> float:
    """Start, wait for the first call, stop."""
    port = free_port()
    settings = {**place(bootstrap, topic), "checkpoints.path": checkpoints, "api.listen": f"127.0.0.1:{port}"}
    command = [str(Path(sys.executable).parent / "millrace"), "run", "-c", str(CONFIGS / "higgs_json.yaml")]
    with tempfile.TemporaryFile("w+") as log:
        began = time.monotonic()
        process = subprocess.Popen(command, env={**os.environ, **as_environment(settings)}, stdout=log, stderr=log)
        try:
            while not learnt(port):
                if process.poll() is not None or time.monotonic() - began > START_AT_MOST_S:
                    log.seek(0)
                    raise SystemExit(f"no call within {START_AT_MOST_S:g} s:\n{log.read()[-2000:]}")
                time.sleep(0.05)
            return time.monotonic() - began
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(STOP_S)


def learnt(port: int) -> int:
    """How many records it has learnt; none while it does not answer."""
    with contextlib.suppress(OSError):
        return int(get(f"http://127.0.0.1:{port}/status")["records"]["learnt"])
    return 0


def main() -> None:
    """Read the options, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--topic", required=True, help="stored records as JSON")
    parser.add_argument("--starts", type=int, default=3)
    given = parser.parse_args()
    STATE.mkdir(parents=True, exist_ok=True)
    took = []
    for _ in range(given.starts):
        with tempfile.TemporaryDirectory(prefix="case-", dir=STATE) as checkpoints:
            took.append(round(first_call_s(given.bootstrap, given.topic, checkpoints), 2))
    report({"first_call_s": statistics.median(took)}, {"starts_s": took})


if __name__ == "__main__":
    main()
