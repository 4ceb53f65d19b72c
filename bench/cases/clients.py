"""Clients of the HTTP side, in a process of their own: one that probes steadily, many that flood, or that say nothing.

    python bench/cases/clients.py --url http://127.0.0.1:8080 --seconds 60 --per-second 20
    python bench/cases/clients.py --url http://127.0.0.1:8080 --seconds 60 --connections 50
    python bench/cases/clients.py --url http://127.0.0.1:8080 --seconds 60 --half-open 1000

A prober asks `/livez` on a connection of its own each time, as probes do, when it is due, whether or not the one before
was answered. A flooding connection asks again as soon as it is answered. A half-open one sends half of a head and no
more; where it is closed, it comes again a second later. Prints one line of JSON: how many answers, how many failures,
and the milliseconds from asking to the whole answer; of half-open ones how often they came.
"""

import argparse
import asyncio
import contextlib
import json
import math
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

PATIENCE_S = 10.0
AGAIN_AFTER_S = 1.0
FLOODED = ("/status", "/lag", "/throughput", "/livez")


@dataclass
class Answers:
    """What came back."""

    took_s: list[float] = field(default_factory=list)
    failed: int = 0

    def summary(self, seconds: float) -> dict[str, float | None]:
        """In milliseconds."""
        ordered = sorted(self.took_s)

        def at(share: float) -> float | None:
            return round(ordered[math.ceil((len(ordered) - 1) * share)] * 1000, 1) if ordered else None

        counts = {"answers": len(ordered), "per_s": round(len(ordered) / seconds, 1), "failed": self.failed}
        return {**counts, "p50_ms": at(0.5), "p99_ms": at(0.99), "max_ms": at(1.0)}


class Connection:
    """One connection that asks again and again."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, path: str) -> None:
        """Ask, and read the whole answer; OSError where it is none of 200."""
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {self._host}:{self._port}\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = next(int(line.partition(":")[2]) for line in head.splitlines() if line.startswith("content-length"))
        await reader.readexactly(length)
        if head.split(" ", 2)[1] != "200":
            raise OSError(head.splitlines()[0])

    def close(self) -> None:
        """Hang up."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def timed(connection: Connection, path: str, answers: Answers) -> None:
    """One question and its answer."""
    began = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE_S):
            await connection.ask(path)
    except (OSError, EOFError, TimeoutError):
        answers.failed += 1
        connection.close()
    else:
        answers.took_s.append(time.perf_counter() - began)


async def probe(host: str, port: int, given: argparse.Namespace) -> Answers:
    """A question whenever one is due."""
    answers, began, asking = Answers(), time.perf_counter(), set()

    async def once() -> None:
        connection = Connection(host, port)
        await timed(connection, "/livez", answers)
        connection.close()

    for number in range(round(given.per_second * given.seconds)):
        await asyncio.sleep(max(0.0, began + number / given.per_second - time.perf_counter()))
        task = asyncio.create_task(once())
        asking.add(task)
        task.add_done_callback(asking.discard)
    await asyncio.gather(*asking)
    return answers


async def flood(host: str, port: int, given: argparse.Namespace) -> Answers:
    """All connections at once, each as fast as it is answered."""
    answers, until = Answers(), time.perf_counter() + given.seconds

    async def endlessly(first: int) -> None:
        connection, number = Connection(host, port), first
        while time.perf_counter() < until:
            await timed(connection, FLOODED[number % len(FLOODED)], answers)
            number += 1
        connection.close()

    await asyncio.gather(*(endlessly(number) for number in range(given.connections)))
    return answers


async def hold(host: str, port: int, given: argparse.Namespace) -> int:
    """All connections at once, each with half of a head; how often one came."""
    until, came = time.perf_counter() + given.seconds, 0

    async def endlessly(number: int) -> None:
        nonlocal came
        await asyncio.sleep(AGAIN_AFTER_S * number / given.half_open)
        while (left := until - time.perf_counter()) > 0:
            with contextlib.suppress(OSError, TimeoutError):
                reader, writer = await asyncio.open_connection(host, port)
                came += 1
                writer.write(f"GET /status HTTP/1.1\r\nHost: {host}".encode())
                with contextlib.suppress(OSError, TimeoutError):
                    async with asyncio.timeout(left):
                        await reader.read()
                writer.close()
            await asyncio.sleep(AGAIN_AFTER_S)

    await asyncio.gather(*(endlessly(number) for number in range(given.half_open)))
    return came


def main() -> None:
    """Read the options, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--per-second", type=float, default=20.0)
    parser.add_argument("--connections", type=int, default=0, help="flood with so many instead of probing")
    parser.add_argument("--half-open", type=int, default=0, help="hold so many half-open connections instead")
    given = parser.parse_args()
    url = urlsplit(given.url)
    assert url.hostname is not None
    assert url.port is not None
    if given.half_open:
        print(json.dumps({"came": asyncio.run(hold(url.hostname, url.port, given))}))
        return
    answers = asyncio.run((flood if given.connections else probe)(url.hostname, url.port, given))
    print(json.dumps(answers.summary(given.seconds)))


if __name__ == "__main__":
    main()
