"""What happens to a broker: ended in order, killed, frozen. Each is mended by the same broker, with the same data."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

from millrace.app.tools.local_broker import LocalBroker
from tests.faults.harness.waiting import wait_until


@dataclass(slots=True)
class BrokerStopped:
    """Ended in order, as for an upgrade."""

    broker: LocalBroker
    hits: int = 0

    def begin(self) -> None:
        """SIGTERM."""
        running = self.broker.running()
        self.broker.stop()
        self.hits += running

    def heal(self) -> None:
        """Start it again."""
        self.broker.start()


@dataclass(slots=True)
class BrokerKilled:
    """Ended as a crash does."""

    broker: LocalBroker
    hits: int = 0

    def begin(self) -> None:
        """SIGKILL."""
        running = self.broker.running()
        self.broker.kill()
        self.hits += running

    def heal(self) -> None:
        """Start it again."""
        self.broker.start()


@dataclass(slots=True)
class BrokerPaused:
    """Frozen: its connections stay open, and nobody answers."""

    broker: LocalBroker
    hits: int = 0

    def begin(self) -> None:
        """SIGSTOP."""
        freeze(self.broker.pid)
        self.hits += 1

    def heal(self) -> None:
        """SIGCONT."""
        os.kill(self.broker.pid, signal.SIGCONT)


def freeze(pid: int) -> None:
    """Send SIGSTOP, and wait until every thread of the process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: _standing_still(pid), f"process {pid} stood still", 10)


def _standing_still(pid: int) -> bool:
    stats = [stat.read_text() for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)
