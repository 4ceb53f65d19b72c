"""A TCP proxy between a service and its broker, which misbehaves when told to.

Owns the thread `proxy` with its event loop, a listening socket on loopback and two sockets a connection. What it does
to bytes is one frozen `Conduct`, which may be replaced at any time and holds for what comes next; what it has done is
counted. The broker has to advertise the proxy's port, or its clients go round it. It ends with its context.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Self

from millrace.app.tools.local_broker.broker import HOST
from millrace.consumers.loop_thread import LoopThread

_PIECE = 16 * 1024
_WITHIN_S = 10.0
_NO_LINGERING = struct.pack("ii", 1, 0)
"""For SO_LINGER: closing sends a reset, not an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conduct:
    """How bytes are treated. The default passes them on."""

    delay_s: float = 0.0
    """What each piece waits, in both directions."""
    bytes_per_s: float | None = None
    """The most that a connection passes on from the broker; None for no limit."""
    swallow: bool = False
    """Accept connections, take what comes over them, and pass nothing on, then or ever."""


@dataclass(slots=True, kw_only=True)
class Deeds:
    """What a proxy has done."""

    connections: int = 0
    delayed: int = 0
    """Pieces that waited."""
    swallowed: int = 0
    """Bytes that were taken and not passed on."""
    reset: int = 0
    """Connections that were reset between two pieces."""
    cut: int = 0
    """Connections that were ended in the middle of what the broker had sent."""


@dataclass(eq=False, slots=True)
class _Link:
    """One connection: the client's end and the broker's."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    deaf: bool = False
    """It passes nothing on: bytes are missing by now, so it never may again."""
    doomed: bool = False
    """It is cut within the next piece that the broker sends."""

    def deafen(self) -> None:
        self.deaf = True

    def doom(self) -> None:
        self.doomed = True

    def reset_if_deaf(self) -> None:
        if self.deaf:
            self.reset()

    def reset(self) -> None:
        for end in (self.client, self.server):
            with suppress(OSError):  # that end is gone already
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGERING)
            end.transport.abort()

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Listens on a port of loopback and forwards to another. A context manager."""

    def __init__(self) -> None:
        self.conduct = Conduct()
        self.deeds = Deeds()
        self._target = 0
        self._loop = LoopThread("proxy")
        self._server: asyncio.Server | None = None
        self._links: list[_Link] = []
        """In the order in which they came."""

    def __enter__(self) -> Self:
        self._loop.start()
        self._server = self._loop.run(asyncio.start_server(self._accept, HOST, 0), _WITHIN_S)
        return self

    def __exit__(self, *_raised: object) -> None:
        assert self._server is not None
        self._loop.call(self._server.close)
        self._each(_Link.reset)
        self._loop.stop(_WITHIN_S)

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    def forward_to(self, port: int) -> None:
        """Set the address to which clients are connected."""
        self._target = port

    def reset_one(self, random: Random) -> None:
        """Reset one of the connections, if there is any."""
        self._loop.run(self._reset_one(random), _WITHIN_S)

    def cut(self) -> None:
        """Cut every connection in the middle of what the broker sends next."""
        self._each(_Link.doom)

    def swallow(self) -> None:
        """Pass nothing on over any connection that there is, for ever; and over new ones, until told otherwise."""
        self.conduct = Conduct(swallow=True)
        self._each(_Link.deafen)

    def pass_on(self) -> None:
        """Behave; what has swallowed something stays deaf, and is reset, so that its client connects anew."""
        self.conduct = Conduct()
        self._each(_Link.reset_if_deaf)

    def _each(self, action: Callable[[_Link], None]) -> None:
        async def act() -> None:
            for link in list(self._links):
                action(link)

        self._loop.run(act(), _WITHIN_S)

    # On the loop.

    async def _reset_one(self, random: Random) -> None:
        if self._links:
            random.choice(self._links).reset()
            self.deeds.reset += 1

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.deeds.connections += 1
        try:
            from_broker, to_broker = await asyncio.open_connection(HOST, self._target)
        except OSError:
            writer.transport.abort()
            return
        link = _Link(writer, to_broker, deaf=self.conduct.swallow)
        self._links.append(link)
        ways = [self._pass_on(link, reader, to_broker), self._pass_on(link, from_broker, writer)]
        try:
            async with asyncio.TaskGroup() as both:
                for way in ways:
                    both.create_task(way)
        except* OSError:
            link.reset()  # whoever is left is not kept waiting for what went with the other
        finally:
            self._links.remove(link)
            link.close()

    async def _pass_on(self, link: _Link, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        from_broker = sink is link.client
        while piece := await source.read(_PIECE):
            if link.deaf:
                self.deeds.swallowed += len(piece)
                continue
            if from_broker and link.doomed:
                sink.write(piece[: max(1, len(piece) // 2)])
                self.deeds.cut += 1
                break
            await self._hold_back(len(piece) if from_broker else 0)
            sink.write(piece)
            await sink.drain()
        link.close()

    async def _hold_back(self, size: int) -> None:
        conduct = self.conduct
        wait_s = conduct.delay_s + (size / conduct.bytes_per_s if conduct.bytes_per_s else 0.0)
        if wait_s:
            self.deeds.delayed += 1
            await asyncio.sleep(wait_s)
