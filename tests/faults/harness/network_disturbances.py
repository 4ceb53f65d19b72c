"""What happens to the network between a service and its broker, by way of a proxy."""

import threading
from dataclasses import dataclass, field
from random import Random

from tests.faults.harness.proxy import Conduct, Proxy

_WITHIN_S = 30.0


@dataclass(slots=True)
class SlowNetwork:
    """Late in both directions, and narrow."""

    proxy: Proxy
    delay_s: float = 0.15
    bytes_per_s: float = 400_000.0
    _before: int = 0

    @property
    def hits(self) -> int:
        """Pieces that waited."""
        return self.proxy.deeds.delayed - self._before

    def begin(self) -> None:
        """Hold back from now on."""
        self._before = self.proxy.deeds.delayed
        self.proxy.conduct = Conduct(delay_s=self.delay_s, bytes_per_s=self.bytes_per_s)

    def heal(self) -> None:
        """Hurry again."""
        self.proxy.pass_on()


@dataclass(slots=True)
class ResettingNetwork:
    """Connections are reset, or cut within an answer, one after the other, at random moments."""

    proxy: Proxy
    seed: int
    longest_pause_s: float = 0.5
    _before: int = 0
    _over: threading.Event = field(default_factory=threading.Event, repr=False)
    _thread: threading.Thread | None = field(default=None, repr=False)

    @property
    def hits(self) -> int:
        """Connections that ended so."""
        return self._ended - self._before

    def begin(self) -> None:
        """Strike from now on."""
        self._before = self._ended
        self._over.clear()
        self._thread = threading.Thread(target=self._strike, name="resetting")
        self._thread.start()

    def heal(self) -> None:
        """Strike no more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join(_WITHIN_S)
        self.proxy.pass_on()

    @property
    def _ended(self) -> int:
        return self.proxy.deeds.reset + self.proxy.deeds.cut

    def _strike(self) -> None:
        random = Random(self.seed)
        while not self._over.wait(random.uniform(0.05, self.longest_pause_s)):
            if random.random() < 0.5:
                self.proxy.reset_one(random)
            else:
                self.proxy.cut()


@dataclass(slots=True)
class HalfOpenNetwork:
    """Connections stay open and nothing comes through: neither an answer nor an end, as when a NAT forgets them.

    Mended, new connections work. The old ones never do again, and nobody tells their owner.
    """

    proxy: Proxy
    _before: int = 0

    @property
    def hits(self) -> int:
        """Bytes that vanished."""
        return self.proxy.deeds.swallowed - self._before

    def begin(self) -> None:
        """Swallow from now on."""
        self._before = self.proxy.deeds.swallowed
        self.proxy.swallow()

    def heal(self) -> None:
        """Let new connections through."""
        self.proxy.conduct = Conduct()
